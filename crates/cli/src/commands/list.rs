//! `minfer list`: models that are here, and those that can be had.

use clap::Args;
use minfer_hub::catalog::CATALOG;

use crate::args::Globals;
use crate::config::{Config, Flags};
use crate::exit::Failure;
use crate::output;

/// List the models that are here, and the catalog's that can be had by name
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Print a JSON array: name, bytes, installed, verified, path, description, license
    #[arg(long)]
    json: bool,
}

pub fn run(args: ListArgs, globals: &Globals) -> Result<(), Failure> {
    let config = Config::load(globals, Flags::default())?;
    let installed = config.store()?.list()?;
    let entry = |name: &str| CATALOG.iter().find(|entry| entry.name == name);
    let missing = || CATALOG.iter().filter(|entry| installed.iter().all(|i| i.name != entry.name));
    if args.json {
        let here = installed.iter().map(|i| {
            let known = entry(&i.name);
            serde_json::json!({
                "name": i.name, "bytes": i.bytes, "installed": true, "verified": i.verified, "path": i.path,
                "description": known.map(|e| e.description), "license": known.map(|e| e.license),
            })
        });
        let there = missing().map(|e| {
            serde_json::json!({
                "name": e.name, "bytes": e.bytes, "installed": false, "verified": false, "path": null,
                "description": e.description, "license": e.license,
            })
        });
        return output::json(&here.chain(there).collect::<Vec<_>>());
    }
    let here = installed.iter().map(|i| {
        let what = entry(&i.name).map_or("", |e| e.description);
        (i.name.as_str(), i.bytes, if i.verified { "here" } else { "here, unchecked" }, what)
    });
    let there = missing().map(|e| (e.name, e.bytes, "can be pulled", e.description));
    let rows: Vec<_> = here.chain(there).collect();
    let width = rows.iter().map(|row| row.0.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, bytes, state, what) in rows {
        let line = format!("{name:width$}  {:>10}  {state:15}  {what}", output::human_bytes(bytes));
        text.push_str(line.trim_end());
        text.push('\n');
    }
    output::text(&text)
}
