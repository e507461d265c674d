//! `minfer detokenize`: token ids' text.

use clap::Args;
use minfer_engine::EngineError;
use minfer_tokenizer::TokenId;

use crate::args::{Globals, ModelArgs};
use crate::config::{Config, Flags};
use crate::exit::Failure;
use crate::{model, output, prompt};

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
    let ids = parse_ids(&text)?;
    let tokenizer = model::tokenizer(&config)?;
    let vocab_size = tokenizer.vocab_size();
    if let Some(&id) = ids.iter().find(|&&id| id as usize >= vocab_size) {
        return Err(EngineError::TokenId { id, vocab_size }.into());
    }
    let bytes = tokenizer.decode(&ids, args.skip_special);
    if args.json { output::json(&String::from_utf8_lossy(&bytes)) } else { output::bytes(&bytes) }
}

fn parse_ids(text: &str) -> Result<Vec<TokenId>, Failure> {
    let text = text.trim();
    let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let words = inner.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    words
        .map(|word| word.parse().map_err(|_| Failure::Input(format!("{word:?} is not a token id"))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_in_every_spelling() {
        for text in ["1 2 3", "1,2,3", "[1, 2, 3]\n", " 1, 2 3 "] {
            assert_eq!(parse_ids(text).unwrap(), [1, 2, 3], "{text:?}");
        }
        assert!(parse_ids("[]").unwrap().is_empty());
        for text in ["1 x", "-1", "4294967296", "[1"] {
            assert!(parse_ids(text).is_err(), "{text:?}");
        }
    }
}
