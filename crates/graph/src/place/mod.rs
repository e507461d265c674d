//! Placement: which device runs each node, decided when the plan is made, and why.

mod rules;
mod why;

use crate::{Backend, DeviceId, Graph, Node, NodeId, Op, OpQuery, PlanError, SourceInfo, StateId};
pub use rules::{Piece, Rule, Stage, Unit};
pub use why::{Refusal, Why};

/// What is asked for besides what devices can run.
#[derive(Clone, Copy)]
pub(crate) struct Wishes<'a> {
    pub rules: &'a [Rule<'a>],
    pub unit: Unit,
    /// Where a layer's KV cache is, if it exists.
    pub homes: &'a dyn Fn(u32) -> Option<DeviceId>,
}

/// Where nodes run, by node index.
pub(crate) struct Placement {
    /// A leaf, which runs nothing, has the device of its first reader.
    pub placed: Vec<DeviceId>,
    pub why: Vec<Why>,
}

/// Devices are asked in priority order, and the first that takes a node gets it. A KV cache is on one device, which runs
/// all that touches it: where it exists already, else the first that can. A piece larger than a node goes to the first
/// device that takes all of it.
pub(crate) fn place(
    graph: &Graph,
    devices: &[&dyn Backend],
    wishes: Wishes<'_>,
) -> Result<Placement, PlanError> {
    let placer = Placer { graph, devices, wishes, stages: rules::stages(graph) };
    let mut touchers: Vec<Vec<NodeId>> = vec![Vec::new(); graph.states().len()];
    for (id, node) in graph.iter() {
        if let Some(state) = placer.state_touched(node) {
            touchers[state.0 as usize].push(id);
        }
    }
    let pieces = placer.pieces()?;
    let homes = (graph.states().iter().zip(&touchers))
        .map(|(state, touchers)| placer.home(state.layer, touchers, &pieces))
        .collect::<Result<Vec<_>, _>>()?;
    let mut placed: Vec<Option<DeviceId>> = vec![None; graph.nodes().len()];
    let mut why: Vec<Why> = vec![Why::Leaf; graph.nodes().len()];
    for (id, node) in graph.iter() {
        if node.op.is_leaf() {
            continue;
        }
        let (device, reason) = if let Some(state) = placer.state_touched(node) {
            let layer = graph.state(state).layer;
            (homes[state.0 as usize], Why::Cache { layer })
        } else if node.op == Op::Reshape {
            (placed[node.sources[0].index()], Why::Source)
        } else {
            let (device, passed) = placer.first(id, &pieces)?;
            (Some(device), Why::First { passed })
        };
        (placed[id.index()], why[id.index()]) = (device, reason);
        if let Some(device) = device {
            for s in &node.sources {
                placed[s.index()].get_or_insert(device);
            }
        }
    }
    // What is left are leaves, and other shapes of them, that nothing read before; they run nothing.
    let placed = placed.into_iter().map(|d| d.unwrap_or(DeviceId(0))).collect();
    Ok(Placement { placed, why })
}

/// By piece: for each device, what keeps it from taking the piece.
type Pieces = Vec<(Piece, Vec<Option<Refusal>>)>;

struct Placer<'a> {
    graph: &'a Graph,
    devices: &'a [&'a dyn Backend],
    wishes: Wishes<'a>,
    stages: Vec<Stage>,
}

impl Placer<'_> {
    /// What keeps a device from running a node by itself.
    fn refusal(&self, id: NodeId, device: DeviceId) -> Option<Refusal> {
        let (node, stage) = (self.graph.node(id), self.stages[id.index()]);
        let rule = self.wishes.rules.iter().position(|r| !(r.allows)(node, stage, device));
        match rule {
            Some(rule) => Some(Refusal::Rule(rule)),
            None if runs(self.graph, node, self.devices[device.index()]) => None,
            None => Some(Refusal::Unsupported),
        }
    }

    /// What keeps a device from running a node in its piece.
    fn refusal_in_piece(&self, id: NodeId, device: DeviceId, pieces: &Pieces) -> Option<Refusal> {
        let piece = self.wishes.unit.piece(self.stages[id.index()]);
        match pieces.iter().find(|p| Some(p.0) == piece) {
            Some((_, refusals)) => self.refusal(id, device).or(refusals[device.index()]),
            None => self.refusal(id, device),
        }
    }

    fn all(&self) -> impl Iterator<Item = DeviceId> {
        (0..self.devices.len() as u32).map(DeviceId)
    }

    /// The pieces of the graph; each is taken by some device.
    fn pieces(&self) -> Result<Pieces, PlanError> {
        let mut pieces = Pieces::new();
        for (id, node) in self.graph.iter() {
            let piece = self.wishes.unit.piece(self.stages[id.index()]).filter(|_| node.op.runs());
            let Some(piece) = piece else { continue };
            let at = pieces.iter().position(|p| p.0 == piece).unwrap_or_else(|| {
                pieces.push((piece, vec![None; self.devices.len()]));
                pieces.len() - 1
            });
            for device in self.all() {
                if pieces[at].1[device.index()].is_none() && self.refusal(id, device).is_some() {
                    pieces[at].1[device.index()] = Some(Refusal::Piece { piece, node: id });
                }
            }
        }
        for (piece, refusals) in &pieces {
            if refusals.iter().all(Option::is_some) {
                let refused = self.refusals(refusals.iter().copied().flatten());
                return Err(PlanError::NoPieceDevice { piece: piece.to_string(), refused });
            }
        }
        Ok(pieces)
    }

    /// The first device that takes a node, and what kept those before it from doing so.
    fn first(&self, id: NodeId, pieces: &Pieces) -> Result<(DeviceId, Vec<Refusal>), PlanError> {
        let mut passed = Vec::new();
        for device in self.all() {
            match self.refusal_in_piece(id, device, pieces) {
                None => return Ok((device, passed)),
                Some(refusal) => passed.push(refusal),
            }
        }
        let node = self.graph.node(id);
        Err(PlanError::NoDevice {
            label: node.label.clone(),
            op: node.op.name(),
            shapes: self.graph.describe_sources(id),
            refused: self.refusals(passed),
        })
    }

    /// What kept each device from something, in words.
    fn refusals(&self, refusals: impl IntoIterator<Item = Refusal>) -> String {
        let names: Vec<String> = self.wishes.rules.iter().map(|r| r.name.to_string()).collect();
        let devices = self.devices.iter().map(|d| d.name());
        let words = devices.zip(refusals).map(|(d, r)| r.describe(&d, &names, self.graph));
        words.collect::<Vec<_>>().join("; ")
    }

    fn state_touched(&self, node: &Node) -> Option<StateId> {
        node.sources.iter().find_map(|&s| self.graph.state_of(s))
    }

    /// The device of a layer's KV cache, given the nodes that touch it; `None` if nothing does.
    fn home(&self, layer: u32, touchers: &[NodeId], pieces: &Pieces) -> Result<Option<DeviceId>, PlanError> {
        if touchers.is_empty() {
            return Ok(None);
        }
        let refused = |d: DeviceId| {
            touchers.iter().find_map(|&t| self.refusal_in_piece(t, d, pieces).map(|refusal| (t, refusal)))
        };
        if let Some(home) = (self.wishes.homes)(layer) {
            return match refused(home) {
                None => Ok(Some(home)),
                Some((t, _)) => Err(PlanError::StateElsewhere {
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
            self.first(t, pieces)?;
        }
        let refused = self.refusals(self.all().filter_map(|d| refused(d).map(|r| r.1)));
        Err(PlanError::NoStateDevice { layer, refused })
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
