//! What can be wrong with a file.
//!
//! Names and keys come from the file, so messages print them escaped.

use std::path::PathBuf;

use crate::{TensorType, ValueType};

/// Why a model file could not be opened. Every message names the file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file does not exist, may not be read, or could not be mapped.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A directory was given where a file is needed.
    #[error("{}: is a directory, not a GGUF file", path.display())]
    IsDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// The content is not a valid GGUF file.
    #[error("{}: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: FormatError,
    },
    /// A shard of a split model other than the first was given.
    #[error("{}: is shard {number} of {count}; open the first shard, {}", path.display(), first.display())]
    NotFirstShard {
        /// The file that was given.
        path: PathBuf,
        /// Its number, counted from one.
        number: u32,
        /// How many shards there are.
        count: u32,
        /// The shard to open instead.
        first: PathBuf,
    },
    /// A shard of a split model is not there.
    #[error("{}: shard {number} of {count} of this model is missing", path.display())]
    MissingShard {
        /// Where the shard was looked for.
        path: PathBuf,
        /// Its number, counted from one.
        number: u32,
        /// How many shards there are.
        count: u32,
    },
    /// The shards of a split model do not fit together.
    #[error("{}: {problem}", path.display())]
    InconsistentSplit {
        /// The shard at which it was noticed.
        path: PathBuf,
        /// What does not fit.
        problem: String,
    },
}

/// What is wrong with the content of a file.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FormatError {
    /// The file has no bytes.
    #[error("the file is empty")]
    Empty,
    /// The file was checked out without Git LFS, so only a pointer to the model is there.
    #[error(
        "this is a Git LFS pointer, not a model; fetch the model itself, for example with `git lfs pull`"
    )]
    LfsPointer,
    /// The file is text.
    #[error("not a GGUF file: it is text that starts with {start:?}")]
    Text {
        /// The first characters.
        start: String,
    },
    /// The file does not start with `GGUF`.
    #[error("not a GGUF file: it starts with {start:02x?} instead of \"GGUF\"")]
    BadMagic {
        /// The first bytes.
        start: Vec<u8>,
    },
    /// The file was written for machines of the other byte order.
    #[error("this is a big-endian file (GGUF version {version}); only little-endian files can be read")]
    BigEndian {
        /// The version, byte-swapped.
        version: u32,
    },
    /// A version this reader does not know.
    #[error("unsupported GGUF version {0}; versions 2 and 3 can be read")]
    UnsupportedVersion(u32),
    /// The file ends before something that must be there.
    #[error("the file ends too early: {what} at byte {at} needs {need} bytes, {left} are left")]
    Truncated {
        /// What was being read.
        what: String,
        /// Where, from the start of the file.
        at: usize,
        /// Bytes needed.
        need: u64,
        /// Bytes left in the file.
        left: u64,
    },
    /// A count that the rest of the file cannot hold.
    #[error("{what} is {count}, but the {left} bytes left in the file hold at most {}", left / min_size)]
    ImpossibleCount {
        /// The count's name.
        what: String,
        /// Its value.
        count: u64,
        /// The least bytes one entry takes.
        min_size: u64,
        /// Bytes left in the file.
        left: u64,
    },
    /// A metadata key or tensor name is empty, overlong or not UTF-8.
    #[error("{what} number {index} is {problem}")]
    BadName {
        /// `metadata key` or `tensor name`.
        what: &'static str,
        /// Which one, counted from zero.
        index: u64,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Two metadata entries share a key.
    #[error("metadata key {0:?} occurs twice")]
    DuplicateKey(String),
    /// A metadata value has a type that the format does not define.
    #[error("metadata key {key:?}: unknown value type {id}")]
    UnknownValueType {
        /// The key.
        key: String,
        /// The type's id.
        id: u32,
    },
    /// A metadata array of arrays, which no model uses.
    #[error("metadata key {key:?}: arrays of arrays are not supported")]
    NestedArray {
        /// The key.
        key: String,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("metadata key {key:?}: {value} is not a boolean (0 or 1)")]
    BadBool {
        /// The key.
        key: String,
        /// The stored byte.
        value: u8,
    },
    /// `general.alignment` has the wrong type.
    #[error("metadata key `general.alignment`: expected u32, found {found}")]
    AlignmentType {
        /// Its type in the file.
        found: ValueType,
    },
    /// `general.alignment` is not a power of two.
    #[error("metadata key `general.alignment`: {0} is not a power of two")]
    BadAlignment(u32),
    /// Two tensors share a name.
    #[error("tensor {0:?} occurs twice")]
    DuplicateTensor(String),
    /// A tensor has more dimensions than the format allows.
    #[error("tensor {name:?}: {n_dims} dimensions, at most {} are allowed", crate::MAX_DIMS)]
    TooManyDims {
        /// The tensor.
        name: String,
        /// Its dimensions.
        n_dims: u32,
    },
    /// A tensor has a dimension of size zero.
    #[error("tensor {name:?}: dimension {dim} has size 0")]
    ZeroDim {
        /// The tensor.
        name: String,
        /// The dimension, innermost first, counted from zero.
        dim: usize,
    },
    /// A tensor has a type that the format does not define.
    #[error("tensor {name:?}: unknown tensor type {id}")]
    UnknownTensorType {
        /// The tensor.
        name: String,
        /// The type's id.
        id: u32,
    },
    /// A tensor has a type that was removed from the format.
    #[error(
        "tensor {name:?}: tensor type {id} ({old_name}) was removed from the format; quantize the model anew"
    )]
    RemovedTensorType {
        /// The tensor.
        name: String,
        /// The type's id.
        id: u32,
        /// The name it had.
        old_name: &'static str,
    },
    /// A tensor's rows do not fill whole blocks.
    #[error("tensor {name:?}: rows of {row_len} elements do not fill whole {ty} blocks of {}", ty.block_size())]
    PartialBlock {
        /// The tensor.
        name: String,
        /// Elements of a row.
        row_len: u64,
        /// The tensor's type.
        ty: TensorType,
    },
    /// A tensor's size is beyond 64 bits.
    #[error("tensor {name:?}: the size of {shape:?} × {ty} overflows")]
    SizeOverflow {
        /// The tensor.
        name: String,
        /// Its shape, innermost first.
        shape: Vec<u64>,
        /// Its type.
        ty: TensorType,
    },
    /// A tensor's data does not start at a multiple of the alignment.
    #[error("tensor {name:?}: offset {offset} is not a multiple of the alignment {alignment}")]
    Misaligned {
        /// The tensor.
        name: String,
        /// Its offset from the start of the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor's data reaches beyond the end of the file.
    #[error(
        "tensor {name:?}: its {size} bytes at offset {offset} do not lie within the data section of {available} bytes"
    )]
    OutOfFile {
        /// The tensor.
        name: String,
        /// Its offset from the start of the data section.
        offset: u64,
        /// Its size in bytes.
        size: u64,
        /// Bytes of the data section.
        available: u64,
    },
    /// Two tensors' data overlap.
    #[error("tensors {first:?} and {second:?} overlap in the file")]
    Overlap {
        /// The one that starts earlier.
        first: String,
        /// The one that starts inside the other.
        second: String,
    },
    /// An in-memory file claims to be one of several shards.
    #[error("metadata key `split.count`: {0} shards, but only one file was given")]
    SplitInMemory(u32),
    /// A split key has an unusable value.
    #[error(transparent)]
    Metadata(#[from] crate::MetadataError),
}
