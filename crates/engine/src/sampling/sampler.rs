use rand_pcg::Pcg64;
use rand_pcg::rand_core::Rng;

use super::candidates::Candidates;
use super::dry::Dry;
use super::history::{History, Penalties, Window};
use super::math::argmax;
use super::{SamplingError, SamplingParams, TokenId};

/// Stream number of the generator: "minfer" in ASCII.
const STREAM: u128 = 0x6d69_6e66_6572;

/// Chooses tokens for one sequence. Steps and guarantees are described in the [module](super).
#[derive(Debug)]
pub struct Sampler {
    params: SamplingParams,
    vocab_size: usize,
    history: History,
    penalties: Option<Penalties>,
    dry: Option<Dry>,
    rng: Pcg64,
    adjusted: Vec<f32>,
    candidates: Candidates,
}

impl Sampler {
    /// A sampler for a vocabulary of `vocab_size` tokens. `piece` gives the bytes of a token; it is called only where
    /// DRY is on, once per token, to find those that contain a sequence breaker.
    ///
    /// # Errors
    /// Whatever [`SamplingParams::validate`] refuses, and [`SamplingError::TokenId`] for a biased token outside the vocabulary.
    pub fn new<P: AsRef<[u8]>>(
        params: SamplingParams,
        vocab_size: usize,
        piece: impl Fn(TokenId) -> P,
    ) -> Result<Self, SamplingError> {
        params.validate()?;
        if let Some((id, _)) = params.logit_bias.iter().find(|(id, _)| *id as usize >= vocab_size) {
            return Err(SamplingError::TokenId { field: "logit_bias", id: id.to_string(), vocab_size });
        }
        let penalties = Penalties::new(&params, vocab_size);
        let dry = Dry::new(&params, vocab_size, piece);
        let windows = [penalties.as_ref().map(|p| p.window), dry.as_ref().map(|d| d.window)];
        let reach = windows.into_iter().flatten().fold(Window::Last(0), |a, b| match (a, b) {
            (Window::Last(a), Window::Last(b)) => Window::Last(a.max(b)),
            _ => Window::Whole,
        });
        Ok(Self {
            rng: Pcg64::new(u128::from(params.seed), STREAM),
            history: History::new(reach, vocab_size),
            params,
            vocab_size,
            penalties,
            dry,
            adjusted: Vec::new(),
            candidates: Candidates::default(),
        })
    }

    /// The parameters it was made with.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Starts a new sequence: the history becomes `prompt` and the random stream starts over.
    ///
    /// # Errors
    /// [`SamplingError::TokenId`] for an id outside the vocabulary; the history is then what came before it.
    pub fn prime(&mut self, prompt: &[TokenId]) -> Result<(), SamplingError> {
        self.rng = Pcg64::new(u128::from(self.params.seed), STREAM);
        self.history.clear();
        prompt.iter().try_for_each(|&token| self.history.push(token))
    }

    /// Adds a token to the history that the penalties look at.
    ///
    /// # Errors
    /// [`SamplingError::TokenId`] for an id outside the vocabulary.
    pub fn accept(&mut self, token: TokenId) -> Result<(), SamplingError> {
        self.history.push(token)
    }

    /// Chooses the next token from `logits` (shape `[vocab]`). It does not enter the history until [`Self::accept`].
    ///
    /// # Errors
    /// [`SamplingError::LogitCount`] for a row of another length, [`SamplingError::BadLogit`] where a logit is NaN or
    /// +inf, [`SamplingError::NoCandidate`] where all are −inf.
    pub fn sample(&mut self, logits: &[f32]) -> Result<TokenId, SamplingError> {
        if logits.len() != self.vocab_size {
            return Err(SamplingError::LogitCount { got: logits.len(), vocab_size: self.vocab_size });
        }
        let untouched = self.params.logit_bias.is_empty() && self.penalties.is_none() && self.dry.is_none();
        if untouched {
            return choose(&self.params, &mut self.candidates, &mut self.rng, logits);
        }
        // NaN must be seen before arithmetic on it: -inf + inf is NaN too, but the model's fault is the one to report.
        argmax(logits)?;
        self.adjusted.clear();
        self.adjusted.extend_from_slice(logits);
        for &(id, bias) in &self.params.logit_bias {
            self.adjusted[id as usize] += bias;
        }
        if let Some(penalties) = &mut self.penalties {
            penalties.apply(self.history.tokens(), &mut self.adjusted);
        }
        if let Some(dry) = &mut self.dry {
            dry.apply(self.history.tokens(), &mut self.adjusted);
        }
        choose(&self.params, &mut self.candidates, &mut self.rng, &self.adjusted)
    }
}

/// Steps 4 to 9 of the chain.
fn choose(
    params: &SamplingParams,
    candidates: &mut Candidates,
    rng: &mut Pcg64,
    logits: &[f32],
) -> Result<TokenId, SamplingError> {
    let (best, max) = argmax(logits)?;
    if params.temperature <= 0.0 {
        return Ok(best);
    }
    candidates.fill(logits, usize::try_from(params.top_k).unwrap_or(0), max);
    candidates.typical(params.typical_p);
    candidates.top_p(params.top_p);
    candidates.min_p(params.min_p);
    if params.xtc_probability > 0.0
        && params.xtc_threshold <= 0.5
        && uniform(rng) < f64::from(params.xtc_probability)
    {
        candidates.exclude_top_choices(params.xtc_threshold);
    }
    candidates.draw(params.temperature, uniform(rng)).ok_or(SamplingError::NoCandidate)
}

/// In [0, 1), from the upper 53 bits of one output.
fn uniform(rng: &mut Pcg64) -> f64 {
    (rng.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}
