/// A stop string without text would stop everything before it begins.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("stop string {index} is empty")]
pub struct EmptyStop {
    /// Its position in the list.
    pub index: usize,
}

/// Finds the first of several stop strings in text that arrives in pieces.
///
/// The stop string that ends first wins; of several that end at the same place, the longest. Everything before its start
/// is let through, and nothing else. Held back is exactly the longest end of the text that could still become a stop
/// string. Time is linear in the text for each stop string, whatever it repeats.
#[derive(Debug, Clone, Default)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    /// Text not yet let through: the longest matched beginning of any pattern.
    held: String,
    stopped: Option<usize>,
}

impl StopMatcher {
    /// A matcher for any of `stops`.
    ///
    /// # Errors
    /// [`EmptyStop`] for a string without text.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self, EmptyStop> {
        match stops.iter().position(|s| s.as_ref().is_empty()) {
            Some(index) => Err(EmptyStop { index }),
            None => Ok(Self {
                patterns: stops.iter().map(|s| Pattern::new(s.as_ref())).collect(),
                ..Self::default()
            }),
        }
    }

    /// Appends to `out` what of `text` can no longer be part of a stop string. Gives the index of the stop string once
    /// one is complete; all later text is dropped.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<usize> {
        if self.stopped.is_some() {
            return self.stopped;
        }
        if self.patterns.is_empty() {
            out.push_str(text);
            return None;
        }
        let first = self.held.len();
        self.held.push_str(text);
        for (at, &byte) in self.held.as_bytes().iter().enumerate().skip(first) {
            let mut found: Option<usize> = None;
            for (index, pattern) in self.patterns.iter_mut().enumerate() {
                let longer = found.is_none_or(|f| pattern.text.len() > f);
                if pattern.advance(byte) && longer {
                    found = Some(pattern.text.len());
                    self.stopped = Some(index);
                }
            }
            if let Some(length) = found {
                out.push_str(&self.held[..at + 1 - length]);
                self.held.clear();
                return self.stopped;
            }
        }
        // A pattern starts with a whole character, so a matched beginning does too.
        let keep = self.patterns.iter().map(|p| p.matched).max().unwrap_or(0);
        let sure = self.held.len() - keep;
        out.push_str(&self.held[..sure]);
        self.held.drain(..sure);
        None
    }

    /// Ends the text: what was held back did not become a stop string.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
        self.patterns.iter_mut().for_each(|p| p.matched = 0);
    }

    /// The stop string found, as an index into the list.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }
}

/// One stop string as a Knuth-Morris-Pratt automaton.
#[derive(Debug, Clone)]
struct Pattern {
    text: Vec<u8>,
    /// `fallback[n]`: the longest proper beginning of the first `n` bytes that they also end with.
    fallback: Vec<usize>,
    matched: usize,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let text = text.as_bytes().to_vec();
        let mut fallback = vec![0; text.len() + 1];
        let mut length = 0;
        for i in 1..text.len() {
            while length > 0 && text[i] != text[length] {
                length = fallback[length];
            }
            length += usize::from(text[i] == text[length]);
            fallback[i + 1] = length;
        }
        Self { text, fallback, matched: 0 }
    }

    /// True where the pattern is complete; it is then not advanced again.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.text[self.matched] != byte {
            self.matched = self.fallback[self.matched];
        }
        self.matched += usize::from(self.text[self.matched] == byte);
        self.matched == self.text.len()
    }
}
