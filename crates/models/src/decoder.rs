//! The stack that decoder-only models share: embeddings, layers around a residual stream, a last norm, the
//! output.

use minfer_graph::NodeId;

use crate::ModelError;
use crate::block::{GatedFfn, Linear, Norm, SelfAttention, Step};
use crate::hyper::Dims;
use crate::tensors::{Bias, Tensors, Weight};

/// A model from token ids to logits.
#[derive(Debug)]
pub(crate) struct Decoder {
    pub(crate) embeddings: Weight,
    /// Multiplies the embeddings.
    pub(crate) embedding_scale: Option<f32>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) output_norm: Norm,
    pub(crate) output: Linear,
    /// Bounds the logits: see [`minfer_graph::Op::Softcap`].
    pub(crate) logit_softcap: Option<f32>,
}

/// One layer: attention, then a feed-forward network, each added to the residual stream.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) attn_norm: Norm,
    pub(crate) attention: SelfAttention,
    pub(crate) attn_output: Linear,
    /// Of what attention adds.
    pub(crate) post_attn_norm: Option<Norm>,
    pub(crate) ffn_norm: Norm,
    pub(crate) ffn: GatedFfn,
    /// Of what the feed-forward network adds.
    pub(crate) post_ffn_norm: Option<Norm>,
}

impl Decoder {
    /// The tensors outside of layers, with `output.weight` taken from the embeddings where a file ties the
    /// two.
    pub(crate) fn load(
        tensors: &mut Tensors<'_>,
        dims: &Dims,
        output_bias: Bias,
        layer: impl Fn(&mut Tensors<'_>, usize) -> Result<Layer, ModelError>,
    ) -> Result<Self, ModelError> {
        let embeddings = tensors.matrix("token_embd.weight", dims.n_vocab, dims.n_embd)?;
        let output_norm = tensors.norm("output_norm", dims.n_embd, dims.eps)?;
        let output = if tensors.has("output.weight") {
            tensors.linear("output", dims.n_vocab, dims.n_embd, output_bias)?
        } else {
            Linear { label: "output".to_owned(), weight: embeddings.clone(), bias: None }
        };
        let layers = (0..dims.n_layer).map(|i| layer(tensors, i)).collect::<Result<_, _>>()?;
        Ok(Self { embeddings, embedding_scale: None, layers, output_norm, output, logit_softcap: None })
    }

    /// The logits `[outputs, n_vocab]` of the tokens that `output_rows` picks.
    pub(crate) fn append(&self, step: &mut Step, tokens: NodeId, output_rows: NodeId) -> NodeId {
        let table = self.embeddings.node(&mut step.b);
        let mut x = step.b.get_rows("token_embd", table, tokens);
        if let Some(scale) = self.embedding_scale {
            x = step.b.scale("token_embd_scaled", x, scale);
        }
        for (i, layer) in self.layers.iter().enumerate() {
            step.b.set_layer(Some(i as u32));
            let last = i + 1 == self.layers.len();
            x = layer.append(step, i, x, last.then_some(output_rows));
        }
        step.b.set_layer(None);
        let x = self.output_norm.append(&mut step.b, x);
        let logits = self.output.append(&mut step.b, x);
        match self.logit_softcap {
            Some(cap) => step.b.softcap("output_softcap", logits, cap),
            None => logits,
        }
    }
}

impl Layer {
    /// `only` picks the rows that are needed after attention: in the last layer, those whose logits are asked
    /// for.
    fn append(&self, step: &mut Step, i: usize, mut x: NodeId, only: Option<NodeId>) -> NodeId {
        let normed = self.attn_norm.append(&mut step.b, x);
        let mut attended = self.attention.append(step, normed);
        let b = &mut step.b;
        if let Some(rows) = only {
            attended = b.get_rows(format!("blk.{i}.attn_rows"), attended, rows);
            x = b.get_rows(format!("blk.{i}.input_rows"), x, rows);
        }
        let mut added = self.attn_output.append(b, attended);
        if let Some(norm) = &self.post_attn_norm {
            added = norm.append(b, added);
        }
        let x = b.add(format!("blk.{i}.attn_residual"), added, x);

        let normed = self.ffn_norm.append(b, x);
        let mut added = self.ffn.append(b, normed);
        if let Some(norm) = &self.post_ffn_norm {
            added = norm.append(b, added);
        }
        b.add(format!("blk.{i}.ffn_residual"), added, x)
    }
}
