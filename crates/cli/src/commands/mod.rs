//! One file per command: its flags and what it does.

pub mod bench;
pub mod chat;
pub mod completions;
pub mod config;
pub mod detokenize;
pub mod devices;
pub mod graph;
pub mod inspect;
pub mod list;
pub mod logits;
pub mod man;
pub mod perplexity;
pub mod pull;
pub mod rm;
pub mod run;
pub mod tokenize;

use std::ffi::OsString;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::argv;
use crate::exit::Failure;
use crate::usage;

/// Parses the command line and does what it says.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    let arguments = argv::expand(arguments);
    let parsed = Cli::try_parse_from(&arguments).map_err(|error| usage::failure(error, &arguments));
    let Cli { globals, command } = parsed?;
    match command {
        Command::Run(args) => run::run(args, &globals),
        Command::Chat(args) => chat::run(args, &globals),
        Command::Logits(args) => logits::run(args, &globals),
        Command::Tokenize(args) => tokenize::run(args, &globals),
        Command::Detokenize(args) => detokenize::run(args, &globals),
        Command::Inspect(args) => inspect::run(args, &globals),
        Command::Graph(args) => graph::run(args, &globals),
        Command::Bench(args) => bench::run(args, &globals),
        Command::Perplexity(args) => perplexity::run(args, &globals),
        Command::Devices(args) => devices::run(args, &globals),
        Command::Config(args) => config::run(args, &globals),
        Command::Pull(args) => pull::run(args, &globals),
        Command::List(args) => list::run(args, &globals),
        Command::Rm(args) => rm::run(args, &globals),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args),
    }
}
