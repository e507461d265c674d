//! Llama and its many descendants (Llama 1 to 3, Mistral, SmolLM, TinyLlama, …).
//!
//! Query and key weights in the files are permuted so that rotary pairs are adjacent. Projections may have biases. Llama 3.1 and later
//! carry their frequency scaling as a tensor, `rope_freqs.weight`.

use minfer_graph::{Activation, RopePairs};

use crate::block::{GatedFfn, SelfAttention};
use crate::decoder::{Decoder, Layer};
use crate::hyper::{Dims, Hyper};
use crate::tensors::{Bias, Tensors};
use crate::{ModelError, rope};

pub(crate) fn load(hyper: &Hyper<'_>, dims: &Dims, tensors: &mut Tensors<'_>) -> Result<Decoder, ModelError> {
    let rope = rope::read(hyper, dims, RopePairs::Adjacent)?;
    let rope_factors = tensors.optional_vector("rope_freqs.weight", rope.rotary_dim / 2)?;
    Decoder::load(tensors, dims, Bias::Never, |tensors, i| {
        let attention = SelfAttention::load(tensors, dims, i, rope, Bias::IfPresent)?;
        let attended = dims.n_head[i] * dims.head_dim;
        Ok(Layer {
            attn_norm: tensors.norm(&format!("blk.{i}.attn_norm"), dims.n_embd, dims.eps)?,
            attention: SelfAttention { rope_factors: rope_factors.clone(), ..attention },
            attn_output: tensors.linear(
                &format!("blk.{i}.attn_output"),
                dims.n_embd,
                attended,
                Bias::IfPresent,
            )?,
            post_attn_norm: None,
            ffn_norm: tensors.norm(&format!("blk.{i}.ffn_norm"), dims.n_embd, dims.eps)?,
            ffn: GatedFfn::load(tensors, dims, i, Activation::Silu, Bias::IfPresent)?,
            post_ffn_norm: None,
        })
    })
}
