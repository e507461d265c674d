//! The tokens of a vocabulary: spelling, type, bytes, and the roles some of them have.

use crate::bytes;
use crate::error::{Error, Warning};
use crate::names;
use crate::strings::{Index, Strings};
use crate::vocab::{SpecialIds, Vocab, VocabModel};
use crate::{SPACE_MARK, TokenId};

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenKind {
    /// A piece of text.
    Normal,
    /// Stands for text that the vocabulary cannot express.
    Unknown,
    /// Steers the model; never part of what a user writes.
    Control,
    /// A piece of text that is recognized before the text is cut into words.
    UserDefined,
    /// Never produced.
    Unused,
    /// A single byte, for text that no other token expresses.
    Byte,
}

/// All tokens, and those with a role.
#[derive(Debug)]
pub(crate) struct Tokens {
    pub(crate) texts: Strings,
    /// What each token renders to; control tokens as they are spelled.
    pub(crate) bytes: Strings,
    pub(crate) kinds: Vec<TokenKind>,
    pub(crate) index: Index,
    pub(crate) roles: Roles,
}

/// Tokens with a role.
#[derive(Debug, Default)]
pub(crate) struct Roles {
    pub(crate) bos: Option<TokenId>,
    pub(crate) eos: Option<TokenId>,
    pub(crate) unknown: Option<TokenId>,
    pub(crate) padding: Option<TokenId>,
    /// All that end a text, ascending.
    pub(crate) eog: Vec<TokenId>,
}

/// Counts oddities of one kind.
#[derive(Default)]
struct Tally {
    count: usize,
    first: u32,
}

impl Tally {
    fn add(&mut self, id: usize) {
        if self.count == 0 {
            self.first = id as u32;
        }
        self.count += 1;
    }

    fn report(self, warnings: &mut Vec<Warning>, warning: impl FnOnce(usize, u32) -> Warning) {
        if self.count > 0 {
            warnings.push(warning(self.count, self.first));
        }
    }
}

impl Tokens {
    /// Derives everything from `vocab`, whose spellings move into the result.
    pub(crate) fn new(vocab: &mut Vocab, warnings: &mut Vec<Warning>) -> Result<Self, Error> {
        let texts = std::mem::take(&mut vocab.tokens);
        // The largest ids are kept free as marks.
        let max = u32::MAX as usize / 2;
        if texts.is_empty() || texts.len() > max {
            return Err(Error::VocabularySize { len: texts.len(), max });
        }
        if let Some(index) = texts.find_non_utf8() {
            return Err(Error::NotUtf8 { key: "tokenizer.ggml.tokens", index });
        }
        let sentence_piece = matches!(vocab.model, VocabModel::SentencePiece { .. });
        let index = index(&texts, warnings);
        let kinds = match &vocab.types {
            Some(types) => kinds(types, &texts, warnings)?,
            None => {
                warnings.push(Warning::NoTokenTypes);
                let kind = |text| match bytes::from_hex(text) {
                    Some(_) if sentence_piece => TokenKind::Byte,
                    _ => TokenKind::Normal,
                };
                texts.iter().map(kind).collect()
            }
        };
        let mut tokens = Self { texts, bytes: Strings::default(), kinds, index, roles: Roles::default() };
        tokens.assign_roles(&vocab.ids, sentence_piece, vocab.types.is_some(), warnings);
        tokens.bytes = tokens.render(sentence_piece)?;
        Ok(tokens)
    }

    pub(crate) fn len(&self) -> usize {
        self.texts.len()
    }

    pub(crate) fn kind(&self, id: TokenId) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// The spelling of a token, which was checked to be UTF-8.
    pub(crate) fn text(&self, id: TokenId) -> Option<&str> {
        std::str::from_utf8(self.texts.get(id as usize)?).ok()
    }

    /// Whether text can become this token.
    pub(crate) fn is_text(&self, id: TokenId) -> bool {
        matches!(self.kind(id), Some(TokenKind::Normal | TokenKind::UserDefined))
    }

    fn assign_roles(
        &mut self,
        ids: &SpecialIds,
        sentence_piece: bool,
        has_types: bool,
        warnings: &mut Vec<Warning>,
    ) {
        let vocab_size = self.len();
        let mut resolve = |role: &str, id: Option<i64>, default: Option<u32>| {
            let found = match id {
                Some(id) => u32::try_from(id).ok(),
                None => return default.filter(|&id| (id as usize) < vocab_size),
            };
            let found = found.filter(|&id| (id as usize) < vocab_size);
            if let (None, Some(id)) = (found, id) {
                let key = format!("tokenizer.ggml.{role}_token_id");
                warnings.push(Warning::IdOutOfRange { key, id, vocab_size });
            }
            found
        };
        // What the original SentencePiece vocabularies use, for files that do not say.
        let default = |id: u32| sentence_piece.then_some(id);
        let bos = resolve("bos", ids.bos, default(1));
        let eos = resolve("eos", ids.eos, default(2));
        let unknown = resolve("unknown", ids.unknown, default(0));
        let padding = resolve("padding", ids.padding, None);
        let ends = [
            eos,
            resolve("eot", ids.eot, None),
            resolve("eom", ids.eom, None),
            resolve("fim_pad", ids.fim_pad, None),
            resolve("fim_rep", ids.fim_rep, None),
            resolve("fim_sep", ids.fim_sep, None),
        ];
        let mut eog: Vec<_> = ends.into_iter().flatten().collect();
        if !has_types {
            for id in eog.iter().copied().chain(bos) {
                self.kinds[id as usize] = TokenKind::Control;
            }
            if let Some(id) = unknown {
                self.kinds[id as usize] = TokenKind::Unknown;
            }
        }
        for &(name, ends_text) in names::CONTROL {
            let Some(id) = self.index.get(name.as_bytes(), &self.texts) else { continue };
            if self.kinds[id as usize] != TokenKind::Control {
                self.kinds[id as usize] = TokenKind::Control;
                if has_types {
                    warnings.push(Warning::ControlByName { id, text: name.to_owned() });
                }
            }
            if ends_text {
                eog.push(id);
            }
        }
        let has = |name: &&str| self.index.get(name.as_bytes(), &self.texts).is_some();
        if names::END_IS_NOT_EOG.iter().any(|set| set.iter().all(has)) {
            let end = self.index.get(b"<|end|>", &self.texts);
            eog.retain(|&id| Some(id) != end);
        }
        eog.sort_unstable();
        eog.dedup();
        self.roles = Roles { bos, eos, unknown, padding, eog };
    }

    fn render(&self, sentence_piece: bool) -> Result<Strings, Error> {
        let mut rendered = Strings::with_capacity(self.len(), self.texts.byte_len());
        let mut buffer = Vec::new();
        for (id, (text, kind)) in self.texts.iter().zip(&self.kinds).enumerate() {
            let byte = if *kind == TokenKind::Byte { bytes::from_hex(text) } else { None };
            let fits = if let Some(byte) = byte {
                rendered.push(&[byte])
            } else if matches!(kind, TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined) {
                rendered.push(text)
            } else if sentence_piece {
                replace_space_marks(text, &mut buffer);
                rendered.push(&buffer)
            } else {
                // Some vocabularies hold a few tokens that are not spelled in the alphabet but as they are.
                let spelled = bytes::decode_alphabet(text, &mut buffer);
                rendered.push(if spelled.is_some() { &buffer } else { text })
            };
            if !fits {
                return Err(Error::StringsTooLong { key: "tokenizer.ggml.tokens", index: id });
            }
        }
        Ok(rendered)
    }
}

fn index(texts: &Strings, warnings: &mut Vec<Warning>) -> Index {
    let mut index = Index::with_capacity(texts.len());
    let (mut duplicates, mut empty) = (Tally::default(), Tally::default());
    for (id, text) in texts.iter().enumerate() {
        if text.is_empty() {
            empty.add(id);
        } else if !index.insert(id as u32, texts) {
            duplicates.add(id);
        }
    }
    duplicates.report(warnings, |count, first| Warning::DuplicateTokens { count, first });
    empty.report(warnings, |count, first| Warning::EmptyTokens { count, first });
    index
}

fn kinds(types: &[i32], texts: &Strings, warnings: &mut Vec<Warning>) -> Result<Vec<TokenKind>, Error> {
    check_length("tokenizer.ggml.token_type", types.len(), texts.len(), warnings)?;
    let (mut unknown, mut misspelled) = (Tally::default(), Tally::default());
    let kinds = types.iter().zip(texts.iter()).enumerate().map(|(id, (kind, text))| match kind {
        1 => TokenKind::Normal,
        2 => TokenKind::Unknown,
        3 => TokenKind::Control,
        4 => TokenKind::UserDefined,
        5 => TokenKind::Unused,
        6 if bytes::from_hex(text).is_some() => TokenKind::Byte,
        6 => {
            misspelled.add(id);
            TokenKind::Normal
        }
        _ => {
            unknown.add(id);
            TokenKind::Normal
        }
    });
    let kinds = kinds.collect();
    unknown.report(warnings, |count, first| Warning::UnknownTokenTypes { count, first });
    misspelled.report(warnings, |count, first| Warning::MisspelledBytes { count, first });
    Ok(kinds)
}

/// An array with one entry per token must not be shorter; that it is longer is odd.
pub(crate) fn check_length(
    key: &'static str,
    len: usize,
    tokens: usize,
    warnings: &mut Vec<Warning>,
) -> Result<(), Error> {
    if len < tokens {
        return Err(Error::LengthMismatch { key, len, tokens });
    }
    if len > tokens {
        warnings.push(Warning::ExtraEntries { key, len, tokens });
    }
    Ok(())
}

/// Replaces `out` by `text` with every U+2581 made a space.
fn replace_space_marks(text: &[u8], out: &mut Vec<u8>) {
    out.clear();
    // Mostly there is one, at the start, if any.
    let mut rest = text.strip_prefix(SPACE_MARK).inspect(|_| out.push(b' ')).unwrap_or(text);
    if !rest.contains(&SPACE_MARK[0]) {
        out.extend_from_slice(rest);
        return;
    }
    while let Some((&first, tail)) = rest.split_first() {
        if let Some(tail) = rest.strip_prefix(SPACE_MARK) {
            out.push(b' ');
            rest = tail;
        } else {
            out.push(first);
            rest = tail;
        }
    }
}
