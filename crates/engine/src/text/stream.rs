use super::{EmptyStop, StopMatcher, Utf8Stream};

/// What one piece of output added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delta<'a> {
    /// Text that is certain now; often empty.
    pub text: &'a str,
    /// The stop string that ended the text, as an index into the list; then no further text comes.
    pub stopped: Option<usize>,
}

/// Token bytes in, showable text out: [`Utf8Stream`] followed by [`StopMatcher`].
#[derive(Debug, Clone, Default)]
pub struct TextStream {
    utf8: Utf8Stream,
    stops: StopMatcher,
    // Kept between pieces, so that a piece allocates nothing.
    decoded: String,
    shown: String,
}

impl TextStream {
    /// A stream that ends at any of `stops`.
    ///
    /// # Errors
    /// [`EmptyStop`] for a stop string without text.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self, EmptyStop> {
        Ok(Self { stops: StopMatcher::new(stops)?, ..Self::default() })
    }

    /// Takes the bytes of the next token.
    pub fn push(&mut self, bytes: &[u8]) -> Delta<'_> {
        self.decoded.clear();
        self.shown.clear();
        self.utf8.push(bytes, &mut self.decoded);
        let stopped = self.stops.push(&self.decoded, &mut self.shown);
        Delta { text: &self.shown, stopped }
    }

    /// Ends the text and gives what was held back: an unfinished character as U+FFFD, an unfinished stop string as text.
    /// After a stop there is nothing left.
    pub fn finish(&mut self) -> Delta<'_> {
        self.decoded.clear();
        self.shown.clear();
        self.utf8.finish(&mut self.decoded);
        let stopped = self.stops.push(&self.decoded, &mut self.shown);
        if stopped.is_none() {
            self.stops.finish(&mut self.shown);
        }
        Delta { text: &self.shown, stopped }
    }
}
