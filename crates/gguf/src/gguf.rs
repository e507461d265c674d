//! An open model: one file or all shards of a split one.

use std::path::Path;
use std::sync::Arc;

use indexmap::IndexMap;

use crate::error::{Error, FormatError};
use crate::metadata::Metadata;
use crate::parse::{self, Layout, TensorSlot, Tensors};
use crate::source::SharedBytes;
use crate::split;
use crate::tensor::Tensor;

/// A model file, mapped and checked. A clone costs one reference count; it can be used from many threads.
///
/// When this exists, every metadata value and every tensor lies within the file, no two tensors overlap, and
/// rows fill whole blocks. What the values mean is for their readers to check.
#[derive(Debug, Clone)]
pub struct Gguf(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    version: u32,
    alignment: u64,
    metadata: Metadata,
    shards: Vec<SharedBytes>,
    tensors: IndexMap<Box<str>, Placed>,
}

#[derive(Debug)]
struct Placed {
    shard: usize,
    slot: TensorSlot,
}

impl Gguf {
    /// Maps and checks a file.
    ///
    /// A split model (`NAME-00001-of-0000N.gguf`) is opened by its first shard, which opens the others;
    /// giving another shard is an error that names the first.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let bytes = SharedBytes::map(path)?;
        let layout =
            parse::parse(&bytes).map_err(|source| Error::Format { path: path.to_owned(), source })?;
        let (mut gguf, split) =
            Inner::new(bytes, layout).map_err(|source| Error::Format { path: path.to_owned(), source })?;
        if let Some(split) = split {
            split::open_rest(path, split, &mut |bytes, tensors| gguf.add_shard(bytes, tensors))?;
        }
        Ok(Gguf(Arc::new(gguf)))
    }

    /// Checks a file held in memory. It cannot be a shard of a split model.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, FormatError> {
        let bytes = SharedBytes::owned(bytes);
        let layout = parse::parse(&bytes)?;
        let (gguf, split) = Inner::new(bytes, layout)?;
        match split {
            Some(split) => Err(FormatError::SplitInMemory(split.count)),
            None => Ok(Gguf(Arc::new(gguf))),
        }
    }

    /// As [`from_bytes`](Self::from_bytes), copying the bytes. For tests and fuzzing.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        Self::from_bytes(bytes.to_vec())
    }

    /// The format's version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.0.version
    }

    /// Tensor data starts at multiples of this many bytes from the start of the data section.
    pub fn alignment(&self) -> u64 {
        self.0.alignment
    }

    /// Number of files: 1 unless the model is split.
    pub fn n_shards(&self) -> usize {
        self.0.shards.len()
    }

    /// Bytes of all files together.
    pub fn file_bytes(&self) -> u64 {
        self.0.shards.iter().map(|s| s.len() as u64).sum()
    }

    /// The metadata; of a split model, that of its first shard.
    pub fn metadata(&self) -> &Metadata {
        &self.0.metadata
    }

    /// Number of tensors in all shards.
    pub fn n_tensors(&self) -> usize {
        self.0.tensors.len()
    }

    /// All tensors, in the order of the files.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.0.tensors.iter().map(|(name, placed)| self.view(name, placed))
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        self.0.tensors.get_key_value(name).map(|(name, placed)| self.view(name, placed))
    }

    fn view<'a>(&'a self, name: &'a str, placed: &'a Placed) -> Tensor<'a> {
        let TensorSlot { ty, n_dims, dims, start, len } = &placed.slot;
        let file = &self.0.shards[placed.shard];
        Tensor {
            name,
            ty: *ty,
            shape: &dims[..*n_dims],
            data: &file[*start..*start + *len],
            file,
            start: *start,
        }
    }
}

impl Inner {
    /// The first (or only) file, and what it says about others.
    fn new(bytes: SharedBytes, layout: Layout) -> Result<(Self, Option<split::Split>), FormatError> {
        let metadata = Metadata { bytes: bytes.clone(), entries: layout.entries };
        let split = split::Split::of(&metadata)?;
        let tensors =
            layout.tensors.into_iter().map(|(name, slot)| (name, Placed { shard: 0, slot })).collect();
        let inner = Inner {
            version: layout.version,
            alignment: layout.alignment,
            metadata,
            shards: vec![bytes],
            tensors,
        };
        Ok((inner, split))
    }

    /// Adds a further shard's tensors; returns the number of tensors so far.
    fn add_shard(&mut self, bytes: SharedBytes, tensors: Tensors) -> Result<usize, FormatError> {
        let shard = self.shards.len();
        self.shards.push(bytes);
        for (name, slot) in tensors {
            if self.tensors.contains_key(&name) {
                return Err(FormatError::DuplicateTensor(name.into()));
            }
            self.tensors.insert(name, Placed { shard, slot });
        }
        Ok(self.tensors.len())
    }
}
