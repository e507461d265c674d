//! `minfer man`: the manual pages.

use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_mangen::Man;

use crate::args::Cli;
use crate::exit::Failure;
use crate::output;

/// Print a manual page, or write them all
#[derive(Debug, Args)]
pub struct ManArgs {
    /// The command whose page is wanted [default: minfer's own]
    command: Option<String>,
    /// Write all pages into this folder
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

pub fn run(args: ManArgs) -> Result<(), Failure> {
    let mut root = Cli::command();
    root.build();
    if let Some(dir) = args.dir {
        let write =
            std::fs::create_dir_all(&dir).and_then(|()| clap_mangen::generate_to(Cli::command(), &dir));
        return write.map_err(|e| Failure::Usage(format!("--dir {}: {e}", dir.display())));
    }
    let page = match &args.command {
        None => root,
        Some(name) => match root.find_subcommand(name) {
            None => return Err(Failure::Usage(format!("there is no command {name:?}"))),
            Some(command) => command.clone(),
        },
    };
    let mut text = Vec::new();
    Man::new(page).render(&mut text).map_err(Failure::Output)?;
    output::bytes(&text)
}
