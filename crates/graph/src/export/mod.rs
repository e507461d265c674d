//! Graphs and plans for people and programs: a text table, DOT for Graphviz, JSON.
//!
//! All three show one [`Document`].

mod census;
mod document;
mod dot;
mod text;

pub use census::CensusRow;
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

    /// A table of nodes, then the [summary](Document::to_summary).
    pub fn to_text(&self) -> String {
        text::text(self)
    }

    /// The splits with their copies, why nodes are where they are, the [census](Document::census), and totals.
    pub fn to_summary(&self) -> String {
        text::summary(self)
    }

    /// How many nodes of each operation run on each device, in the order in which operations first run; empty without a
    /// plan.
    pub fn census(&self) -> Vec<CensusRow> {
        census::census(self)
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
pub(crate) fn human(bytes: usize) -> String {
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
