"""Makes pretokenize.json and encode.json, with encoders that share nothing with ours.

    pip install tokenizers gguf
    python make_vectors.py DIRECTORY_OF_MODELS

The words are cut by the regular expressions that the models publish, run by the `tokenizers` package. The ids come
from its byte-pair encoder for the gpt2 vocabularies, and from merging the best-scored pair again and again for the
SentencePiece one.
"""

import json
import pathlib
import random
import re
import sys

from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, models
from tokenizers import pre_tokenizers as pre

HERE = pathlib.Path(__file__).parent
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPACE = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*"""
)


def split(pattern):
    return pre.Split(Regex(pattern), "isolated")


def cl100k(digits, letter=r"\p{L}", mark=""):
    return (
        CONTRACTION + r"|[^\r\n\p{L}\p{N}]?" + letter + r"+|\p{N}" + digits
        + r"| ?[^\s\p{L}" + mark + r"\p{N}]+[\r\n]*" + SPACE
    )


def o200k(digits, contraction):
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    first = r"[^\r\n\p{L}\p{N}]?"
    return (
        f"{first}{upper}*{lower}+{contraction}|{first}{upper}+{lower}*{contraction}"
        + r"|\p{N}" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACE
    )


BYTE_LEVEL = pre.ByteLevel(add_prefix_space=False, use_regex=True)
PRE = {
    "gpt-2": BYTE_LEVEL,
    "smollm": pre.Sequence([pre.Digits(individual_digits=True), BYTE_LEVEL]),
    "qwen2": split(cl100k("")),
    "qwen35": split(cl100k("", r"[\p{L}\p{M}]", r"\p{M}")),
    "llama-bpe": split(cl100k("{1,3}")),
    "gpt-4o": split(o200k("{1,3}", CONTRACTION + "?")),
    "tekken": split(o200k("", "")),
    "deepseek-v3": pre.Sequence(
        [split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK + SPACE)]
    ),
    "default": pre.Sequence(
        [split(r"[\p{P}\$\+<=>\^~\|]+"), split(GPT2), split(r"\p{N}+"), split("[0-9][0-9][0-9]")]
    ),
}

POOL = (
    list("aabcstdmlrveAZSTLEé") + ["'"] * 4 + list("0123456789") + [" "] * 6 + ["\n"] * 2
    + ["\r", "\t", "\u00a0", "\u3000", "\u2003", "\u0085", "\u000b", "²", "½", "٣", "Ⅷ", "〇"]
    + ["\u0301", "\u20dd", "ั", "ि", "ǅ", "ʰ", "日", "龥", "龦", "ー", "カ", "・", "ぁ", "한", "ع", "ß", "ſ"]
    + ["İ", "\u212a"] + list(".,!?-_/\\#$+<=>^~|`\"()[]{}")
    + ["—", "€", "😊", "🦙", "\u200d", "\u200b", "\0", "\a", "\ufffd", "\ue000", "。", "、"]
)
WRITTEN = [
    "", "1234567", "3.14", "²½", "don't you'll WE'RE I'd 'ſx", "Hello  world", "  \n \n  x", "a\r\n\r\n  b",
    "\t\tx  ", "x   ", "   1 2  33", "FooBarBAZqux's", "ABC日本X", "日A's'LL", "\u0301ABC", "\u0301abc",
    "!/\n//\nx", "foo_bar->baz();", "1½2345x12", "$100,000.00 a+b", "a 1", "カ・カー日本ABC",
    "\0\0a\a b", "#include <a.h>", "x\u00a0y", "'s'S'ſ''s", "ʰʰAʰ ǅǅa", "  日本  ",
]


def make_texts():
    random.seed(7)
    texts = list(WRITTEN)
    while len(texts) < 420:
        length = random.choice([1, 2, 3, 4, 6, 8, 12, 20, 30])
        pool = random.sample(POOL, 6) if random.random() < 0.5 else POOL
        texts.append("".join(random.choice(pool) for _ in range(length)))
    return list(dict.fromkeys(texts))


def field(model, name):
    return model.fields["tokenizer.ggml." + name].contents()


def encode_bpe(model, name, texts):
    tokens, types = field(model, "tokens"), field(model, "token_type")
    vocab = {token: id for id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, [tuple(merge.split(" ")) for merge in field(model, "merges")]))
    to_bytes = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = PRE[name] if name == "smollm" else pre.Sequence([PRE[name], to_bytes])
    user_defined = [AddedToken(t, normalized=False) for t, kind in zip(tokens, types) if kind == 4]
    tokenizer.add_tokens(user_defined)
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


def encode_sentencepiece(model, texts):
    tokens, types, scores = field(model, "tokens"), field(model, "token_type"), field(model, "scores")
    # `</s>` is typed as text but is a control token.
    ids = {t: id for id, (t, kind) in enumerate(zip(tokens, types)) if kind in (1, 4) and t != "</s>"}
    byte_ids = {int(t[3:5], 16): id for id, (t, kind) in enumerate(zip(tokens, types)) if kind == 6}
    user_defined = [t for t, kind in zip(tokens, types) if kind == 4 and t != "</s>"]
    user_defined = re.compile("|".join(map(re.escape, sorted(user_defined, key=len, reverse=True))))

    def merge(text):
        symbols = list(text.replace(" ", "▁"))
        while True:
            pairs = ((ids.get(symbols[i] + symbols[i + 1]), i) for i in range(len(symbols) - 1))
            found = [(-scores[id], i) for id, i in pairs if id is not None]
            if not found:
                break
            _, i = min(found)
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
        for symbol in symbols:
            yield from [ids[symbol]] if symbol in ids else [byte_ids[byte] for byte in symbol.encode()]

    def encode(text):
        out, pos = [], 0
        for match in user_defined.finditer(text):
            out += [*merge(text[pos : match.start()]), ids[match.group()]]
            pos = match.end()
        return out + list(merge(text[pos:]))

    return [encode(text) for text in texts]


def write(name, content):
    lines = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in content.items()]
    (HERE / name).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main():
    texts = make_texts()
    lengths = {}
    for name, pre_tokenizer in PRE.items():
        words = [pre_tokenizer.pre_tokenize_str(text) if text else [] for text in texts]
        lengths[name] = [[end - start for _, (start, end) in text] for text in words]
        assert [sum(text) for text in lengths[name]] == [len(text) for text in texts]
    write("pretokenize.json", {"texts": texts} | lengths)

    models_dir = pathlib.Path(sys.argv[1])
    ids = {}
    for name, encode in {
        "smollm2-135m": lambda model: encode_bpe(model, "smollm", texts),
        "qwen2.5-coder-0.5b": lambda model: encode_bpe(model, "qwen2", texts),
        "gemma3-270m": lambda model: encode_sentencepiece(model, texts),
    }.items():
        ids[name] = encode(GGUFReader(models_dir / f"{name}.gguf"))
    write("encode.json", {"texts": texts} | ids)


if __name__ == "__main__":
    main()
