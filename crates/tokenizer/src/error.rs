//! What can be wrong with a vocabulary, and what is odd about it but usable.

use std::fmt;

/// Why a vocabulary cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A metadata key is missing or is not of the type it must have.
    #[error(transparent)]
    Metadata(#[from] minfer_gguf::MetadataError),

    /// The vocabulary is of a kind that is not implemented.
    #[error("tokenizer.ggml.model = {model:?} is not supported (supported: gpt2, llama)")]
    UnsupportedModel {
        /// The value of `tokenizer.ggml.model`.
        model: String,
    },

    /// The byte-level vocabulary asks for a pre-tokenizer that is not implemented.
    #[error("tokenizer.ggml.pre = {pre:?} names no pre-tokenizer that is known")]
    UnsupportedPre {
        /// The value of `tokenizer.ggml.pre`.
        pre: String,
    },

    /// The vocabulary holds no token, or more than 32-bit ids can name.
    #[error("tokenizer.ggml.tokens has {len} entries; between 1 and {max} are possible")]
    VocabularySize {
        /// Number of tokens found.
        len: usize,
        /// Largest number of tokens accepted.
        max: usize,
    },

    /// The strings of one array take up more than 4 GiB together.
    #[error("the strings of {key} exceed 4 GiB at entry {index}")]
    StringsTooLong {
        /// The full metadata key.
        key: &'static str,
        /// First entry that does not fit.
        index: usize,
    },

    /// An array that runs parallel to the tokens is shorter than they are.
    #[error("{key} has {len} entries but tokenizer.ggml.tokens has {tokens}")]
    LengthMismatch {
        /// The full metadata key.
        key: &'static str,
        /// Entries found.
        len: usize,
        /// Entries needed.
        tokens: usize,
    },

    /// A string that must be text is not UTF-8.
    #[error("{key}[{index}] is not valid UTF-8")]
    NotUtf8 {
        /// The full metadata key.
        key: &'static str,
        /// The entry.
        index: usize,
    },

    /// A score that cannot be ordered.
    #[error("tokenizer.ggml.scores[{index}] is not a number")]
    ScoreNan {
        /// The entry.
        index: usize,
    },

    /// The special tokens could not be compiled into one matcher.
    #[error("the special tokens cannot be matched: {0}")]
    SpecialTokens(#[from] aho_corasick::BuildError),
}

/// Something odd in a vocabulary that is usable nevertheless.
///
/// Each kind is reported once, with a count and its first occurrence, however often it occurs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// A key names a token id that the vocabulary does not have; the key is treated as absent.
    IdOutOfRange {
        /// The full metadata key.
        key: String,
        /// The id it holds.
        id: i64,
        /// Number of tokens.
        vocab_size: usize,
    },
    /// An array that runs parallel to the tokens has entries beyond the last token.
    ExtraEntries {
        /// The full metadata key.
        key: &'static str,
        /// Entries found.
        len: usize,
        /// Entries used.
        tokens: usize,
    },
    /// `tokenizer.ggml.token_type` is absent: byte tokens are recognized by their spelling, the begin- and
    /// end-of-text tokens are taken for control tokens, everything else is text.
    NoTokenTypes,
    /// A byte-level vocabulary does not say how it cuts text into words; the default is used.
    NoPreTokenizer,
    /// Tokens whose type is none that the format defines; they are treated as normal text.
    UnknownTokenTypes {
        /// How many.
        count: usize,
        /// The first of them.
        first: u32,
    },
    /// Byte tokens (type 6) that are not spelled `<0xXX>`; they are treated as normal text.
    MisspelledBytes {
        /// How many.
        count: usize,
        /// The first of them.
        first: u32,
    },
    /// Tokens spelled like an earlier one; the first has the spelling.
    DuplicateTokens {
        /// How many.
        count: usize,
        /// The first of them.
        first: u32,
    },
    /// Tokens with no text at all.
    EmptyTokens {
        /// How many.
        count: usize,
        /// The first of them.
        first: u32,
    },
    /// Merges that name a piece the vocabulary lacks, or are not of the form `left right`; they are left out.
    UnusableMerges {
        /// How many.
        count: usize,
        /// The first of them.
        first: usize,
    },
    /// Bytes that no token stands for; text that holds them is encoded with U+FFFD in their place.
    MissingBytes {
        /// The bytes, ascending.
        bytes: Vec<u8>,
    },
    /// A token that is spelled like a well-known control token but typed as text; it is made a control token.
    ControlByName {
        /// The token.
        id: u32,
        /// Its spelling.
        text: String,
    },
    /// `tokenizer.ggml.add_bos_token` or `.add_eos_token` is set but there is no such token.
    NothingToAdd {
        /// The full metadata key.
        key: &'static str,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IdOutOfRange { key, id, vocab_size } => {
                write!(f, "{key} = {id} is outside of the vocabulary of {vocab_size} tokens; ignored")
            }
            Self::ExtraEntries { key, len, tokens } => {
                write!(f, "{key} has {len} entries for {tokens} tokens; the rest is ignored")
            }
            Self::NoTokenTypes => {
                write!(f, "tokenizer.ggml.token_type is missing; control tokens are guessed")
            }
            Self::NoPreTokenizer => {
                write!(f, "tokenizer.ggml.pre is missing; words are cut the default way, which may be wrong")
            }
            Self::UnknownTokenTypes { count, first } => {
                write!(f, "{count} tokens are of an unknown type (first: {first}); taken for text")
            }
            Self::MisspelledBytes { count, first } => {
                write!(f, "{count} byte tokens are not spelled <0xXX> (first: {first}); taken for text")
            }
            Self::DuplicateTokens { count, first } => {
                write!(f, "{count} tokens are spelled like an earlier one (first: {first})")
            }
            Self::EmptyTokens { count, first } => write!(f, "{count} tokens are empty (first: {first})"),
            Self::UnusableMerges { count, first } => {
                write!(f, "{count} merges cannot be used (first: {first}); left out")
            }
            Self::MissingBytes { bytes } => {
                write!(f, "no token stands for these bytes, U+FFFD replaces them:")?;
                bytes.iter().try_for_each(|b| write!(f, " {b:02X}"))
            }
            Self::ControlByName { id, text } => {
                write!(f, "token {id} {text:?} is typed as text; taken for a control token")
            }
            Self::NothingToAdd { key } => write!(f, "{key} is set but there is no such token; ignored"),
        }
    }
}
