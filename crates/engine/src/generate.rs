//! From a prompt to text, one token at a time.

use std::time::{Duration, Instant};

use minfer_tokenizer::TokenId;

use crate::runner::{Feed, Flow, Outputs, Step};
use crate::sampling::{Sampler, SamplingParams};
use crate::sequence::Sequence;
use crate::text::TextStream;
use crate::{Engine, EngineError};

/// What to generate.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The whole prompt; what the sequence already holds of it is not evaluated again.
    pub prompt: &'a [TokenId],
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Tokens to generate at most; `None`: until the model ends or the context is full.
    pub max_tokens: Option<usize>,
    /// Texts that end the generation and are not part of it.
    pub stop: &'a [String],
    /// Carry on past the model's end-of-generation tokens.
    pub ignore_eos: bool,
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// The model ended its turn, or a stop text came.
    Stop,
    /// The token limit or the end of the context was reached.
    Length,
    /// The caller broke off.
    Cancelled,
}

impl FinishReason {
    /// The OpenAI name; a cancelled generation is `cancelled`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What happens while generating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// So many prompt tokens have been evaluated.
    Prompt {
        /// Tokens evaluated.
        done: usize,
        /// Tokens to evaluate.
        total: usize,
    },
    /// More text.
    Text(&'a str),
}

/// How long it took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// Prompt tokens evaluated.
    pub prompt_n: usize,
    /// Prompt tokens that were in the sequence already.
    pub cached_n: usize,
    /// Evaluating them.
    pub prompt: Duration,
    /// Tokens generated.
    pub predicted_n: usize,
    /// Generating them.
    pub predicted: Duration,
}

/// A finished generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The tokens generated, without a stop token.
    pub tokens: Vec<TokenId>,
    /// Their text, up to a stop text.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// How long it took.
    pub timings: Timings,
}

impl Engine {
    /// Generates after `request.prompt`. `on_event` may break off; the text so far is then returned.
    ///
    /// What is refused (an empty or too long prompt, ids outside the vocabulary, parameters out of range) leaves the
    /// sequence as it was; after a device's failure it holds the tokens that were evaluated.
    pub fn generate(
        &mut self,
        sequence: &mut Sequence,
        request: &Request<'_>,
        on_event: &mut dyn FnMut(Event<'_>) -> Flow,
    ) -> Result<Completion, EngineError> {
        self.check(sequence, request.prompt)?;
        let (n_prompt, n_ctx) = (request.prompt.len(), self.n_ctx());
        let vocab_size = self.info().vocab_size;
        let tokenizer = self.tokenizer();
        let mut sampler = Sampler::new(request.sampling.clone(), vocab_size, |id| {
            tokenizer.token_bytes(id).unwrap_or_default()
        })?;
        sampler.prime(request.prompt)?;
        let mut stream = TextStream::new(request.stop)?;

        let cached_n = sequence.keep_prefix_of(request.prompt);
        let started = Instant::now();
        let mut flow = self.evaluate(sequence, &request.prompt[cached_n..], &mut |done, total| {
            on_event(Event::Prompt { done, total })
        })?;
        let prompt = started.elapsed();

        let started = Instant::now();
        let limit = request.max_tokens.unwrap_or(usize::MAX);
        let mut tokens = Vec::new();
        let mut text = String::new();
        let finish_reason = loop {
            if flow.is_break() {
                break FinishReason::Cancelled;
            }
            // Prompt and answer fill the context together.
            if tokens.len() >= limit || n_prompt + tokens.len() >= n_ctx {
                break FinishReason::Length;
            }
            let token = sampler.sample(self.last_logits())?;
            if self.tokenizer().is_eog(token) && !request.ignore_eos {
                break FinishReason::Stop;
            }
            sampler.accept(token)?;
            tokens.push(token);
            let delta = stream.push(self.tokenizer().token_bytes(token).unwrap_or_default());
            text.push_str(delta.text);
            if !delta.text.is_empty() {
                flow = on_event(Event::Text(delta.text));
            }
            if delta.stopped.is_some() {
                break FinishReason::Stop;
            }
            if flow.is_continue() && tokens.len() < limit && n_prompt + tokens.len() < n_ctx {
                flow = self.evaluate(sequence, &[token], &mut |_, _| Flow::Continue(()))?;
            }
        };
        let rest = stream.finish().text;
        if !rest.is_empty() {
            text.push_str(rest);
            // The generation is over; there is nothing left to break off.
            let _ = on_event(Event::Text(rest));
        }
        let timings = Timings {
            prompt_n: n_prompt - cached_n,
            cached_n,
            prompt,
            predicted_n: tokens.len(),
            predicted: started.elapsed(),
        };
        Ok(Completion { tokens, text, finish_reason, timings })
    }

    /// Evaluates tokens of one sequence. Unless `progress` breaks off, [`Engine::last_logits`] are then the last one's.
    fn evaluate(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[TokenId],
        progress: &mut dyn FnMut(usize, usize) -> Flow,
    ) -> Result<Flow, EngineError> {
        let mut flow = Flow::Continue(());
        let mut feeds = [Feed { sequence, tokens, outputs: Outputs::Last }];
        self.forward(&mut feeds, &mut |step| {
            flow = match step {
                Step::Logits { .. } => Flow::Continue(()),
                Step::Done { tokens, total } => progress(tokens, total),
            };
            flow
        })?;
        Ok(flow)
    }
}
