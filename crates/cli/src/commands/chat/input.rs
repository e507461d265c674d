//! What a person types: lines with history on a terminal, plain lines from a pipe.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::config::user_folder;
use crate::exit::Failure;
use crate::progress::{notice, say};
use crate::read;

const FENCE: &str = "\"\"\"";

/// Something typed.
#[derive(Debug, PartialEq)]
pub enum Entry {
    /// A message or a command.
    Text(String),
    /// An empty line, or one given up with Ctrl-C.
    Nothing,
    /// There is no more.
    End,
}

/// Where lines come from.
pub enum Input {
    /// A person, with a file that keeps what was typed.
    Terminal(Box<DefaultEditor>, Option<PathBuf>),
    /// A file or another program.
    Pipe,
}

/// A line, or why there is none.
enum Line {
    Text(String),
    Interrupted,
    End,
}

impl Input {
    /// Standard input; on a terminal with a history if one is wanted.
    pub fn open(with_history: bool) -> Result<Self, Failure> {
        // The editor draws on standard output, which in a pipe carries replies only.
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(Self::Pipe);
        }
        let mut editor = DefaultEditor::new().map_err(failed)?;
        let folder = user_folder("XDG_STATE_HOME", ".local/state").filter(|_| with_history);
        let history = folder.map(|dir| dir.join("minfer").join("history"));
        if let Some(path) = &history
            && path.exists()
            && let Err(error) = editor.load_history(path)
        {
            notice(&format!("cannot read the history {}: {error}", path.display()));
        }
        Ok(Self::Terminal(Box::new(editor), history))
    }

    /// Whether a person is typing.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(..))
    }

    /// The next message or command.
    pub fn next(&mut self) -> Result<Entry, Failure> {
        let entry = assemble(|prompt| self.line(prompt))?;
        if let (Self::Terminal(editor, history), Entry::Text(text)) = (&mut *self, &entry) {
            editor.add_history_entry(text).map_err(failed)?;
            // A history that cannot be kept is no reason to stop talking.
            if let Some(path) = history {
                let _ = path.parent().map(std::fs::create_dir_all);
                let _ = editor.save_history(path);
            }
        }
        Ok(entry)
    }

    fn line(&mut self, prompt: &str) -> Result<Line, Failure> {
        match self {
            Self::Terminal(editor, _) => match editor.readline(prompt) {
                Ok(line) => Ok(Line::Text(line)),
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(ReadlineError::Interrupted) => {
                    say("Ctrl-D or /exit ends the program");
                    Ok(Line::Interrupted)
                }
                Err(error) => Err(failed(error)),
            },
            Self::Pipe => {
                let bytes = read::line(io::stdin().lock()).map_err(|e| failed(e.into()))?;
                if bytes.is_empty() { Ok(Line::End) } else { text(bytes).map(Line::Text) }
            }
        }
    }
}

fn text(mut bytes: Vec<u8>) -> Result<String, Failure> {
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    String::from_utf8(bytes).map_err(|e| {
        Failure::Input(format!("the message is not valid UTF-8 at byte {}", e.utf8_error().valid_up_to()))
    })
}

fn failed(error: ReadlineError) -> Failure {
    Failure::Input(format!("standard input: {error}"))
}

/// One entry from as many lines as it takes.
fn assemble(mut line: impl FnMut(&str) -> Result<Line, Failure>) -> Result<Entry, Failure> {
    let mut text = match line("> ")? {
        Line::Text(text) => text,
        Line::Interrupted => return Ok(Entry::Nothing),
        Line::End => return Ok(Entry::End),
    };
    let fenced = text.trim_start().strip_prefix(FENCE).map(str::to_owned);
    let is_fenced = fenced.is_some();
    if let Some(inner) = fenced {
        text = inner;
    }
    loop {
        let rest = if is_fenced { text.trim_end().strip_suffix(FENCE) } else { text.strip_suffix('\\') };
        match (rest, is_fenced) {
            (Some(rest), true) => {
                text = rest.strip_prefix('\n').unwrap_or(rest).trim_end_matches('\n').to_owned();
                break;
            }
            (Some(rest), false) => text = rest.to_owned(),
            (None, true) => {}
            (None, false) => break,
        }
        match line(". ")? {
            Line::Text(next) => {
                text.push('\n');
                text.push_str(&next);
            }
            Line::Interrupted => return Ok(Entry::Nothing),
            // The end of the input ends the text as well; the next call finds it again.
            Line::End => break,
        }
    }
    if text.trim().is_empty() { Ok(Entry::Nothing) } else { Ok(Entry::Text(text)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(lines: &[&str], wanted: &[Entry]) {
        let mut lines = lines.iter();
        let mut next = || {
            assemble(|_| Ok(lines.next().map_or(Line::End, |line| Line::Text((*line).to_owned())))).unwrap()
        };
        for entry in wanted {
            assert_eq!(next(), *entry);
        }
        assert_eq!(next(), Entry::End);
    }

    #[test]
    fn lines_blocks_and_continuations() {
        let text = |text: &str| Entry::Text(text.to_owned());
        check(&["hi", "", "  ", "/exit"], &[text("hi"), Entry::Nothing, Entry::Nothing, text("/exit")]);
        check(&["a\\", "b\\", "c", "d"], &[text("a\nb\nc"), text("d")]);
        check(&["\"\"\"", "a\\", "", "b", "\"\"\"", "d"], &[text("a\\\n\nb"), text("d")]);
        check(&["\"\"\"a", "b\"\"\""], &[text("a\nb")]);
        check(&["\"\"\"a\"\"\""], &[text("a")]);
        check(&["a\\"], &[text("a")]);
        check(&["\"\"\"a", "b"], &[text("a\nb")]);
    }

    #[test]
    fn t15_a_message_that_is_no_text_is_refused() {
        assert_eq!(text(b"a\r\n".to_vec()).unwrap(), "a");
        assert_eq!(
            text(vec![0x41, 0xFF]).unwrap_err().to_string(),
            "the message is not valid UTF-8 at byte 1"
        );
    }
}
