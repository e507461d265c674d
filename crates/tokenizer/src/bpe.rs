//! Byte-level byte-pair encoding.

use crate::TokenId;
use crate::bytes::ALPHABET;
use crate::error::Warning;
use crate::merge::{MAX_WORD, Merge, Merger, NO_TOKEN, Symbol};
use crate::pretokenize::{PreProfile, PreTokenizer};
use crate::strings::{Index, PairMap, Strings};
use crate::tokens::{TokenKind, Tokens};

/// What encoding needs beside the tokens.
#[derive(Debug)]
pub(crate) struct Bpe {
    pre_tokenizer: PreTokenizer,
    /// The token of each byte, or [`NO_TOKEN`].
    bytes: Box<[TokenId; 256]>,
    /// What stands in for a byte without a token.
    replacement: Vec<TokenId>,
    merges: PairMap<Merge>,
    /// Tokens by their bytes, if a word that is a token is taken as it is.
    words: Option<Index>,
}

impl Bpe {
    pub(crate) fn new(
        profile: PreProfile,
        merges: &Strings,
        tokens: &Tokens,
        warnings: &mut Vec<Warning>,
    ) -> Self {
        let mut bytes = Box::new([NO_TOKEN; 256]);
        let mut spelling = [0; 4];
        for (byte, c) in ALPHABET.iter().enumerate() {
            let id = tokens.index.get(c.encode_utf8(&mut spelling).as_bytes(), &tokens.texts);
            bytes[byte] = id.filter(|&id| tokens.is_text(id)).unwrap_or(NO_TOKEN);
        }
        let missing: Vec<u8> = (0..=255).filter(|&byte| bytes[byte as usize] == NO_TOKEN).collect();
        if !missing.is_empty() {
            warnings.push(Warning::MissingBytes { bytes: missing });
        }
        let words = profile.ignore_merges.then(|| {
            let mut words = Index::with_capacity(tokens.len());
            for id in (0..tokens.len() as u32).filter(|&id| tokens.is_text(id)) {
                words.insert(id, &tokens.bytes);
            }
            words
        });
        let mut bpe = Self {
            pre_tokenizer: profile.pre_tokenizer,
            bytes,
            replacement: Vec::new(),
            merges: merge_table(merges, tokens, warnings),
            words,
        };
        bpe.replacement = bpe.replacement(tokens);
        bpe
    }

    /// U+FFFD, as far as it can be expressed; else the unknown token, unless that is a control token, which
    /// text must never become.
    fn replacement(&self, tokens: &Tokens) -> Vec<TokenId> {
        let mut ids = Vec::new();
        self.encode("\u{FFFD}".as_bytes(), tokens, &mut Merger::default(), &mut ids);
        let rendered: Vec<u8> =
            ids.iter().flat_map(|&id| tokens.bytes.get(id as usize).unwrap_or_default()).copied().collect();
        if rendered == "\u{FFFD}".as_bytes() {
            return ids;
        }
        let is_unknown = |&id: &TokenId| tokens.kind(id) == Some(TokenKind::Unknown);
        tokens.roles.unknown.filter(is_unknown).into_iter().collect()
    }

    /// Appends the tokens of `text`, which is not searched for special tokens.
    pub(crate) fn encode(&self, text: &[u8], tokens: &Tokens, merger: &mut Merger, out: &mut Vec<TokenId>) {
        for word in self.pre_tokenizer.words(text) {
            if let Some(id) = self.words.as_ref().and_then(|words| words.get(word, &tokens.bytes)) {
                out.push(id);
                continue;
            }
            for part in word.chunks(MAX_WORD) {
                self.encode_word(part, merger, out);
            }
        }
    }

    fn encode_word(&self, word: &[u8], merger: &mut Merger, out: &mut Vec<TokenId>) {
        merger.symbols.clear();
        merger.symbols.extend(word.iter().zip(0..).map(|(&byte, start)| Symbol {
            start,
            len: 1,
            id: self.bytes[byte as usize],
        }));
        merger.merge(|left, right| self.merges.get(left.id, right.id));
        for symbol in &merger.symbols {
            if symbol.id == NO_TOKEN {
                out.extend_from_slice(&self.replacement);
            } else {
                out.push(symbol.id);
            }
        }
    }
}

fn merge_table(merges: &Strings, tokens: &Tokens, warnings: &mut Vec<Warning>) -> PairMap<Merge> {
    let mut table = PairMap::with_capacity(merges.len());
    let mut buffer = Vec::new();
    let find = |text: &[u8]| tokens.index.get(text, &tokens.texts);
    // Vocabularies mostly list tokens in the order of the merges that make them, so look there first.
    let mut guess = 0;
    let (mut unusable, mut first_unusable) = (0, 0);
    for (rank, merge) in merges.iter().enumerate() {
        let ids = (|| {
            // A piece is never empty, so that a space at the very start belongs to the first one.
            let space = 1 + merge.get(1..)?.iter().position(|&b| b == b' ')?;
            let (left, right) = (&merge[..space], &merge[space + 1..]);
            let is_joined = |text: &[u8]| text.strip_prefix(left) == Some(right);
            let id = match tokens.texts.get(guess as usize) {
                Some(text) if is_joined(text) => guess,
                _ => {
                    buffer.clear();
                    buffer.extend_from_slice(left);
                    buffer.extend_from_slice(right);
                    find(&buffer)?
                }
            };
            Some((find(left)?, find(right)?, id))
        })();
        if let Some((left, right, id)) = ids {
            // Text must not become a control token by way of merges either.
            if tokens.is_text(id) {
                table.insert(left, right, Merge { rank: rank as u32, id });
            }
            guess = id + 1;
        } else {
            if unusable == 0 {
                first_unusable = rank;
            }
            unusable += 1;
        }
    }
    if unusable > 0 {
        warnings.push(Warning::UnusableMerges { count: unusable, first: first_unusable });
    }
    table
}
