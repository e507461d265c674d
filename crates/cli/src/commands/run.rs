//! `minfer run`: one prompt, one answer.

use clap::Args;
use minfer_engine::chat::Message;
use minfer_engine::{Completion, Engine, Event, FinishReason, Flow, Request};
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
/// The prompt is TEXT, or -p TEXT, or standard input without its last line break. It is put into the model's chat
/// template; a model without one completes it as it is. The answer is printed as it comes.
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
    #[arg(value_parser = clap::value_parser!(i64).range(-1..))]
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
    let text = prompt::text_or_standard_input(args.prompt.clone().or(args.text.clone()))?;
    let mut engine = model::load(&config)?;
    sampling.logit_bias = args.sampling.logit_bias(engine.info().vocab_size)?;
    let seed = sampling.seed;
    let prompt = prompt_ids(&engine, &args, &text)?;
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
        return Err(minfer_engine::EngineError::EmptyPrompt.into());
    }
    let system = args.system.as_deref().map(|text| Message::new("system", text));
    let messages: Vec<_> = system.into_iter().chain([Message::new("user", text)]).collect();
    Ok(prompt::conversation(engine, template, &messages, &Evaluated::default())?.ids)
}

fn answer<'a>(engine: &Engine, config: &Config, prompt: &'a [TokenId], done: &'a Completion) -> Answer<'a> {
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
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
    let line = |what: &str, n: usize, time: std::time::Duration| {
        let seconds = time.as_secs_f64();
        let speed = if n == 0 { 0.0 } else { n as f64 / seconds };
        say(format_args!("{what} {n} tokens in {:.0} ms, {speed:.1} tokens/s", seconds * 1e3));
    };
    let timings = &done.timings;
    line("prompt  ", timings.prompt_n, timings.prompt);
    line("generate", timings.predicted_n, timings.predicted);
    say(format_args!(
        "ended    {} (seed {seed}, {} prompt tokens reused)",
        done.finish_reason.name(),
        timings.cached_n
    ));
}
