//! The flags that decide how the next token is chosen.

use clap::Args;
use minfer_engine::sampling::{SamplingError, SamplingParams, parse_logit_bias};

use crate::exit::Failure;

/// Sampling flags; what they mean and allow is said at [`SamplingParams`].
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling options")]
pub struct SamplingArgs {
    /// Temperature; 0 takes the most probable token [default: 0.8]
    #[arg(long, alias = "temperature", value_name = "T", allow_hyphen_values = true)]
    temp: Option<f32>,
    /// Keep the K best tokens; 0 or -1 is off [default: 40]
    #[arg(long, value_name = "K", allow_hyphen_values = true)]
    top_k: Option<i32>,
    /// Keep the smallest set of best tokens whose probabilities reach P; 1 is off [default: 0.95]
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    top_p: Option<f32>,
    /// Keep tokens at least P times as probable as the best; 0 is off [default: 0.05]
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    min_p: Option<f32>,
    /// Keep the tokens whose surprise is closest to the expected one, up to the mass P; 1 is off [default: 1]
    #[arg(long, alias = "typical-p", value_name = "P", allow_hyphen_values = true)]
    typical: Option<f32>,
    /// Make tokens of the last N less probable by this factor; 1 is off [default: 1]
    #[arg(long, value_name = "F", allow_hyphen_values = true)]
    repeat_penalty: Option<f32>,
    /// Tokens that the repeat, presence and frequency penalties look back; -1 is all, 0 none [default: 64]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    repeat_last_n: Option<i32>,
    /// Subtracted once from the logit of each token seen; 0 is off [default: 0]
    #[arg(long, value_name = "F", allow_hyphen_values = true)]
    presence_penalty: Option<f32>,
    /// Subtracted from a logit for each time the token was seen; 0 is off [default: 0]
    #[arg(long, value_name = "F", allow_hyphen_values = true)]
    frequency_penalty: Option<f32>,
    /// Strength of DRY, which penalizes going on with a repetition; 0 is off [default: 0]
    #[arg(long, value_name = "F", allow_hyphen_values = true)]
    dry_multiplier: Option<f32>,
    /// Growth of DRY's penalty per repeated token; 1 or more [default: 1.75]
    #[arg(long, value_name = "F", allow_hyphen_values = true)]
    dry_base: Option<f32>,
    /// Repetitions shorter than this are free of DRY [default: 2]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    dry_allowed_length: Option<i32>,
    /// Tokens that DRY looks back; -1 is all, 0 none [default: -1]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    dry_penalty_last_n: Option<i32>,
    /// A text that ends a repetition for DRY; may be given several times [default: line break, colon, quote, asterisk]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    dry_sequence_breaker: Vec<String>,
    /// Chance per token that XTC drops the best candidates; 0 is off [default: 0]
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    xtc_probability: Option<f32>,
    /// XTC drops all but the least probable of the tokens with at least this probability [default: 0.1]
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    xtc_threshold: Option<f32>,
    /// Add VALUE to the logit of token ID; -inf bans it; may be given several times
    #[arg(long, value_name = "ID=VALUE", allow_hyphen_values = true, value_parser = bias)]
    logit_bias: Vec<(String, f32)>,
    /// Seed of the random numbers: equal seeds give equal texts [default: another one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

fn bias(text: &str) -> Result<(String, f32), String> {
    let (id, value) = text.split_once('=').ok_or("expected ID=VALUE")?;
    Ok((id.to_owned(), value.parse().map_err(|e| format!("{value:?} is no number: {e}"))?))
}

impl SamplingArgs {
    /// The parameters, checked as far as the vocabulary is not needed for it.
    pub fn params(&self) -> Result<SamplingParams, Failure> {
        let default = SamplingParams::default();
        let breakers = &self.dry_sequence_breaker;
        let params = SamplingParams {
            temperature: self.temp.unwrap_or(default.temperature),
            top_k: self.top_k.unwrap_or(default.top_k),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            typical_p: self.typical.unwrap_or(default.typical_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(default.repeat_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(default.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(default.frequency_penalty),
            penalty_last_n: self.repeat_last_n.unwrap_or(default.penalty_last_n),
            dry_multiplier: self.dry_multiplier.unwrap_or(default.dry_multiplier),
            dry_base: self.dry_base.unwrap_or(default.dry_base),
            dry_allowed_length: self.dry_allowed_length.unwrap_or(default.dry_allowed_length),
            dry_penalty_last_n: self.dry_penalty_last_n.unwrap_or(default.dry_penalty_last_n),
            dry_sequence_breakers: if breakers.is_empty() {
                default.dry_sequence_breakers
            } else {
                breakers.clone()
            },
            xtc_probability: self.xtc_probability.unwrap_or(default.xtc_probability),
            xtc_threshold: self.xtc_threshold.unwrap_or(default.xtc_threshold),
            logit_bias: Vec::new(),
            seed: self.seed.unwrap_or_else(random_seed),
        };
        params.validate().map_err(sampling)?;
        Ok(params)
    }

    /// The logit biases, for a vocabulary of this size.
    pub fn logit_bias(&self, vocab_size: usize) -> Result<Vec<(u32, f32)>, Failure> {
        let entries = self.logit_bias.iter().map(|(id, value)| (id.as_str(), *value));
        parse_logit_bias(entries, vocab_size).map_err(sampling)
    }
}

fn sampling(error: SamplingError) -> Failure {
    minfer_engine::EngineError::from(error).into()
}

/// Short enough to be retyped.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.finish() & 0xFFFF_FFFF
}
