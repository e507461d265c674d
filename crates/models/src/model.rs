//! A model: what its file says about it, and the graph of a step.

use minfer_gguf::Gguf;
use minfer_graph::{DType, Graph, GraphBuilder, NodeId};

use crate::block::Step;
use crate::decoder::Decoder;
use crate::hyper::{Dims, Hyper};
use crate::tensors::Tensors;
use crate::{ModelError, gemma3, llama, qwen2, qwen3};

type Load = fn(&Hyper<'_>, &Dims, &mut Tensors<'_>) -> Result<Decoder, ModelError>;

/// The architectures by the name that files give them. A new one is a file and a line here.
const ARCHITECTURES: [(&str, Load); 4] =
    [("gemma3", gemma3::load), ("llama", llama::load), ("qwen2", qwen2::load), ("qwen3", qwen3::load)];

/// The names of the architectures that can be built.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().map(|a| a.0)
}

/// A model whose hyper-parameters and tensors have been checked against each other.
#[derive(Debug)]
pub struct Model {
    info: ModelInfo,
    decoder: Decoder,
}

/// What a file says about its model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`, if the file has one.
    pub name: Option<String>,
    /// Number of layers.
    pub n_layer: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Query heads of each layer.
    pub n_head: Vec<usize>,
    /// Key and value heads of each layer.
    pub n_kv_head: Vec<usize>,
    /// Elements of a head.
    pub head_dim: usize,
    /// Width of the feed-forward network of each layer.
    pub n_ff: Vec<usize>,
    /// Number of tokens, which is the number of logits.
    pub vocab_size: usize,
    /// The most positions that the model was made for.
    pub context_length: usize,
    /// The positions that a layer with a sliding window sees, if there are such layers.
    pub sliding_window: Option<usize>,
    /// Whether the output matrix is the embedding table.
    pub tied_embeddings: bool,
    /// Elements in all tensors.
    pub parameters: u64,
}

/// The KV cache row of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Heads in a row of K and of V.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

/// The sizes that the graph of a step depends on. Two steps of the same shape have the same graph, wherever
/// their tokens stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchShape {
    /// Tokens in the step.
    pub tokens: usize,
    /// Rows of logits.
    pub outputs: usize,
    /// Rows of the block table.
    pub sequences: usize,
}

/// The size and type of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvConfig {
    /// `F16` or `F32`.
    pub dtype: DType,
    /// Rows in each of a layer's K and V; a multiple of `page`.
    pub slots: usize,
    /// Rows in a page.
    pub page: usize,
    /// Entries of the block table per sequence.
    pub blocks: usize,
}

/// The inputs and the output of a step's graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// `i32 [tokens]`: token ids.
    pub tokens: NodeId,
    /// `i32 [tokens]`: each token's position in its sequence, counted from zero.
    pub positions: NodeId,
    /// `i32 [tokens]`: each token's row of the block table.
    pub sequences: NodeId,
    /// `i32 [tokens]`: the cache row that each token's key and value are written to.
    pub slots: NodeId,
    /// `i32 [sequences, blocks]`: the pages of each sequence in order.
    pub block_table: NodeId,
    /// `i32 [outputs]`: indices of the tokens whose logits are wanted, in the order wanted.
    pub output_rows: NodeId,
    /// `f32 [outputs, vocab_size]`: the output.
    pub logits: NodeId,
}

impl Model {
    /// Reads the hyper-parameters of a file, then finds and checks every tensor.
    ///
    /// The error names the metadata key or the tensor at fault. No tensor data is read.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        let hyper = Hyper::new(gguf)?;
        let architecture = hyper.architecture();
        let Some((_, load)) = ARCHITECTURES.iter().find(|a| a.0 == architecture) else {
            let known = architectures().collect::<Vec<_>>().join(", ");
            return Err(ModelError::UnknownArchitecture { name: architecture.to_owned(), known });
        };
        let dims = Dims::read(&hyper, gguf)?;
        let mut tensors = Tensors::new(gguf);
        let decoder = load(&hyper, &dims, &mut tensors)?;
        let tied_embeddings = !tensors.has("output.weight");
        tensors.finish(architecture)?;

        let info = ModelInfo {
            architecture: architecture.to_owned(),
            name: gguf.metadata().get_str("general.name")?.map(str::to_owned),
            n_layer: dims.n_layer,
            n_embd: dims.n_embd,
            n_head: dims.n_head,
            n_kv_head: dims.n_kv_head,
            head_dim: dims.head_dim,
            n_ff: dims.n_ff,
            vocab_size: dims.n_vocab,
            context_length: dims.context_length,
            sliding_window: decoder.layers.iter().find_map(|l| l.attention.attention.window),
            tied_embeddings,
            parameters: gguf.tensors().map(|t| t.n_elements()).sum(),
        };
        Ok(Self { info, decoder })
    }

    /// What the file says about the model.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// The KV cache row of each layer.
    pub fn kv_layers(&self) -> Vec<KvShape> {
        let head_dim = self.info.head_dim;
        self.info.n_kv_head.iter().map(|&kv_heads| KvShape { kv_heads, head_dim }).collect()
    }

    /// The graph of a step, a pure function of its arguments.
    ///
    /// Only the rows that `output_rows` picks go through the last layer's feed-forward network and the output
    /// matrix.
    pub fn graph(&self, batch: &BatchShape, kv: &KvConfig) -> Result<(Graph, Ports), ModelError> {
        for (what, value) in [
            ("tokens", batch.tokens),
            ("outputs", batch.outputs),
            ("sequences", batch.sequences),
            ("slots", kv.slots),
            ("page", kv.page),
            ("blocks", kv.blocks),
        ] {
            if !(1..=i32::MAX as usize).contains(&value) {
                return Err(ModelError::Size { what, value });
            }
        }
        let mut b = GraphBuilder::new();
        let tokens = b.input("tokens", DType::I32, [batch.tokens]);
        let positions = b.input("positions", DType::I32, [batch.tokens]);
        let sequences = b.input("sequences", DType::I32, [batch.tokens]);
        let slots = b.input("slots", DType::I32, [batch.tokens]);
        let block_table = b.input("block_table", DType::I32, [batch.sequences, kv.blocks]);
        let output_rows = b.input("output_rows", DType::I32, [batch.outputs]);
        let mut step = Step { b, kv: *kv, positions, sequences, slots, block_table };
        let logits = self.decoder.append(&mut step, tokens, output_rows);
        step.b.output(logits);
        let ports = Ports { tokens, positions, sequences, slots, block_table, output_rows, logits };
        Ok((step.b.finish()?, ports))
    }
}
