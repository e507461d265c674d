use std::ops::Range;

/// A piece of a prompt that is tokenized in one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Its text.
    pub text: &'a str,
    /// True: tokenize as plain text, because a control token spelled here came from a message. False: the control
    /// tokens spelled here are the template's, tokenize them as such.
    pub is_content: bool,
}

/// A prompt, with the places known where control tokens must not be recognized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    text: String,
    /// Ascending, disjoint, not empty, on character boundaries.
    content: Vec<Range<usize>>,
}

impl Rendered {
    pub(super) fn new(text: String, content: Vec<Range<usize>>) -> Self {
        Self { text, content }
    }

    /// The whole prompt.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The prompt in pieces, in order. Tokenize each on its own and concatenate the ids.
    ///
    /// A plain piece reaches from one control token of the template to the next, so that the cuts change no other token.
    /// A prompt in which no message spells a control token is one piece.
    pub fn segments(&self) -> impl Iterator<Item = Segment<'_>> {
        let ends = self.content.iter().map(|r| r.start).chain([self.text.len()]);
        let starts = [0].into_iter().chain(self.content.iter().map(|r| r.end));
        let between = starts.zip(ends).map(|(start, end)| (start..end, false));
        let mut content = self.content.iter().map(|r| (r.clone(), true));
        between
            .flat_map(move |gap| [Some(gap), content.next()])
            .flatten()
            .filter(|(range, _)| !range.is_empty())
            .map(|(range, is_content)| Segment { text: &self.text[range], is_content })
    }

    /// Whether the tokenizer must put a begin-of-text token in front: only where the model asks for one (`add_bos`) and
    /// the template did not print it. What the template printed is never taken away.
    pub fn needs_bos(&self, add_bos: bool, bos: &str) -> bool {
        let printed = self.segments().next().is_some_and(|s| !s.is_content && s.text.starts_with(bos));
        add_bos && (bos.is_empty() || !printed)
    }
}
