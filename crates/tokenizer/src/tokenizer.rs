//! The tokenizer: what other crates use.

use crate::TokenId;
use crate::bpe::Bpe;
use crate::error::{Error, Warning};
use crate::names;
use crate::pretokenize::PreProfile;
use crate::special::{Fragment, SpecialTokens};
use crate::spm::{Scratch, Spm};
use crate::tokens::{TokenKind, Tokens};
use crate::vocab::{Vocab, VocabModel};
use minfer_gguf::Metadata;

/// What becomes of the spelling of a control token in text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// It becomes the token: for templates and raw prompts.
    Parse,
    /// It is text like any other: for everything that comes from a user. User-defined tokens, which are text
    /// themselves, are still recognized.
    AsText,
}

/// The kind of a vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Byte-level byte-pair encoding.
    ByteLevelBpe,
    /// SentencePiece-style merging by score.
    SentencePiece,
}

/// Turns text into tokens and back. Immutable; share it between threads.
#[derive(Debug)]
pub struct Tokenizer {
    tokens: Tokens,
    model: Model,
    special: SpecialTokens,
    add_bos: bool,
    add_eos: bool,
    warnings: Vec<Warning>,
}

#[derive(Debug)]
enum Model {
    Bpe(Bpe),
    Spm(Spm),
}

impl Tokenizer {
    /// Reads the vocabulary of a GGUF file.
    ///
    /// # Errors
    /// If it is of an unsupported kind, or a key is missing or makes no sense.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, Error> {
        Self::new(Vocab::from_metadata(metadata)?)
    }

    /// Makes a tokenizer of a vocabulary.
    ///
    /// # Errors
    /// If it is inconsistent, or names an unknown pre-tokenizer.
    pub fn new(mut vocab: Vocab) -> Result<Self, Error> {
        let mut warnings = Vec::new();
        let tokens = Tokens::new(&mut vocab, &mut warnings)?;
        let name = vocab.name.as_deref().unwrap_or_default();
        let (model, add_bos_default) = match &vocab.model {
            VocabModel::ByteLevelBpe { pre, merges } => {
                let pre = pre.as_deref().unwrap_or_else(|| {
                    warnings.push(Warning::NoPreTokenizer);
                    "default"
                });
                let profile =
                    PreProfile::by_name(pre).ok_or_else(|| Error::UnsupportedPre { pre: pre.to_owned() })?;
                (Model::Bpe(Bpe::new(profile, merges, &tokens, &mut warnings)), profile.add_bos)
            }
            VocabModel::SentencePiece { scores, add_space_prefix } => {
                let prefix = add_space_prefix.unwrap_or(true);
                (Model::Spm(Spm::new(scores, prefix, &tokens, &mut warnings)?), true)
            }
        };
        let mut add = |key, asked: Option<bool>, default: bool, token: Option<TokenId>| {
            if asked == Some(true) && token.is_none() {
                warnings.push(Warning::NothingToAdd { key });
            }
            asked.unwrap_or(default) && token.is_some()
        };
        Ok(Self {
            add_bos: add("tokenizer.ggml.add_bos_token", vocab.add_bos, add_bos_default, tokens.roles.bos),
            add_eos: add("tokenizer.ggml.add_eos_token", vocab.add_eos, false, tokens.roles.eos),
            special: SpecialTokens::new(&tokens, |text| names::eats_space_behind(name, text))?,
            tokens,
            model,
            warnings,
        })
    }

    /// The tokens of `text`. Neither the begin-of-text nor the end-of-text token is added; see
    /// [`add_bos`](Self::add_bos).
    pub fn encode(&self, text: &str, special: Special) -> Vec<TokenId> {
        self.encode_bytes(text.as_bytes(), special)
    }

    /// As [`encode`](Self::encode), for bytes that need not be UTF-8.
    pub fn encode_bytes(&self, text: &[u8], special: Special) -> Vec<TokenId> {
        let mut out = Vec::with_capacity(text.len() / 4 + 1);
        let mut scratch = Scratch::default();
        // At the start, and after each special token, a SentencePiece vocabulary may put a space.
        let mut after_special = true;
        self.special.split(text, special, |fragment| match fragment {
            Fragment::Token(id) => {
                out.push(id);
                after_special = true;
            }
            Fragment::Text(text) => {
                match &self.model {
                    Model::Bpe(bpe) => bpe.encode(text, &self.tokens, &mut scratch.merger, &mut out),
                    Model::Spm(spm) => {
                        let prefix = spm.add_space_prefix && after_special;
                        spm.encode(text, prefix, &self.tokens, &mut scratch, &mut out);
                    }
                }
                after_special = false;
            }
        });
        out
    }

    /// The bytes that the tokens stand for, which need not be UTF-8.
    ///
    /// Control and unknown tokens are left out if `skip_special`, else rendered as they are spelled. Ids outside
    /// of the vocabulary render to nothing. Where the vocabulary puts a space before the text, one space at the
    /// start (not counting special tokens) is taken off again; to render the tokens of a text that goes on, use
    /// [`token_bytes`](Self::token_bytes).
    pub fn decode(&self, ids: &[TokenId], skip_special: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(ids.len() * 4);
        let mut at_start = matches!(&self.model, Model::Spm(spm) if spm.add_space_prefix);
        for &id in ids {
            let Some(mut bytes) = self.tokens.bytes.get(id as usize) else { continue };
            let hidden = self.is_hidden(id);
            if hidden && skip_special {
                continue;
            }
            if at_start && !hidden {
                bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
                at_start = false;
            }
            out.extend_from_slice(bytes);
        }
        out
    }

    /// What a token adds to the text: nothing for control and unknown tokens. `None` outside of the vocabulary.
    ///
    /// The bytes of one token need not be whole characters.
    pub fn token_bytes(&self, id: TokenId) -> Option<&[u8]> {
        let bytes = self.tokens.bytes.get(id as usize)?;
        Some(if self.is_hidden(id) { b"" } else { bytes })
    }

    /// As [`token_bytes`](Self::token_bytes), but control and unknown tokens render as they are spelled.
    pub fn token_bytes_with_special(&self, id: TokenId) -> Option<&[u8]> {
        self.tokens.bytes.get(id as usize)
    }

    /// The spelling of a token in the vocabulary, with `Ġ` or `▁` for a space. `None` outside of the vocabulary.
    pub fn token_text(&self, id: TokenId) -> Option<&str> {
        self.tokens.text(id)
    }

    /// The token that is spelled `text` in the vocabulary.
    pub fn token_id(&self, text: &str) -> Option<TokenId> {
        self.tokens.index.get(text.as_bytes(), &self.tokens.texts)
    }

    /// What a token is. `None` outside of the vocabulary.
    pub fn token_kind(&self, id: TokenId) -> Option<TokenKind> {
        self.tokens.kind(id)
    }

    /// Number of tokens.
    pub fn vocab_size(&self) -> usize {
        self.tokens.len()
    }

    /// The kind of the vocabulary.
    pub fn kind(&self) -> Kind {
        match self.model {
            Model::Bpe(_) => Kind::ByteLevelBpe,
            Model::Spm(_) => Kind::SentencePiece,
        }
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<TokenId> {
        self.tokens.roles.bos
    }

    /// The token that ends a text. A model may end it with others too; see [`is_eog`](Self::is_eog).
    pub fn eos(&self) -> Option<TokenId> {
        self.tokens.roles.eos
    }

    /// The token for what cannot be expressed.
    pub fn unknown(&self) -> Option<TokenId> {
        self.tokens.roles.unknown
    }

    /// The token that fills up a batch.
    pub fn padding(&self) -> Option<TokenId> {
        self.tokens.roles.padding
    }

    /// Whether the model expects text to begin with [`bos`](Self::bos), which then exists.
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether the model expects text to end with [`eos`](Self::eos), which then exists.
    pub fn add_eos(&self) -> bool {
        self.add_eos
    }

    /// Whether generation ends with this token: end of text, of turn, of message, or a token that is known by
    /// its spelling to mean one of these.
    pub fn is_eog(&self, id: TokenId) -> bool {
        self.tokens.roles.eog.binary_search(&id).is_ok()
    }

    /// All tokens with which generation ends, ascending.
    pub fn eog(&self) -> &[TokenId] {
        &self.tokens.roles.eog
    }

    /// Whether this is a control token.
    pub fn is_control(&self, id: TokenId) -> bool {
        self.tokens.kind(id) == Some(TokenKind::Control)
    }

    fn is_hidden(&self, id: TokenId) -> bool {
        matches!(self.tokens.kind(id), Some(TokenKind::Control | TokenKind::Unknown))
    }

    /// What is odd about the vocabulary.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }
}
