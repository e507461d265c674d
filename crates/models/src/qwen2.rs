//! Qwen2 and Qwen2.5: query, key and value projections have biases.

use minfer_graph::{Activation, RopePairs};

use crate::block::{self, GatedFfn, SelfAttention};
use crate::decoder::{Decoder, Layer};
use crate::hyper::{Dims, Hyper};
use crate::tensors::{Bias, Tensors};
use crate::{ModelError, rope};

pub(crate) fn load(hyper: &Hyper<'_>, dims: &Dims, tensors: &mut Tensors<'_>) -> Result<Decoder, ModelError> {
    let rope = rope::read(hyper, dims, RopePairs::Halves)?;
    Decoder::load(tensors, dims, Bias::IfPresent, |tensors, i| {
        Ok(Layer {
            attn_norm: tensors.layer_norm(i, "attn_norm", dims)?,
            attention: SelfAttention::load(tensors, dims, i, rope, Bias::Always)?,
            attn_output: block::attn_output(tensors, dims, i, Bias::Never)?,
            post_attn_norm: None,
            ffn_norm: tensors.layer_norm(i, "ffn_norm", dims)?,
            ffn: GatedFfn::load(tensors, dims, i, Activation::Silu, Bias::Never)?,
            post_ffn_norm: None,
        })
    })
}
