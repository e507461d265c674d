//! Llama and its many descendants (Llama 1 to 3, Mistral, SmolLM, TinyLlama, …).
//!
//! Query and key weights in the files are permuted so that rotary pairs are adjacent. Projections may have
//! biases. Llama 3.1 and later carry their frequency scaling as a tensor, `rope_freqs.weight`.

use minfer_graph::{Activation, RopePairs};

use crate::block::{self, GatedFfn, SelfAttention};
use crate::decoder::{Decoder, Layer};
use crate::hyper::{Dims, Hyper};
use crate::tensors::{Bias, Tensors};
use crate::{ModelError, rope};

pub(crate) fn load(hyper: &Hyper<'_>, dims: &Dims, tensors: &mut Tensors<'_>) -> Result<Decoder, ModelError> {
    let rope = rope::read(hyper, dims, RopePairs::Adjacent)?;
    let rope_factors = tensors.optional_vector("rope_freqs.weight", rope.rotary_dim / 2)?;
    Decoder::load(tensors, dims, Bias::Never, |tensors, i| {
        let attention = SelfAttention::load(tensors, dims, i, rope, Bias::IfPresent)?;
        Ok(Layer {
            attn_norm: tensors.layer_norm(i, "attn_norm", dims)?,
            attention: SelfAttention { rope_factors: rope_factors.clone(), ..attention },
            attn_output: block::attn_output(tensors, dims, i, Bias::IfPresent)?,
            post_attn_norm: None,
            ffn_norm: tensors.layer_norm(i, "ffn_norm", dims)?,
            ffn: GatedFfn::load(tensors, dims, i, Activation::Silu, Bias::IfPresent)?,
            post_ffn_norm: None,
        })
    })
}
