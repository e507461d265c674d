//! The tokens so far, and the penalties that look back at them.

use super::{SamplingError, SamplingParams, TokenId};

/// How far back a penalty looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Window {
    Whole,
    Last(usize),
}

impl Window {
    /// −1 is the whole context; the parameters were validated.
    pub fn new(last_n: i32) -> Self {
        usize::try_from(last_n).map_or(Window::Whole, Window::Last)
    }

    pub fn of<'a>(&self, tokens: &'a [TokenId]) -> &'a [TokenId] {
        match *self {
            Window::Whole => tokens,
            Window::Last(n) => &tokens[tokens.len().saturating_sub(n)..],
        }
    }
}

/// Tokens of the prompt and of the answer, oldest first, as far back as anything looks.
#[derive(Debug)]
pub(super) struct History {
    tokens: Vec<TokenId>,
    reach: Window,
    vocab_size: usize,
}

impl History {
    pub fn new(reach: Window, vocab_size: usize) -> Self {
        Self { tokens: Vec::new(), reach, vocab_size }
    }

    pub fn push(&mut self, token: TokenId) -> Result<(), SamplingError> {
        if token as usize >= self.vocab_size {
            let (id, vocab_size) = (token.to_string(), self.vocab_size);
            return Err(SamplingError::TokenId { field: "history", id, vocab_size });
        }
        match self.reach {
            Window::Last(0) => return Ok(()),
            // Moving the tail down only when twice as much is held keeps this O(1) per token.
            Window::Last(n) if self.tokens.len() >= n.saturating_mul(2) => {
                let from = self.tokens.len() - (n - 1);
                self.tokens.drain(..from);
            }
            _ => {}
        }
        self.tokens.push(token);
        Ok(())
    }

    pub fn clear(&mut self) {
        self.tokens.clear();
    }

    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }
}

/// Repetition, frequency and presence penalties.
#[derive(Debug)]
pub(super) struct Penalties {
    repeat: f32,
    frequency: f32,
    presence: f32,
    pub window: Window,
    /// Occurrences per token; all zero between calls.
    counts: Vec<u32>,
}

impl Penalties {
    /// None where the parameters make them an exact no-op.
    pub fn new(params: &SamplingParams, vocab_size: usize) -> Option<Self> {
        let (repeat, frequency, presence) =
            (params.repeat_penalty, params.frequency_penalty, params.presence_penalty);
        let window = Window::new(params.penalty_last_n);
        if window == Window::Last(0) || (repeat == 1.0 && frequency == 0.0 && presence == 0.0) {
            return None;
        }
        Some(Self { repeat, frequency, presence, window, counts: vec![0; vocab_size] })
    }

    pub fn apply(&mut self, history: &[TokenId], logits: &mut [f32]) {
        let window = self.window.of(history);
        for &token in window {
            self.counts[token as usize] += 1;
        }
        for &token in window {
            let count = std::mem::take(&mut self.counts[token as usize]);
            if count > 0 {
                let logit = &mut logits[token as usize];
                *logit = if *logit > 0.0 { *logit / self.repeat } else { *logit * self.repeat };
                *logit -= count as f32 * self.frequency + self.presence;
            }
        }
    }
}
