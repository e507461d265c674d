//! Gemma 3, text only: five layers that see a sliding window for each that sees everything, norms before and
//! after each block, query and key norms, a GELU gate, scaled embeddings. The files' norm weights already
//! contain the one that the original adds to them.

use minfer_graph::{Activation, Attention, Rope, RopePairs};

use crate::block::{self, GatedFfn, SelfAttention};
use crate::decoder::{Decoder, Layer};
use crate::hyper::{Dims, Hyper};
use crate::tensors::{Bias, Tensors};
use crate::{ModelError, rope};

/// Every sixth layer is global.
const PATTERN: usize = 6;

/// The 27B model, known by its number of layers, scales by the width per head, not by the head size.
const LAYERS_27B: usize = 62;

pub(crate) fn load(hyper: &Hyper<'_>, dims: &Dims, tensors: &mut Tensors<'_>) -> Result<Decoder, ModelError> {
    let global = rope::read(hyper, dims, RopePairs::Halves)?;
    // Scaling to longer contexts concerns the global layers only.
    let local_base = hyper.positive("rope.freq_base_swa")?.unwrap_or(rope::DEFAULT_BASE);
    let local = Rope { base: local_base, scale: 1.0, yarn: None, ..global };
    // A file without a window has global layers only.
    let window = hyper.count("attention.sliding_window")?.filter(|&w| w > 0);
    let pattern = hyper.size("attention.sliding_window_pattern")?.unwrap_or(PATTERN);
    let softcap = hyper.positive("attn_logit_softcapping")?;
    let scale = if dims.n_layer == LAYERS_27B {
        1.0 / (dims.n_embd as f32 / dims.n_head[0] as f32).sqrt()
    } else {
        dims.attention_scale()
    };

    let decoder = Decoder::load(tensors, dims, Bias::Never, |tensors, i| {
        let window = window.filter(|_| i % pattern < pattern - 1);
        let rope = if window.is_some() { local } else { global };
        let attention = SelfAttention::load(tensors, dims, i, rope, Bias::Never)?;
        let attention = attention.with_qk_norm(tensors, dims.eps)?;
        let mut norm = |name: &str| tensors.layer_norm(i, name, dims);
        Ok(Layer {
            attn_norm: norm("attn_norm")?,
            post_attn_norm: Some(norm("post_attention_norm")?),
            ffn_norm: norm("ffn_norm")?,
            post_ffn_norm: Some(norm("post_ffw_norm")?),
            attention: SelfAttention { attention: Attention { scale, window, softcap }, ..attention },
            attn_output: block::attn_output(tensors, dims, i, Bias::Never)?,
            ffn: GatedFfn::load(tensors, dims, i, Activation::Gelu, Bias::Never)?,
        })
    })?;
    Ok(Decoder {
        // Not rounded, as in llama.cpp. The original rounds it to BF16: 25.25, not 25.298, for a width of
        // 640.
        embedding_scale: Some((dims.n_embd as f32).sqrt()),
        logit_softcap: hyper.positive("final_logit_softcapping")?,
        ..decoder
    })
}
