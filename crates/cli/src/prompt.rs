//! From what a person typed to the prompt's token ids.

use std::io::{self, IsTerminal, Read};

use minfer_engine::chat::{ChatTemplate, Message, RenderOptions};
use minfer_engine::{Engine, EngineError};
use minfer_tokenizer::{Special, TokenId};

use crate::exit::Failure;

/// All of standard input.
pub fn standard_input() -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let mut input = io::stdin().lock();
    input.read_to_end(&mut bytes).map_err(|e| Failure::Input(format!("standard input: {e}")))?;
    Ok(bytes)
}

/// The text given, else standard input without its last line break.
///
/// Waiting for a person to type would look like hanging, so a terminal is not read.
pub fn text_or_standard_input(text: Option<String>) -> Result<Vec<u8>, Failure> {
    if let Some(text) = text {
        return Ok(text.into_bytes());
    }
    if io::stdin().is_terminal() {
        return Err(Failure::Usage("no prompt: give one as TEXT, with -p, or on standard input".to_owned()));
    }
    let mut bytes = standard_input()?;
    if bytes.ends_with(b"\n") {
        bytes.pop();
        if bytes.ends_with(b"\r") {
            bytes.pop();
        }
    }
    Ok(bytes)
}

/// The ids of a text as it is: control tokens are recognized, any byte is allowed, and BOS comes first if the model asks.
pub fn raw(engine: &Engine, text: &[u8]) -> Vec<TokenId> {
    let mut ids = engine.tokenizer().encode_bytes(text, Special::Parse);
    engine.add_bos(&mut ids);
    ids
}

/// The ids of a conversation, as the model's template writes it, with the header of a reply at the end.
///
/// What the messages say never becomes a control token.
pub fn conversation(
    engine: &Engine,
    template: &ChatTemplate,
    messages: &[Message],
) -> Result<Vec<TokenId>, Failure> {
    let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    let rendered = template.render(messages, &options).map_err(EngineError::from)?;
    let tokenizer = engine.tokenizer();
    let mut ids = Vec::new();
    let bos = tokenizer.bos().and_then(|id| Some((id, tokenizer.token_text(id)?)));
    if let Some((id, text)) = bos
        && rendered.needs_bos(tokenizer.add_bos(), text)
    {
        ids.push(id);
    }
    for segment in rendered.segments() {
        let special = if segment.is_content { Special::AsText } else { Special::Parse };
        ids.extend(tokenizer.encode(segment.text, special));
    }
    Ok(ids)
}
