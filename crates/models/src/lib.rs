//! Model architectures: from the hyper-parameters of a model file to a compute graph.
//!
//! [`Model::from_gguf`] reads and checks everything a file says about its model: hyper-parameters first, then
//! the presence, type and shape of every tensor. [`Model::graph`] then lays out one step of any batch shape;
//! it reads no file and knows no device.
//!
//! Each architecture is one file with one function: which hyper-parameters and which tensors it has, and how
//! they make up a decoder.

mod block;
mod decoder;
mod error;
mod gemma3;
mod hyper;
mod llama;
mod model;
mod qwen2;
mod qwen3;
mod rope;
mod tensors;

pub use error::ModelError;
pub use model::{BatchShape, KvConfig, KvShape, Model, ModelInfo, Ports, architectures};
