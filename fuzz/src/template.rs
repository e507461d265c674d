//! Chat templates from strangers, and strangers' messages through the templates of real models.

use std::sync::LazyLock;

use minfer_engine::chat::{
    ChatTemplate, MAX_OUTPUT, Message, RenderOptions, Rendered, SpecialTokens, TemplateError,
};
use serde_json::json;

use super::memory;

macro_rules! source {
    ($name:literal) => {
        include_str!(concat!("../../crates/engine/tests/data/templates/", $name, ".jinja"))
    };
}

/// A template with its vocabulary's control tokens, the begin-of-text token first.
struct Real {
    template: ChatTemplate,
    control: &'static [&'static str],
    /// What the template searches messages for: text with any of these changes its course.
    looks_for: &'static [&'static str],
}

static REAL: LazyLock<Vec<Real>> = LazyLock::new(|| {
    let real = |source, control: &'static [&'static str], looks_for| {
        let template =
            ChatTemplate::new(source, special(control)).unwrap_or_else(|e| panic!("{e}:\n{source}"));
        Real { template, control, looks_for }
    };
    vec![
        real(source!("qwen2.5"), &["<|endoftext|>", "<|im_start|>", "<|im_end|>"], &[]),
        real(source!("smollm2"), &["<|im_start|>", "<|im_end|>", "<|endoftext|>"], &[]),
        real(
            source!("llama3-style"),
            &["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"],
            &[],
        ),
        real(source!("gemma3-style"), &["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<pad>"], &[]),
        // As if the reasoning tags were control tokens.
        real(
            source!("qwen3-style"),
            &["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"],
            &["<tool_response>", "</think>"],
        ),
        real(source!("smollm3-style"), &["<|im_start|>", "<|im_end|>"], &[]),
    ]
});

fn special(control: &[&str]) -> SpecialTokens {
    let text = |t: &&str| (*t).to_owned();
    SpecialTokens {
        bos: control.first().map(text),
        eos: control.last().map(text),
        control: control.iter().map(text).collect(),
        ..SpecialTokens::default()
    }
}

/// Messages at most: more of them find nothing that fewer do not.
const MESSAGES: usize = 8;

/// How far an input came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// The template compiled.
    pub compiled: bool,
    /// It gave a prompt.
    pub rendered: bool,
    /// The prompt holds text of a message that spells a control token.
    pub kept_apart: bool,
}

/// `data` is a template, or the number of a real one, and then role and content of each message, all divided by NUL.
pub fn run(data: &[u8]) -> Reached {
    let mut fields = data.split(|&b| b == 0).map(String::from_utf8_lossy);
    let source = fields.next().unwrap_or_default();
    let mut messages = Vec::new();
    while let (Some(role), true) = (fields.next(), messages.len() < MESSAGES) {
        messages.push((role, fields.next().unwrap_or_default()));
    }
    let number = source.parse::<usize>().ok().filter(|_| source.len() == 1);
    // Fuel bounds what a render holds. It may be run for a second time while its first output is kept.
    memory::within_in_all_threads(512 << 20, "the template", || match number.and_then(|n| REAL.get(n)) {
        Some(real) => run_real(real, &messages),
        None => run_custom(&source, &messages),
    })
}

fn options() -> RenderOptions {
    let now = Some("2024-07-06T09:05:03".parse().expect("a time"));
    RenderOptions { add_generation_prompt: true, now, ..RenderOptions::default() }
}

fn run_custom(source: &str, messages: &[(impl AsRef<str>, impl AsRef<str>)]) -> Reached {
    // Not fuzzed, see README.md: what a namespace gathers can be nested without end, and share its parts.
    if source.contains("namespace") {
        return Reached::default();
    }
    let control = ["<s>", "<|im_start|>", "<|im_end|>", "</s>"];
    let Ok(template) = ChatTemplate::new(source, special(&control)) else { return Reached::default() };
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"a": [1, 2.5, null]}}});
    let options = RenderOptions {
        tools: (messages.len() % 2 == 1).then(|| json!([tool])),
        variables: [("enable_thinking".to_owned(), true.into())].into_iter().collect(),
        ..options()
    };
    let messages: Vec<_> = messages.iter().map(|(r, c)| Message::new(r.as_ref(), c.as_ref())).collect();
    let rendered = template.render(&messages, &options).ok();
    if let Some(rendered) = &rendered {
        check_segments(rendered, &control);
    }
    Reached {
        compiled: true,
        rendered: rendered.is_some(),
        kept_apart: rendered.is_some_and(|r| r.segments().any(|s| s.is_content)),
    }
}

/// the rule of case t12 for what users type: the control tokens of the prompt are those of the same conversation without any
/// character that begins or ends a control token.
fn run_real(real: &Real, messages: &[(impl AsRef<str>, impl AsRef<str>)]) -> Reached {
    let conversation = |edit: &dyn Fn(&str) -> String| -> Vec<_> {
        let role = |text: &str| match text.bytes().next().unwrap_or_default() % 4 {
            0 => "tool",
            1 => "assistant",
            2 => "user",
            _ => "system",
        };
        messages.iter().map(|(r, c)| Message::new(role(r.as_ref()), edit(c.as_ref()))).collect()
    };
    let looked_for =
        messages.iter().any(|(_, c)| real.looks_for.iter().any(|what| c.as_ref().contains(what)));
    let hostile = real.template.render(&conversation(&str::to_owned), &options());
    let harmless = real.template.render(&conversation(&|text| text.replace(['<', '>'], "x")), &options());
    match (&hostile, &harmless) {
        (Ok(hostile), Ok(harmless)) => {
            check_segments(hostile, real.control);
            check_segments(harmless, real.control);
            if !looked_for {
                let [got, want] = [hostile, harmless].map(|r| recognized(r, real.control));
                assert_eq!(
                    got,
                    want,
                    "messages changed the control tokens of the prompt {:?}",
                    hostile.text()
                );
            }
        }
        (Err(TemplateError::ControlText { .. }), Ok(_)) if looked_for => {}
        (Err(a), Err(b)) => assert_eq!(a, b),
        (a, b) => panic!("one is refused, the other not: {a:?}, {b:?}"),
    }
    Reached {
        compiled: true,
        rendered: hostile.is_ok(),
        kept_apart: hostile.is_ok_and(|r| r.segments().any(|s| s.is_content)),
    }
}

fn check_segments(rendered: &Rendered, control: &[&str]) {
    let joined: String = rendered.segments().map(|s| s.text).collect();
    assert_eq!(joined, rendered.text());
    assert!(rendered.text().len() <= MAX_OUTPUT);
    assert!(rendered.segments().all(|s| !s.text.is_empty()));
    for content in rendered.segments().filter(|s| s.is_content) {
        let spelled = control.iter().any(|t| content.text.contains(t));
        assert!(spelled, "set apart though no control token is in it: {:?}", content.text);
    }
    // True or false, whatever the text.
    rendered.needs_bos(true, control[0]);
}

/// The control tokens that a tokenizer finds in what is the template's own: leftmost, and of those the longest.
fn recognized<'a>(rendered: &Rendered, control: &[&'a str]) -> Vec<&'a str> {
    let mut found = Vec::new();
    for segment in rendered.segments().filter(|s| !s.is_content) {
        let mut rest = segment.text;
        while let Some(c) = rest.chars().next() {
            let token = control.iter().filter(|t| rest.starts_with(**t)).max_by_key(|t| t.len());
            found.extend(token);
            rest = &rest[token.map_or(c.len_utf8(), |t| t.len())..];
        }
    }
    found
}
