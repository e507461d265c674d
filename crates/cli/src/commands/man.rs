//! `minfer man`: the manual pages.

use std::path::PathBuf;

use clap::{Args, Command, CommandFactory};
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
    // `minfer help run` is `minfer run --help`; it has no page.
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    if let Some(dir) = args.dir {
        let mut pages = std::iter::once(&root).chain(root.get_subcommands()).map(page);
        let write = std::fs::create_dir_all(&dir)
            .and_then(|()| pages.try_for_each(|page| page.generate_to(&dir).map(|_| ())));
        return write.map_err(|e| Failure::Usage(format!("--dir {}: {e}", dir.display())));
    }
    let command = match &args.command {
        None => &root,
        Some(name) => match root.find_subcommand(name) {
            None => return Err(Failure::Usage(format!("there is no command {name:?}"))),
            Some(command) => command,
        },
    };
    let mut text = Vec::new();
    page(command).render(&mut text).map_err(Failure::Output)?;
    output::bytes(&text)
}

/// The page of a command; its head names the program, whatever the command is called.
fn page(command: &Command) -> Man {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_uppercase();
    Man::new(command.clone()).title(name).source(concat!("minfer ", env!("CARGO_PKG_VERSION")))
}
