use std::io;
use std::path::PathBuf;

use minfer_graph::{ExecError, PlanError};
use minfer_models::ModelError;

use crate::chat::TemplateError;
use crate::sampling::SamplingError;
use crate::text::EmptyStop;

/// Whose fault an error is: what exit codes and HTTP statuses are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The model file cannot be read or run.
    Model,
    /// What the caller asked for is wrong.
    Input,
    /// A device failed or is too small.
    Device,
}

/// Everything that can go wrong in the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The file is not a readable model file.
    #[error(transparent)]
    Gguf(#[from] minfer_gguf::Error),
    /// The model's vocabulary is unusable.
    #[error("{}: tokenizer: {source}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: minfer_tokenizer::Error,
    },
    /// The model file's chat template is not text.
    #[error("{}: {source}", path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: minfer_gguf::MetadataError,
    },
    /// The model's architecture, hyper-parameters or tensors are unusable.
    #[error("{}: {source}", path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: ModelError,
    },
    /// The model's graph could not be built.
    #[error(transparent)]
    Graph(#[from] ModelError),
    /// The model could not be prepared for the devices.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A run failed.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// Sampling parameters or logits are unusable.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The chat template failed.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A stop text is empty.
    #[error(transparent)]
    Stop(#[from] EmptyStop),
    /// The prompt does not fit the context.
    #[error("the prompt has {n_prompt} tokens, the context holds {n_ctx}")]
    PromptTooLong {
        /// Tokens of the prompt.
        n_prompt: usize,
        /// The context length.
        n_ctx: usize,
    },
    /// There is nothing to evaluate.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// A token id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab_size}")]
    TokenId {
        /// The id.
        id: u32,
        /// The vocabulary's size.
        vocab_size: usize,
    },
    /// The cache that holds a sequence is that of another engine.
    #[error("the sequence was made by another engine")]
    ForeignSequence,
    /// A setting is out of range.
    #[error("{name} is {value}, but must be {expected}")]
    Setting {
        /// Its name.
        name: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        expected: String,
    },
    /// All pages of the KV cache are owned by sequences.
    #[error("the KV cache of {slots} positions has no room for {wanted}")]
    KvFull {
        /// Positions wanted.
        wanted: usize,
        /// Positions in all.
        slots: usize,
    },
    /// A file that the options ask for cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A device could not be opened.
    #[error("device {name}: {what}")]
    NoDevice {
        /// Its name.
        name: String,
        /// Why not.
        what: String,
    },
}

impl EngineError {
    /// Whose fault it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Gguf(_)
            | Self::Tokenizer { .. }
            | Self::Metadata { .. }
            | Self::Model { .. }
            | Self::Graph(_) => ErrorKind::Model,
            Self::Plan(PlanError::MissingWeight { .. } | PlanError::WeightSize { .. }) => ErrorKind::Model,
            // Only weights that are no numbers, or far too large, make such logits.
            Self::Sampling(SamplingError::BadLogit { .. }) => ErrorKind::Model,
            Self::Plan(_) | Self::Exec(_) | Self::NoDevice { .. } => ErrorKind::Device,
            Self::Sampling(_)
            | Self::Template(_)
            | Self::Stop(_)
            | Self::PromptTooLong { .. }
            | Self::EmptyPrompt
            | Self::TokenId { .. }
            | Self::ForeignSequence
            | Self::Setting { .. }
            | Self::Write { .. }
            | Self::KvFull { .. } => ErrorKind::Input,
        }
    }
}
