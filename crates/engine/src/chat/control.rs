//! Finding control tokens in text.

use std::collections::BTreeSet;
use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

/// Beyond this many bytes of spellings, the automaton is the one that takes memory in proportion to them; the quickest
/// one takes up to a kilobyte for each byte.
const MOST_IN_QUICK_AUTOMATON: usize = 4 << 10;

/// The spellings of a vocabulary's control tokens.
#[derive(Debug)]
pub(super) struct ControlTokens {
    texts: Vec<String>,
    matcher: AhoCorasick,
    /// First and last characters of all spellings.
    edges: BTreeSet<char>,
}

impl ControlTokens {
    pub fn new(texts: impl IntoIterator<Item = String>) -> Result<Self, aho_corasick::BuildError> {
        let mut texts: Vec<String> = texts.into_iter().filter(|t| !t.is_empty()).collect();
        texts.sort();
        texts.dedup();
        let bytes: usize = texts.iter().map(String::len).sum();
        let matcher = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .kind((bytes > MOST_IN_QUICK_AUTOMATON).then_some(AhoCorasickKind::ContiguousNFA))
            .build(&texts)?;
        let edges = texts.iter().flat_map(|t| t.chars().next().into_iter().chain(t.chars().last())).collect();
        Ok(Self { texts, matcher, edges })
    }

    pub fn text(&self, index: usize) -> &str {
        &self.texts[index]
    }

    /// All characters that occur in spellings.
    pub fn alphabet(&self) -> BTreeSet<char> {
        self.texts.iter().flat_map(|t| t.chars()).collect()
    }

    pub fn is_edge(&self, c: char) -> bool {
        self.edges.contains(&c)
    }

    /// Every occurrence of every spelling, overlapping ones too, with the index of the spelling.
    pub fn occurrences<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (usize, Range<usize>)> + 'a {
        self.matcher.find_overlapping_iter(text).map(|m| (m.pattern().as_usize(), m.range()))
    }

    /// Unfinished spellings at the start and end of `text` (whitespace aside), which text around it could complete.
    pub fn partial_ends<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (usize, Range<usize>)> + 'a {
        let start = text.len() - text.trim_start().len();
        let end = text.trim_end().len();
        let trimmed = text.trim();
        self.texts.iter().enumerate().flat_map(move |(index, token)| {
            let inner = token.char_indices().map(|(at, _)| at).skip(1);
            inner.flat_map(move |cut| {
                let head = trimmed.ends_with(&token[..cut]).then(|| end - cut..end);
                let tail = trimmed.starts_with(&token[cut..]).then(|| start..start + token.len() - cut);
                [head, tail].into_iter().flatten().map(move |range| (index, range))
            })
        })
    }
}
