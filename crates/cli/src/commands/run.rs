//! `minfer run`: one prompt, one answer.

use std::time::Duration;

use clap::Args;
use minfer_engine::chat::Message;
use minfer_engine::{Completion, Engine, EngineError, Event, FinishReason, Flow, Request};
use minfer_hub::ModelRef;
use minfer_tokenizer::{Special, TokenId};
use serde::Serialize;

use crate::args::{ContextArgs, DeviceArgs, Globals, ModelArgs};
use crate::config::{Config, Flags};
use crate::exit::Failure;
use crate::progress::{Bar, notice, say};
use crate::prompt::Evaluated;
use crate::sampling::SamplingArgs;
use crate::{interrupt, model, output, prompt};

/// Answer a prompt
///
/// The prompt is TEXT, or -p TEXT, or standard input without its last line break. Of both, as in `git diff | minfer run
/// "Review this."`, standard input comes first, then a blank line, then TEXT; in a shell's loop over lines of standard input,
/// add `</dev/null`. The prompt is put into the model's chat template; a model without one completes it as it is. The answer is
/// printed as it comes.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The prompt
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// The prompt, as -p
    #[arg(value_name = "TEXT", conflicts_with = "prompt")]
    text: Option<String>,
    #[command(flatten)]
    generation: GenerationArgs,
    /// Complete the prompt as it is: no chat template, control tokens are recognized, any byte is allowed
    #[arg(long)]
    raw: bool,
    /// A system message in front of the prompt
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "raw")]
    system: Option<String>,
    /// Print one JSON object: model, prompt_tokens, tokens, text, finish_reason, timings
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    devices: DeviceArgs,
    #[command(flatten)]
    context: ContextArgs,
}

/// When generation ends.
#[derive(Debug, Args)]
pub struct GenerationArgs {
    /// Tokens to generate at most; -1: until the model ends or the context is full
    #[arg(short, long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    #[arg(value_parser = limit)]
    pub n_predict: i64,
    /// End at this text, which is not printed; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// Go on past the model's end-of-text tokens
    #[arg(long)]
    pub ignore_eos: bool,
}

impl GenerationArgs {
    /// Tokens to generate at most, if there is such a limit.
    pub fn max_tokens(&self) -> Option<usize> {
        self.n_predict.try_into().ok()
    }
}

/// Reads a number of tokens, or -1.
fn limit(text: &str) -> Result<i64, &'static str> {
    text.parse().ok().filter(|&n| n >= -1).ok_or("expected a whole number, or -1 for no limit")
}

#[derive(Serialize)]
struct Answer<'a> {
    model: String,
    prompt_tokens: &'a [TokenId],
    tokens: &'a [TokenId],
    text: &'a str,
    finish_reason: &'static str,
    timings: TimingsJson,
}

#[derive(Serialize)]
struct TimingsJson {
    prompt_n: usize,
    prompt_ms: f64,
    predicted_n: usize,
    predicted_ms: f64,
    load_ms: f64,
}

pub fn run(args: RunArgs, globals: &Globals) -> Result<(), Failure> {
    let flags = Flags {
        model: args.model.model.as_deref(),
        devices: args.devices.clone(),
        context: args.context.clone(),
    };
    let config = Config::load(globals, flags)?;
    // Everything that can be refused without the model is refused before it is loaded.
    let mut sampling = args.sampling.params()?;
    let question = prompt::Question::begin(args.prompt.clone().or(args.text.clone()))?;
    let mut engine = model::load(&config)?;
    sampling.logit_bias = args.sampling.logit_bias(engine.info().vocab_size)?;
    let seed = sampling.seed;
    let prompt = prompt_ids(&engine, &args, &question.finish()?)?;
    let request = Request {
        prompt: &prompt,
        sampling,
        max_tokens: args.generation.max_tokens(),
        stop: &args.generation.stop,
        ignore_eos: args.generation.ignore_eos,
    };
    let watch = interrupt::watch()?;
    let mut written = Ok(());
    let mut bar = Bar::count("prompt");
    let mut sequence = engine.new_sequence();
    let done = engine.generate(&mut sequence, &request, &mut |event| {
        match event {
            Event::Prompt { done, total } => bar.set(done as u64, total as u64),
            Event::Text(text) if !args.json => written = output::text(text),
            Event::Text(_) => {}
        }
        if written.is_err() { Flow::Break(()) } else { watch.flow() }
    });
    let done = done.map_err(|error| match error {
        EngineError::PromptTooLong { .. } => Failure::Input(format!("{error}; -c makes it longer")),
        error => error.into(),
    })?;
    written?;
    if args.json {
        output::json(&answer(&engine, &config, &prompt, &done))?;
    } else {
        output::text("\n")?;
    }
    if config.verbose {
        report(&done, seed);
    }
    if done.finish_reason == FinishReason::Cancelled { Err(Failure::Interrupted) } else { Ok(()) }
}

/// The prompt's ids: by the chat template, else raw.
fn prompt_ids(engine: &Engine, args: &RunArgs, text: &[u8]) -> Result<Vec<TokenId>, Failure> {
    let template = match engine.chat_template() {
        _ if args.raw => return Ok(prompt::raw(engine, text, Special::Parse)),
        Some(template) => template,
        None if args.system.is_some() => {
            return Err(Failure::Input("--system: the model has no chat template to put it into".to_owned()));
        }
        None => {
            notice("the model has no chat template: completing the prompt as it is");
            // Nobody has asked for control tokens.
            return Ok(prompt::raw(engine, text, Special::AsText));
        }
    };
    let text = std::str::from_utf8(text).map_err(|e| {
        let at = e.valid_up_to();
        Failure::Input(format!("the prompt is not valid UTF-8 at byte {at}; only --raw takes any bytes"))
    })?;
    if text.is_empty() {
        return Err(EngineError::EmptyPrompt.into());
    }
    let system = args.system.as_deref().map(|text| Message::new("system", text));
    let messages: Vec<_> = system.into_iter().chain([Message::new("user", text)]).collect();
    Ok(prompt::conversation(engine, template, &messages, &Evaluated::default())?.ids)
}

fn answer<'a>(engine: &Engine, config: &Config, prompt: &'a [TokenId], done: &'a Completion) -> Answer<'a> {
    // To the microsecond: the clock's noise is above it.
    let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
    let timings = &done.timings;
    Answer {
        model: ModelRef::parse(&config.model).map_or_else(|_| config.model.clone(), |m| m.to_string()),
        prompt_tokens: prompt,
        tokens: &done.tokens,
        text: &done.text,
        finish_reason: done.finish_reason.name(),
        timings: TimingsJson {
            prompt_n: timings.prompt_n,
            prompt_ms: ms(timings.prompt),
            predicted_n: timings.predicted_n,
            predicted_ms: ms(timings.predicted),
            load_ms: ms(engine.load_time()),
        },
    }
}

/// Says on standard error how long it took.
pub fn report(done: &Completion, seed: u64) {
    let timings = &done.timings;
    say(format_args!("prompt   {}", pace(timings.prompt_n, timings.prompt_n, timings.prompt)));
    // The first token comes from the prompt's evaluation.
    let steps = timings.predicted_n.saturating_sub(1);
    say(format_args!("generate {}", pace(timings.predicted_n, steps, timings.predicted)));
    say(format_args!(
        "ended    {} (seed {seed}, {} prompt tokens reused)",
        done.finish_reason.name(),
        timings.cached_n
    ));
}

/// So many tokens in so long, and how fast that was where `evaluated` tokens were.
fn pace(n: usize, evaluated: usize, time: Duration) -> String {
    let (s, seconds) = (if n == 1 { "" } else { "s" }, time.as_secs_f64());
    let text = format!("{n} token{s} in {:.0} ms", seconds * 1e3);
    if evaluated == 0 { text } else { format!("{text}, {:.1} tokens/s", evaluated as f64 / seconds) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_that_of_what_was_evaluated() {
        let time = Duration::from_millis(500);
        assert_eq!(pace(5, 4, time), "5 tokens in 500 ms, 8.0 tokens/s");
        assert_eq!(pace(1, 1, time), "1 token in 500 ms, 2.0 tokens/s");
        assert_eq!(pace(1, 0, time), "1 token in 500 ms");
        assert_eq!(pace(0, 0, Duration::ZERO), "0 tokens in 0 ms");
    }
}
