//! A small decoder with everything that a real one has: tied embeddings, biases, RoPE, grouped queries, a
//! gated feed-forward.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::sync::Arc;

use minfer_graph::{
    Activation, Attention, BoundPlan, DType, ExecError, Graph, GraphBuilder, NodeId, Rope, RopePairs,
    Scheduler, StateDecl, WeightSource, WeightTable,
};

/// Hyper-parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decoder {
    pub layers: u32,
    pub heads: usize,
    pub kv_heads: usize,
    pub dim: usize,
    pub hidden: usize,
    pub vocab: usize,
    pub slots: usize,
    pub page: usize,
    pub kv: DType,
}

pub const TINY: Decoder = Decoder {
    layers: 2,
    heads: 4,
    kv_heads: 2,
    dim: 4,
    hidden: 24,
    vocab: 11,
    slots: 64,
    page: 4,
    kv: DType::F32,
};

/// The ids of a built graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ids {
    pub tokens: NodeId,
    pub positions: NodeId,
    pub slots: NodeId,
    pub sequences: NodeId,
    pub table: NodeId,
    pub wanted: NodeId,
    pub logits: NodeId,
}

impl Decoder {
    pub fn width(&self) -> usize {
        self.heads * self.dim
    }

    pub fn blocks(&self) -> usize {
        self.slots / self.page
    }

    /// A step of `n` tokens of one sequence, with the logits of `outputs` of them.
    pub fn graph(&self, n: usize, outputs: usize) -> (Graph, Ids) {
        let mut b = GraphBuilder::new();
        let tokens = b.input("tokens", DType::I32, [n]);
        let positions = b.input("positions", DType::I32, [n]);
        let slots = b.input("slots", DType::I32, [n]);
        let sequences = b.input("sequences", DType::I32, [n]);
        let table = b.input("block_table", DType::I32, [1, self.blocks()]);
        let wanted = b.input("wanted", DType::I32, [outputs]);
        let embeddings = b.weight("token_embd", DType::F32, [self.vocab, self.width()]);
        let mut x = b.get_rows("embedded", embeddings, tokens);
        for layer in 0..self.layers {
            b.set_layer(Some(layer));
            x = self.layer(&mut b, layer, x, [positions, slots, sequences, table], n);
        }
        b.set_layer(None);
        let x = b.get_rows("rows wanted", x, wanted);
        let x = self.norm(&mut b, "output_norm", x);
        let logits = b.mat_mul("logits", embeddings, x);
        b.output(logits);
        let graph = b.finish().unwrap();
        (graph, Ids { tokens, positions, slots, sequences, table, wanted, logits })
    }

    fn norm(&self, b: &mut GraphBuilder, name: &str, x: NodeId) -> NodeId {
        let weight = b.weight(name, DType::F32, [self.width()]);
        let normed = b.rms_norm(format!("{name}.normed"), x, 1e-5);
        b.mul(format!("{name}.out"), normed, weight)
    }

    fn layer(
        &self,
        b: &mut GraphBuilder,
        layer: u32,
        x: NodeId,
        [positions, slots, sequences, table]: [NodeId; 4],
        n: usize,
    ) -> NodeId {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let rope = Rope { rotary_dim: self.dim, pairs: RopePairs::Halves, base: 1e4, scale: 1.0, yarn: None };
        let h = self.norm(b, &name("attn_norm"), x);
        let mut project = |part: &str, heads: usize| {
            let weight = b.weight(name(part), DType::F32, [heads * self.dim, self.width()]);
            let bias = b.weight(name(&format!("{part}.bias")), DType::F32, [heads * self.dim]);
            let product = b.mat_mul(name(&format!("{part}.product")), weight, h);
            let sum = b.add(name(&format!("{part}.biased")), product, bias);
            b.reshape(name(&format!("{part}.heads")), sum, [n, heads, self.dim])
        };
        let (q, k, v) = (project("q", self.heads), project("k", self.kv_heads), project("v", self.kv_heads));
        let q = b.rope(name("q.rope"), q, positions, None, rope);
        let k = b.rope(name("k.rope"), k, positions, None, rope);
        let state = b.state(name("kv"), self.state(layer));
        let stored = b.kv_store(name("kv.stored"), state, k, v, slots);
        let attention = Attention { scale: 1.0 / (self.dim as f32).sqrt(), window: None, softcap: None };
        let h = b.attention(name("attn"), q, stored, positions, sequences, table, attention);
        let weight = b.weight(name("attn_out"), DType::F32, [self.width(), self.width()]);
        let h = b.mat_mul(name("attn_out.product"), weight, h);
        let x = b.add(name("attn.residual"), h, x);

        let h = self.norm(b, &name("ffn_norm"), x);
        let mut up = |part: &str| {
            let weight = b.weight(name(part), DType::F32, [self.hidden, self.width()]);
            b.mat_mul(name(&format!("{part}.product")), weight, h)
        };
        let (gate, up) = (up("ffn_gate"), up("ffn_up"));
        let gate = b.activate(name("ffn_gate.silu"), gate, Activation::Silu);
        let h = b.mul(name("ffn_gated"), gate, up);
        let weight = b.weight(name("ffn_down"), DType::F32, [self.width(), self.hidden]);
        let h = b.mat_mul(name("ffn_down.product"), weight, h);
        b.add(name("ffn.residual"), h, x)
    }

    pub fn state(&self, layer: u32) -> StateDecl {
        StateDecl {
            layer,
            dtype: self.kv,
            slots: self.slots,
            page: self.page,
            kv_heads: self.kv_heads,
            head_dim: self.dim,
        }
    }

    /// Random weights.
    pub fn weights(&self) -> WeightTable {
        let mut table = WeightTable::new();
        for decl in self.graph(1, 1).0.weights() {
            let seed = decl.name.bytes().fold(7u64, |h, b| h.wrapping_mul(31) + u64::from(b));
            table.insert_f32(decl.name.as_str(), &noise(seed, decl.shape.len()));
        }
        table
    }

    pub fn source(&self) -> Arc<dyn WeightSource> {
        Arc::new(self.weights())
    }

    /// Writes the inputs of a step at positions `past ..`, runs it and gives the logits of its last token.
    pub fn step(
        &self,
        scheduler: &mut Scheduler,
        plan: &mut BoundPlan,
        ids: &Ids,
        past: usize,
        tokens: &[i32],
    ) -> Result<Vec<f32>, ExecError> {
        let n = tokens.len();
        let positions: Vec<i32> = (past..past + n).map(|p| p as i32).collect();
        scheduler.write_i32(plan, ids.tokens, tokens)?;
        scheduler.write_i32(plan, ids.positions, &positions)?;
        // Pages stand in reverse order, so that a slot is never its position.
        let blocks: Vec<i32> = (0..self.blocks() as i32).rev().collect();
        let slot = |&p: &i32| blocks[p as usize / self.page] * self.page as i32 + p % self.page as i32;
        scheduler.write_i32(plan, ids.slots, &positions.iter().map(slot).collect::<Vec<i32>>())?;
        scheduler.write_i32(plan, ids.sequences, &vec![0; n])?;
        scheduler.write_i32(plan, ids.table, &blocks)?;
        scheduler.write_i32(plan, ids.wanted, &[n as i32 - 1])?;
        scheduler.execute(plan)?;
        let mut logits = vec![0.0; self.vocab];
        scheduler.read_f32(plan, ids.logits, &mut logits)?;
        Ok(logits)
    }
}

/// Reproducible numbers in (-1, 1).
pub fn noise(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
        })
        .collect()
}
