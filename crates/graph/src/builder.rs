//! Building and checking graphs.

use std::collections::HashMap;
use std::fmt;

use crate::infer::{self, Sources};
use crate::{
    Activation, Attention, DType, Graph, Node, NodeId, Op, Rope, Shape, StateDecl, StateId, WeightDecl,
    WeightId,
};

/// One thing wrong with a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The node at fault.
    pub node: NodeId,
    /// Its label.
    pub label: String,
    /// Its operation.
    pub op: &'static str,
    /// What is wrong, with the shapes and types concerned.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} {} ({}): {}", self.node.0, self.label, self.op, self.what)
    }
}

/// A graph that cannot be: every problem found, in build order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct GraphError {
    /// At least one.
    pub problems: Vec<Problem>,
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.problems.len();
        write!(f, "the graph has {n} problem{}", if n == 1 { "" } else { "s" })?;
        for p in &self.problems {
            write!(f, "; {p}")?;
        }
        Ok(())
    }
}

/// Appends nodes, sources first, and checks each as it comes. Problems are collected;
/// [`GraphBuilder::finish`] reports them all at once.
///
/// ```
/// use minfer_graph::{DType, GraphBuilder};
/// let mut b = GraphBuilder::new();
/// let x = b.input("x", DType::F32, [1, 4]);
/// let w = b.weight("w", DType::F32, [2, 4]);
/// let y = b.mat_mul("y", w, x);
/// b.output(y);
/// let graph = b.finish().unwrap();
/// assert_eq!(graph.node(y).shape.dims(), [1, 2]);
/// ```
#[derive(Debug, Default)]
pub struct GraphBuilder {
    graph: Graph,
    by_name: HashMap<String, NodeId>,
    /// The last write to each KV cache.
    stores: HashMap<StateId, NodeId>,
    problems: Vec<Problem>,
    layer: Option<u32>,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// The layer that nodes appended from now on belong to.
    pub fn set_layer(&mut self, layer: Option<u32>) {
        self.layer = layer;
    }

    /// The shape of a value.
    pub fn shape(&self, id: NodeId) -> Shape {
        self.graph.node(id).shape
    }

    /// Data the host writes before each run.
    pub fn input(&mut self, label: impl Into<String>, dtype: DType, shape: impl Into<Shape>) -> NodeId {
        let shape = shape.into();
        let id = self.push(Op::Input, Vec::new(), dtype, shape, label.into());
        if !matches!(dtype, DType::F32 | DType::I32) {
            self.problem(id, format!("an input is F32 or I32, not {}", dtype.name()));
        }
        id
    }

    /// A tensor of the model. The same name gives the same node; a second shape or type for it is a problem.
    pub fn weight(&mut self, name: impl Into<String>, dtype: DType, shape: impl Into<Shape>) -> NodeId {
        let (name, shape) = (name.into(), shape.into());
        if let Some(&id) = self.by_name.get(&name) {
            let node = self.graph.node(id);
            if node.dtype != dtype || node.shape != shape {
                let what = format!(
                    "declared as {} {} and again as {} {shape}",
                    node.dtype.name(),
                    node.shape,
                    dtype.name()
                );
                self.problem(id, what);
            }
            return id;
        }
        let weight = WeightId(self.graph.weights.len() as u32);
        self.graph.weights.push(WeightDecl { name: name.clone(), dtype, shape });
        let id = self.push(Op::Weight(weight), Vec::new(), dtype, shape, name.clone());
        if !shape.width().is_multiple_of(dtype.block_size()) {
            let what = format!(
                "rows of {} are not whole {} blocks of {}",
                shape.width(),
                dtype.name(),
                dtype.block_size()
            );
            self.problem(id, what);
        }
        self.by_name.insert(name, id);
        id
    }

    /// One layer's KV cache. A layer has one.
    pub fn state(&mut self, label: impl Into<String>, decl: StateDecl) -> NodeId {
        let state = StateId(self.graph.states.len() as u32);
        let twice = self.graph.states.iter().any(|s| s.layer == decl.layer);
        self.graph.states.push(decl);
        let shape = Shape::new(&[2, decl.slots, decl.kv_heads, decl.head_dim]);
        let id = self.push(Op::State(state), Vec::new(), decl.dtype, shape, label.into());
        if !matches!(decl.dtype, DType::F16 | DType::F32) {
            self.problem(id, format!("a KV cache is F16 or F32, not {}", decl.dtype.name()));
        }
        if twice {
            self.problem(id, format!("layer {} has a KV cache already", decl.layer));
        }
        if decl.page == 0
            || decl.slots == 0
            || !decl.slots.is_multiple_of(decl.page)
            || decl.slots > i32::MAX as usize
        {
            self.problem(id, format!("{} slots are not a number of pages of {}", decl.slots, decl.page));
        }
        if decl.kv_heads == 0 || decl.head_dim == 0 {
            self.problem(id, format!("{} heads of {} elements", decl.kv_heads, decl.head_dim));
        }
        id
    }

    /// Row lookup: see [`Op::GetRows`].
    pub fn get_rows(&mut self, label: impl Into<String>, table: NodeId, ids: NodeId) -> NodeId {
        self.append(label, Op::GetRows, &[table, ids])
    }

    /// x · weightᵀ: see [`Op::MatMul`].
    pub fn mat_mul(&mut self, label: impl Into<String>, weight: NodeId, x: NodeId) -> NodeId {
        self.append(label, Op::MatMul, &[weight, x])
    }

    /// a + b, b of a's shape or one row.
    pub fn add(&mut self, label: impl Into<String>, a: NodeId, b: NodeId) -> NodeId {
        self.append(label, Op::Add, &[a, b])
    }

    /// a · b, b of a's shape or one row.
    pub fn mul(&mut self, label: impl Into<String>, a: NodeId, b: NodeId) -> NodeId {
        self.append(label, Op::Mul, &[a, b])
    }

    /// x · factor.
    pub fn scale(&mut self, label: impl Into<String>, x: NodeId, factor: f32) -> NodeId {
        self.append(label, Op::Scale(factor), &[x])
    }

    /// cap · tanh(x / cap).
    pub fn softcap(&mut self, label: impl Into<String>, x: NodeId, cap: f32) -> NodeId {
        self.append(label, Op::Softcap(cap), &[x])
    }

    /// Normalizes the last dimension by its root mean square, without a weight.
    pub fn rms_norm(&mut self, label: impl Into<String>, x: NodeId, eps: f32) -> NodeId {
        self.append(label, Op::RmsNorm { eps }, &[x])
    }

    /// An elementwise activation.
    pub fn activate(&mut self, label: impl Into<String>, x: NodeId, activation: Activation) -> NodeId {
        self.append(label, Op::Activate(activation), &[x])
    }

    /// Rotary position embedding, with per-pair frequency factors if the model has them.
    pub fn rope(
        &mut self,
        label: impl Into<String>,
        x: NodeId,
        positions: NodeId,
        factors: Option<NodeId>,
        rope: Rope,
    ) -> NodeId {
        let mut sources = vec![x, positions];
        sources.extend(factors);
        self.append(label, Op::Rope(rope), &sources)
    }

    /// The same elements of an input or a computed value in another shape.
    pub fn reshape(&mut self, label: impl Into<String>, x: NodeId, shape: impl Into<Shape>) -> NodeId {
        let shape = shape.into();
        if let Some(what) = self.unknown_source(&[x]) {
            return self.append_wrong(label, Op::Reshape, &[], what);
        }
        let node = self.graph.node(x);
        let (dtype, from) = (node.dtype, node.shape);
        let fixed = matches!(self.graph.node(self.graph.root(x)).op, Op::Weight(_) | Op::State(_));
        let id = self.push(Op::Reshape, vec![x], dtype, shape, label.into());
        if shape.checked_len() != from.checked_len() {
            self.problem(id, format!("{from} has not as many elements as {shape}"));
        }
        if fixed {
            self.problem(id, "weights and KV caches have the shape they were declared with".to_owned());
        }
        id
    }

    /// Writes one KV row a token; the result is the state after the write.
    pub fn kv_store(
        &mut self,
        label: impl Into<String>,
        state: NodeId,
        k: NodeId,
        v: NodeId,
        slots: NodeId,
    ) -> NodeId {
        self.append(label, Op::KvStore, &[state, k, v, slots])
    }

    /// Attention of each token over its sequence's rows: see [`Op::Attention`].
    #[allow(clippy::too_many_arguments, reason = "the operation has five sources")]
    pub fn attention(
        &mut self,
        label: impl Into<String>,
        q: NodeId,
        state: NodeId,
        positions: NodeId,
        sequences: NodeId,
        block_table: NodeId,
        attention: Attention,
    ) -> NodeId {
        self.append(label, Op::Attention(attention), &[q, state, positions, sequences, block_table])
    }

    /// Appends any operation whose shape follows from its sources.
    pub fn append(&mut self, label: impl Into<String>, op: Op, sources: &[NodeId]) -> NodeId {
        if let Some(what) = self.unknown_source(sources) {
            return self.append_wrong(label, op, &[], what);
        }
        let inferred = infer::result(&op, &Sources::new(&self.graph, sources));
        let (dtype, shape) = match inferred.and_then(|r| self.check_state_order(sources).map(|()| r)) {
            Ok(result) => result,
            Err(what) => return self.append_wrong(label, op, sources, what),
        };
        let id = self.push(op, sources.to_vec(), dtype, shape, label.into());
        if let (Op::KvStore, Some(state)) = (&self.graph.node(id).op, self.graph.state_of(id)) {
            self.stores.insert(state, id);
        }
        id
    }

    /// Appends a node with a problem and a plausible shape, so that the rest of the graph is checked too.
    fn append_wrong(&mut self, label: impl Into<String>, op: Op, sources: &[NodeId], what: String) -> NodeId {
        let shape = sources.first().map_or(Shape::new(&[1]), |&s| self.graph.node(s).shape);
        // An alias is followed to its source, which a wrong node may not have.
        let op = if op.is_alias() { Op::Input } else { op };
        let id = self.push(op, sources.to_vec(), DType::F32, shape, label.into());
        self.problem(id, what);
        id
    }

    fn unknown_source(&self, sources: &[NodeId]) -> Option<String> {
        let nodes = self.graph.nodes.len();
        let unknown = sources.iter().find(|s| s.index() >= nodes)?;
        Some(format!("source {} is not one of the {nodes} nodes before it", unknown.0))
    }

    /// A KV cache is read as its last write left it. A node that names an older value would be an order that
    /// the graph does not show.
    fn check_state_order(&self, sources: &[NodeId]) -> Result<(), String> {
        for &s in sources {
            let last = self.graph.state_of(s).and_then(|state| self.stores.get(&state));
            if let Some(&store) = last.filter(|&&store| store != s) {
                return Err(format!(
                    "reads {} as it was before {} wrote to it",
                    self.graph.node(s).label,
                    self.graph.node(store).label
                ));
            }
        }
        Ok(())
    }

    /// Marks a value that the host reads after a run. It must be computed: not a leaf, nor a leaf in another
    /// shape.
    pub fn output(&mut self, id: NodeId) {
        if self.graph.node(self.graph.root(id)).op.is_leaf() {
            self.problem(id, "an output must be computed".to_owned());
        }
        if !self.graph.outputs.contains(&id) {
            self.graph.outputs.push(id);
        }
    }

    /// The graph, or everything that is wrong with it.
    pub fn finish(mut self) -> Result<Graph, GraphError> {
        if self.graph.outputs.is_empty()
            && let Some(last) = self.graph.nodes.len().checked_sub(1)
        {
            self.problem(NodeId(last as u32), "the graph has no output".to_owned());
        }
        if self.problems.is_empty() { Ok(self.graph) } else { Err(GraphError { problems: self.problems }) }
    }

    fn push(&mut self, op: Op, sources: Vec<NodeId>, dtype: DType, shape: Shape, label: String) -> NodeId {
        let id = NodeId(self.graph.nodes.len() as u32);
        self.graph.nodes.push(Node { op, sources, dtype, shape, label, layer: self.layer });
        let fits = shape.checked_len().and_then(|n| n.checked_mul(dtype.type_size()));
        if fits.is_none_or(|bytes| bytes > isize::MAX as usize) || shape.is_empty() {
            self.problem(id, format!("shape {shape} is empty or too large"));
        }
        id
    }

    fn problem(&mut self, id: NodeId, what: String) {
        let node = self.graph.node(id);
        self.problems.push(Problem { node: id, label: node.label.clone(), op: node.op.name(), what });
    }
}
