//! `minfer devices`: what models can run on.

use clap::Args;
use minfer_engine::{Isa, devices};

use crate::args::{DeviceArgs, Globals};
use crate::config::{Config, Flags};
use crate::exit::Failure;
use crate::output;

/// List the devices that models can run on
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Print a JSON array: name, description, free_memory
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    devices: DeviceArgs,
}

pub fn run(args: DevicesArgs, globals: &Globals) -> Result<(), Failure> {
    let config = Config::load(globals, Flags { devices: args.devices, ..Flags::default() })?;
    let devices = devices::describe(&config.engine)?;
    let isas: Vec<_> = Isa::available().map(Isa::name).collect();
    if args.json {
        let rows = devices.iter().map(|d| {
            let mut row = serde_json::json!({
                "name": d.name, "description": d.description, "free_memory": d.free_memory,
            });
            if d.name == "cpu" {
                row["isa_available"] = isas.clone().into();
            }
            row
        });
        return output::json(&rows.collect::<Vec<_>>());
    }
    let mut text = String::new();
    for device in devices {
        let free = device.free_memory.map_or_else(|| "unknown".to_owned(), output::human_bytes);
        text.push_str(&format!("{}: {}; free memory {free}\n", device.name, device.description));
        if device.name == "cpu" {
            text.push_str(&format!("  instruction sets for --isa: {}\n", isas.join(", ")));
        }
    }
    output::text(&text)
}
