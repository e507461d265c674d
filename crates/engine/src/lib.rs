//! The inference engine: sequences, paged KV, sampling, chat templates.
//!
//! ```no_run
//! use minfer_engine::{Engine, EngineOptions, Request, sampling::SamplingParams};
//! use minfer_tokenizer::Special;
//!
//! let mut engine = Engine::load("model.gguf", &EngineOptions::default(), &mut |_| {})?;
//! let prompt = engine.tokenize_prompt("The capital of France is", Special::AsText);
//! let mut sequence = engine.new_sequence();
//! let request = Request {
//!     prompt: &prompt,
//!     sampling: SamplingParams::greedy(),
//!     max_tokens: Some(24),
//!     stop: &[],
//!     ignore_eos: false,
//! };
//! let done = engine.generate(&mut sequence, &request, &mut |_| std::ops::ControlFlow::Continue(()))?;
//! println!("{}", done.text);
//! # Ok::<(), minfer_engine::EngineError>(())
//! ```

pub mod chat;
pub mod devices;
mod engine;
mod error;
mod generate;
mod options;
mod pages;
mod placement;
mod runner;
pub mod sampling;
mod sequence;
pub mod text;
mod watching;
mod weights;

pub use engine::{Engine, LoadProgress};
pub use error::{EngineError, ErrorKind};
pub use generate::{Completion, Event, FinishReason, Request, Timings};
pub use minfer_backend_cpu::Isa;
pub use minfer_graph::{Profile, Unit, Watch};
pub use options::EngineOptions;
pub use placement::{GpuLayers, PlaceRule, Placement};
pub use runner::{Feed, Flow, Outputs, Step};
pub use sequence::Sequence;
pub use watching::{TRACE_VERSION, Watching};
