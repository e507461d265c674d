//! `minfer tokenize`: a text's token ids.

use std::io::{self, IsTerminal};

use clap::Args;
use minfer_tokenizer::Special;

use crate::args::{Globals, ModelArgs};
use crate::config::{Config, Flags};
use crate::exit::Failure;
use crate::{model, output, prompt};

/// Print a text's token ids as a JSON array
///
/// Only the vocabulary is read, no weights.
#[derive(Debug, Args)]
pub struct TokenizeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The text; without it, every byte of standard input
    #[arg(conflicts_with = "stdin", allow_hyphen_values = true)]
    text: Option<String>,
    /// Take the text from standard input, even from a terminal
    #[arg(long)]
    stdin: bool,
    /// Recognize control tokens in the text
    #[arg(long)]
    parse_special: bool,
    /// Put BOS first if the model asks for one
    #[arg(long)]
    add_bos: bool,
    /// Print JSON, which is what is printed anyway
    #[arg(long)]
    json: bool,
}

pub fn run(args: TokenizeArgs, globals: &Globals) -> Result<(), Failure> {
    let flags = Flags { model: args.model.model.as_deref(), ..Flags::default() };
    let config = Config::load(globals, flags)?;
    let text = match args.text {
        Some(text) => text.into_bytes(),
        None if !args.stdin && io::stdin().is_terminal() => {
            return Err(Failure::Usage("no text: give TEXT, or one on standard input".to_owned()));
        }
        None => prompt::standard_input()?,
    };
    let tokenizer = model::tokenizer(&config)?;
    let special = if args.parse_special { Special::Parse } else { Special::AsText };
    let mut ids = tokenizer.encode_bytes(&text, special);
    if args.add_bos
        && tokenizer.add_bos()
        && let Some(bos) = tokenizer.bos()
        && ids.first() != Some(&bos)
    {
        ids.insert(0, bos);
    }
    output::json(&ids)
}
