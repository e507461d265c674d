//! `minfer logits`: raw logits, for comparing engines.

use clap::Args;
use minfer_engine::sampling::logprobs;
use minfer_engine::{Feed, Flow, Outputs, Step};
use minfer_tokenizer::TokenId;
use serde::Serialize;

use crate::args::{DeviceArgs, Globals, ModelArgs};
use crate::config::{Config, Flags};
use crate::exit::Failure;
use crate::{ids, model, output};

/// Evaluate token ids and print logits
///
/// Prints the logits of the last position, and for each position the id with the largest logit. Nothing is added to the
/// ids.
#[derive(Debug, Args)]
pub struct LogitsArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Token ids, separated by commas or spaces, or a JSON array of them, as `minfer tokenize` prints it
    #[arg(long, value_name = "IDS", num_args = 1.., allow_negative_numbers = true, required = true)]
    ids: Vec<String>,
    /// Print one JSON object: logits, argmax
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    devices: DeviceArgs,
}

#[derive(Serialize)]
struct Logits {
    logits: Vec<f32>,
    argmax: Vec<TokenId>,
}

pub fn run(args: LogitsArgs, globals: &Globals) -> Result<(), Failure> {
    let flags = Flags { model: args.model.model.as_deref(), devices: args.devices, ..Flags::default() };
    let mut config = Config::load(globals, flags)?;
    let ids = ids::parse(&args.ids.join(" "))?;
    if ids.is_empty() {
        return Err(minfer_engine::EngineError::EmptyPrompt.into());
    }
    config.engine.n_ctx = Some(ids.len());
    let mut engine = model::load(&config)?;
    let mut sequence = engine.new_sequence();
    let mut result = Logits { logits: Vec::new(), argmax: Vec::new() };
    let mut bad = None;
    let mut feeds = [Feed { sequence: &mut sequence, tokens: &ids, outputs: Outputs::From(0) }];
    engine.forward(&mut feeds, &mut |step| {
        if let Step::Logits { logits, .. } = step {
            match logprobs(logits, 0, 1) {
                Ok(best) => result.argmax.extend(best.top.first().map(|top| top.0)),
                Err(error) => {
                    bad = Some(error);
                    return Flow::Break(());
                }
            }
            result.logits.clear();
            result.logits.extend_from_slice(logits);
        }
        Flow::Continue(())
    })?;
    if let Some(error) = bad {
        return Err(minfer_engine::EngineError::from(error).into());
    }
    if args.json {
        return output::json(&result);
    }
    let mut text = String::new();
    for (position, id) in result.argmax.iter().enumerate() {
        text.push_str(&format!("position {position}: argmax {id}\n"));
    }
    for (id, logit) in result.logits.iter().enumerate() {
        text.push_str(&format!("{id}\t{logit}\n"));
    }
    output::text(&text)
}
