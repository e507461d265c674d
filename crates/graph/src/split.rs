//! Splits: maximal contiguous runs of nodes on one device, and the values that cross into each.

use crate::{DeviceId, Graph, NodeId};

/// A run of nodes on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The device.
    pub device: DeviceId,
    /// The nodes that run, in build order.
    pub nodes: Vec<NodeId>,
    /// Values that are copied to the device before the split runs: made by an earlier split on another device
    /// and not copied to this device before.
    pub copies: Vec<Crossing>,
}

/// A value that is copied from the device that makes it to one that reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// The value that owns the memory (never an alias).
    pub value: NodeId,
    /// The device that made it.
    pub from: DeviceId,
    /// The device that reads the copy.
    pub to: DeviceId,
}

/// Divides the live nodes. Sources are looked up after fusion, so what is copied is what is read.
pub fn split(graph: &Graph, placed: &[DeviceId], dead: &[bool]) -> Vec<Split> {
    let mut splits: Vec<Split> = Vec::new();
    let mut crossed: Vec<Vec<DeviceId>> = vec![Vec::new(); graph.nodes().len()];
    for (id, node) in graph.iter() {
        if dead[id.index()] || !node.op.runs() {
            continue;
        }
        let device = placed[id.index()];
        if splits.last().is_none_or(|s| s.device != device) {
            splits.push(Split { device, nodes: Vec::new(), copies: Vec::new() });
        }
        let Some(current) = splits.last_mut() else { continue };
        current.nodes.push(id);
        for &source in &node.sources {
            let root = graph.root(source);
            let from = placed[root.index()];
            // Leaves are written or loaded on every device that reads them; only computed values cross.
            if graph.node(root).op.is_leaf() || from == device || crossed[root.index()].contains(&device) {
                continue;
            }
            crossed[root.index()].push(device);
            current.copies.push(Crossing { value: root, from, to: device });
        }
    }
    splits
}

/// The devices that read an input, each of which gets it from the host.
pub(crate) fn input_readers(
    graph: &Graph,
    placed: &[DeviceId],
    dead: &[bool],
    input: NodeId,
) -> Vec<DeviceId> {
    let mut readers = Vec::new();
    for (id, node) in graph.iter() {
        let reads =
            !dead[id.index()] && node.op.runs() && node.sources.iter().any(|&s| graph.root(s) == input);
        if reads && !readers.contains(&placed[id.index()]) {
            readers.push(placed[id.index()]);
        }
    }
    readers
}
