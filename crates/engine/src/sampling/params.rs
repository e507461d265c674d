use std::fmt::Display;

use serde::{Deserialize, Serialize};

use super::{SamplingError, TokenId};

/// Everything that decides how the next token is chosen.
///
/// The defaults are those of llama.cpp: temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, everything else off.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingParams {
    /// Divides the logits before the draw. Finite; 0 or less means greedy decoding.
    pub temperature: f32,
    /// Keep the `top_k` best tokens. 0 or −1, or more than the vocabulary: off.
    pub top_k: i32,
    /// Keep the smallest set of best tokens whose probabilities reach `top_p`. 0…1; 0 keeps the best, 1 is off.
    pub top_p: f32,
    /// Keep tokens at least `min_p` times as probable as the best. 0…1; 0 is off.
    pub min_p: f32,
    /// Keep the tokens whose surprise is closest to the expected one, up to this mass. 0…1; 1 is off.
    pub typical_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in the window. Above 0; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted once from the logit of each token seen in the window. Finite; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from a logit once per occurrence of the token in the window. Finite; 0 is off.
    pub frequency_penalty: f32,
    /// Window of the three penalties above in tokens. −1 is the whole context, 0 disables them.
    pub penalty_last_n: i32,
    /// Strength of DRY. 0 or more; 0 is off.
    pub dry_multiplier: f32,
    /// Growth of the DRY penalty per token of repeated sequence. 1 or more.
    pub dry_base: f32,
    /// Repeated sequences shorter than this are free. 0 or more.
    pub dry_allowed_length: i32,
    /// Window of DRY in tokens. −1 is the whole context, 0 disables it.
    pub dry_penalty_last_n: i32,
    /// A token whose text contains one of these ends a repeated sequence and is never penalized by DRY. None is empty.
    pub dry_sequence_breakers: Vec<String>,
    /// Chance per token that XTC acts. 0…1; 0 is off.
    pub xtc_probability: f32,
    /// XTC drops all but the least probable of the tokens that have at least this probability. 0…1; above 0.5 is off.
    pub xtc_threshold: f32,
    /// Added to the logits of single tokens. Below +inf; −inf bans the token.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Seed of the random stream.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last_n: 64,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: -1,
            dry_sequence_breakers: ["\n", ":", "\"", "*"].map(String::from).to_vec(),
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// Greedy decoding: the most probable token, nothing else applied.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Self::default() }
    }

    /// Checks every field against its range. Token ids are checked by [`super::Sampler::new`], which knows the vocabulary.
    ///
    /// # Errors
    /// [`SamplingError::Parameter`] for the first field outside its range; NaN is outside every range.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let finite = |v: f32| v.is_finite();
        let fraction = |v: f32| (0.0..=1.0).contains(&v);
        check("temperature", self.temperature, finite, "a finite number")?;
        check("top_k", self.top_k, |v| v >= -1, "-1, 0 (off) or a count")?;
        check("top_p", self.top_p, fraction, "from 0 to 1")?;
        check("min_p", self.min_p, fraction, "from 0 to 1")?;
        check("typical_p", self.typical_p, fraction, "from 0 to 1")?;
        check("repeat_penalty", self.repeat_penalty, |v| v > 0.0 && v.is_finite(), "above 0 (1 is off)")?;
        check("presence_penalty", self.presence_penalty, finite, "a finite number")?;
        check("frequency_penalty", self.frequency_penalty, finite, "a finite number")?;
        check("penalty_last_n", self.penalty_last_n, |v| v >= -1, "-1 (whole context), 0 (off) or a count")?;
        check("dry_multiplier", self.dry_multiplier, |v| v >= 0.0 && v.is_finite(), "0 (off) or more")?;
        check("dry_base", self.dry_base, |v| v >= 1.0 && v.is_finite(), "1 or more")?;
        check("dry_allowed_length", self.dry_allowed_length, |v| v >= 0, "0 or more")?;
        check(
            "dry_penalty_last_n",
            self.dry_penalty_last_n,
            |v| v >= -1,
            "-1 (whole context), 0 (off) or a count",
        )?;
        if self.dry_sequence_breakers.iter().any(String::is_empty) {
            check("dry_sequence_breakers", "\"\"", |_| false, "non-empty strings")?;
        }
        check("xtc_probability", self.xtc_probability, fraction, "from 0 to 1")?;
        check("xtc_threshold", self.xtc_threshold, fraction, "from 0 to 1 (above 0.5 is off)")?;
        for &(_, bias) in &self.logit_bias {
            check("logit_bias", bias, |v| v < f32::INFINITY, "a number or -inf")?;
        }
        Ok(())
    }
}

fn check<T: Copy + Display>(
    field: &'static str,
    value: T,
    ok: impl Fn(T) -> bool,
    expected: &'static str,
) -> Result<(), SamplingError> {
    if ok(value) {
        Ok(())
    } else {
        Err(SamplingError::Parameter { field, value: value.to_string(), expected })
    }
}

/// Turns ids from outside (stop tokens, say) into token ids of a vocabulary.
///
/// # Errors
/// [`SamplingError::TokenId`] naming `field` and the first id that is negative or not below `vocab_size`.
pub fn check_token_ids(
    field: &'static str,
    ids: &[i64],
    vocab_size: usize,
) -> Result<Vec<TokenId>, SamplingError> {
    ids.iter()
        .map(|&id| {
            TokenId::try_from(id)
                .ok()
                .filter(|&t| (t as usize) < vocab_size)
                .ok_or_else(|| SamplingError::TokenId { field, id: id.to_string(), vocab_size })
        })
        .collect()
}

/// Reads a logit-bias map as JSON carries it, with ids as text.
///
/// # Errors
/// [`SamplingError::TokenId`] naming the first key that is no id of the vocabulary, [`SamplingError::Parameter`] for a
/// bias that is NaN or +inf.
pub fn parse_logit_bias<'a>(
    entries: impl IntoIterator<Item = (&'a str, f32)>,
    vocab_size: usize,
) -> Result<Vec<(TokenId, f32)>, SamplingError> {
    let field = "logit_bias";
    entries
        .into_iter()
        .map(|(key, bias)| {
            let id = key.parse::<i64>().map_err(|_| SamplingError::TokenId {
                field,
                id: key.to_owned(),
                vocab_size,
            })?;
            check(field, bias, |v| v < f32::INFINITY, "a number or -inf")?;
            Ok((check_token_ids(field, &[id], vocab_size)?[0], bias))
        })
        .collect()
}
