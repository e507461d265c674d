//! The pieces that models are made of. Each holds its checked tensors and appends its nodes to a step's
//! graph.

use minfer_graph::{Activation, Attention, GraphBuilder, NodeId, Rope, StateDecl};

use crate::hyper::Dims;
use crate::tensors::{Bias, Tensors, Weight};
use crate::{KvConfig, ModelError};

/// A step's graph while it is built: the builder and the inputs that layers read.
pub(crate) struct Step {
    pub(crate) b: GraphBuilder,
    pub(crate) kv: KvConfig,
    pub(crate) positions: NodeId,
    pub(crate) sequences: NodeId,
    pub(crate) slots: NodeId,
    pub(crate) block_table: NodeId,
}

/// x · weightᵀ + bias.
#[derive(Debug)]
pub(crate) struct Linear {
    pub(crate) label: String,
    pub(crate) weight: Weight,
    pub(crate) bias: Option<Weight>,
}

impl Linear {
    pub(crate) fn append(&self, b: &mut GraphBuilder, x: NodeId) -> NodeId {
        let weight = self.weight.node(b);
        let product = b.mat_mul(self.label.as_str(), weight, x);
        match &self.bias {
            Some(bias) => {
                let bias = bias.node(b);
                b.add(format!("{}_bias", self.label), product, bias)
            }
            None => product,
        }
    }
}

/// RMS norm with a weight.
#[derive(Debug)]
pub(crate) struct Norm {
    pub(crate) label: String,
    pub(crate) weight: Weight,
    pub(crate) eps: f32,
}

impl Norm {
    pub(crate) fn append(&self, b: &mut GraphBuilder, x: NodeId) -> NodeId {
        let normed = b.rms_norm(format!("{}_rms", self.label), x, self.eps);
        let weight = self.weight.node(b);
        b.mul(self.label.as_str(), normed, weight)
    }
}

/// Norms of single query and key heads, before they are rotated.
#[derive(Debug)]
pub(crate) struct QkNorm {
    pub(crate) q: Norm,
    pub(crate) k: Norm,
}

/// Grouped-query attention over the KV cache, up to and without the output projection.
#[derive(Debug)]
pub(crate) struct SelfAttention {
    pub(crate) layer: usize,
    pub(crate) n_head: usize,
    pub(crate) n_kv_head: usize,
    pub(crate) head_dim: usize,
    pub(crate) q: Linear,
    pub(crate) k: Linear,
    pub(crate) v: Linear,
    pub(crate) qk_norm: Option<QkNorm>,
    pub(crate) rope: Rope,
    /// Divisors of the frequencies, one per pair.
    pub(crate) rope_factors: Option<Weight>,
    pub(crate) attention: Attention,
}

impl SelfAttention {
    /// The layer's `attn_q`, `attn_k` and `attn_v`, without norms, window or frequency factors.
    pub(crate) fn load(
        tensors: &mut Tensors<'_>,
        dims: &Dims,
        layer: usize,
        rope: Rope,
        bias: Bias,
    ) -> Result<Self, ModelError> {
        let (n_head, n_kv_head, head_dim) = (dims.n_head[layer], dims.n_kv_head[layer], dims.head_dim);
        let mut project = |name: &str, heads: usize| {
            tensors.linear(&format!("blk.{layer}.{name}"), heads * head_dim, dims.n_embd, bias)
        };
        Ok(Self {
            layer,
            n_head,
            n_kv_head,
            head_dim,
            q: project("attn_q", n_head)?,
            k: project("attn_k", n_kv_head)?,
            v: project("attn_v", n_kv_head)?,
            qk_norm: None,
            rope,
            rope_factors: None,
            attention: Attention { scale: dims.attention_scale(), window: None, softcap: None },
        })
    }

    /// With the layer's `attn_q_norm` and `attn_k_norm`.
    pub(crate) fn with_qk_norm(self, tensors: &mut Tensors<'_>, eps: f32) -> Result<Self, ModelError> {
        let mut norm = |name: &str| tensors.norm(&format!("blk.{}.{name}", self.layer), self.head_dim, eps);
        let qk_norm = QkNorm { q: norm("attn_q_norm")?, k: norm("attn_k_norm")? };
        Ok(Self { qk_norm: Some(qk_norm), ..self })
    }

    /// `x [n, n_embd]` → `[n, n_head · head_dim]`.
    pub(crate) fn append(&self, step: &mut Step, x: NodeId) -> NodeId {
        let b = &mut step.b;
        let n = b.shape(x).rows();
        let name = |what: &str| format!("blk.{}.{what}", self.layer);

        // The three products stand together: they share activations that a device may have to convert.
        let q = self.q.append(b, x);
        let k = self.k.append(b, x);
        let v = self.v.append(b, x);
        let mut q = b.reshape(name("q"), q, [n, self.n_head, self.head_dim]);
        let mut k = b.reshape(name("k"), k, [n, self.n_kv_head, self.head_dim]);
        let v = b.reshape(name("v"), v, [n, self.n_kv_head, self.head_dim]);
        if let Some(norm) = &self.qk_norm {
            q = norm.q.append(b, q);
            k = norm.k.append(b, k);
        }
        let factors = self.rope_factors.as_ref().map(|f| f.node(b));
        let q = b.rope(name("q_rope"), q, step.positions, factors, self.rope);
        let k = b.rope(name("k_rope"), k, step.positions, factors, self.rope);

        let cache = StateDecl {
            layer: self.layer as u32,
            dtype: step.kv.dtype,
            slots: step.kv.slots,
            page: step.kv.page,
            kv_heads: self.n_kv_head,
            head_dim: self.head_dim,
        };
        let cache = b.state(name("kv"), cache);
        let cache = b.kv_store(name("kv_store"), cache, k, v, step.slots);
        b.attention(name("attn"), q, cache, step.positions, step.sequences, step.block_table, self.attention)
    }
}

/// The layer's `attn_output`: back from its heads to the residual stream.
pub(crate) fn attn_output(
    tensors: &mut Tensors<'_>,
    dims: &Dims,
    layer: usize,
    bias: Bias,
) -> Result<Linear, ModelError> {
    let heads = dims.n_head[layer] * dims.head_dim;
    tensors.linear(&format!("blk.{layer}.attn_output"), dims.n_embd, heads, bias)
}

/// `down(activation(gate(x)) · up(x))`.
#[derive(Debug)]
pub(crate) struct GatedFfn {
    pub(crate) label: String,
    pub(crate) gate: Linear,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
    pub(crate) activation: Activation,
}

impl GatedFfn {
    /// The layer's `ffn_gate`, `ffn_up` and `ffn_down`.
    pub(crate) fn load(
        tensors: &mut Tensors<'_>,
        dims: &Dims,
        layer: usize,
        activation: Activation,
        bias: Bias,
    ) -> Result<Self, ModelError> {
        let (n_ff, n_embd) = (dims.n_ff[layer], dims.n_embd);
        let label = format!("blk.{layer}.ffn");
        Ok(Self {
            gate: tensors.linear(&format!("{label}_gate"), n_ff, n_embd, bias)?,
            up: tensors.linear(&format!("{label}_up"), n_ff, n_embd, bias)?,
            down: tensors.linear(&format!("{label}_down"), n_embd, n_ff, bias)?,
            activation,
            label,
        })
    }

    pub(crate) fn append(&self, b: &mut GraphBuilder, x: NodeId) -> NodeId {
        let gate = self.gate.append(b, x);
        let up = self.up.append(b, x);
        let activated = b.activate(format!("{}_act", self.label), gate, self.activation);
        let hidden = b.mul(format!("{}_hidden", self.label), activated, up);
        self.down.append(b, hidden)
    }
}
