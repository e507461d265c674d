//! Why a node is where it is.

use super::Piece;
use crate::{Graph, NodeId};

/// The reason for a node's device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It runs nothing; it is on every device that reads it.
    Leaf,
    /// The device is the first in priority order that takes it; those before it did not.
    First {
        /// By device, up to the one that took it.
        passed: Vec<Refusal>,
    },
    /// The device has the layer's KV cache.
    Cache {
        /// The layer.
        layer: u32,
    },
    /// It is its source in another shape.
    Source,
}

/// What keeps a device from taking a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It does not run this operation with these types and shapes.
    Unsupported,
    /// The rule with this index forbids it.
    Rule(usize),
    /// It does not take another node that must be on the same device.
    Piece {
        /// What goes to one device as a whole.
        piece: Piece,
        /// A node in it that the device does not take.
        node: NodeId,
    },
}

impl Refusal {
    /// The refusal in words, given the device's name and those of the rules.
    pub fn describe(&self, device: &str, rules: &[String], graph: &Graph) -> String {
        match *self {
            Self::Unsupported => format!("{device} does not run it"),
            Self::Rule(rule) => {
                format!("{} keeps it off {device}", rules.get(rule).map_or("a rule", String::as_str))
            }
            Self::Piece { piece, node } => {
                format!("{device} does not take all of {piece}, such as {}", graph.node(node).label)
            }
        }
    }
}

impl Why {
    /// The reason in words, given the names of all devices and rules.
    pub fn describe(&self, devices: &[String], rules: &[String], graph: &Graph) -> String {
        match self {
            Self::Leaf => "runs nothing".to_owned(),
            Self::First { passed } if passed.is_empty() => "first device".to_owned(),
            Self::First { passed } => {
                let words = passed.iter().zip(devices).map(|(r, d)| r.describe(d, rules, graph));
                words.collect::<Vec<_>>().join("; ")
            }
            Self::Cache { .. } => "its layer's KV cache is there".to_owned(),
            Self::Source => "its source is there".to_owned(),
        }
    }
}
