//! Placement: which device runs each node, decided when the plan is made.

use crate::{Backend, DeviceId, Graph, Node, NodeId, Op, OpQuery, PlanError, SourceInfo};

/// A user's restriction: whether a device may run a node.
pub type Fence<'a> = dyn Fn(&Node, DeviceId) -> bool + 'a;

/// The device of each node, by node index. A leaf, which runs nothing, has the device of its first reader.
///
/// Devices are asked in priority order and the first that runs the operation takes it. A node that touches a KV cache
/// goes where the cache is, which is where its first toucher was placed.
pub fn place(graph: &Graph, devices: &[&dyn Backend], fence: &Fence<'_>) -> Result<Vec<DeviceId>, PlanError> {
    let mut placed: Vec<Option<DeviceId>> = vec![None; graph.nodes().len()];
    let mut state_home: Vec<Option<DeviceId>> = vec![None; graph.states().len()];
    for (id, node) in graph.iter() {
        if node.op.is_leaf() {
            continue;
        }
        let state = node.sources.iter().find_map(|&s| graph.state_of(s));
        let device = if matches!(node.op, Op::Reshape) && !graph.node(graph.root(id)).op.is_leaf() {
            placed[node.sources[0].index()].ok_or_else(|| nowhere(graph, id, devices))?
        } else {
            let home = state.and_then(|s| state_home[s.0 as usize]);
            (0..devices.len() as u32)
                .map(DeviceId)
                .filter(|&d| home.is_none_or(|h| h == d) && fence(node, d))
                .find(|&d| runs(graph, node, devices[d.index()]))
                .ok_or_else(|| nowhere(graph, id, devices))?
        };
        placed[id.index()] = Some(device);
        if let Some(s) = state {
            state_home[s.0 as usize] = Some(device);
        }
        for s in &node.sources {
            placed[s.index()].get_or_insert(device);
        }
    }
    // A leaf that nothing reads is on the first device, where it takes no part.
    Ok(placed.into_iter().map(|d| d.unwrap_or(DeviceId(0))).collect())
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
            SourceInfo {
                dtype: n.dtype,
                shape: n.shape,
                is_weight: matches!(graph.node(graph.root(s)).op, Op::Weight(_)),
            }
        })
        .collect();
    let state = sources.iter().find_map(|&s| graph.state_of(s)).map(|s| graph.state(s));
    device.supports(&OpQuery { op, sources: &infos, dtype: like.dtype, shape: like.shape, state })
}

fn nowhere(graph: &Graph, id: NodeId, devices: &[&dyn Backend]) -> PlanError {
    let node = graph.node(id);
    PlanError::NoDevice {
        label: node.label.clone(),
        op: node.op.name(),
        shapes: graph.describe_sources(id),
        devices: devices.iter().map(|d| d.info().name).collect::<Vec<_>>().join(", "),
    }
}

impl Graph {
    /// The types and shapes of a node's sources, for messages: `q4_K [896×896], f32 [1×896]`.
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
