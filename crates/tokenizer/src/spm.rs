//! SentencePiece-style encoding: characters are merged into ever larger pieces, the best-scored first, and what
//! is left over is spelled out in bytes.

use crate::chars::decode;
use crate::error::{Error, Warning};
use crate::merge::{MAX_WORD, Merge, Merger, NO_TOKEN, Symbol};
use crate::tokens::{TokenKind, Tokens, check_length};
use crate::{SPACE_MARK, TokenId, bytes};

/// What encoding needs beside the tokens.
#[derive(Debug)]
pub(crate) struct Spm {
    /// Of each token: its place in the order of scores, or [`NO_RANK`] if text is not merged into it.
    ranks: Vec<u32>,
    /// The token of each byte, or [`NO_TOKEN`].
    bytes: Box<[TokenId; 256]>,
    unknown: Option<TokenId>,
    /// Length of the longest token that text is merged into, in bytes.
    max_len: usize,
    /// Whether any token has this byte right before a space mark that does not follow another. Where none has,
    /// nothing merges across, and the text can be taken apart there.
    before_space: Box<[bool; 256]>,
    pub(crate) add_space_prefix: bool,
}

const NO_RANK: u32 = u32::MAX;

impl Spm {
    pub(crate) fn new(
        scores: &[f32],
        add_space_prefix: bool,
        tokens: &Tokens,
        warnings: &mut Vec<Warning>,
    ) -> Result<Self, Error> {
        check_length("tokenizer.ggml.scores", scores.len(), tokens.len(), warnings)?;
        if let Some(index) = scores.iter().position(|score| score.is_nan()) {
            return Err(Error::ScoreNan { index });
        }
        let mut spm = Self {
            ranks: vec![NO_RANK; tokens.len()],
            bytes: Box::new([NO_TOKEN; 256]),
            unknown: tokens.roles.unknown.filter(|&id| tokens.kind(id) == Some(TokenKind::Unknown)),
            max_len: 0,
            before_space: Box::new([false; 256]),
            add_space_prefix,
        };
        for (id, (text, &score)) in tokens.texts.iter().zip(scores).enumerate() {
            match tokens.kinds[id] {
                TokenKind::Normal | TokenKind::UserDefined => {
                    spm.ranks[id] = rank(score);
                    spm.max_len = spm.max_len.max(text.len());
                    spm.note_spaces(text);
                }
                TokenKind::Byte => {
                    if let Some(byte) = bytes::from_hex(text) {
                        spm.bytes[byte as usize] = id as u32;
                    }
                }
                TokenKind::Control | TokenKind::Unknown | TokenKind::Unused => {}
            }
        }
        let missing: Vec<u8> = (0..=255).filter(|&byte| spm.bytes[byte as usize] == NO_TOKEN).collect();
        if !missing.is_empty() {
            warnings.push(Warning::MissingBytes { bytes: missing });
        }
        Ok(spm)
    }

    fn note_spaces(&mut self, text: &[u8]) {
        // Quick for nearly all.
        if !text.get(1..).is_some_and(|rest| rest.contains(&SPACE_MARK[0])) {
            return;
        }
        for (i, &byte) in text.iter().enumerate().skip(1) {
            if byte == SPACE_MARK[0] && text[i..].starts_with(SPACE_MARK) && !text[..i].ends_with(SPACE_MARK)
            {
                self.before_space[text[i - 1] as usize] = true;
            }
        }
    }

    /// Appends the tokens of `text`, which is not searched for special tokens, with a space before it if
    /// `prefix`.
    pub(crate) fn encode(
        &self,
        text: &[u8],
        prefix: bool,
        tokens: &Tokens,
        scratch: &mut Scratch,
        out: &mut Vec<TokenId>,
    ) {
        let Scratch { marked, merger } = scratch;
        marked.clear();
        marked.reserve(text.len() + text.len() / 2);
        if prefix {
            marked.extend_from_slice(SPACE_MARK);
        }
        for &byte in text {
            if byte == b' ' {
                marked.extend_from_slice(SPACE_MARK);
            } else {
                marked.push(byte);
            }
        }
        let mut rest = &marked[..];
        while !rest.is_empty() {
            let (part, tail) = rest.split_at(self.part_len(rest, MAX_WORD));
            self.encode_part(part, tokens, merger, out);
            rest = tail;
        }
    }

    /// How much of `text` can be encoded without regard to what follows; at most about `max` bytes, even if
    /// more belongs together.
    fn part_len(&self, text: &[u8], max: usize) -> usize {
        for (i, &byte) in text.iter().enumerate().skip(1) {
            let is_space = byte == SPACE_MARK[0]
                && text[i..].starts_with(SPACE_MARK)
                && !text[..i].ends_with(SPACE_MARK)
                && !self.before_space[text[i - 1] as usize];
            if is_space || i >= max && (byte & 0xC0 != 0x80 || i >= max + 4) {
                return i;
            }
        }
        text.len()
    }

    fn encode_part(&self, part: &[u8], tokens: &Tokens, merger: &mut Merger, out: &mut Vec<TokenId>) {
        merger.symbols.clear();
        let mut pos = 0;
        while pos < part.len() {
            let len = decode(&part[pos..]).map_or(1, char::len_utf8);
            merger.symbols.push(Symbol { start: pos as u32, len: len as u32, id: NO_TOKEN });
            pos += len;
        }
        let piece = |start: u32, len: u32| &part[start as usize..][..len as usize];
        let find = |text: &[u8]| {
            tokens.index.get(text, &tokens.texts).filter(|&id| self.ranks[id as usize] != NO_RANK)
        };
        merger.merge(|left, right| {
            let len = left.len + right.len;
            if len as usize > self.max_len {
                return None;
            }
            let id = find(piece(left.start, len))?;
            Some(Merge { rank: self.ranks[id as usize], id })
        });
        for symbol in &merger.symbols {
            let text = piece(symbol.start, symbol.len);
            let id = if symbol.id == NO_TOKEN { find(text) } else { Some(symbol.id) };
            match id {
                Some(id) => out.push(id),
                None if text.iter().all(|&byte| self.bytes[byte as usize] != NO_TOKEN) => {
                    out.extend(text.iter().map(|&byte| self.bytes[byte as usize]));
                }
                None => out.extend(self.unknown),
            }
        }
    }
}

/// Working memory for encoding.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    marked: Vec<u8>,
    pub(crate) merger: Merger,
}

/// Orders scores: the higher the score, the lower the rank; never [`NO_RANK`], for a score that is a number.
fn rank(score: f32) -> u32 {
    // Adding zero makes the two zeros one. Flipping all bits of a negative number, and the sign of any other,
    // orders floats as integers.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t13_text_too_long_for_32_bit_offsets_is_cut_at_a_character() {
        const { assert!(MAX_WORD + 4 <= u32::MAX as usize / 2) };
        let mut spm = Spm {
            ranks: Vec::new(),
            bytes: Box::new([NO_TOKEN; 256]),
            unknown: None,
            max_len: 0,
            before_space: Box::new([false; 256]),
            add_space_prefix: false,
        };
        let part = |spm: &Spm, text: &str, max| spm.part_len(text.as_bytes(), max);
        assert_eq!((part(&spm, "abcdef", 4), part(&spm, "ab", 4), part(&spm, "aaé", 3)), (4, 2, 4));
        assert_eq!(spm.part_len(&[0x80; 20], 4), 8);
        assert_eq!((part(&spm, "ab▁▁c▁", 99), part(&spm, "▁▁c▁", 99)), (2, 7));
        spm.before_space[usize::from(b'b')] = true;
        assert_eq!(part(&spm, "ab▁▁c▁", 99), 9);
    }

    #[test]
    fn ranks_order_scores_downwards() {
        let scores = [f32::INFINITY, 3e38, 1.0, 1e-40, 0.0, -1e-40, -1.0, -1000.0, -3e38, f32::NEG_INFINITY];
        assert!(scores.windows(2).all(|pair| rank(pair[0]) < rank(pair[1])));
        assert_eq!(rank(0.0), rank(-0.0));
        assert!(scores.iter().all(|&score| rank(score) != NO_RANK));
    }
}
