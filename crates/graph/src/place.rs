//! Placement: which device runs each node, decided when the plan is made.

use crate::{Backend, DeviceId, Graph, Node, NodeId, Op, OpQuery, PlanError, SourceInfo, StateId};

/// A user's restriction: whether a device may run a node.
pub type Fence<'a> = dyn Fn(&Node, DeviceId) -> bool + 'a;

/// The device of each node, by node index. A leaf, which runs nothing, has the device of its first reader.
///
/// Devices are asked in priority order and the first that runs the operation takes it. A KV cache is on one
/// device, which runs all that touches it: where it exists already (`homes`, by layer), else the first that
/// can.
pub fn place(
    graph: &Graph,
    devices: &[&dyn Backend],
    fence: &Fence<'_>,
    homes: &dyn Fn(u32) -> Option<DeviceId>,
) -> Result<Vec<DeviceId>, PlanError> {
    let placer = Placer { graph, devices, fence };
    let mut touchers: Vec<Vec<NodeId>> = vec![Vec::new(); graph.states().len()];
    for (id, node) in graph.iter() {
        if let Some(state) = placer.state_touched(node) {
            touchers[state.0 as usize].push(id);
        }
    }
    let homes = (graph.states().iter().zip(&touchers))
        .map(|(state, touchers)| placer.home(state.layer, touchers, homes(state.layer)))
        .collect::<Result<Vec<_>, _>>()?;
    let mut placed: Vec<Option<DeviceId>> = vec![None; graph.nodes().len()];
    for (id, node) in graph.iter() {
        if node.op.is_leaf() {
            continue;
        }
        let device = if let Some(state) = placer.state_touched(node) {
            homes[state.0 as usize]
        } else if node.op == Op::Reshape {
            placed[node.sources[0].index()]
        } else {
            Some(placer.first(id)?)
        };
        placed[id.index()] = device;
        if let Some(device) = device {
            for s in &node.sources {
                placed[s.index()].get_or_insert(device);
            }
        }
    }
    // What is left are leaves, and other shapes of them, that nothing read before; they run nothing.
    Ok(placed.into_iter().map(|d| d.unwrap_or(DeviceId(0))).collect())
}

struct Placer<'a> {
    graph: &'a Graph,
    devices: &'a [&'a dyn Backend],
    fence: &'a Fence<'a>,
}

impl Placer<'_> {
    fn may_run(&self, node: &Node, device: DeviceId) -> bool {
        (self.fence)(node, device) && runs(self.graph, node, self.devices[device.index()])
    }

    fn all(&self) -> impl Iterator<Item = DeviceId> {
        (0..self.devices.len() as u32).map(DeviceId)
    }

    fn first(&self, id: NodeId) -> Result<DeviceId, PlanError> {
        let node = self.graph.node(id);
        self.all().find(|&d| self.may_run(node, d)).ok_or_else(|| PlanError::NoDevice {
            label: node.label.clone(),
            op: node.op.name(),
            shapes: self.graph.describe_sources(id),
            devices: self.names(),
        })
    }

    fn names(&self) -> String {
        self.devices.iter().map(|d| d.name()).collect::<Vec<_>>().join(", ")
    }

    fn state_touched(&self, node: &Node) -> Option<StateId> {
        node.sources.iter().find_map(|&s| self.graph.state_of(s))
    }

    /// The device of a layer's KV cache, given the nodes that touch it and where it is, if it exists; `None` if
    /// nothing touches it.
    fn home(
        &self,
        layer: u32,
        touchers: &[NodeId],
        existing: Option<DeviceId>,
    ) -> Result<Option<DeviceId>, PlanError> {
        if touchers.is_empty() {
            return Ok(None);
        }
        let refused = |d: DeviceId| touchers.iter().find(|&&t| !self.may_run(self.graph.node(t), d));
        if let Some(home) = existing {
            return match refused(home) {
                None => Ok(Some(home)),
                Some(&t) => Err(PlanError::StateElsewhere {
                    layer,
                    device: self.devices[home.index()].name(),
                    label: self.graph.node(t).label.clone(),
                    op: self.graph.node(t).op.name(),
                }),
            };
        }
        if let Some(home) = self.all().find(|&d| refused(d).is_none()) {
            return Ok(Some(home));
        }
        // If no device takes one of the operations, that is the reason; else that no device takes them all.
        for &t in touchers {
            self.first(t)?;
        }
        Err(PlanError::NoStateDevice { layer, devices: self.names() })
    }
}

/// Whether a device runs this node as it stands.
pub(crate) fn runs(graph: &Graph, node: &Node, device: &dyn Backend) -> bool {
    supports(graph, &node.op, &node.sources, node, device)
}

/// Whether a device runs `op` over `sources` with the result of `like`.
pub(crate) fn supports(
    graph: &Graph,
    op: &Op,
    sources: &[NodeId],
    like: &Node,
    device: &dyn Backend,
) -> bool {
    if !op.runs() {
        return true;
    }
    let infos: Vec<SourceInfo> = sources
        .iter()
        .map(|&s| {
            let n = graph.node(s);
            SourceInfo { dtype: n.dtype, shape: n.shape, is_weight: matches!(n.op, Op::Weight(_)) }
        })
        .collect();
    let state = sources.iter().find_map(|&s| graph.state_of(s)).map(|s| graph.state(s));
    device.supports(&OpQuery { op, sources: &infos, dtype: like.dtype, shape: like.shape, state })
}

impl Graph {
    /// The types and shapes of a node's sources, for messages: `Q4_K [896×896], F32 [1×896]`.
    pub fn describe_sources(&self, id: NodeId) -> String {
        let parts: Vec<String> = self
            .node(id)
            .sources
            .iter()
            .map(|&s| format!("{} {}", self.node(s).dtype.name(), self.node(s).shape))
            .collect();
        parts.join(", ")
    }
}
