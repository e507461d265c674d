//! `minfer detokenize`: token ids' text.

use clap::Args;
use minfer_engine::EngineError;

use crate::args::{Globals, ModelArgs};
use crate::config::{Config, Flags};
use crate::exit::Failure;
use crate::{ids, model, output, prompt};

/// Print the text of token ids
///
/// The bytes are printed as they are, without a line break. Only the vocabulary is read, no weights.
#[derive(Debug, Args)]
pub struct DetokenizeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Token ids, separated by spaces or commas, or a JSON array of them; without any, standard input is read
    #[arg(value_name = "IDS", allow_hyphen_values = true)]
    ids: Vec<String>,
    /// Leave out control tokens
    #[arg(long)]
    skip_special: bool,
    /// Print a JSON string; bytes that are no text become U+FFFD
    #[arg(long)]
    json: bool,
}

pub fn run(args: DetokenizeArgs, globals: &Globals) -> Result<(), Failure> {
    let flags = Flags { model: args.model.model.as_deref(), ..Flags::default() };
    let config = Config::load(globals, flags)?;
    let text = match args.ids.is_empty() {
        false => args.ids.join(" "),
        true => String::from_utf8_lossy(&prompt::standard_input()?).into_owned(),
    };
    let ids = ids::parse(&text)?;
    let tokenizer = model::tokenizer(&config)?;
    let vocab_size = tokenizer.vocab_size();
    if let Some(&id) = ids.iter().find(|&&id| id as usize >= vocab_size) {
        return Err(EngineError::TokenId { id, vocab_size }.into());
    }
    let bytes = tokenizer.decode(&ids, args.skip_special);
    if args.json { output::json(&String::from_utf8_lossy(&bytes)) } else { output::bytes(&bytes) }
}
