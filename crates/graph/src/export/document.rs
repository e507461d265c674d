//! What an export says, and the JSON schema.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{Activation, DeviceId, Graph, NodeId, Op, Plan, RopePairs};

/// The version of the schema: a change that a reader could trip over raises it; new fields do not.
pub const VERSION: u32 = 1;

/// A graph, and how it is planned, if it is. Serialized as it stands, this is the JSON export:
///
/// ```json
/// {"version": 1,
///  "devices": [{"name": "cpu", "slots": [256, 1024]}],
///  "nodes": [{"id": 3, "label": "blk.0.ffn_out", "op": "mat_mul", "parameters": {}, "layer": 0,
///             "sources": [2, 1], "dtype": "F32", "shape": [7, 896], "bytes": 25088,
///             "device": 0, "why": "first device", "split": 0, "slot": 1, "dead": false, "output": true}],
///  "splits": [{"device": 0, "nodes": [3], "copies": [{"value": 2, "from": 1, "bytes": 3584}]}],
///  "totals": {"nodes": 4, "running": 1, "dead": 0, "splits": 1, "copies": 1, "copy_bytes": 3584,
///             "weight_bytes": 1024, "state_bytes": 0, "slot_bytes": 1280, "live_peak": 1024}}
/// ```
///
/// Indices: `sources`, `nodes` and `value` are node ids; `device` and `from` count `devices`; `split` counts
/// `splits`; `slot` counts the slots of the node's device. `device`, `split` and `slot` are null where a node
/// has none: all are null in a graph without a plan, leaves have no split, weights and states have no slot.
/// `parameters` holds the operation's own, under the names of the fields of [`Op`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Document {
    /// [`VERSION`].
    pub version: u32,
    /// In priority order; empty without a plan.
    pub devices: Vec<DeviceRow>,
    /// In build order, which is the order of execution.
    pub nodes: Vec<NodeRow>,
    /// In the order in which they run.
    pub splits: Vec<SplitRow>,
    /// Sums.
    pub totals: Totals,
}

/// A device and its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceRow {
    /// Its name.
    pub name: String,
    /// The bytes of each slot.
    pub slots: Vec<usize>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeRow {
    /// Its id, which is its index.
    pub id: u32,
    /// Its name for people.
    pub label: String,
    /// The operation's name.
    pub op: &'static str,
    /// The operation's parameters.
    pub parameters: Map<String, Value>,
    /// The layer it belongs to.
    pub layer: Option<u32>,
    /// What it reads.
    pub sources: Vec<u32>,
    /// The result's element type.
    pub dtype: &'static str,
    /// The result's shape, outermost first.
    pub shape: Vec<usize>,
    /// The result's bytes.
    pub bytes: usize,
    /// Where it runs.
    pub device: Option<u32>,
    /// Why it is there, in words; null where it runs nothing.
    pub why: Option<String>,
    /// In which split it runs.
    pub split: Option<u32>,
    /// Where its value lives; an alias names its source's slot.
    pub slot: Option<u32>,
    /// Whether fusion absorbed it.
    pub dead: bool,
    /// Whether the host reads it.
    pub output: bool,
}

/// A split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SplitRow {
    /// Its device.
    pub device: u32,
    /// Its nodes in order.
    pub nodes: Vec<u32>,
    /// What is copied to its device before it runs.
    pub copies: Vec<Copy>,
}

/// A value copied between devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Copy {
    /// The node that made it.
    pub value: u32,
    /// The device it comes from.
    pub from: u32,
    /// Its bytes.
    pub bytes: usize,
}

/// Sums over the document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Nodes.
    pub nodes: usize,
    /// Nodes that a device runs.
    pub running: usize,
    /// Nodes that fusion absorbed.
    pub dead: usize,
    /// Splits.
    pub splits: usize,
    /// Copies between devices.
    pub copies: usize,
    /// Their bytes.
    pub copy_bytes: usize,
    /// Bytes of the weights in the file's format.
    pub weight_bytes: usize,
    /// Bytes of the KV caches.
    pub state_bytes: usize,
    /// Bytes of all slots.
    pub slot_bytes: usize,
    /// The most bytes of computed values live at once.
    pub live_peak: usize,
}

pub(super) fn build(graph: &Graph, plan: Option<&Plan>) -> Document {
    let devices: Vec<DeviceRow> = plan.map_or_else(Vec::new, |plan| {
        let rows = plan.device_names().iter().zip(&plan.memory().slots);
        rows.map(|(name, slots)| DeviceRow { name: name.clone(), slots: slots.clone() }).collect()
    });
    let mut split_of: Vec<Option<u32>> = vec![None; graph.nodes().len()];
    let mut splits = Vec::new();
    for (i, split) in plan.iter().flat_map(|p| p.splits()).enumerate() {
        for node in &split.nodes {
            split_of[node.index()] = Some(i as u32);
        }
        let copy = |c: &crate::Crossing| Copy {
            value: c.value.0,
            from: c.from.0,
            bytes: graph.node(c.value).bytes(),
        };
        splits.push(SplitRow {
            device: split.device.0,
            nodes: split.nodes.iter().map(|n| n.0).collect(),
            copies: split.copies.iter().map(copy).collect(),
        });
    }
    let nodes: Vec<NodeRow> = graph.iter().map(|(id, _)| row(graph, plan, &split_of, id)).collect();
    let copies = || splits.iter().flat_map(|s| &s.copies);
    let bytes_of =
        |leaf: fn(&Op) -> bool| graph.nodes().iter().filter(|n| leaf(&n.op)).map(|n| n.bytes()).sum();
    let totals = Totals {
        nodes: nodes.len(),
        running: nodes.iter().filter(|n| !n.dead && graph.node(NodeId(n.id)).op.runs()).count(),
        dead: nodes.iter().filter(|n| n.dead).count(),
        splits: splits.len(),
        copies: copies().count(),
        copy_bytes: copies().map(|c| c.bytes).sum(),
        weight_bytes: bytes_of(|op| matches!(op, Op::Weight(_))),
        state_bytes: bytes_of(|op| matches!(op, Op::State(_))),
        slot_bytes: plan.map_or(0, |p| p.memory().bytes()),
        live_peak: plan.map_or(0, |p| p.memory().live_peak),
    };
    Document { version: VERSION, devices, nodes, splits, totals }
}

fn row(graph: &Graph, plan: Option<&Plan>, split_of: &[Option<u32>], id: NodeId) -> NodeRow {
    let node = graph.node(id);
    let dead = plan.is_some_and(|p| p.is_dead(id));
    let device: Option<DeviceId> = plan.filter(|_| !dead).map(|p| p.device(id));
    let slot = plan.zip(device).and_then(|(p, d)| p.memory().slot(graph, id, d));
    NodeRow {
        id: id.0,
        label: node.label.clone(),
        op: node.op.name(),
        parameters: parameters(graph, &node.op),
        layer: node.layer,
        sources: node.sources.iter().map(|s| s.0).collect(),
        dtype: node.dtype.name(),
        shape: node.shape.dims().to_vec(),
        bytes: node.bytes(),
        device: device.map(|d| d.0),
        why: plan.filter(|_| !dead && node.op.runs()).map(|p| p.describe_why(id)),
        split: split_of[id.index()],
        slot: slot.map(|s| s.0),
        dead,
        output: graph.outputs().contains(&id),
    }
}

fn parameters(graph: &Graph, op: &Op) -> Map<String, Value> {
    let value = match op {
        Op::Weight(w) => json!({ "name": graph.weight(*w).name }),
        Op::State(s) => {
            let s = graph.state(*s);
            json!({
                "layer": s.layer,
                "slots": s.slots,
                "page": s.page,
                "kv_heads": s.kv_heads,
                "head_dim": s.head_dim,
            })
        }
        Op::Scale(factor) => json!({ "factor": factor }),
        Op::Softcap(cap) => json!({ "cap": cap }),
        Op::RmsNorm { eps } | Op::RmsNormMul { eps } => json!({ "eps": eps }),
        Op::Activate(a) | Op::GatedActivate(a) => {
            json!({ "activation": match a { Activation::Silu => "silu", Activation::Gelu => "gelu" } })
        }
        Op::Rope(rope) => json!({
            "rotary_dim": rope.rotary_dim,
            "pairs": match rope.pairs {
                RopePairs::Halves => "halves",
                RopePairs::Adjacent => "adjacent",
            },
            "base": rope.base,
            "scale": rope.scale,
            "yarn": rope.yarn.map(|y| json!({
                "original_context": y.original_context,
                "beta_fast": y.beta_fast,
                "beta_slow": y.beta_slow,
                "magnitude": y.magnitude,
            })),
        }),
        Op::Attention(a) => json!({ "scale": a.scale, "window": a.window, "softcap": a.softcap }),
        _ => json!({}),
    };
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
