//! The text: a table of nodes, and a summary.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Document, NodeRow, count, human};

pub(super) fn text(doc: &Document) -> String {
    let header = ["id", "label", "op", "sources", "type", "shape", "device", "split", "slot", "bytes"];
    let mut rows: Vec<[String; 10]> = vec![header.map(str::to_owned)];
    rows.extend(doc.nodes.iter().map(|n| cells(doc, n)));
    let widths: Vec<usize> =
        (0..header.len()).map(|c| rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0)).collect();
    let mut out = String::new();
    for row in &rows {
        let mut line = String::new();
        for (c, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // Numbers are right-aligned.
            let padding = " ".repeat(width - cell.chars().count());
            let right = matches!(header[c], "id" | "split" | "slot" | "bytes");
            let (before, after) = if right { (padding, String::new()) } else { (String::new(), padding) };
            line += &format!("{before}{cell}{after}  ");
        }
        out += line.trim_end();
        out.push('\n');
    }
    out + &summary(doc)
}

pub(super) fn summary(doc: &Document) -> String {
    let mut out = String::new();
    for (i, split) in doc.splits.iter().enumerate() {
        let device = &doc.devices[split.device as usize].name;
        let _ = write!(out, "split {i} on {device}: {}", count(split.nodes.len(), "node", "nodes"));
        for copy in &split.copies {
            let (from, label) =
                (&doc.devices[copy.from as usize].name, &doc.nodes[copy.value as usize].label);
            let _ = write!(out, "; copies {label} from {from} ({})", human(copy.bytes));
        }
        out.push('\n');
    }
    if doc.devices.len() > 1 {
        for ((device, why), nodes) in reasons(doc) {
            let name = &doc.devices[device as usize].name;
            let _ = writeln!(out, "{} on {name}: {why}", count(nodes, "node", "nodes"));
        }
    }
    out += &super::census::text(doc);
    for device in &doc.devices {
        let bytes = human(device.slots.iter().sum());
        let _ = writeln!(out, "{}: {}, {bytes}", device.name, count(device.slots.len(), "slot", "slots"));
    }
    let t = &doc.totals;
    let _ = writeln!(
        out,
        "{}: {} run, {} absorbed by fusion; {}, {} ({})",
        count(t.nodes, "node", "nodes"),
        t.running,
        t.dead,
        count(t.splits, "split", "splits"),
        count(t.copies, "copy", "copies"),
        human(t.copy_bytes)
    );
    let _ = writeln!(
        out,
        "weights {}, KV {}, slots {}, live peak {}",
        human(t.weight_bytes),
        human(t.state_bytes),
        human(t.slot_bytes),
        human(t.live_peak)
    );
    out
}

/// How many nodes are on a device for the same reason.
fn reasons(doc: &Document) -> BTreeMap<(u32, &str), usize> {
    let mut reasons = BTreeMap::new();
    for (device, why) in doc.nodes.iter().filter_map(|n| n.device.zip(n.why.as_deref())) {
        *reasons.entry((device, why)).or_default() += 1;
    }
    reasons
}

fn cells(doc: &Document, n: &NodeRow) -> [String; 10] {
    let number = |v: Option<u32>| v.map_or("-".to_owned(), |v| v.to_string());
    let device = match n.device {
        Some(d) => doc.devices[d as usize].name.clone(),
        None => if n.dead { "(fused)" } else { "-" }.to_owned(),
    };
    let join = |items: Vec<String>, by: &str| items.join(by);
    [
        n.id.to_string(),
        format!("{}{}", n.label, if n.output { " *" } else { "" }),
        n.op.to_owned(),
        join(n.sources.iter().map(u32::to_string).collect(), ","),
        n.dtype.to_owned(),
        join(n.shape.iter().map(usize::to_string).collect(), "×"),
        device,
        number(n.split),
        number(n.slot),
        n.bytes.to_string(),
    ]
}
