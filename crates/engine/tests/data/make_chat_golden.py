#!/usr/bin/env python3
"""Writes chat_golden.json: prompts and snippets rendered by Python's jinja2, set up as Hugging Face transformers does.

Run with jinja2 3.1 in the folder of this file. The times are fixed; nothing else varies.
"""
import datetime
import json
import pathlib

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime(2024, 7, 6, 9, 5, 3, 42)


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return CallBlock(self.call_method("_keep"), [], [], body).set_lineno(line)

    def _keep(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
env.globals["strftime_now"] = NOW.strftime

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather at a place, in °C. <b>Not</b> for \"yesterday\".",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {}}},
]


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(name, arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def system(text):
    return {"role": "system", "content": text}


CONVERSATIONS = {
    "hello": [user("Hello!")],
    "system": [system("  You are terse.\n"), user("  Who are you? \n")],
    "turns": [user("1+1?"), assistant("2"), user("And 2+2?"), assistant("\n\n4\n"), user("Thanks “très” 谢谢 🦙")],
    "two users": [user("a"), user("b")],
    "code": [user("```html\n<b>bold</b> {{ x }} {% raw %}\n```"), assistant("if a < b && c > d:"), user("")],
    "thought": [user("q"), assistant("<think>\nhm\n</think>\n\nanswer"), user("more"), assistant("<think>\nlast\n</think>\n\nyes")],
    "tools": [
        user("Weather in Zürich?"),
        assistant(None, tool_calls=[call("get_weather", {"city": "Zürich", "days": 2, "exact": 1.0, "x": None})]),
        {"role": "tool", "content": "21 \u00b0C", "name": "get_weather"},
        assistant("21 °C."),
        user("Thanks"),
    ],
}
TOKENS = {
    "qwen2.5": {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"},
    "smollm2": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
    "llama3-style": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    "gemma3-style": {"bos_token": "<bos>", "eos_token": "<eos>"},
    "qwen3-style": {"eos_token": "<|im_end|>"},
    "smollm3-style": {"eos_token": "<|im_end|>"},
}
VARIANTS = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False},
    {"add_generation_prompt": True, "tools": TOOLS},
    {"add_generation_prompt": True, "variables": {"enable_thinking": False, "reasoning": False, "date_string": "1 Jan"}},
]

# Expressions and blocks, each with the variables below.
VARIABLES = {
    "s": "  Hello, World\n",
    "d": {"b": 1, "a": [1, 2.0, True, None, "é\"\\\n\u0001/<>&'\u007f🦙"], "c": {}},
    "l": ["x", "y", "z"],
    "n": 7,
    "f": [0.1, 1e16, 1e-7, 100.0, 2.5e300, 1.0, 123456789.125],
    "objects": [{"k": "a", "v": 1}, {"k": "b", "v": 2}, {"k": "a", "v": 3}],
}
SNIPPETS = [
    "{{ d | tojson }}",
    "{{ d | tojson(indent=2) }}",
    "{{ d | tojson(indent=4, ensure_ascii=True) }}",
    "{{ d | tojson(ensure_ascii=True) }}",
    "{{ d | tojson(sort_keys=True) }}",
    "{{ d | tojson(separators=(',', ':')) }}",
    "{{ d | tojson(False, 1, ('; ', '= '), True) }}",
    "{{ d | tojson(indent='\t') }}",
    "{{ d | tojson(indent=0) }}",
    "{{ f | tojson }}",
    "{{ [] | tojson }}{{ {} | tojson(indent=2) }}{{ [[], {}] | tojson(indent=2) }}",
    "{{ n | tojson }} {{ none | tojson }} {{ true | tojson }} {{ 'a' | tojson }} {{ (1, 'b') | tojson }}",
    "{{ {'k': {1: 2, true: 3}} | tojson }}",
    "{{ s.strip() }}|{{ s.lstrip() }}|{{ s.rstrip() }}|{{ s | trim }}|{{ s.strip(' H\\n') }}",
    "{{ s.split() }}|{{ 'a,b,,c'.split(',') }}|{{ 'a,b,c'.split(',', 1) }}|{{ 'a,b,c'.rsplit(',', 1) }}",
    "{{ 'a b'.split(' ')[-1] }}{{ 'key=value=x'.partition('=')[2] }}{{ 'key=value=x'.rpartition('=')[0] }}",
    "{{ s.upper() }}{{ s.lower() }}{{ 'abc def'.title() }}{{ 'abc'.capitalize() }}",
    "{{ s.startswith('  H') }} {{ s.endswith('d') }} {{ s.find('W') }} {{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }}",
    "{{ 'prefix-x'.removeprefix('prefix-') }}{{ 'x.py'.removesuffix('.py') }}{{ 'x'.removesuffix('y') }}",
    "{{ 'a' in s }} {{ 'World' in s }} {{ 'x' in l }} {{ 'b' in d }} {{ 'q' not in d }}",
    "{{ d.items() | list | length }} {{ d.get('b') }} {{ d.get('q', 5) }} {{ d.get('q') }} {{ d.keys() | list }}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d | dictsort %}{{ k }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}",
    "{{ l[1:] }} {{ l[::-1] }} {{ l[-1] }} {{ l[:-1] }} {{ s[2:7] }} {{ s[-3:] }} {{ l[5:] }} {{ s[::-1] }}",
    "{{ l | join(', ') }} {{ ', '.join(l) }} {{ l | first }} {{ l | last }} {{ l | length }} {{ l | reverse | list }}",
    "{{ n // 2 }} {{ n / 2 }} {{ n % 4 }} {{ n ** 2 }} {{ -n }} {{ 1.0 }} {{ 2 * 1.5 }} {{ n == 7.0 }}",
    "{{ true }} {{ false }} {{ none }} {{ undefined_name }} {{ [true, none, 'a', 1.5] }} {{ {'a': 'b'} }} {{ 'a' ~ 1 ~ none ~ true }}",
    "{{ x is defined }} {{ n is number }} {{ s is string }} {{ l is iterable }} {{ d is mapping }} {{ l is sequence }} {{ none is none }} {{ true is true }} {{ n is odd }} {{ n is divisibleby 7 }}",
    "{{ objects | selectattr('k', 'equalto', 'a') | map(attribute='v') | list }} {{ objects | rejectattr('k', 'equalto', 'a') | list }} {{ objects | map(attribute='k') | unique | join }}",
    "{{ objects | sum(attribute='v') }} {{ [3, 1, 2] | sort }} {{ [3, 1, 2] | max }} {{ objects | sort(attribute='k', reverse=true) | map(attribute='v') | list }}",
    "{{ 'a\\nb\\n\\nc' | indent(4) }}|{{ 'a\\nb' | indent(2, true) }}|{{ 3.7 | int }} {{ '5' | int + 1 }} {{ '1.5' | float }} {{ 5 | string + 'x' }} {{ 2.567 | round(2) }}",
    "{{ q | default('none given') }} {{ '' | default('empty', true) }} {{ 'yes' if n > 5 else 'no' }} {{ 'only' if false }}",
    "{% set ns = namespace(c=0, t='') %}{% for x in l %}{% set ns.c = ns.c + 1 %}{% set ns.t = ns.t ~ x %}{% endfor %}{{ ns.c }}{{ ns.t }}",
    "{% set x = 1 %}{% for i in l %}{% set x = 2 %}{% endfor %}{{ x }}",
    "{% set block %}\n  inner {{ n }}\n{% endset %}[{{ block }}]",
    "{% macro m(a, b='B', c=none) %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(a=3, c=4) }}{{ m('x') | length }}",
    "{% for x in l %}{% if x == 'y' %}{% continue %}{% endif %}{{ loop.index }}{{ x }}{% if loop.last %}!{% endif %}{% endfor %}",
    "{% for x in l %}{% if x == 'z' %}{% break %}{% endif %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.length }}{{ loop.first }}{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{% else %}none{% endfor %}{% for x in [] %}{% else %}empty{% endfor %}",
    "{% for x in l if x != 'y' %}{{ x }}{{ loop.index }}{% endfor %}",
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n\n",
    "a\n  {%- if true -%}\n  b\n  {%- endif %}\nc",
    "a\n  {%+ if true +%}\n  b\n  {%+ endif %}\nc",
    "a {# comment #} b {#- x -#} c\n{# whole line #}\nd",
    "{{ 'x' }}\n{{ 'y' -}}\n  z",
    "{% raw %}{{ not }} {% generation %}{% endraw %}",
    "a\n  {% generation %}\n  b {{ n }}\n  {% endgeneration %}\nc",
    "{% set x = 'out' %}{%- generation -%} {% set x = 'in' %}{{ x }} {%- endgeneration -%} {{ x }}",
    "{% for x in l %}{% generation %}{{ x }}{{ loop.index }}{% endgeneration %}{% endfor %}",
    "{% call(x) wrap() %}{{ x }}{% endcall %}{% macro wrap() %}[{{ caller(1) }}]{% endmacro %}",
    "{% macro wrap() %}[{{ caller(n) }}]{% endmacro %}{% call(x) wrap() %}{{ x + 1 }}{% endcall %}",
    "{% filter upper %}abc{{ n }}{% endfilter %}{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}",
    "{{ '%s-%d' | format('a', 3) }} {{ '{}:{}'.format('a', 1) }} {{ 'abc' | replace('b', 'X') }} {{ 'ab' * 3 }} {{ [1] + [2] }}",
    "{{ s | length }} {{ '🦙é'|length }} {{ '🦙é'[0] }} {{ 'aXbX'.count('X') }} {{ 'a\\nb\\n'.splitlines() }} {{ '12'.isdigit() }}",
    "{{ none is iterable }} {{ n is iterable }} {{ s is iterable }} {{ q is iterable }} {{ d is iterable }} {{ true is iterable }} {{ d.items() is iterable }}",
    "{{ none is sequence }} {{ d is sequence }} {{ s is sequence }} {{ l is sequence }} {{ n is sequence }} {{ l is mapping }} {{ none is mapping }} {{ q is mapping }}",
    "{{ 1 is integer }} {{ 1.0 is integer }} {{ 1.0 is float }} {{ true is boolean }} {{ true is number }} {{ 1 is boolean }} {{ 'a' is lower }}",
    "{{ none == q }} {{ 'a' < 'b' }} {{ l == ['x', 'y', 'z'] }} {{ 1 == true }} {{ '1' == 1 }} {{ none == false }} {{ d == {'b': 1} }} {{ n in [1, 7] }}",
    "{{ (n, 1)[0] }} {{ dict(a=1) }} {{ range(3) | list }} {{ range(1, 6, 2) | list }} {{ (1, 2) }} {{ (1,) }}",
    "{{ [\"it's\", 'q\"'] }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7.5 // 2 }} {{ 10 ** 20 }} {{ 1e3 }} {{ 123456789012345678901234567890 }}",
    "{{ 'abc' | list }} {{ d | length }} {{ d | list }} {{ '<b>' | e }} {{ s | safe | trim }} {{ loop is defined }} {{ 'a' is not defined }}",
    "{{ '\\u00e9\\x41\\t\\\\n' }} {{ \"\\'\" }} {{ 'a' if n else 'b' }} {{ not l }} {{ not [] }} {{ l and n }} {{ none or 'x' }} {{ '' or q or 0 }}",
    "{{ l[7] }}|{{ l[7] is defined }}|{{ d['zz'] }}|{{ d.zz is defined }}|{{ d['zz'] is none }}|{{ s.zz is defined }}",
    "{{ l[1:2][0] }}{{ objects[0]['k'] }}{{ objects[-1].v }}{{ (objects | last).k }}{{ objects | length - 1 }}",
    "{%- for o in objects | groupby('k') %}{{ o.grouper }}:{{ o.list | map(attribute='v') | join('+') }};{% endfor %}",
    "{% for x in l recursive %}{{ x }}{% endfor %}{% for a, b in [[1, 2], [3, 4]] %}{{ a }}{{ b }}{% endfor %}{% set a, b = 5, 6 %}{{ a }}{{ b }}",
    "{{ 'abc' | truncate(2) }}",
    "{{ [1, [2, {'a': none}]] }} {{ 'a\nb' }} {{ ['a\nb', 'é🦙'] }} {{ l | string }} {{ d.c | string }}",
    "{{ l | map('upper') | list }} {{ l | select('equalto', 'x') | list }} {{ [1, 2, 3, 4] | select('odd') | list }} {{ ['', 'a'] | select | list }} {{ objects | map(attribute='q', default=0) | list }}",
    "{{ l | batch(2) | list }} {{ [1, 2, 3] | slice(2) | list }} {{ {'a': 1} | items | list }} {{ [[1, 2]] | list }}",
    "{{ s[0] }}{{ s[:0] }}{{ s[100:] }}|{{ s[::2] }}|{{ l[::2] }}|{{ l[2:0:-1] }}|{{ s | list | length }}",
    "{{ 5 | abs }} {{ -5 | abs }} {{ 3.0 | int }} {{ '12' | int }} {{ true | int }} {{ 10 | float }}",
    "{{ {'a': 1, **{}} }}",
    "{{ 'a' in none }}",
    "{{ n.foo }}|{{ none.foo is defined }}|{{ s['foo'] is defined }}",
    "{{ s.foo() }}",
    "{{ 3 + 'a' }}",
    "{{ 'a' + 3 }}",
    "{{ 'a' % 3 }}",
    "{% do l.append(1) %}",
    "{% set l2 = l + ['w'] %}{{ l2 | length }}{% set d2 = dict(d, z=1) %}{{ d2 | length }}{% if 'z' in d2 %}z{% endif %}",
    "{% if n > 5 and n < 10 and not (n == 8) %}in{% elif n %}else{% endif %}{% if 5 < n < 10 %}chained{% endif %}",
    "{{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%d %b %Y') }} {{ strftime_now('%A, %B %d, %Y') }}",
    "{{ strftime_now('%H:%M:%S.%f %I %p %j %U %W %V %G %u %w %y %C %%') }}",
    "{{ strftime_now('%c|%x|%X|%r|%R|%T|%D|%F|%h|%e|%k|%l|%n|%t|%-d|%-m|%_d|%^a|%z|%Z|%a') }}",
    "{{ strftime_now('') }}{{ strftime_now('é 🦙 %d') }}",
    "{{ raise_exception('no ' ~ n) }}",
    "{{ missing.attribute }}",
    "{{ none + 'a' }}",
    "{{ 1 / 0 }}",
    "{{ l.append('q') }}",
    "{{ 'a'.split('') }}",
    "{{ undefined_function() }}",
    "{{ 'a' | undefined_filter }}",
    "{% unknown_tag %}",
    "{% if %}",
    "{{ d | tojson(indent=missing.x) }}",
    "{{ namespace | tojson }}",
]


def outcome(render):
    try:
        return {"text": render()}
    except jinja2.exceptions.TemplateError as error:
        return {"error": str(error), "raised": type(error) is jinja2.exceptions.TemplateError}
    except Exception as error:  # Python's own errors, such as ZeroDivisionError
        return {"error": str(error), "raised": False}


prompts = []
for name, tokens in TOKENS.items():
    template = env.from_string((HERE / "templates" / f"{name}.jinja").read_text())
    for label, messages in CONVERSATIONS.items():
        for variant in VARIANTS:
            variables = variant.get("variables", {})
            rendered = outcome(
                lambda: template.render(
                    messages=messages,
                    tools=variant.get("tools"),
                    documents=None,
                    add_generation_prompt=variant["add_generation_prompt"],
                    **tokens,
                    **variables,
                )
            )
            prompts.append({"template": name, "conversation": label, "messages": messages, **variant, **rendered})
snippets = [
    {"source": source, **outcome(lambda: env.from_string(source).render(**VARIABLES))} for source in SNIPPETS
]
golden = {
    "now": NOW.isoformat(),
    "tokens": TOKENS,
    "prompts": prompts,
    "variables": VARIABLES,
    "snippets": snippets,
}
(HERE / "chat_golden.json").write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n")
