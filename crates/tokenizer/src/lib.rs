//! Text to token ids and back, for every vocabulary kind a GGUF file can hold.
//!
//! Two kinds are implemented: byte-level byte-pair encoding (`tokenizer.ggml.model` = `gpt2`) and
//! SentencePiece-style merging by score with byte fallback (`llama`). Any other is refused by name.
//!
//! ```
//! use minfer_tokenizer::{Special, SpecialIds, Tokenizer, Vocab, VocabModel};
//!
//! let vocab = Vocab {
//!     model: VocabModel::ByteLevelBpe {
//!         pre: Some("gpt-2".into()),
//!         merges: ["h i"].into_iter().collect(),
//!     },
//!     tokens: ["h", "i", "!", "hi", "<|im_end|>"].into_iter().collect(),
//!     types: Some(vec![1, 1, 1, 1, 3]),
//!     ids: SpecialIds { eos: Some(4), ..Default::default() },
//!     add_bos: None,
//!     add_eos: None,
//!     name: None,
//! };
//! let tokenizer = Tokenizer::new(vocab)?;
//! assert_eq!(tokenizer.encode("hi!<|im_end|>", Special::Parse), [3, 2, 4]);
//! assert_eq!(tokenizer.decode(&[3, 2, 4], true), b"hi!");
//! # Ok::<(), minfer_tokenizer::Error>(())
//! ```
//!
//! # What is exact
//! - Encoding takes O(n log n) time at worst in the length of the text, whatever the text.
//! - Any bytes can be encoded. Where the vocabulary has all 256 bytes, [`Tokenizer::decode`] gives them back;
//!   where it lacks some ([`Warning::MissingBytes`]), U+FFFD stands in for each of those.
//! - SentencePiece vocabularies write a space as `▁` (U+2581). A `▁` in the text is therefore encoded like a space
//!   and decoded as one: the one case in which the text does not come back as it was.
//! - With [`Special::AsText`] no text becomes a control token, by whatever way.
//! - No normalization is applied, as by other readers of GGUF files.

mod bpe;
mod bytes;
mod chars;
mod error;
mod merge;
mod names;
mod pretokenize;
mod special;
mod spm;
mod strings;
mod tokenizer;
mod tokens;
mod vocab;
#[cfg(test)]
mod work;

#[cfg(test)]
mod tests;

pub use error::{Error, Warning};
pub use strings::Strings;
pub use tokenizer::{Kind, Special, Tokenizer};
pub use tokens::TokenKind;
pub use vocab::{SpecialIds, Vocab, VocabModel};

/// The number of a token in its vocabulary.
pub type TokenId = u32;

/// U+2581, which SentencePiece vocabularies write for a space.
const SPACE_MARK: &[u8] = "▁".as_bytes();
