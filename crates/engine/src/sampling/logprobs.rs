use super::candidates::{Candidate, select_best};
use super::math::{argmax, sum_exp};
use super::{SamplingError, TokenId};

/// Log-probabilities of one position, natural logarithm, over the whole vocabulary.
#[derive(Debug, Clone, PartialEq)]
pub struct LogProbs {
    /// Of the token asked for; −inf where its logit is.
    pub logprob: f64,
    /// Of the most probable tokens, best first, lowest id first on a tie.
    pub top: Vec<(TokenId, f64)>,
}

/// Log-probability of `token` and of the `top_n` best tokens under `logits` (shape `[vocab]`), before any sampling step.
///
/// # Errors
/// [`SamplingError::TokenId`] where `token` is not below `logits.len()`, [`SamplingError::BadLogit`] for NaN or +inf,
/// [`SamplingError::NoCandidate`] when all are −inf.
pub fn logprobs(logits: &[f32], token: TokenId, top_n: usize) -> Result<LogProbs, SamplingError> {
    let chosen = *logits.get(token as usize).ok_or_else(|| SamplingError::TokenId {
        field: "token",
        id: token.to_string(),
        vocab_size: logits.len(),
    })?;
    let (_, max) = argmax(logits)?;
    let log_sum = libm::log(sum_exp(logits, max));
    let of = |logit: f32| (f64::from(logit) - f64::from(max)) - log_sum;
    let mut best: Vec<Candidate> = Vec::new();
    if top_n > 0 {
        select_best(logits, top_n, &mut best);
    }
    Ok(LogProbs { logprob: of(chosen), top: best.iter().map(|c| (c.id, of(c.logit))).collect() })
}
