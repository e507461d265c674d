//! `minfer pull`: fetches a model.

use clap::Args;
use minfer_hub::ModelRef;

use crate::args::Globals;
use crate::config::{Config, Flags};
use crate::exit::Failure;
use crate::output;
use crate::progress::Transfers;

/// Fetch a model into the folder of models and print its path
#[derive(Debug, Args)]
pub struct PullArgs {
    /// A catalog name or hf:org/repo[:quant|file]
    model: String,
}

pub fn run(args: PullArgs, globals: &Globals) -> Result<(), Failure> {
    let config = Config::load(globals, Flags::default())?;
    let model = ModelRef::parse(&args.model)?;
    let path = config.store()?.pull(&model, &mut Transfers::default())?;
    output::text(&format!("{}\n", path.display()))
}
