//! Chat templates against Python's jinja2; `data/make_chat_golden.py` made the expectations.

use minfer_engine::chat::{ChatTemplate, Message, RenderOptions, SpecialTokens, TemplateError};
use serde_json::{Map, Value};

fn golden() -> Value {
    serde_json::from_str(include_str!("data/chat_golden.json")).unwrap()
}

fn source(name: &str) -> &'static str {
    match name {
        "qwen2.5" => include_str!("data/templates/qwen2.5.jinja"),
        "smollm2" => include_str!("data/templates/smollm2.jinja"),
        "llama3-style" => include_str!("data/templates/llama3-style.jinja"),
        "gemma3-style" => include_str!("data/templates/gemma3-style.jinja"),
        "qwen3-style" => include_str!("data/templates/qwen3-style.jinja"),
        "smollm3-style" => include_str!("data/templates/smollm3-style.jinja"),
        other => panic!("no template {other}"),
    }
}

fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

/// Text equal, or an error on both sides; where the template itself raised it, with its words.
fn agrees(want: &Value, got: &Result<String, TemplateError>) -> bool {
    match (want["text"].as_str(), got) {
        (Some(text), Ok(got)) => text == got,
        (None, Err(TemplateError::Raised(message))) => {
            want["raised"] == true && want["error"].as_str() == Some(message)
        }
        (None, Err(TemplateError::Syntax { .. } | TemplateError::Failed { .. })) => want["raised"] == false,
        _ => false,
    }
}

#[test]
fn prompts_equal_those_of_python() {
    let golden = golden();
    let prompts = golden["prompts"].as_array().unwrap();
    assert_eq!(prompts.len(), 6 * 7 * 4);
    for prompt in prompts {
        let name = prompt["template"].as_str().unwrap();
        let token = |key| golden["tokens"][name][key].as_str().map(str::to_owned);
        let special =
            SpecialTokens { bos: token("bos_token"), eos: token("eos_token"), ..SpecialTokens::default() };
        let template = ChatTemplate::new(source(name), special).unwrap();
        let messages: Vec<Message> = serde_json::from_value(prompt["messages"].clone()).unwrap();
        let options = RenderOptions {
            add_generation_prompt: prompt["add_generation_prompt"] == true,
            tools: prompt.get("tools").cloned(),
            now: Some(golden["now"].as_str().unwrap().parse().unwrap()),
            variables: object(&prompt["variables"]),
            ..RenderOptions::default()
        };
        let got = template.render(&messages, &options).map(|r| r.text().to_owned());
        assert!(agrees(prompt, &got), "{name}, {}\nwant {prompt:#}\ngot {got:?}", prompt["conversation"]);
    }
}

#[test]
fn snippets_equal_those_of_python() {
    let golden = golden();
    let options = RenderOptions {
        now: Some(golden["now"].as_str().unwrap().parse().unwrap()),
        variables: object(&golden["variables"]),
        ..RenderOptions::default()
    };
    let mut wrong = Vec::new();
    for snippet in golden["snippets"].as_array().unwrap() {
        let source = snippet["source"].as_str().unwrap();
        let got = ChatTemplate::new(source, SpecialTokens::default())
            .and_then(|t| t.render(&[], &options))
            .map(|r| r.text().to_owned());
        if !agrees(snippet, &got) {
            wrong.push(format!("{source}\n  want {snippet}\n  got  {got:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
