//! What is said of a command line that does not parse: one line that names the argument and what is wanted.

use std::ffi::OsString;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};

use crate::args::Cli;
use crate::exit::Failure;

/// The parser's error as a failure. Help that was asked for, or is in place, stays what it is.
pub fn failure(error: clap::Error, arguments: &[OsString]) -> Failure {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    match error.kind() {
        DisplayHelp | DisplayHelpOnMissingArgumentOrSubcommand | DisplayVersion => Failure::Help(error),
        _ => Failure::Usage(explain(&error, arguments)),
    }
}

fn explain(error: &clap::Error, arguments: &[OsString]) -> String {
    if let Some((given, meant)) = long_with_one_dash(arguments) {
        return format!("unexpected argument '{given}' found; a similar argument exists: '{meant}'");
    }
    let context = |kind| error.get(kind).map(ContextValue::to_string).unwrap_or_default();
    let (flag, usage) = (context(ContextKind::InvalidArg), context(ContextKind::Usage));
    let usage = usage.replacen("Usage", "usage", 1);
    let command = usage.split_whitespace().nth(2).unwrap_or_default();
    let hint = words_hint(command).map(|hint| format!("; {hint}")).unwrap_or_default();
    let message = on_one_line(error);
    match error.kind() {
        ErrorKind::UnknownArgument if !flag.starts_with('-') => {
            format!("unexpected argument '{flag}' found{hint}; {usage}")
        }
        ErrorKind::ArgumentConflict if message.contains("[TEXT]") => message + &hint,
        ErrorKind::ValueValidation => match expected(error) {
            Some(expected) => {
                let value = context(ContextKind::InvalidValue);
                format!("invalid value '{value}' for '{flag}': expected {expected}")
            }
            None => message,
        },
        _ => message,
    }
}

/// What a word too many is likely to mean.
fn words_hint(command: &str) -> Option<&'static str> {
    match command {
        "run" | "tokenize" => Some("a text of several words has to be in quotes"),
        "chat" => Some("messages are typed once it runs, or come from standard input"),
        _ => None,
    }
}

/// What a number should have been; the standard library's words do not say.
fn expected(error: &clap::Error) -> Option<&'static str> {
    let source = std::error::Error::source(error)?;
    if source.is::<ParseFloatError>() {
        return Some("a number");
    }
    let whole = source.downcast_ref::<ParseIntError>()?;
    Some(match whole.kind() {
        IntErrorKind::PosOverflow => "a smaller whole number",
        IntErrorKind::NegOverflow => "a larger whole number",
        _ => "a whole number",
    })
}

/// The parser's message: what it says in paragraphs, without the usage that follows them.
fn on_one_line(error: &clap::Error) -> String {
    paragraphs(&error.render().to_string())
}

fn paragraphs(message: &str) -> String {
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let message = message.split("\n\nUsage:").next().unwrap_or(message);
    let message = message.split("\n\nFor more information").next().unwrap_or(message);
    let parts = message.split("\n\n").flat_map(|part| part.split("\n  tip: "));
    let parts = parts.map(|part| part.trim().trim_start_matches("tip: ")).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("; ")
}

/// The first argument that is a long flag but for one dash, with that flag. The parser reads `-temp` as `-t emp`.
fn long_with_one_dash(arguments: &[OsString]) -> Option<(String, String)> {
    fn has_long(command: &Command, name: &str) -> bool {
        let named = |arg: &clap::Arg| {
            arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|all| all.contains(&name))
        };
        command.get_arguments().any(named) || command.get_subcommands().any(|c| has_long(c, name))
    }
    let command = Cli::command();
    let before_texts = arguments.iter().map_while(|a| a.to_str().filter(|text| *text != "--"));
    let mut dashed = before_texts.filter_map(|text| {
        let name = text.strip_prefix('-')?.split('=').next()?;
        (name.len() > 1 && has_long(&command, name)).then(|| (format!("-{name}"), format!("--{name}")))
    });
    dashed.next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[track_caller]
    fn check(line: &str, wanted: &str) {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let error = Cli::try_parse_from(&arguments).unwrap_err();
        assert_eq!(explain(&error, &arguments), wanted);
    }

    #[test]
    fn messages_are_one_line_with_the_tips_and_without_the_usage() {
        let text = "error: unexpected argument '-z' found\n\n  tip: use it\n  tip: or not\n\nUsage: minfer\n\nFor more";
        assert_eq!(paragraphs(text), "unexpected argument '-z' found; use it; or not");
        assert_eq!(
            paragraphs("error: a\n  [possible values: b, c]\n\nFor more information"),
            "a\n  [possible values: b, c]"
        );
        check(
            "minfer run --tmp 1 x",
            "unexpected argument '--tmp' found; a similar argument exists: '--temp'",
        );
    }

    #[test]
    fn a_text_that_is_not_quoted_is_told_so() {
        let quotes = "a text of several words has to be in quotes";
        for command in ["run", "tokenize"] {
            check(
                &format!("minfer {command} Why is the sky blue"),
                &format!(
                    "unexpected argument 'is' found; {quotes}; usage: minfer {command} [OPTIONS] [TEXT]"
                ),
            );
        }
        check(
            "minfer run -p Why is",
            &format!("the argument '--prompt <TEXT>' cannot be used with '[TEXT]'; {quotes}"),
        );
        check(
            "minfer chat hello",
            "unexpected argument 'hello' found; messages are typed once it runs, or come from standard input; \
             usage: minfer chat [OPTIONS]",
        );
        check("minfer list it", "unexpected argument 'it' found; usage: minfer list [OPTIONS]");
    }

    #[test]
    fn numbers_say_what_is_expected() {
        let count = "for '--n-predict <N>': expected a whole number, or -1 for no limit";
        check("minfer run -n abc x", &format!("invalid value 'abc' {count}"));
        check("minfer run -n -5 x", &format!("invalid value '-5' {count}"));
        check("minfer run --temp hot x", "invalid value 'hot' for '--temp <T>': expected a number");
        check("minfer run --top-k 1.5 x", "invalid value '1.5' for '--top-k <K>': expected a whole number");
        check(
            "minfer run --seed 99999999999999999999 x",
            "invalid value '99999999999999999999' for '--seed <N>': expected a smaller whole number",
        );
        check(
            "minfer run -t two x",
            "invalid value 'two' for '--threads <N>': expected a whole number above 0",
        );
    }

    #[test]
    fn a_long_flag_with_one_dash_is_recognized() {
        for (line, flag) in [
            ("minfer run -temp 0 x", "temp"),
            ("minfer run -seed=1 x", "seed"),
            ("minfer chat -temperature 1", "temperature"),
            ("minfer run x -json", "json"),
        ] {
            check(
                line,
                &format!("unexpected argument '-{flag}' found; a similar argument exists: '--{flag}'"),
            );
        }
        // Behind `--` there are no flags.
        assert!(long_with_one_dash(&["minfer", "run", "--", "-temp"].map(OsString::from)).is_none());
        assert!(long_with_one_dash(&["minfer", "run", "-t", "2"].map(OsString::from)).is_none());
    }
}
