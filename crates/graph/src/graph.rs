//! The graph: nodes in build order, the weights and states they name.

use crate::{DType, Op, Shape, StateId, WeightId};

/// Index of a node, and of the value it produces: a node has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// As a `Vec` index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One node: an operation, the values it reads and the value it makes.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What is computed.
    pub op: Op,
    /// The values read, in the order the operation lists them. All are earlier nodes.
    pub sources: Vec<NodeId>,
    /// The element type of the result.
    pub dtype: DType,
    /// The shape of the result.
    pub shape: Shape,
    /// A name for people, such as `blk.3.ffn_out`.
    pub label: String,
    /// The layer it belongs to, if any: what `--gpu-layers` divides.
    pub layer: Option<u32>,
}

impl Node {
    /// The bytes the result takes in memory.
    pub fn bytes(&self) -> usize {
        dtype_bytes(self.dtype, &self.shape)
    }
}

/// The bytes of a dense value of this type and shape.
pub(crate) fn dtype_bytes(dtype: DType, shape: &Shape) -> usize {
    shape.rows() * (shape.width().div_ceil(dtype.block_size()) * dtype.type_size())
}

/// A tensor of the model that the graph reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightDecl {
    /// The tensor's name in the model file.
    pub name: String,
    /// Its type in the file; a device may keep it in another, lossless layout.
    pub dtype: DType,
    /// Its shape, outermost first (the reverse of GGUF's order).
    pub shape: Shape,
}

/// One layer's paged KV cache. K and V are each `[slots][kv_heads][head_dim]`; a slot is one position of one
/// sequence, and `page` consecutive slots form a page that a block table names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateDecl {
    /// The layer number.
    pub layer: u32,
    /// `F16` or `F32`.
    pub dtype: DType,
    /// Rows in each of K and V.
    pub slots: usize,
    /// Slots in a page.
    pub page: usize,
    /// Heads in a row.
    pub kv_heads: usize,
    /// Elements in a head.
    pub head_dim: usize,
}

impl StateDecl {
    /// The bytes of K, which are also the bytes of V.
    pub fn half_bytes(&self) -> usize {
        self.slots * self.kv_heads * self.head_dim * self.dtype.type_size()
    }
}

/// A checked graph. Nodes stand in the order in which they were built, sources first, and that is the order
/// of execution, of liveness and of freeing. Made by [`crate::GraphBuilder`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) weights: Vec<WeightDecl>,
    pub(crate) states: Vec<StateDecl>,
    pub(crate) outputs: Vec<NodeId>,
}

impl Graph {
    /// All nodes in build order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// Ids and nodes in build order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node)> + ExactSizeIterator {
        self.nodes.iter().enumerate().map(|(i, n)| (NodeId(i as u32), n))
    }

    /// The weights named by the nodes.
    pub fn weights(&self) -> &[WeightDecl] {
        &self.weights
    }

    /// One weight.
    pub fn weight(&self, id: WeightId) -> &WeightDecl {
        &self.weights[id.0 as usize]
    }

    /// The states named by the nodes.
    pub fn states(&self) -> &[StateDecl] {
        &self.states
    }

    /// One state.
    pub fn state(&self, id: StateId) -> &StateDecl {
        &self.states[id.0 as usize]
    }

    /// The values the host reads after a run.
    pub fn outputs(&self) -> &[NodeId] {
        &self.outputs
    }

    /// The inputs in build order.
    pub fn inputs(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.iter().filter(|(_, n)| n.op == Op::Input).map(|(id, _)| id)
    }

    /// How many times each value is read by nodes; being an output counts as one more.
    pub fn use_counts(&self) -> Vec<u32> {
        let mut uses = vec![0; self.nodes.len()];
        for node in &self.nodes {
            for s in &node.sources {
                uses[s.index()] += 1;
            }
        }
        for o in &self.outputs {
            uses[o.index()] += 1;
        }
        uses
    }

    /// The value whose memory this one is a name for: follows reshapes and state writes to their first
    /// source.
    pub fn root(&self, mut id: NodeId) -> NodeId {
        while self.node(id).op.is_alias() {
            id = self.node(id).sources[0];
        }
        id
    }

    /// The state a value stands for, if it is one.
    pub fn state_of(&self, id: NodeId) -> Option<StateId> {
        match self.node(self.root(id)).op {
            Op::State(s) => Some(s),
            _ => None,
        }
    }

    /// Whether nodes can be put in an order with sources first. Build order is the only order in use; this
    /// checks graphs from elsewhere.
    pub fn is_acyclic(&self) -> bool {
        let mut waiting: Vec<usize> = self.nodes.iter().map(|n| n.sources.len()).collect();
        let mut readers = vec![Vec::new(); self.nodes.len()];
        for (i, node) in self.nodes.iter().enumerate() {
            for s in &node.sources {
                readers[s.index()].push(i);
            }
        }
        let mut ready: Vec<usize> = (0..waiting.len()).filter(|&i| waiting[i] == 0).collect();
        let mut done = 0;
        while let Some(i) = ready.pop() {
            done += 1;
            for &r in &readers[i] {
                waiting[r] -= 1;
                if waiting[r] == 0 {
                    ready.push(r);
                }
            }
        }
        done == self.nodes.len()
    }
}
