//! `minfer pull`: fetches a model.

use clap::Args;
use minfer_hub::ModelRef;

use crate::args::Globals;
use crate::config::{Config, Flags};
use crate::exit::Failure;
use crate::{model, output};

/// Fetch a model into the folder of models and print its path
#[derive(Debug, Args)]
pub struct PullArgs {
    /// A catalog name or hf:org/repo[:quant|file]
    model: String,
}

pub fn run(args: PullArgs, globals: &Globals) -> Result<(), Failure> {
    let config = Config::load(globals, Flags::default())?;
    let path = model::pull(&ModelRef::parse(&args.model)?, &config)?;
    output::text(&format!("{}\n", path.display()))
}
