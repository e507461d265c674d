//! Typed, checked access to hyper-parameters. Whatever leaves this file can be computed with.

use std::fmt::Display;

use minfer_gguf::{Gguf, MAX_LAYERS, Metadata};

use crate::ModelError;

/// The keys of one architecture: `llama.block_count` is asked for as `block_count`.
pub(crate) struct Hyper<'g> {
    architecture: &'g str,
    metadata: &'g Metadata,
}

impl<'g> Hyper<'g> {
    pub(crate) fn new(gguf: &'g Gguf) -> Result<Self, ModelError> {
        let metadata = gguf.metadata();
        Ok(Self { architecture: metadata.require_str("general.architecture")?, metadata })
    }

    pub(crate) fn architecture(&self) -> &'g str {
        self.architecture
    }

    fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.architecture)
    }

    /// The error for a value that is not possible.
    pub(crate) fn reject(
        &self,
        suffix: &str,
        value: impl Display,
        expected: impl Into<String>,
    ) -> ModelError {
        ModelError::HyperParameter {
            key: self.key(suffix),
            value: value.to_string(),
            expected: expected.into(),
        }
    }

    /// A count that may be zero.
    pub(crate) fn count(&self, suffix: &str) -> Result<Option<usize>, ModelError> {
        Ok(self.metadata.get_u32(&self.key(suffix))?.map(|v| v as usize))
    }

    /// A count of at least one.
    pub(crate) fn size(&self, suffix: &str) -> Result<Option<usize>, ModelError> {
        self.count(suffix)?.map(|v| self.at_least_one(suffix, v, "")).transpose()
    }

    /// A count of at least one that must be there.
    pub(crate) fn require_size(&self, suffix: &str) -> Result<usize, ModelError> {
        self.at_least_one(suffix, self.metadata.require_u32(&self.key(suffix))? as usize, "")
    }

    /// A count of at least one for each layer, given as one number or as an array.
    fn sizes(&self, suffix: &str, n_layer: usize) -> Result<Option<Vec<usize>>, ModelError> {
        let Some(values) = self.metadata.get_per_layer::<u32>(&self.key(suffix), n_layer)? else {
            return Ok(None);
        };
        let checked = values
            .into_iter()
            .enumerate()
            .map(|(i, v)| self.at_least_one(suffix, v as usize, &format!(" in layer {i}")));
        checked.collect::<Result<_, _>>().map(Some)
    }

    /// Like [`Hyper::sizes`], but the key must be there.
    fn require_sizes(&self, suffix: &str, n_layer: usize) -> Result<Vec<usize>, ModelError> {
        match self.sizes(suffix, n_layer)? {
            Some(values) => Ok(values),
            // Says that the key is missing.
            None => Ok(vec![self.require_size(suffix)?; n_layer]),
        }
    }

    fn at_least_one(&self, suffix: &str, value: usize, whose: &str) -> Result<usize, ModelError> {
        // Everything indexed by these counts is addressed with i32 somewhere.
        if (1..=i32::MAX as usize).contains(&value) {
            Ok(value)
        } else {
            Err(self.reject(suffix, format!("{value}{whose}"), format!("1 to {}", i32::MAX)))
        }
    }

    /// A finite number above zero.
    pub(crate) fn positive(&self, suffix: &str) -> Result<Option<f32>, ModelError> {
        match self.metadata.get_f32(&self.key(suffix))? {
            Some(v) if !(v.is_finite() && v > 0.0) => {
                Err(self.reject(suffix, v, "a finite number above zero"))
            }
            v => Ok(v),
        }
    }

    /// Text.
    pub(crate) fn text(&self, suffix: &str) -> Result<Option<&'g str>, ModelError> {
        Ok(self.metadata.get_str(&self.key(suffix))?)
    }

    /// The epsilon of the norms.
    fn epsilon(&self, suffix: &str) -> Result<f32, ModelError> {
        let eps = self.metadata.require_f32(&self.key(suffix))?;
        if eps.is_finite() && eps >= 0.0 {
            Ok(eps)
        } else {
            Err(self.reject(suffix, eps, "a finite number, zero or above"))
        }
    }
}

/// What every decoder-only model has.
pub(crate) struct Dims {
    pub(crate) n_layer: usize,
    pub(crate) n_embd: usize,
    /// Query heads of each layer.
    pub(crate) n_head: Vec<usize>,
    /// Key and value heads of each layer; divides the number of query heads.
    pub(crate) n_kv_head: Vec<usize>,
    pub(crate) head_dim: usize,
    /// Width of the feed-forward network of each layer.
    pub(crate) n_ff: Vec<usize>,
    pub(crate) n_vocab: usize,
    pub(crate) context_length: usize,
    pub(crate) eps: f32,
}

impl Dims {
    pub(crate) fn read(hyper: &Hyper<'_>, gguf: &Gguf) -> Result<Self, ModelError> {
        refuse_variants(hyper)?;
        let n_layer = hyper.require_size("block_count")?;
        let most = gguf.n_tensors().min(MAX_LAYERS);
        if n_layer > most {
            let expected = format!("at most {most}, as the file has {} tensors", gguf.n_tensors());
            return Err(hyper.reject("block_count", n_layer, expected));
        }
        let n_embd = hyper.require_size("embedding_length")?;
        let n_head = hyper.require_sizes("attention.head_count", n_layer)?;
        let n_kv_head = hyper.sizes("attention.head_count_kv", n_layer)?.unwrap_or_else(|| n_head.clone());
        for (i, (&heads, &kv_heads)) in n_head.iter().zip(&n_kv_head).enumerate() {
            if !heads.is_multiple_of(kv_heads) {
                let expected = format!("a divisor of attention.head_count, {heads}");
                let value = format!("{kv_heads} in layer {i}");
                return Err(hyper.reject("attention.head_count_kv", value, expected));
            }
        }
        Ok(Self {
            n_layer,
            n_embd,
            head_dim: head_dim(hyper, n_embd, n_head[0])?,
            n_head,
            n_kv_head,
            n_ff: hyper.require_sizes("feed_forward_length", n_layer)?,
            n_vocab: n_vocab(hyper, gguf)?,
            context_length: hyper.require_size("context_length")?,
            eps: hyper.epsilon("attention.layer_norm_rms_epsilon")?,
        })
    }

    /// 1/√head_dim: how attention scores are scaled where a model does not say otherwise.
    pub(crate) fn attention_scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }
}

/// Variants that change the computation and that no architecture here implements.
fn refuse_variants(hyper: &Hyper<'_>) -> Result<(), ModelError> {
    if let Some(n) = hyper.count("expert_count")?
        && n > 0
    {
        return Err(hyper.reject("expert_count", n, "0: mixtures of experts are not supported"));
    }
    if hyper.metadata.get_bool(&hyper.key("attention.causal"))? == Some(false) {
        return Err(hyper.reject("attention.causal", false, "true: encoders are not supported"));
    }
    Ok(())
}

fn head_dim(hyper: &Hyper<'_>, n_embd: usize, n_head: usize) -> Result<usize, ModelError> {
    let head_dim = match hyper.size("attention.key_length")? {
        Some(key_length) => key_length,
        None if n_embd.is_multiple_of(n_head) => n_embd / n_head,
        None => {
            let expected =
                format!("a divisor of embedding_length, {n_embd}, as attention.key_length is missing");
            return Err(hyper.reject("attention.head_count", n_head, expected));
        }
    };
    match hyper.size("attention.value_length")? {
        Some(value_length) if value_length != head_dim => {
            let expected = format!("the key length, {head_dim}");
            Err(hyper.reject("attention.value_length", value_length, expected))
        }
        _ => Ok(head_dim),
    }
}

/// The number of rows of the embedding table, which the length of the tokenizer's list must equal: an id of
/// the one would be beyond the other.
fn n_vocab(hyper: &Hyper<'_>, gguf: &Gguf) -> Result<usize, ModelError> {
    const TABLE: &str = "token_embd.weight";
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let table = gguf.tensor(TABLE);
    let rows = table.map(|t| t.n_rows());
    let (key, n) = match gguf.metadata().get_strings(TOKENS)? {
        Some(tokens) => (TOKENS.to_owned(), Some(tokens.len())),
        None => (hyper.key("vocab_size"), hyper.size("vocab_size")?),
    };
    match (rows, n) {
        (Some(rows), Some(n)) if rows != n as u64 => Err(ModelError::HyperParameter {
            key,
            value: format!("{n} tokens"),
            expected: format!("{rows}, the number of rows of {TABLE}"),
        }),
        (Some(rows), _) if rows > i32::MAX as u64 => Err(ModelError::HyperParameter {
            key,
            value: format!("{rows} tokens"),
            expected: format!("at most {}", i32::MAX),
        }),
        (Some(rows), _) => Ok(rows as usize),
        // The table's absence is reported with the other tensors'.
        (None, n) => Ok(n.unwrap_or(1)),
    }
}
