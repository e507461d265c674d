//! Graphs and plans for people and programs: a text table, DOT for Graphviz, JSON.
//!
//! All three show one [`Document`].

mod document;
mod dot;
mod text;

pub use document::{Copy, DeviceRow, Document, NodeRow, SplitRow, Totals, VERSION};

use crate::{Graph, Plan};

impl Document {
    /// The document of a graph that has no devices yet.
    pub fn of_graph(graph: &Graph) -> Self {
        document::build(graph, None)
    }

    /// The document of a plan.
    pub fn of_plan(plan: &Plan) -> Self {
        document::build(plan.graph(), Some(plan))
    }

    /// A table of nodes, then the splits and totals.
    pub fn to_text(&self) -> String {
        text::text(self)
    }

    /// A Graphviz digraph: devices are colours, splits are clusters, and the edges that cross between devices
    /// are dashed red, with their bytes. Nodes that fusion absorbed are left out.
    pub fn to_dot(&self) -> String {
        dot::dot(self)
    }

    /// JSON on one line, in the schema of [`Document`].
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a document has string keys and finite numbers only")
    }
}

/// `1.5 KiB`, `12 B`.
fn human(bytes: usize) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

/// `1 copy`, `2 copies`.
fn count(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}
