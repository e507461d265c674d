//! The one mapping from errors to exit codes, and the last line a failing run prints.

use std::io::{self, Write};
use std::process::ExitCode;

use minfer_engine::{EngineError, ErrorKind};

use crate::config::ConfigError;
use crate::progress::{one_line, say};

/// A fault of minfer itself.
const FAULT: u8 = 70;
/// Broken off by Ctrl-C: 128 + SIGINT.
pub const INTERRUPTED: u8 = 130;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line does not parse, or asks for help; holds how it is to be shown.
    #[error("{0}")]
    Arguments(clap::Error),
    /// Flags that parse but make no sense together.
    #[error("{0}")]
    Usage(String),
    /// The environment or the configuration file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model cannot be had.
    #[error(transparent)]
    Store(#[from] minfer_hub::Error),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Something to evaluate that cannot be used.
    #[error("{0}")]
    Input(String),
    /// Standard output.
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    /// Ctrl-C; everything worth printing has been printed.
    #[error("interrupted")]
    Interrupted,
}

impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Self {
        Self::Arguments(error)
    }
}

impl Failure {
    fn code(&self) -> u8 {
        match self {
            Self::Arguments(_) | Self::Usage(_) | Self::Config(_) => 2,
            Self::Store(_) => 3,
            Self::Engine(error) => match error.kind() {
                ErrorKind::Model => 3,
                ErrorKind::Input => 4,
                ErrorKind::Device => 5,
            },
            Self::Input(_) => 4,
            // Whoever read the output has seen enough.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Self::Output(_) => 1,
            Self::Interrupted => INTERRUPTED,
        }
    }

    /// Says what went wrong in one line, where there is something to say.
    pub fn report(&self) {
        match self {
            // Where standard error cannot be written to, nobody is there to tell.
            Self::Arguments(error) if shows_help(error) => drop(error.print()),
            Self::Arguments(error) => say(in_one_line(&error.render().to_string())),
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Self::Interrupted => {}
            error => say(format_args!("error: {}", one_line(&error.to_string()))),
        }
    }
}

fn shows_help(error: &clap::Error) -> bool {
    use clap::error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    matches!(error.kind(), DisplayHelp | DisplayHelpOnMissingArgumentOrSubcommand | DisplayVersion)
}

/// What the parser's message says above its usage.
fn in_one_line(message: &str) -> String {
    let message = message.split("\n\nUsage:").next().unwrap_or(message);
    let message = message.split("\n\nFor more information").next().unwrap_or(message);
    one_line(message)
}

/// Prints what went wrong, if anything, and gives the exit code.
pub fn code(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Help and version that were asked for are output as any other.
        Err(Failure::Arguments(error)) if !error.use_stderr() => {
            let printed = error.print().and_then(|()| io::stdout().flush());
            code(printed.map_err(Failure::Output))
        }
        Err(failure) => {
            failure.report();
            ExitCode::from(failure.code())
        }
    }
}

/// A panic is a fault of minfer: it is said in one line, and the process ends with a code of its own.
pub fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("panic");
        let place = panic.location().map(|at| format!(" ({}:{})", at.file(), at.line())).unwrap_or_default();
        say(format_args!("error: a fault of minfer, please report it: {}{place}", one_line(text)));
        std::process::exit(FAULT.into());
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line_without_the_usage() {
        let text = "error: unexpected argument '-z' found\n\n  tip: use it\n\nUsage: minfer\n\nFor more information, try";
        assert_eq!(in_one_line(text), "error: unexpected argument '-z' found tip: use it");
        assert_eq!(in_one_line("a\n  b"), "a b");
    }

    #[test]
    fn each_kind_of_failure_has_its_code() {
        let engine = |e: EngineError| Failure::from(e).code();
        assert_eq!(Failure::Usage(String::new()).code(), 2);
        assert_eq!(Failure::from(minfer_hub::Error::NoHome).code(), 3);
        assert_eq!(engine(EngineError::PromptTooLong { n_prompt: 2, n_ctx: 1 }), 4);
        assert_eq!(engine(EngineError::NoDevice { name: "cpu".into(), what: "x".into() }), 5);
        assert_eq!(Failure::Interrupted.code(), 130);
        assert_eq!(Failure::Output(io::ErrorKind::BrokenPipe.into()).code(), 0);
        assert_eq!(Failure::Output(io::ErrorKind::StorageFull.into()).code(), 1);
    }
}
