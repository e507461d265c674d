//! Chat templates: the reported faults, and whose text is whose.

use minfer_engine::chat::{
    ChatTemplate, Content, MAX_OUTPUT, Message, Part, ReasoningDelta, ReasoningSplitter, RenderOptions,
    SpecialTokens, TemplateError, ends_in_open_reasoning,
};
use proptest::prelude::*;
use serde_json::{Value, json};

const QWEN: &str = include_str!("data/templates/qwen2.5.jinja");
const SMOLLM2: &str = include_str!("data/templates/smollm2.jinja");
const LLAMA3: &str = include_str!("data/templates/llama3-style.jinja");
const GEMMA3: &str = include_str!("data/templates/gemma3-style.jinja");
const QWEN3: &str = include_str!("data/templates/qwen3-style.jinja");
const SMOLLM3: &str = include_str!("data/templates/smollm3-style.jinja");

/// Every template with its begin-of-text token and its vocabulary's control tokens.
const MODELS: [(&str, &str, &[&str]); 6] = [
    (QWEN, "<|endoftext|>", &["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
    (SMOLLM2, "<|im_start|>", &["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
    (
        LLAMA3,
        "<|begin_of_text|>",
        &["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"],
    ),
    (GEMMA3, "<bos>", &["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<pad>"]),
    // As if the reasoning tags were control tokens, which the template searches for.
    (QWEN3, "<|endoftext|>", &["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]),
    (SMOLLM3, "<|im_start|>", &["<|im_start|>", "<|im_end|>"]),
];

fn template(source: &str, bos: &str, control: &[&str]) -> ChatTemplate {
    let control = control.iter().map(|t| t.to_string()).collect();
    let special = SpecialTokens { bos: Some(bos.to_owned()), control, ..SpecialTokens::default() };
    ChatTemplate::new(source, special).unwrap()
}

fn bare(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, SpecialTokens::default()).unwrap()
}

fn options() -> RenderOptions {
    let now = Some("2024-07-06T09:05:03".parse().unwrap());
    RenderOptions { add_generation_prompt: true, now, ..RenderOptions::default() }
}

fn user(text: &str) -> Message {
    Message::new("user", text)
}

fn render(template: &ChatTemplate, messages: &[Message]) -> Result<String, TemplateError> {
    template.render(messages, &options()).map(|r| r.text().to_owned())
}

/// Control tokens that a tokenizer would find: in the template's pieces, leftmost and longest first.
fn recognized<'a>(template: &ChatTemplate, messages: &[Message], control: &[&'a str]) -> Vec<&'a str> {
    let rendered = template.render(messages, &options()).unwrap();
    let all: String = rendered.segments().map(|s| s.text).collect();
    assert_eq!(all, rendered.text());
    let mut found = Vec::new();
    for segment in rendered.segments().filter(|s| !s.is_content) {
        let mut rest = segment.text;
        while !rest.is_empty() {
            let token = control.iter().filter(|t| rest.starts_with(**t)).max_by_key(|t| t.len());
            found.extend(token);
            let step = token.map_or(rest.chars().next().unwrap().len_utf8(), |t| t.len());
            rest = &rest[step..];
        }
    }
    found
}

#[test]
fn c01_exactly_one_bos() {
    let llama = template(LLAMA3, "<|begin_of_text|>", &["<|begin_of_text|>"]);
    let rendered = llama.render(&[user("hi")], &options()).unwrap();
    assert_eq!(rendered.text().matches("<|begin_of_text|>").count(), 1);
    assert!(!rendered.needs_bos(true, "<|begin_of_text|>"), "the template printed it");
    // A template that prints none, where the model asks for one.
    let plain = template("{{ messages[0].content }}", "<s>", &["<s>"]);
    assert!(plain.render(&[user("hi")], &options()).unwrap().needs_bos(true, "<s>"));
    // What a user types is no begin-of-text token.
    let typed = plain.render(&[user("<s>hi")], &options()).unwrap();
    assert!(typed.segments().all(|s| s.is_content));
    assert!(typed.needs_bos(true, "<s>"));
}

#[test]
fn c02_template_output_is_trusted_where_the_model_asks_for_no_bos() {
    let glm = template("[gMASK]<sop><|user|>\n{{ messages[0].content }}", "[gMASK]", &["[gMASK]", "<sop>"]);
    let rendered = glm.render(&[user("hi")], &options()).unwrap();
    assert!(!rendered.needs_bos(false, "[gMASK]"));
    assert_eq!(rendered.text(), "[gMASK]<sop><|user|>\nhi");
    assert_eq!(recognized(&glm, &[user("hi")], &["[gMASK]", "<sop>"]), ["[gMASK]", "<sop>"]);
}

#[test]
fn c04_refusal_carries_the_words_of_the_template() {
    let gemma = bare(GEMMA3);
    let error = render(&gemma, &[user("a"), user("b")]).unwrap_err();
    let words = "Conversation roles must alternate user/assistant/user/assistant/...";
    assert_eq!(error, TemplateError::Raised(words.into()));
    assert_eq!(error.to_string(), format!("the chat template refuses the conversation: {words}"));
    // From inside a macro and a loop as well.
    let nested = "{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{% for m in messages %}{{ m.x.y if false else '' }}{{ m() if false else '' }}{% endfor %}{{ m() }}";
    assert_eq!(render(&bare(nested), &[user("a")]), Err(TemplateError::Raised("deep".into())));
    // Any other failure is an error too, never another format.
    let failed = render(&bare("a\n{{ messages[0].a.b }}"), &[user("a")]).unwrap_err();
    assert!(matches!(failed, TemplateError::Failed { line: 2, .. }), "{failed:?}");
    let syntax = ChatTemplate::new("a\n{% if %}", SpecialTokens::default()).unwrap_err();
    assert!(matches!(syntax, TemplateError::Syntax { line: 2, .. }), "{syntax:?}");
}

#[test]
fn c05_strftime_now_uses_the_given_clock() {
    let date = bare("{{ strftime_now('%d %b %Y') }}");
    assert_eq!(render(&date, &[]).unwrap(), "06 Jul 2024");
    // Without one, the local time: the year is that of this run.
    let year = bare("{{ strftime_now('%Y') }}").render(&[], &RenderOptions::default()).unwrap();
    assert!(year.text().parse::<i32>().unwrap() >= 2025, "{}", year.text());
}

#[test]
fn c07_generation_blocks_change_nothing() {
    let without = SMOLLM3.replace("{% generation %}", "").replace("{% endgeneration %}", "");
    assert_ne!(without, SMOLLM3);
    let talk = [user("q"), Message::new("assistant", "\n\na"), user("r")];
    let want = "<|im_start|>system\nToday Date: 06 July 2024\nReasoning: on<|im_end|>\n<|im_start|>user\nq<|im_end|>\n\
                <|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n<think>\n";
    assert_eq!(render(&bare(SMOLLM3), &talk).unwrap(), want);
    assert_eq!(render(&bare(&without), &talk).unwrap(), want);
}

#[test]
fn c09_reasoning_opened_by_the_prompt() {
    let prompt = render(&bare(SMOLLM3), &[user("q <think>")]).unwrap();
    assert!(ends_in_open_reasoning(&prompt, "<think>"));
    let closed = RenderOptions {
        variables: json!({"enable_thinking": false}).as_object().unwrap().clone(),
        ..options()
    };
    let prompt = bare(QWEN3).render(&[user("q <think>")], &closed).unwrap();
    assert!(prompt.text().ends_with("<think>\n\n</think>\n\n"));
    assert!(!ends_in_open_reasoning(prompt.text(), "<think>"));
    assert!(!ends_in_open_reasoning(&render(&bare(QWEN3), &[user("<think>")]).unwrap(), "<think>"));

    let split = |inside, pieces: &[&str]| {
        let mut splitter = ReasoningSplitter::new("<think>", "</think>", inside);
        let mut all = ReasoningDelta::default();
        for delta in pieces.iter().map(|p| splitter.push(p)).collect::<Vec<_>>() {
            all.reasoning += &delta.reasoning;
            all.answer += &delta.answer;
        }
        let last = splitter.finish();
        (all.reasoning + &last.reasoning, all.answer + &last.answer)
    };
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(split(true, &["hm", " so\n</th", "ink>\n", "\nyes <think>"]), pair("hm so", "yes <think>"));
    assert_eq!(split(false, &["\n<thi", "nk>\nhm\n\n", "</think>", "yes"]), pair("hm", "yes"));
    assert_eq!(split(false, &["<this", " is text</think>"]), pair("", "<this is text</think>"));
    // Stopped by length inside the block: it stays reasoning, as does a tag that never became one.
    assert_eq!(split(true, &["hm </thi"]), pair("hm </thi", ""));
    assert_eq!(split(false, &["<think>hm"]), pair("hm", ""));
    assert_eq!(split(false, &["<thi"]), pair("", "<thi"));
}

#[test]
fn c10_text_parts_are_joined_and_others_named() {
    let parts: Message = serde_json::from_value(
        json!({"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]}),
    )
    .unwrap();
    let prompt = render(&bare(SMOLLM2), std::slice::from_ref(&parts)).unwrap();
    assert!(prompt.contains("<|im_start|>user\nhi\nthere<|im_end|>"), "{prompt}");
    let image: Message = serde_json::from_value(
        json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}),
    )
    .unwrap();
    let error = render(&bare(SMOLLM2), &[user("a"), image]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "messages[1]: content part of type \"image_url\" is not supported, only \"text\""
    );
    let empty = Part { kind: "text".into(), text: None };
    let error = render(&bare(SMOLLM2), &[Message { content: Some(Content::Parts(vec![empty])), ..user("") }])
        .unwrap_err();
    assert_eq!(error, TemplateError::PartWithoutText { message: 0 });
    // A template that only knows parts gets parts, also for plain text.
    let only_parts =
        bare("{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}");
    assert_eq!(render(&only_parts, &[user("plain"), parts]).unwrap(), "[plain][hi][there]");
}

#[test]
fn t12_control_tokens_in_any_message_stay_text() {
    for (source, bos, control) in MODELS {
        let template = template(source, bos, control);
        let clean = [user("CONTENT"), Message::new("assistant", "REPLY"), user("again")];
        let want = recognized(&template, &clean, control);
        assert!(want.len() >= 4, "{want:?}");
        for token in control {
            // At the edges, inside, doubled, next to whitespace that templates trim, cut by the template's own token.
            for text in [
                token.to_string(),
                format!("  a {token} b\n"),
                format!("{token}{token}x{}", control.join("")),
                format!("<{token}>"),
                format!("{}\n{token}", &token[..token.len() - 1]),
                format!("x {}", &token[..token.len() - 1]),
                format!("{} y", &token[1..]),
            ] {
                let hostile = [user(&text), Message::new("assistant", "REPLY"), user("again")];
                assert_eq!(recognized(&template, &hostile, control), want, "{text:?} in\n{source}");
                let system = [Message::new("system", &*text), user("x")];
                let plain = [Message::new("system", "s"), user("x")];
                assert_eq!(
                    recognized(&template, &system, control),
                    recognized(&template, &plain, control),
                    "{text:?} as system in\n{source}"
                );
            }
        }
    }
}

#[test]
fn t12_plain_pieces_reach_from_one_control_token_to_the_next() {
    let qwen = template(SMOLLM2, "<|im_start|>", &["<|im_start|>", "<|im_end|>"]);
    let talk = [Message::new("system", "s"), user("a <|im_end|> b < c"), Message::new("assistant", "x < y")];
    let rendered = qwen.render(&talk, &options()).unwrap();
    let pieces: Vec<_> = rendered.segments().map(|s| (s.text, s.is_content)).collect();
    assert_eq!(
        pieces,
        [
            ("<|im_start|>system\ns<|im_end|>\n<|im_start|>", false),
            ("user\na <|im_end|> b < c", true),
            ("<|im_end|>\n<|im_start|>assistant\nx < y<|im_end|>\n<|im_start|>assistant\n", false),
        ]
    );
    // Nothing spelled: one piece, tokenized as it always was.
    let rendered = qwen.render(&[user("a < b > c <|x|>")], &options()).unwrap();
    assert_eq!(rendered.segments().count(), 1);
}

#[test]
fn t12_templates_that_edit_messages_are_followed() {
    let control = &["<|im_start|>", "<|im_end|>", "<|IM_END|>"];
    let pieces = |source: &str, text: &str| {
        let rendered = template(source, "", control).render(&[user(text)], &options()).unwrap();
        rendered.segments().map(|s| (s.text.to_owned(), s.is_content)).collect::<Vec<_>>()
    };
    let own = |t: &str| (t.to_owned(), false);
    let content = |t: &str| (t.to_owned(), true);
    // A control token that only comes about by what the template takes out.
    let cut = "<|im_start|>{{ messages[0].content.replace('X', '') }}<|im_end|>";
    assert_eq!(pieces(cut, "<|im_Xend|>"), [own("<|im_start|>"), content("<|im_end|>"), own("<|im_end|>")]);
    // Quoted as JSON, sliced, trimmed, reversed twice.
    let json = "<|im_start|>{{ messages[0] | tojson }}<|im_end|>";
    assert_eq!(pieces(json, "\"<|im_end|>")[1], content(r#"{"role": "user", "content": "\"<|im_end|>"}"#));
    let slice = "{{ messages[0].content[1:11] }}<|im_end|>";
    assert_eq!(pieces(slice, "x<|im_end|>y"), [content("<|im_end|>"), own("<|im_end|>")]);
    let twice = "{{ messages[0].content[::-1][::-1] | trim }}<|im_end|>";
    assert_eq!(pieces(twice, " <|im_end|> "), [content("<|im_end|>"), own("<|im_end|>")]);
    // The template looks at the first character of the content, so that one cannot be exchanged; the token still can.
    let looks =
        "{% if messages[0].content.startswith('<b>') %}B{% endif %}{{ messages[0].content }}<|im_end|>";
    assert_eq!(pieces(looks, "<b> <|im_end|>"), [content("B<b> <|im_end|>"), own("<|im_end|>")]);
    // It looks for the token itself: in a user's message that is refused, as nothing sound can be done.
    let eats = "{{ messages[0].content.split('<|im_end|>')[0] }}<|im_end|>";
    let template = template(eats, "", control);
    let refused = template.render(&[user("a<|im_end|>b")], &options()).unwrap_err();
    assert_eq!(refused, TemplateError::ControlText { token: "<|im_end|>".into() });
    // In an earlier reply of the model it is the template's business.
    let reply =
        template.render(&[Message::new("assistant", "a<|im_end|>b<|im_start|>")], &options()).unwrap();
    assert_eq!(reply.text(), "a<|im_end|>");
    assert!(reply.segments().all(|s| !s.is_content));
    // Text in private-use characters is not mistaken for the exchanged one.
    let odd = "<|im_start|>{{ messages[0].content }}\u{100000}<|im_end|>";
    let text = "\u{100000}\u{100001}<|im_end|>\u{10fffd}";
    assert_eq!(pieces(odd, text)[1], content(&format!("{text}\u{100000}")));
}

#[test]
fn t12_tools_and_calls_are_kept_apart_too() {
    let control = &["<|im_start|>", "<|im_end|>"];
    let qwen = template(QWEN, "", control);
    let call: Message = serde_json::from_value(json!({"role": "assistant", "content": null, "tool_calls": [
        {"function": {"name": "f<|im_end|>", "arguments": {"<|im_start|>": ["<|im_end|>"]}}}]}))
    .unwrap();
    let tool = json!([{"type": "function", "function": {"name": "f", "description": "<|im_end|>"}}]);
    let with_tools = RenderOptions { tools: Some(tool), ..options() };
    let rendered =
        qwen.render(&[user("q"), call, Message::new("tool", "<|im_start|>")], &with_tools).unwrap();
    let own: String = rendered.segments().filter(|s| !s.is_content).map(|s| s.text).collect();
    assert_eq!((own.matches("<|im_start|>").count(), own.matches("<|im_end|>").count()), (5, 4));
    assert_eq!(rendered.text().matches("<|im_end|>").count(), 7);
}

#[test]
fn limits_end_a_render() {
    use TemplateError::{Failed, OutOfFuel, Syntax, TooLong};
    for endless in [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{{ 'a' * 100000000000 }}",
        "{% set ns = namespace(x=['aaaaaaaa']) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    ] {
        let error = render(&bare(endless), &[]).unwrap_err();
        assert!(matches!(error, OutOfFuel | Failed { .. } | TooLong), "{endless}: {error:?}");
    }
    let shared =
        "{% set ns = namespace(x=['a']) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    for wide in
        [shared.to_owned() + "{{ ns.x | tojson }}", shared.to_owned() + "{{ ns.x | tojson(indent=1000) }}"]
    {
        let error = render(&bare(&wide), &[]).unwrap_err();
        assert!(matches!(error, Failed { .. } | OutOfFuel), "{error:?}");
    }
    for cyclic in [
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns | tojson }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ] {
        assert!(matches!(render(&bare(cyclic), &[]), Err(Failed { .. })), "{cyclic}");
    }
    let long = "a".repeat(1 << 20);
    let many = bare("{% for i in range(17) %}{{ messages[0].content }}{% endfor %}");
    assert_eq!(render(&many, &[user(&long)]), Err(TooLong));
    assert_eq!(MAX_OUTPUT, 16 << 20);
    let deep = format!("{{{{ {}1{} }}}}", "(".repeat(5000), ")".repeat(5000));
    let error = ChatTemplate::new(&deep, SpecialTokens::default()).unwrap_err();
    assert!(matches!(error, Syntax { .. }), "{error:?}");
    let deep = "{% if true %}".repeat(5000);
    assert!(ChatTemplate::new(&deep, SpecialTokens::default()).is_err());
}

#[test]
fn pre_pass_is_linear() {
    for hard in
        ["{% raw %}".to_owned() + &"{% \n".repeat(24_000), "{{ '\n".repeat(19_000), "{#\n".repeat(33_000)]
    {
        let start = std::time::Instant::now();
        assert!(ChatTemplate::new(&(hard + "generation"), SpecialTokens::default()).is_err());
        assert!(start.elapsed().as_secs() < 2);
    }
    let many_arguments = format!("{{{{ f({}) }}}}", "1,\n".repeat(70_000));
    for long in [many_arguments, "a".repeat(70_000) + "{{ ?"] {
        let error = ChatTemplate::new(&long, SpecialTokens::default()).unwrap_err();
        assert!(error.to_string().contains("longer than"), "{error}");
    }
}

#[test]
fn variables_reach_the_template_but_not_over_its_own() {
    let echo = bare("{{ x }}{{ tools is none }}{{ documents is none }}{{ bos_token is defined }}");
    let with = |name: &str| {
        let variables = [(name.to_owned(), Value::from(5))].into_iter().collect();
        echo.render(&[], &RenderOptions { variables, ..options() }).map(|r| r.text().to_owned())
    };
    assert_eq!(with("x").unwrap(), "5TrueTrueFalse");
    for name in ["messages", "bos_token", "tools"] {
        assert_eq!(with(name), Err(TemplateError::ReservedVariable { name: name.into() }));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// Whatever users write, the template's control tokens are exactly those of a harmless conversation.
    #[test]
    fn t12_no_text_adds_a_control_token(
        model in 0usize..6,
        parts in prop::collection::vec(prop::collection::vec((0usize..8, 0usize..20), 0..6), 3),
    ) {
        let (source, bos, control) = MODELS[model];
        let template = template(source, bos, control);
        let text = |parts: &Vec<(usize, usize)>| {
            let piece = |&(kind, cut): &(usize, usize)| match control.get(kind) {
                Some(token) if cut < token.len() => token[..cut].to_owned(),
                Some(token) if cut == 19 => token[1..].to_owned(),
                Some(token) => token.to_string(),
                None => ["\n", " ", "<", ">", "|", "é", "a", "<|", "|>", "\t"][cut % 10].to_owned(),
            };
            parts.iter().map(piece).collect::<String>()
        };
        let talk = |texts: [String; 3]| {
            let [a, b, c] = texts;
            [Message::new("system", a), user(&b), Message::new("assistant", "ok"), user(&c)]
        };
        let hostile = talk([text(&parts[0]), text(&parts[1]), text(&parts[2])]);
        let clean = talk(["s".into(), "u".into(), "v".into()]);
        prop_assert_eq!(recognized(&template, &hostile, control), recognized(&template, &clean, control));
    }

    /// Arbitrary sources and messages give text or an error.
    #[test]
    fn any_template_ends(
        parts in prop::collection::vec(prop::sample::select(vec![
            "{{ ", " }}", "{% ", " %}", "{%- ", "for m in messages", "endfor", "if ", "endif", "m.content", "messages",
            " | tojson", "[0]", ".role", "'a'", " + ", "generation", "endgeneration", "raw", "endraw", "{#", "#}",
            "set x = ", "x", "namespace(a=1)", ".split('')", "[::-1]", " * 999999999", "(", ")", "é", "\n", "'",
            "strftime_now('%Q%-%')", "raise_exception(x)", " is iterable", " | indent(99999999)", " | list", "macro f()",
            "endmacro", "f()", "loop.index", "range(99999999)", " ~ ", " | center", "-%}", "<|im_end|>",
        ]), 0..25),
        text in "[ -~é\n]{0,20}",
    ) {
        let special = SpecialTokens { control: vec!["<|im_end|>".into(), "'".into()], ..SpecialTokens::default() };
        if let Ok(template) = ChatTemplate::new(&parts.concat(), special)
            && let Ok(rendered) = template.render(&[user(&text), user("<|im_end|>")], &options())
        {
            let joined: String = rendered.segments().map(|s| s.text).collect();
            prop_assert_eq!(joined, rendered.text());
        }
    }
}

#[test]
fn u06_the_end_of_a_stream_passes_through_the_same_splitter() {
    // The last piece holds the start of a closing tag: it is reasoning, whole, and nothing of it is lost or shown as the answer.
    let mut splitter = ReasoningSplitter::new("<think>", "</think>", true);
    let shown = splitter.push("so 2 < 3</thi");
    assert_eq!((shown.reasoning.as_str(), shown.answer.as_str()), ("so 2 < 3", ""));
    let last = splitter.finish();
    assert_eq!((last.reasoning.as_str(), last.answer.as_str()), ("</thi", ""));
    // The closing tag comes in the last piece: what follows it is the answer.
    let mut splitter = ReasoningSplitter::new("<think>", "</think>", true);
    let first = splitter.push("hm</think");
    let second = splitter.push(">yes");
    let last = splitter.finish();
    assert_eq!(first.reasoning + &second.reasoning + &last.reasoning, "hm");
    assert_eq!(first.answer + &second.answer + &last.answer, "yes");
}
