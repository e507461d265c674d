//! The Graphviz export.

use std::fmt::Write as _;

use super::{Document, NodeRow, count, human};

/// Fill colours by device: light ones from Graphviz's own names, told apart in grey as well.
const COLOURS: [&str; 6] = ["lightblue", "palegreen", "lightsalmon", "plum", "khaki", "lightgrey"];

pub(super) fn dot(doc: &Document) -> String {
    let mut out = String::from("digraph graph_plan {\n  rankdir=TB;\n  bgcolor=white;\n  labeljust=l;\n");
    out += "  fontname=\"sans-serif\";\n  node [style=filled, fontname=\"sans-serif\"];\n";
    out += "  edge [fontname=\"sans-serif\"];\n";
    if !doc.devices.is_empty() {
        let _ = writeln!(out, "  label={};", quote(&summary(doc)));
    }
    let live = || doc.nodes.iter().filter(|n| !n.dead);
    for node in live().filter(|n| n.split.is_none()) {
        let _ = writeln!(out, "  {}", vertex(doc, node));
    }
    for (i, split) in doc.splits.iter().enumerate() {
        let mut title = format!("split {i} on {}", doc.devices[split.device as usize].name);
        for copy in &split.copies {
            let (label, from) =
                (&doc.nodes[copy.value as usize].label, &doc.devices[copy.from as usize].name);
            let _ = write!(title, "\ncopies {label} from {from} ({})", human(copy.bytes));
        }
        let (title, colour) = (quote(&title), colour(split.device));
        let _ = writeln!(
            out,
            "  subgraph cluster_{i} {{\n    label={title};\n    color={colour};\n    penwidth=2;"
        );
        for &id in &split.nodes {
            let _ = writeln!(out, "    {}", vertex(doc, &doc.nodes[id as usize]));
        }
        out += "  }\n";
    }
    for node in live() {
        for &source in &node.sources {
            let from = root(doc, source);
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

/// The devices' memory, and what the plan takes in all.
fn summary(doc: &Document) -> String {
    let mut text = String::new();
    for (i, device) in doc.devices.iter().enumerate() {
        let (slots, bytes) = (device.slots.len(), human(device.slots.iter().sum()));
        let slots = count(slots, "slot", "slots");
        let _ = writeln!(text, "{} ({}): {slots}, {bytes}", device.name, colour(i as u32));
    }
    let t = &doc.totals;
    let (splits, copies) = (count(t.splits, "split", "splits"), count(t.copies, "copy", "copies"));
    let _ = write!(
        text,
        "{splits}, {copies} ({}); weights {}, KV {}, live peak {}",
        human(t.copy_bytes),
        human(t.weight_bytes),
        human(t.state_bytes),
        human(t.live_peak)
    );
    text
}

/// The node whose memory a value is.
fn root(doc: &Document, id: u32) -> &NodeRow {
    let node = &doc.nodes[id as usize];
    match (node.op, node.sources.first()) {
        ("reshape" | "kv_store", Some(&source)) => root(doc, source),
        _ => node,
    }
}

fn colour(device: u32) -> &'static str {
    COLOURS[device as usize % COLOURS.len()]
}

fn vertex(doc: &Document, n: &NodeRow) -> String {
    let shape: Vec<String> = n.shape.iter().map(usize::to_string).collect();
    let label = quote(&format!("{}\n{}\n{} {}", n.label, n.op, n.dtype, shape.join("×")));
    // Leaves take the device of their first reader, which says little: they stay white.
    let leaf = n.sources.is_empty();
    let colour = match n.device {
        Some(d) if !leaf => colour(d),
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
