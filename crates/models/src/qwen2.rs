//! Qwen2 and Qwen2.5: query, key and value projections have biases.

use minfer_graph::{Activation, RopePairs};

use crate::block::{GatedFfn, SelfAttention};
use crate::decoder::{Decoder, Layer};
use crate::hyper::{Dims, Hyper};
use crate::tensors::{Bias, Tensors};
use crate::{ModelError, rope};

pub(crate) fn load(hyper: &Hyper<'_>, dims: &Dims, tensors: &mut Tensors<'_>) -> Result<Decoder, ModelError> {
    let rope = rope::read(hyper, dims, RopePairs::Halves)?;
    Decoder::load(tensors, dims, Bias::IfPresent, |tensors, i| {
        let attended = dims.n_head[i] * dims.head_dim;
        Ok(Layer {
            attn_norm: tensors.norm(&format!("blk.{i}.attn_norm"), dims.n_embd, dims.eps)?,
            attention: SelfAttention::load(tensors, dims, i, rope, Bias::Always)?,
            attn_output: tensors.linear(
                &format!("blk.{i}.attn_output"),
                dims.n_embd,
                attended,
                Bias::Never,
            )?,
            post_attn_norm: None,
            ffn_norm: tensors.norm(&format!("blk.{i}.ffn_norm"), dims.n_embd, dims.eps)?,
            ffn: GatedFfn::load(tensors, dims, i, Activation::Silu, Bias::Never)?,
            post_ffn_norm: None,
        })
    })
}
