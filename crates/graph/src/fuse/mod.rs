//! Fusion: rewrite rules that replace several nodes with one.
//!
//! A rule looks at one node, the last of its pattern, and proposes an operation to put there; the nodes it
//! absorbs become dead: they have no buffer and are skipped. A node may be absorbed only if the pattern is
//! its sole reader. The rewrite happens only if the whole pattern is on one device and that device runs the
//! fused operation.

mod gated_activate;
mod mat_mul_add;
mod rms_norm_mul;

use crate::place::supports;
use crate::{Backend, DeviceId, Graph, NodeId, Op};

/// A proposed replacement.
pub(crate) struct Rewrite {
    op: Op,
    sources: Vec<NodeId>,
    absorbs: Vec<NodeId>,
}

type Rule = fn(&View<'_>, NodeId) -> Option<Rewrite>;

/// The rules by name, in the order in which they are tried.
const RULES: [(&str, Rule); 3] = [
    ("rms_norm_mul", rms_norm_mul::rule),
    ("mat_mul_add", mat_mul_add::rule),
    ("gated_activate", gated_activate::rule),
];

/// Which rules are on. Part of the key of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fusion {
    enabled: u32,
}

impl Default for Fusion {
    fn default() -> Self {
        Self::all()
    }
}

impl Fusion {
    /// Every rule.
    pub const fn all() -> Self {
        Self { enabled: (1 << RULES.len()) - 1 }
    }

    /// No rule.
    pub const fn none() -> Self {
        Self { enabled: 0 }
    }

    /// The rules' names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        RULES.iter().map(|r| r.0)
    }

    /// This set without the named rule; `None` if there is no such rule.
    pub fn without(self, name: &str) -> Option<Self> {
        let i = RULES.iter().position(|r| r.0 == name)?;
        Some(Self { enabled: self.enabled & !(1 << i) })
    }
}

/// What a rule may look at.
pub(crate) struct View<'a> {
    graph: &'a Graph,
    uses: &'a [u32],
}

impl<'a> View<'a> {
    /// The node's operation and sources.
    fn op(&self, id: NodeId) -> (&'a Op, &'a [NodeId]) {
        let node = self.graph.node(id);
        (&node.op, &node.sources)
    }

    /// Whether the pattern would be the only reader.
    fn sole_use(&self, id: NodeId) -> bool {
        self.uses[id.index()] == 1
    }

    /// Whether two values have the same shape.
    fn same_shape(&self, a: NodeId, b: NodeId) -> bool {
        self.graph.node(a).shape == self.graph.node(b).shape
    }

    /// Whether `v` is one row as wide as `x`.
    fn is_row_of(&self, v: NodeId, x: NodeId) -> bool {
        self.graph.node(v).shape.dims() == [self.graph.node(x).shape.width()]
    }
}

/// Rewrites the graph in place and returns, by node index, which nodes are dead.
pub fn fuse(graph: &mut Graph, placed: &[DeviceId], devices: &[&dyn Backend], fusion: Fusion) -> Vec<bool> {
    let mut dead = vec![false; graph.nodes().len()];
    let mut uses = graph.use_counts();
    for (i, (_, rule)) in RULES.iter().enumerate() {
        if fusion.enabled & (1 << i) == 0 {
            continue;
        }
        for index in 0..graph.nodes().len() {
            let id = NodeId(index as u32);
            if dead[index] {
                continue;
            }
            let Some(rewrite) = rule(&View { graph, uses: &uses }, id) else { continue };
            let device = placed[index];
            let together = rewrite.absorbs.iter().all(|a| placed[a.index()] == device && !dead[a.index()]);
            if !together
                || !supports(graph, &rewrite.op, &rewrite.sources, graph.node(id), devices[device.index()])
            {
                continue;
            }
            for &a in &rewrite.absorbs {
                dead[a.index()] = true;
                for s in &graph.nodes[a.index()].sources {
                    uses[s.index()] -= 1;
                }
            }
            let node = &mut graph.nodes[index];
            for s in std::mem::replace(&mut node.sources, rewrite.sources) {
                uses[s.index()] -= 1;
            }
            node.op = rewrite.op;
            for s in &node.sources {
                uses[s.index()] += 1;
            }
        }
    }
    dead
}
