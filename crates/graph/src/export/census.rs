//! The census: how many nodes of each operation run on each device.

use std::fmt::Write as _;

use serde::Serialize;

use super::Document;

/// An operation and where it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CensusRow {
    /// The operation's name.
    pub op: &'static str,
    /// How many nodes of it each device runs, as [`Document::devices`] counts them.
    pub nodes: Vec<usize>,
}

pub(super) fn census(doc: &Document) -> Vec<CensusRow> {
    let mut rows: Vec<CensusRow> = Vec::new();
    for split in &doc.splits {
        for &node in &split.nodes {
            let op = doc.nodes[node as usize].op;
            let i = rows.iter().position(|r| r.op == op).unwrap_or_else(|| {
                rows.push(CensusRow { op, nodes: vec![0; doc.devices.len()] });
                rows.len() - 1
            });
            rows[i].nodes[split.device as usize] += 1;
        }
    }
    rows
}

/// A table with a column for each device.
pub(super) fn text(doc: &Document) -> String {
    let rows = doc.census();
    let mut out = String::new();
    if rows.is_empty() {
        return out;
    }
    let chars = |text: &str| text.chars().count();
    let name = rows.iter().map(|r| chars(r.op)).max().unwrap_or(0);
    let _ = write!(out, "{:name$}", "");
    let widths: Vec<usize> = doc.devices.iter().map(|d| chars(&d.name).max(5)).collect();
    for (device, width) in doc.devices.iter().zip(&widths) {
        let _ = write!(out, "  {:>width$}", device.name);
    }
    out.push('\n');
    for row in rows {
        let _ = write!(out, "{:name$}", row.op);
        for (count, width) in row.nodes.iter().zip(&widths) {
            let _ = write!(out, "  {count:>width$}");
        }
        out.push('\n');
    }
    out
}
