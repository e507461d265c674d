use super::TokenId;

/// Why parameters were refused or no token could be sampled.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// A parameter lies outside its range.
    #[error("{field} is {value}, but must be {expected}")]
    Parameter {
        /// Name of the field of [`super::SamplingParams`].
        field: &'static str,
        /// The value that was given.
        value: String,
        /// The accepted range, in words.
        expected: &'static str,
    },
    /// A token id that the vocabulary does not hold, or text that is no token id.
    #[error("{field}: {id:?} is not a token id (the vocabulary has {vocab_size} tokens)")]
    TokenId {
        /// Where the id was given.
        field: &'static str,
        /// The id as it was given.
        id: String,
        /// Number of tokens in the vocabulary.
        vocab_size: usize,
    },
    /// The logits row does not have one value per token.
    #[error("got {got} logits for a vocabulary of {vocab_size} tokens")]
    LogitCount {
        /// Length of the row.
        got: usize,
        /// Number of tokens in the vocabulary.
        vocab_size: usize,
    },
    /// A logit is NaN or +inf: the forward pass went wrong.
    #[error("the logit of token {token} is {value}")]
    BadLogit {
        /// The first token concerned.
        token: TokenId,
        /// Its logit.
        value: f32,
    },
    /// Every token is excluded.
    #[error("every logit is -inf: no token can be sampled")]
    NoCandidate,
}
