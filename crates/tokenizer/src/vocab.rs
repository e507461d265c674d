//! A vocabulary as a file states it, before anything is derived from it.

use crate::error::Error;
use crate::strings::Strings;
use minfer_gguf::Metadata;

/// What a file says about its vocabulary; also the way to make a small one in memory.
#[derive(Debug, Clone)]
pub struct Vocab {
    /// The kind of vocabulary, and what only that kind has.
    pub model: VocabModel,
    /// The spelling of each token, by id.
    pub tokens: Strings,
    /// The type of each token as GGUF numbers them: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused,
    /// 6 byte.
    pub types: Option<Vec<i32>>,
    /// Tokens with a role.
    pub ids: SpecialIds,
    /// Whether text begins with the begin-of-text token.
    pub add_bos: Option<bool>,
    /// Whether text ends with the end-of-text token.
    pub add_eos: Option<bool>,
    /// The model's name, since a few models treat the space around special tokens their own way.
    pub name: Option<String>,
}

/// The kind of a vocabulary.
#[derive(Debug, Clone)]
pub enum VocabModel {
    /// `gpt2`: byte-level byte-pair encoding.
    ByteLevelBpe {
        /// Name of the pre-tokenizer (`tokenizer.ggml.pre`).
        pre: Option<String>,
        /// `left right` pairs, best first.
        merges: Strings,
    },
    /// `llama`: SentencePiece-style merging by score.
    SentencePiece {
        /// The score of each token, by id; the pair with the highest merges first.
        scores: Vec<f32>,
        /// Whether a space is put before the text.
        add_space_prefix: Option<bool>,
    },
}

/// Tokens with a role, as the file numbers them; whether they exist is checked later.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)] // Each is `tokenizer.ggml.FIELD_token_id`, in the long form where that is the key.
pub struct SpecialIds {
    pub bos: Option<i64>,
    pub eos: Option<i64>,
    pub eot: Option<i64>,
    pub eom: Option<i64>,
    pub unknown: Option<i64>,
    pub padding: Option<i64>,
    pub fim_pad: Option<i64>,
    pub fim_rep: Option<i64>,
    pub fim_sep: Option<i64>,
}

impl SpecialIds {
    fn read(metadata: &Metadata) -> Result<Self, Error> {
        let get = |role: &str| metadata.get_as::<i64>(&format!("tokenizer.ggml.{role}_token_id"));
        Ok(Self {
            bos: get("bos")?,
            eos: get("eos")?,
            eot: get("eot")?,
            eom: get("eom")?,
            unknown: get("unknown")?,
            padding: get("padding")?,
            fim_pad: get("fim_pad")?,
            fim_rep: get("fim_rep")?,
            fim_sep: get("fim_sep")?,
        })
    }
}

impl Vocab {
    /// Reads the `tokenizer.ggml.*` keys.
    ///
    /// # Errors
    /// If a key is missing, of a wrong type, or names a kind of vocabulary that is not supported.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, Error> {
        let model = match metadata.require_str("tokenizer.ggml.model")? {
            "gpt2" => VocabModel::ByteLevelBpe {
                pre: metadata.get_str("tokenizer.ggml.pre")?.map(str::to_owned),
                merges: strings(metadata, "tokenizer.ggml.merges")?,
            },
            "llama" => VocabModel::SentencePiece {
                scores: metadata.require_f32s("tokenizer.ggml.scores")?,
                add_space_prefix: metadata.get_bool("tokenizer.ggml.add_space_prefix")?,
            },
            other => return Err(Error::UnsupportedModel { model: other.to_owned() }),
        };
        Ok(Self {
            model,
            tokens: strings(metadata, "tokenizer.ggml.tokens")?,
            types: metadata.get_i32s("tokenizer.ggml.token_type")?,
            ids: SpecialIds::read(metadata)?,
            add_bos: metadata.get_bool("tokenizer.ggml.add_bos_token")?,
            add_eos: metadata.get_bool("tokenizer.ggml.add_eos_token")?,
            name: metadata.get_str("general.name")?.map(str::to_owned),
        })
    }
}

fn strings(metadata: &Metadata, key: &'static str) -> Result<Strings, Error> {
    let array = metadata.require_strings(key)?;
    let bytes = array.iter().map(<[u8]>::len).sum::<usize>();
    let mut strings = Strings::with_capacity(array.len(), bytes.min(u32::MAX as usize));
    for (index, text) in array.iter().enumerate() {
        if !strings.push(text) {
            return Err(Error::StringsTooLong { key, index });
        }
    }
    Ok(strings)
}
