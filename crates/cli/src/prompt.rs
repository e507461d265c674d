//! From what a person typed to the prompt's token ids.

use std::io::{self, IsTerminal};

use minfer_engine::chat::{ChatTemplate, Message, RenderOptions, Rendered};
use minfer_engine::{Completion, Engine, EngineError};
use minfer_tokenizer::{Special, TokenId, Tokenizer};

use crate::exit::Failure;
use crate::read;

/// All of standard input.
pub fn standard_input() -> Result<Vec<u8>, Failure> {
    read::all(io::stdin().lock()).map_err(|e| Failure::Input(format!("standard input: {e}")))
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

/// A prompt's text with its ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluated {
    /// The text.
    pub text: String,
    /// Its ids.
    pub ids: Vec<TokenId>,
}

impl Evaluated {
    /// The prompt with its reply. Nothing, where the reply's tokens are more than its text: it was cut at a stop text.
    pub fn then(mut self, engine: &Engine, reply: &Completion) -> Self {
        let bytes = reply.tokens.iter().filter_map(|&id| engine.tokenizer().token_bytes(id));
        if bytes.flatten().copied().ne(reply.text.bytes()) {
            return Self::default();
        }
        self.text.push_str(&reply.text);
        self.ids.extend_from_slice(&reply.tokens);
        self
    }
}

/// The ids of bytes as they are, with BOS first if the model asks.
pub fn raw(engine: &Engine, text: &[u8], special: Special) -> Vec<TokenId> {
    let mut ids = engine.tokenizer().encode_bytes(text, special);
    engine.add_bos(&mut ids);
    ids
}

/// A conversation as the model's template writes it, with the header of a reply at the end.
///
/// What the messages say never becomes a control token. Where the text goes on from `before`, the ids of that are
/// kept: a reply's own tokens need not be those that its text would be cut into.
pub fn conversation(
    engine: &Engine,
    template: &ChatTemplate,
    messages: &[Message],
    before: &Evaluated,
) -> Result<Evaluated, Failure> {
    let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    let rendered = template.render(messages, &options).map_err(EngineError::from)?;
    let text = rendered.text().to_owned();
    let tokenizer = engine.tokenizer();
    if !before.ids.is_empty() && text.starts_with(&before.text) {
        let rest = tokens_from(tokenizer, &rendered, before.text.len());
        // Only a control token is the same whatever stands before it.
        if rest.first().is_none_or(|&id| tokenizer.is_control(id)) {
            return Ok(Evaluated { text, ids: [&before.ids[..], &rest].concat() });
        }
    }
    let mut ids = tokens_from(tokenizer, &rendered, 0);
    let bos = tokenizer.bos().and_then(|id| Some((id, tokenizer.token_text(id)?)));
    if let Some((id, text)) = bos
        && rendered.needs_bos(tokenizer.add_bos(), text)
    {
        ids.insert(0, id);
    }
    Ok(Evaluated { text, ids })
}

/// The ids of what stands behind byte `from` of the text.
fn tokens_from(tokenizer: &Tokenizer, rendered: &Rendered, from: usize) -> Vec<TokenId> {
    let mut ids = Vec::new();
    let mut start = 0;
    for segment in rendered.segments() {
        let text = segment.text.get(from.saturating_sub(start)..).unwrap_or_default();
        let special = if segment.is_content { Special::AsText } else { Special::Parse };
        ids.extend(tokenizer.encode(text, special));
        start += segment.text.len();
    }
    ids
}
