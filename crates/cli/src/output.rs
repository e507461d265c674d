//! Standard output: results and nothing else. A reader that goes away ends the program quietly.

use std::io::{self, Write};

use serde::Serialize;

use crate::exit::Failure;

/// Writes a text as it is and hands it on at once.
pub fn text(text: &str) -> Result<(), Failure> {
    bytes(text.as_bytes())
}

/// Writes bytes as they are and hands them on at once.
pub fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(Failure::Output)
}

/// Writes one value as JSON on one line.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let mut line = serde_json::to_string(value).map_err(|e| Failure::Output(e.into()))?;
    line.push('\n');
    text(&line)
}

/// Writes one value as JSON for people to read.
pub fn pretty_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut text_ = serde_json::to_string_pretty(value).map_err(|e| Failure::Output(e.into()))?;
    text_.push('\n');
    text(&text_)
}

/// Bytes as a person reads them.
pub fn human_bytes(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}
