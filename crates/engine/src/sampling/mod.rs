//! From logits to the next token.
//!
//! A [`Sampler`] applies, in this order (the default order of llama.cpp):
//!
//! 1. logit bias
//! 2. repetition, frequency and presence penalties over the last `penalty_last_n` tokens
//! 3. DRY, which penalizes tokens that would continue a repeated sequence
//! 4. top-k
//! 5. locally typical sampling
//! 6. top-p
//! 7. min-p
//! 8. XTC
//! 9. temperature, then one draw
//!
//! A temperature of zero or less stops after step 3 and takes the best token, the lowest id on a tie: the later
//! steps could not change it, except XTC, which does not apply to greedy decoding.
//!
//! # Reproducibility
//!
//! The same parameters, seed, history and logits give the same tokens on every machine: exponentials are computed by
//! [`exp_nonpositive`] (plain IEEE-754 additions and multiplications), logarithms and powers by the `libm` crate, sums
//! run in a fixed order, and every sort is by value and then by id, so no two candidates are ever equal.
//!
//! The random stream is PCG64 (XSL-RR 128/64) with state `seed` and stream number
//! `0x6d69_6e66_6572` ("minfer"); a uniform number is the upper 53 bits of one output, divided by 2^53. Each sampled
//! token takes one number; when XTC is on, it takes one before that. Greedy decoding takes none.

mod candidates;
mod dry;
mod error;
mod history;
mod logprobs;
mod math;
mod params;
mod sampler;

pub use error::SamplingError;
pub use logprobs::{LogProbs, logprobs};
pub use math::exp_nonpositive;
pub use params::{SamplingParams, check_token_ids, parse_logit_bias};
pub use sampler::Sampler;

/// A position in the vocabulary.
pub type TokenId = u32;
