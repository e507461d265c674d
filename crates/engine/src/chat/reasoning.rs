//! Telling a model's reasoning from its answer.

/// Whether a prompt ends inside a reasoning block that it opened itself, so that the model's output begins with reasoning
/// and holds only the closing tag.
pub fn ends_in_open_reasoning(prompt: &str, open: &str) -> bool {
    prompt.trim_end().ends_with(open)
}

/// What one piece of output added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReasoningDelta {
    /// Text inside the reasoning block.
    pub reasoning: String,
    /// Text after it.
    pub answer: String,
}

/// Splits streamed text at `<think>` and `</think>`, or other tags.
///
/// Reasoning is what stands between the tags at the very start of the output; without an opening tag there, all is
/// answer. A block that is never closed stays reasoning. Whitespace around the tags is dropped.
#[derive(Debug, Clone)]
pub struct ReasoningSplitter {
    open: String,
    close: String,
    place: Place,
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Start,
    Reasoning,
    /// Behind the closing tag, where whitespace is dropped.
    Between,
    Answer,
}

impl ReasoningSplitter {
    /// A splitter for one reply. `inside`: the prompt already opened the block, see [`ends_in_open_reasoning`].
    pub fn new(open: &str, close: &str, inside: bool) -> Self {
        let place = if inside { Place::Reasoning } else { Place::Start };
        Self { open: open.to_owned(), close: close.to_owned(), place, held: String::new() }
    }

    /// Takes the next piece of text and gives what is certain.
    pub fn push(&mut self, text: &str) -> ReasoningDelta {
        self.held.push_str(text);
        let mut delta = ReasoningDelta::default();
        while self.step(&mut delta) {}
        delta
    }

    /// Ends the reply: what was held back belongs where it stands.
    pub fn finish(&mut self) -> ReasoningDelta {
        let held = std::mem::take(&mut self.held);
        match self.place {
            Place::Reasoning => {
                ReasoningDelta { reasoning: held.trim_end().to_owned(), ..Default::default() }
            }
            Place::Between => ReasoningDelta::default(),
            Place::Start | Place::Answer => ReasoningDelta { answer: held, ..Default::default() },
        }
    }

    /// Handles the held text up to the next change of place; false when nothing more is certain.
    fn step(&mut self, delta: &mut ReasoningDelta) -> bool {
        match self.place {
            Place::Start => {
                let begun = self.held.trim_start();
                if let Some(inside) = begun.strip_prefix(self.open.as_str()) {
                    self.held = inside.trim_start().to_owned();
                    self.place = Place::Reasoning;
                } else if self.open.starts_with(begun) {
                    return false;
                } else {
                    self.place = Place::Answer;
                }
                true
            }
            Place::Reasoning => {
                if let Some(at) = self.held.find(self.close.as_str()) {
                    delta.reasoning.push_str(self.held[..at].trim_end());
                    self.held.drain(..at + self.close.len());
                    self.place = Place::Between;
                    return true;
                }
                // Hold what may become the closing tag, and the whitespace that would be dropped before it.
                let tail = |n: &usize| self.held.ends_with(&self.close[..*n]);
                let ends = (0..self.close.len()).rev().filter(|n| self.close.is_char_boundary(*n));
                let keep = ends.filter(|&n| n == 0 || tail(&n)).max().unwrap_or(0);
                let sure = self.held[..self.held.len() - keep].trim_end().len();
                delta.reasoning.extend(self.held.drain(..sure));
                false
            }
            Place::Between => {
                let skip = self.held.len() - self.held.trim_start().len();
                self.held.drain(..skip);
                if self.held.is_empty() {
                    return false;
                }
                self.place = Place::Answer;
                true
            }
            Place::Answer => {
                delta.answer.push_str(&self.held);
                self.held.clear();
                false
            }
        }
    }
}
