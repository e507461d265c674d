/// Turns a byte stream into text, holding back an unfinished character.
///
/// Invalid bytes become U+FFFD, one per maximal invalid part, exactly as [`String::from_utf8_lossy`] does on the whole.
#[derive(Debug, Clone, Default)]
pub struct Utf8Stream {
    /// A valid but unfinished start of a character: at most three bytes.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// A stream at a character boundary.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends what `bytes` completes to `out`.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        self.pending.extend_from_slice(bytes);
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    out.push_str(text);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    // `valid_up_to` bytes are valid, so nothing is replaced here.
                    out.push_str(&String::from_utf8_lossy(valid));
                    rest = after;
                    let Some(invalid) = error.error_len() else { break };
                    out.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[invalid..];
                }
            }
        }
        let done = self.pending.len() - rest.len();
        self.pending.drain(..done);
    }

    /// Ends the stream: an unfinished character becomes one U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        if !self.pending.is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
            self.pending.clear();
        }
    }

    /// Whether bytes are held back.
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }
}
