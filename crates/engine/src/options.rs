use minfer_backend_cpu::Isa;
use minfer_graph::{DType, Fusion};

use crate::{EngineError, Placement, Watching};

/// How a model is loaded and run.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineOptions {
    /// Positions a sequence may have. `None`: the model's context length, at most [`EngineOptions::DEFAULT_CONTEXT`].
    pub n_ctx: Option<usize>,
    /// Sequences of full length that fit the KV cache.
    pub max_sequences: usize,
    /// Prompt tokens evaluated in one step.
    pub n_batch: usize,
    /// Element type of the KV cache, `F16` or `F32`.
    pub kv_type: DType,
    /// Threads for steps of one or a few tokens.
    pub threads: usize,
    /// Threads for prompts.
    pub threads_batch: usize,
    /// The SIMD instruction set; `None` for the best this machine has.
    pub isa: Option<Isa>,
    /// The fusion rules that are on.
    pub fusion: Fusion,
    /// Which devices are used, and what each of them gets.
    pub placement: Placement,
    /// What is watched while it runs.
    pub watching: Watching,
}

impl EngineOptions {
    /// The context length of models that would allow more, unless asked for.
    pub const DEFAULT_CONTEXT: usize = 8192;
    /// Prompt tokens in a step, unless asked for.
    pub const DEFAULT_BATCH: usize = 512;

    /// Refuses settings out of range.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        let positive = |name: &'static str, value: usize| {
            if value > 0 {
                Ok(())
            } else {
                Err(EngineError::Setting { name, value: "0".to_owned(), expected: "at least 1".to_owned() })
            }
        };
        positive("the context length", self.n_ctx.unwrap_or(1))?;
        positive("the number of sequences", self.max_sequences)?;
        positive("the batch size", self.n_batch)?;
        positive("the thread count", self.threads)?;
        positive("the prompt thread count", self.threads_batch)?;
        if !matches!(self.kv_type, DType::F16 | DType::F32) {
            return Err(EngineError::Setting {
                name: "the KV type",
                value: self.kv_type.name().to_owned(),
                expected: "f16 or f32".to_owned(),
            });
        }
        Ok(())
    }
}

impl Default for EngineOptions {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            n_ctx: None,
            max_sequences: 1,
            n_batch: Self::DEFAULT_BATCH,
            kv_type: DType::F16,
            threads,
            threads_batch: threads,
            isa: None,
            fusion: Fusion::all(),
            placement: Placement::default(),
            watching: Watching::default(),
        }
    }
}
