//! Finding special tokens in text, in one pass over it.

use aho_corasick::{AhoCorasick, BuildError, MatchKind};

use crate::chars::decode;
use crate::names::Strip;
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

#[derive(Debug)]
struct Matcher {
    automaton: AhoCorasick,
    tokens: Vec<(TokenId, Strip)>,
}

impl SpecialTokens {
    pub(crate) fn new(tokens: &Tokens, strip: impl Fn(&str) -> Strip) -> Result<Self, BuildError> {
        use TokenKind::{Control, Unknown, UserDefined};
        let matcher = |kinds: &[TokenKind]| Matcher::new(tokens, kinds, &strip);
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
                let (id, strip) = tokens[found.pattern()];
                // A token that takes the space behind it may have taken what would have been the next match.
                if found.start() < pos {
                    continue;
                }
                let mut left = &text[pos..found.start()];
                if strip.left {
                    left = trim_end(left);
                }
                if !left.is_empty() {
                    each(Fragment::Text(left));
                }
                each(Fragment::Token(id));
                pos = found.end();
                if strip.right {
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
        strip: &impl Fn(&str) -> Strip,
    ) -> Result<Option<Self>, BuildError> {
        let ids = (0..tokens.len() as u32).zip(&tokens.kinds).filter(|(_, kind)| kinds.contains(kind));
        let (mut found, mut patterns) = (Vec::new(), Vec::new());
        for (id, _) in ids {
            let Some(text) = tokens.text(id).filter(|text| !text.is_empty()) else { continue };
            found.push((id, strip(text)));
            patterns.push(text);
        }
        if patterns.is_empty() {
            return Ok(None);
        }
        let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(patterns)?;
        Ok(Some(Self { automaton, tokens: found }))
    }
}

fn trim_start(mut text: &[u8]) -> &[u8] {
    while let Some(c) = decode(text).filter(|c| c.is_whitespace()) {
        text = &text[c.len_utf8()..];
    }
    text
}

fn trim_end(mut text: &[u8]) -> &[u8] {
    let last = |text: &[u8]| {
        let start = (1..=text.len().min(4)).map(|n| text.len() - n).find(|&i| text[i] & 0xC0 != 0x80)?;
        let c = decode(&text[start..])?;
        (start + c.len_utf8() == text.len() && c.is_whitespace()).then_some(start)
    };
    while let Some(start) = last(text) {
        text = &text[..start];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trims_unicode_space_and_leaves_broken_text() {
        assert_eq!(trim_start(" \t\u{2003}\u{a0}x ".as_bytes()), b"x ");
        assert_eq!(trim_end(" x \t\u{2003}\u{a0}".as_bytes()), b" x");
        assert_eq!(trim_end(b"x\xE2\x80 "), b"x\xE2\x80");
        assert_eq!(trim_end(b"\x80\x80\x80\x80\x80"), b"\x80\x80\x80\x80\x80");
        assert_eq!(trim_start(b"\xE2 "), b"\xE2 ");
        assert_eq!((trim_start(b"  "), trim_end(b"  ")), (&b""[..], &b""[..]));
    }
}
