//! The GGUF container and its block formats: read, check, map, write.
//!
//! - [`Gguf`] opens a file (or all shards of a split one) by mapping it, and checks everything the container
//!   promises. [`Metadata`] and [`Tensor`] are views into the mapping; nothing is copied.
//! - [`Writer`] makes files, in memory or on disk.
//! - [`quant`] holds the block layouts and scalar reference code to decode and encode them.
//!
//! Files are untrusted: none makes the reader panic, or allocate or compute out of proportion to its size.

mod cursor;
mod error;
mod gguf;
mod metadata;
mod parse;
pub mod quant;
mod source;
mod split;
mod tensor;
mod tensor_type;
mod value;
mod writer;

pub use error::{Error, FormatError};
pub use gguf::Gguf;
pub use metadata::{FromValue, MAX_LAYERS, Metadata, MetadataError, Mismatch};
pub use source::SharedBytes;
pub use tensor::Tensor;
pub use tensor_type::{PartialBlock, TensorType, UnknownTensorTypeName};
pub use value::{Array, StringArray, Value, ValueType};
pub use writer::{MetaValue, WriteError, Writer};

/// The most dimensions a tensor can have.
pub const MAX_DIMS: usize = 4;

/// The alignment of tensor data where a file does not state another.
pub const DEFAULT_ALIGNMENT: u64 = 32;
