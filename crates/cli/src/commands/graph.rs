//! `minfer graph`: the compute graph of a step, as it is planned for this machine.

use clap::{Args, ValueEnum};
use minfer_graph::export::Document;

use crate::args::{DeviceArgs, Globals, SubjectArgs, positive};
use crate::config::{Config, Flags};
use crate::exit::Failure;
use crate::{model, output};

/// Print a model's compute graph as it is planned for this machine
///
/// Shows each node with its device, the splits and the memory plan of one step of one sequence.
#[derive(Debug, Args)]
pub struct GraphArgs {
    #[command(flatten)]
    model: SubjectArgs,
    /// Tokens in the step: 1 is a step of generation, more are a prompt
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive)]
    tokens: usize,
    /// How to print it
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
    #[command(flatten)]
    devices: DeviceArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// A table of nodes, then the splits and totals
    Text,
    /// For Graphviz
    Dot,
    /// One JSON object
    Json,
}

pub fn run(args: GraphArgs, globals: &Globals) -> Result<(), Failure> {
    let flags = Flags { model: args.model.name(), devices: args.devices, ..Flags::default() };
    let engine = model::load(&Config::load(globals, flags)?)?;
    let document = Document::of_plan(&engine.plan(args.tokens)?);
    let mut text = match args.format {
        Format::Text => document.to_text(),
        Format::Dot => document.to_dot(),
        Format::Json => document.to_json(),
    };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    output::text(&text)
}
