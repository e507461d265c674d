//! `minfer perplexity`: how well a model predicts a text.

use std::path::PathBuf;

use clap::Args;
use minfer_engine::sampling::logprobs;
use minfer_engine::{Engine, EngineError, Feed, Flow, Outputs, Sequence, Step};
use minfer_tokenizer::{Special, TokenId};
use serde::Serialize;

use crate::args::{DeviceArgs, Globals, SubjectArgs};
use crate::config::{Config, Flags};
use crate::exit::Failure;
use crate::progress::Bar;
use crate::{interrupt, model, output, read};

/// Measure how well a model predicts a text
///
/// The text is cut into chunks of CONTEXT tokens, a rest is left out. Where the model asks for BOS, it takes the place of each
/// chunk's first token. The second half of each chunk is scored; the perplexity is the exponential of the mean negative
/// log-likelihood. The standard error is that of independent tokens.
#[derive(Debug, Args)]
pub struct PerplexityArgs {
    #[command(flatten)]
    model: SubjectArgs,
    /// The text
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Tokens in a chunk
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    context: usize,
    /// Print one JSON object: perplexity, stderr, chunks, tokens
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    devices: DeviceArgs,
}

#[derive(Serialize)]
struct Perplexity {
    perplexity: f64,
    stderr: f64,
    chunks: usize,
    tokens: usize,
}

pub fn run(args: PerplexityArgs, globals: &Globals) -> Result<(), Failure> {
    let flags = Flags { model: args.model.name(), devices: args.devices, ..Flags::default() };
    let mut config = Config::load(globals, flags)?;
    let n = args.context;
    if n < 4 {
        return Err(Failure::Usage(format!("-c is {n}, but must be at least 4")));
    }
    let text = read::file(&args.file)
        .map_err(|e| Failure::Input(format!("cannot read {}: {e}", args.file.display())))?;
    config.engine.n_ctx = Some(n);
    let mut engine = model::load(&config)?;

    let mut ids = engine.tokenizer().encode_bytes(&text, Special::AsText);
    engine.add_bos(&mut ids);
    let chunks = ids.len() / n;
    if chunks == 0 {
        return Err(Failure::Input(format!(
            "{} has {} tokens, fewer than one chunk of {n}",
            args.file.display(),
            ids.len()
        )));
    }
    let bos = engine.tokenizer().bos().filter(|_| engine.tokenizer().add_bos());
    let watch = interrupt::watch()?;
    let mut bar = Bar::count("chunks");
    let mut score = Score::default();
    let mut sequence = engine.new_sequence();
    for (i, chunk) in ids.chunks_exact_mut(n).enumerate() {
        if let Some(bos) = bos {
            chunk[0] = bos;
        }
        sequence.truncate(0);
        score_chunk(&mut engine, &mut sequence, chunk, &mut score)?;
        bar.set(i as u64 + 1, chunks as u64);
        if watch.interrupted() {
            return Err(Failure::Interrupted);
        }
    }
    drop(bar);
    let result = score.finish(chunks);
    if args.json {
        return output::json(&result);
    }
    let Perplexity { perplexity, stderr, chunks, tokens } = result;
    output::text(&format!("perplexity {perplexity:.4} ± {stderr:.4} ({tokens} tokens in {chunks} chunks)\n"))
}

/// Scores each token of the second half but its first, given all before it.
fn score_chunk(
    engine: &mut Engine,
    sequence: &mut Sequence,
    chunk: &[TokenId],
    score: &mut Score,
) -> Result<(), Failure> {
    let mut bad = None;
    // The last token predicts nothing that is in the chunk.
    let tokens = &chunk[..chunk.len() - 1];
    let mut feeds = [Feed { sequence, tokens, outputs: Outputs::From(chunk.len() / 2) }];
    engine.forward(&mut feeds, &mut |step| {
        let Step::Logits { index, logits, .. } = step else { return Flow::Continue(()) };
        match logprobs(logits, chunk[index + 1], 0) {
            Ok(found) => score.add(-found.logprob),
            Err(error) => {
                bad = Some(error);
                return Flow::Break(());
            }
        }
        Flow::Continue(())
    })?;
    bad.map_or(Ok(()), |error| Err(EngineError::from(error).into()))
}

/// Sums of negative log-likelihoods and of their squares.
#[derive(Default)]
struct Score {
    sum: f64,
    squares: f64,
    tokens: usize,
}

impl Score {
    fn add(&mut self, nll: f64) {
        self.sum += nll;
        self.squares += nll * nll;
        self.tokens += 1;
    }

    fn finish(&self, chunks: usize) -> Perplexity {
        let n = self.tokens as f64;
        let mean = self.sum / n;
        let variance = (self.squares / n - mean * mean).max(0.0);
        let perplexity = mean.exp();
        let stderr = if self.tokens > 1 { perplexity * (variance / (n - 1.0)).sqrt() } else { 0.0 };
        Perplexity { perplexity, stderr, chunks, tokens: self.tokens }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perplexity_is_the_exponential_of_the_mean() {
        let mut score = Score::default();
        [1.0, 3.0].into_iter().for_each(|nll| score.add(nll));
        let p = score.finish(1);
        assert!((p.perplexity - 2.0_f64.exp()).abs() < 1e-12);
        // The mean's standard error is 1; the exponential stretches it by its own value.
        assert!((p.stderr - 2.0_f64.exp()).abs() < 1e-12);
        assert_eq!((p.tokens, p.chunks), (2, 1));
    }
}
