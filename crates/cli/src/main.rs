//! The `minfer` command line.
//!
//! `args` declares every flag, `config` merges flags with the environment and the configuration file, `commands` has one
//! file per command, and `exit` is the one mapping from errors to exit codes.

// They panic where the stream cannot be written to.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod argv;
mod commands;
mod config;
mod exit;
mod ids;
mod interrupt;
mod model;
mod output;
mod progress;
mod prompt;
mod read;
mod sampling;
mod settings;
mod usage;

fn main() -> std::process::ExitCode {
    exit::report_panics();
    exit::code(commands::run(std::env::args_os()))
}
