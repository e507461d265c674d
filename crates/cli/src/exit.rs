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
    /// Not a failure, or nothing to do: the parser's help.
    #[error("{0}")]
    Help(clap::Error),
    /// A command line that does not parse, or flags that make no sense together.
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

impl Failure {
    fn code(&self) -> u8 {
        match self {
            Self::Help(_) | Self::Usage(_) | Self::Config(_) => 2,
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
            Self::Help(error) => drop(error.print()),
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Self::Interrupted => {}
            error => say(format_args!("error: {}", one_line(&error.to_string()))),
        }
    }
}

/// Prints what went wrong, if anything, and gives the exit code.
pub fn code(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Help and version that were asked for are output as any other.
        Err(Failure::Help(error)) if !error.use_stderr() => {
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
