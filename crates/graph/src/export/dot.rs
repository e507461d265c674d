//! The Graphviz export.

use std::fmt::Write as _;

use super::{Document, NodeRow, human};

/// Fill colours by device: light ones from Graphviz's own names, told apart in grey as well.
const COLOURS: [&str; 6] = ["lightblue", "palegreen", "lightsalmon", "plum", "khaki", "lightgrey"];

pub(super) fn dot(doc: &Document) -> String {
    let mut out = String::from(
        "digraph graph_plan {\n  rankdir=TB;\n  node [style=filled, fontname=\"sans-serif\"];\n",
    );
    let live = || doc.nodes.iter().filter(|n| !n.dead);
    for node in live().filter(|n| n.split.is_none()) {
        let _ = writeln!(out, "  {}", vertex(doc, node));
    }
    for (i, split) in doc.splits.iter().enumerate() {
        let title = quote(&format!("split {i} on {}", doc.devices[split.device as usize].name));
        let _ = writeln!(out, "  subgraph cluster_{i} {{\n    label={title};");
        for &id in &split.nodes {
            let _ = writeln!(out, "    {}", vertex(doc, &doc.nodes[id as usize]));
        }
        out += "  }\n";
    }
    for node in live() {
        for &source in &node.sources {
            let from = &doc.nodes[source as usize];
            // A leaf is on every device that reads it; only computed values are copied.
            let crosses = !from.sources.is_empty() && from.device != node.device;
            let style = if crosses {
                let bytes = quote(&human(from.bytes));
                format!(" [color=red, style=dashed, label={bytes}]")
            } else {
                String::new()
            };
            let _ = writeln!(out, "  n{source} -> n{}{style};", node.id);
        }
    }
    out += "}\n";
    out
}

fn vertex(doc: &Document, n: &NodeRow) -> String {
    let shape: Vec<String> = n.shape.iter().map(usize::to_string).collect();
    let label = quote(&format!("{}\n{}\n{} {}", n.label, n.op, n.dtype, shape.join("×")));
    // Leaves take the device of their first reader, which says little: they stay white.
    let leaf = n.sources.is_empty();
    let colour = match n.device {
        Some(d) if !leaf => COLOURS[d as usize % COLOURS.len()],
        _ => "white",
    };
    let outline = match (leaf, n.output) {
        (true, _) => "ellipse",
        (false, true) => "doubleoctagon",
        (false, false) => "box",
    };
    let tooltip = match n.device {
        Some(d) => format!(", tooltip={}", quote(&doc.devices[d as usize].name)),
        None => String::new(),
    };
    format!("n{} [label={label}, shape={outline}, fillcolor={colour}{tooltip}];", n.id)
}

/// A quoted string of the DOT language.
fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out += "\\\"",
            '\\' => out += "\\\\",
            '\n' => out += "\\n",
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
