//! One file per command: its flags and what it does.

pub mod bench;

use std::ffi::OsString;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::argv;
use crate::exit::Failure;

/// Parses the command line and does what it says.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let Cli { globals, command } = Cli::try_parse_from(argv::expand(arguments))?;
    match command {
        Command::Bench(args) => bench::run(args, &globals),
    }
}
