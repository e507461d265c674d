//! From what a person typed to the prompt's token ids.

use std::io::{self, BufRead, IsTerminal};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use minfer_engine::chat::{ChatTemplate, Message, RenderOptions, Rendered};
use minfer_engine::{Completion, Engine, EngineError};
use minfer_tokenizer::{Special, TokenId, Tokenizer};

use crate::exit::Failure;
use crate::progress::notice;
use crate::read;

/// How long a pipe may stay empty, from the start, before a prompt that is there is taken alone.
const PATIENCE: Duration = Duration::from_millis(500);

/// All of standard input.
pub fn standard_input() -> Result<Vec<u8>, Failure> {
    read::all(io::stdin().lock()).map_err(|e| Failure::Input(format!("standard input: {e}")))
}

/// What is asked: the text given, behind what standard input holds, or either alone.
///
/// Waiting for a person to type would look like hanging, so a terminal is not read.
pub enum Question {
    /// All of it.
    Known(Vec<u8>),
    /// A text, with standard input being read since then.
    Reading(String, Instant, Receiver<io::Result<Vec<u8>>>),
}

impl Question {
    /// Begins to read standard input. Without a text it is read to its end.
    pub fn begin(text: Option<String>) -> Result<Self, Failure> {
        let from_terminal = io::stdin().is_terminal();
        match text {
            Some(text) if from_terminal => Ok(Self::Known(text.into_bytes())),
            Some(text) => Ok(Self::Reading(text, Instant::now(), read_in_the_background())),
            None if from_terminal => {
                Err(Failure::Usage("no prompt: give one as TEXT, with -p, or on standard input".to_owned()))
            }
            None => Ok(Self::Known(without_line_break(standard_input()?))),
        }
    }

    /// All of it. What is piped is waited for to its end, but not its beginning: programs that start others often leave
    /// them a pipe that nobody writes to or closes.
    pub fn finish(self) -> Result<Vec<u8>, Failure> {
        let (text, started, input) = match self {
            Self::Known(bytes) => return Ok(bytes),
            Self::Reading(text, started, input) => (text, started, input),
        };
        let piped = match input.recv_timeout(PATIENCE.saturating_sub(started.elapsed())) {
            // Something comes, or the end; after it comes all of it.
            Ok(begun) => begun.and_then(|_| input.recv().unwrap_or_else(|_| Ok(Vec::new()))),
            Err(_) => {
                notice("standard input stays empty: answering without it");
                Ok(Vec::new())
            }
        };
        let piped = piped.map_err(|e| Failure::Input(format!("standard input: {e}")))?;
        Ok(behind(&text, piped))
    }
}

/// A text behind what was piped, with a blank line between them.
fn behind(text: &str, piped: Vec<u8>) -> Vec<u8> {
    if piped.trim_ascii().is_empty() {
        return text.as_bytes().to_vec();
    }
    [&without_line_break(piped), &b"\n\n"[..], text.as_bytes()].concat()
}

/// Reads standard input; sends once when its first byte or its end is there, and then all of it.
fn read_in_the_background() -> Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        let begun = loop {
            match input.fill_buf() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                begun => break begun.map(|_| Vec::new()),
            }
        };
        // Nobody may be waiting any more.
        let _ = sender.send(begun);
        let _ = sender.send(read::all(input));
    });
    receiver
}

fn without_line_break(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.ends_with(b"\n") {
        bytes.pop();
        if bytes.ends_with(b"\r") {
            bytes.pop();
        }
    }
    bytes
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_piped_comes_first_then_a_blank_line_and_the_text() {
        let behind = |piped: &str| String::from_utf8(behind("Sum it up.", piped.into())).unwrap();
        assert_eq!(behind("a\nb\r\n"), "a\nb\n\nSum it up.");
        assert_eq!(behind("a"), "a\n\nSum it up.");
        for nothing in ["", "\n", " \r\n"] {
            assert_eq!(behind(nothing), "Sum it up.");
        }
    }
}
