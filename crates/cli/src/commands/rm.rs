//! `minfer rm`: removes a model.

use clap::Args;
use minfer_hub::ModelRef;

use crate::args::Globals;
use crate::config::{Config, Flags};
use crate::exit::Failure;
use crate::output;
use crate::progress::{Transfers, notice};

/// Remove a model from the folder of models
#[derive(Debug, Args)]
pub struct RmArgs {
    /// A name that `minfer list` shows
    model: String,
}

pub fn run(args: RmArgs, globals: &Globals) -> Result<(), Failure> {
    let config = Config::load(globals, Flags::default())?;
    let model = ModelRef::parse(&args.model)?;
    let freed = config.store()?.remove(&model, &mut Transfers::default())?;
    notice(&format!("removed {model}, {} freed", output::human_bytes(freed)));
    Ok(())
}
