//! Finding special tokens in text, in one pass over it.

use aho_corasick::{AhoCorasick, AhoCorasickKind, BuildError, MatchKind};

use crate::chars::decode;
use crate::tokens::{TokenKind, Tokens};
use crate::{Special, TokenId};

/// Text between special tokens, or one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fragment<'t> {
    /// Text that holds no special token; not empty.
    Text(&'t [u8]),
    /// A special token.
    Token(TokenId),
}

/// Recognizes the special tokens of a vocabulary; of those that begin at the same place, the longest.
#[derive(Debug)]
pub(crate) struct SpecialTokens {
    user_defined: Option<Matcher>,
    all: Option<Matcher>,
}

/// Beyond this many bytes of special tokens, the automaton is the one that takes memory in proportion to them; the
/// quickest one takes up to a kilobyte for each byte.
const MOST_IN_QUICK_AUTOMATON: usize = 4 << 10;

#[derive(Debug)]
struct Matcher {
    automaton: AhoCorasick,
    /// By pattern: the token, and whether it takes the white space behind it.
    tokens: Vec<(TokenId, bool)>,
}

impl SpecialTokens {
    /// `eats_space` says of a spelling whether the white space behind it belongs to the token.
    pub(crate) fn new(tokens: &Tokens, eats_space: impl Fn(&str) -> bool) -> Result<Self, BuildError> {
        use TokenKind::{Control, Unknown, UserDefined};
        let matcher = |kinds: &[TokenKind]| Matcher::new(tokens, kinds, &eats_space);
        Ok(Self { user_defined: matcher(&[UserDefined])?, all: matcher(&[UserDefined, Control, Unknown])? })
    }

    /// Cuts `text` at special tokens: all of them, or only those that text may hold.
    pub(crate) fn split<'t>(&self, text: &'t [u8], special: Special, mut each: impl FnMut(Fragment<'t>)) {
        let matcher = match special {
            Special::Parse => &self.all,
            Special::AsText => &self.user_defined,
        };
        let mut pos = 0;
        if let Some(Matcher { automaton, tokens }) = matcher {
            for found in automaton.find_iter(text) {
                let (id, eats_space) = tokens[found.pattern()];
                // A token that takes the space behind it may have taken what would have been the next match.
                if found.start() < pos {
                    continue;
                }
                if pos < found.start() {
                    each(Fragment::Text(&text[pos..found.start()]));
                }
                each(Fragment::Token(id));
                pos = found.end();
                if eats_space {
                    pos = text.len() - trim_start(&text[pos..]).len();
                }
            }
        }
        if pos < text.len() {
            each(Fragment::Text(&text[pos..]));
        }
    }
}

impl Matcher {
    fn new(
        tokens: &Tokens,
        kinds: &[TokenKind],
        eats_space: &impl Fn(&str) -> bool,
    ) -> Result<Option<Self>, BuildError> {
        let ids = (0..tokens.len() as u32).zip(&tokens.kinds).filter(|(_, kind)| kinds.contains(kind));
        let (mut found, mut patterns) = (Vec::new(), Vec::new());
        for (id, _) in ids {
            let Some(text) = tokens.text(id).filter(|text| !text.is_empty()) else { continue };
            found.push((id, eats_space(text)));
            patterns.push(text);
        }
        if patterns.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self { automaton: automaton(&patterns)?, tokens: found }))
    }
}

fn automaton(patterns: &[&str]) -> Result<AhoCorasick, BuildError> {
    let bytes: usize = patterns.iter().map(|p| p.len()).sum();
    AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .kind((bytes > MOST_IN_QUICK_AUTOMATON).then_some(AhoCorasickKind::ContiguousNFA))
        .build(patterns)
}

fn trim_start(mut text: &[u8]) -> &[u8] {
    while let Some(c) = decode(text).filter(|c| c.is_whitespace()) {
        text = &text[c.len_utf8()..];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trims_unicode_space_and_leaves_broken_text() {
        assert_eq!(trim_start(" \t\u{2003}\u{a0}x ".as_bytes()), b"x ");
        assert_eq!(trim_start(b"\xE2 "), b"\xE2 ");
        assert_eq!(trim_start(b"  "), b"");
    }

    /// Found by fuzzing: a file with few but long special tokens took 500 times its size.
    #[test]
    fn long_special_tokens_take_memory_in_proportion() {
        let long = |n: usize| -> String {
            (0..2000).map(|i: usize| char::from(b'!' + ((i * i * 7 + n * 13 + i * n) % 90) as u8)).collect()
        };
        let patterns: Vec<String> = (0..50).map(long).collect();
        let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
        let found = automaton(&patterns).unwrap();
        assert!(found.memory_usage() < 64 * 50 * 2000, "{} bytes", found.memory_usage());
        assert_eq!(found.kind(), AhoCorasickKind::ContiguousNFA);
        assert_eq!(automaton(&["<|im_end|>", "<|im_start|>"]).unwrap().kind(), AhoCorasickKind::DFA);
        // Negative control: the kind chosen without regard to the length takes far more.
        let quick = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&patterns).unwrap();
        assert!(quick.memory_usage() > 4 * found.memory_usage(), "{} bytes", quick.memory_usage());
    }
}
