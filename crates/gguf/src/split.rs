//! Models split over several files: `NAME-00001-of-0000N.gguf`, each a GGUF file of its own.
//!
//! `split.no` counts from zero, file names count from one. The first shard holds the model's metadata.

use std::path::{Path, PathBuf};

use crate::error::{Error, FormatError};
use crate::metadata::{Metadata, MetadataError};
use crate::parse::{self, Layout, Tensors};
use crate::source::SharedBytes;

/// What a shard says about the split it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Split {
    /// This shard's number, from zero.
    pub number: u32,
    /// How many shards there are.
    pub count: u32,
    /// Tensors of all shards together, if stated.
    pub n_tensors: Option<u64>,
}

impl Split {
    /// `None` if the file is a whole model.
    pub(crate) fn of(metadata: &Metadata) -> Result<Option<Split>, MetadataError> {
        let count = metadata.get_u32("split.count")?.unwrap_or(1);
        if count <= 1 {
            return Ok(None);
        }
        let number = metadata.require_u32("split.no")?;
        Ok(Some(Split { number, count, n_tensors: metadata.get_u64("split.tensors.count")? }))
    }

    fn suffix(&self, number: u32) -> String {
        format!("-{:05}-of-{:05}.gguf", u64::from(number) + 1, self.count)
    }

    /// What the names of all shards begin with, given the path of this one.
    fn stem<'p>(&self, path: &'p Path) -> Option<&'p str> {
        path.file_name()?.to_str()?.strip_suffix(&self.suffix(self.number))
    }
}

/// Opens the shards after the first and hands each to `add`, which returns the tensors so far.
pub(crate) fn open_rest(
    path: &Path,
    split: Split,
    add: &mut dyn FnMut(SharedBytes, Tensors) -> Result<usize, FormatError>,
) -> Result<(), Error> {
    let inconsistent = |path: &Path, problem| Error::InconsistentSplit { path: path.to_owned(), problem };
    let Some(stem) = split.stem(path) else {
        let suffix = split.suffix(split.number);
        return Err(inconsistent(
            path,
            format!(
                "is shard {} of {}, but its name does not end in {suffix:?}, so the others cannot be found",
                u64::from(split.number) + 1,
                split.count
            ),
        ));
    };
    let sibling = |number: u32| -> PathBuf { path.with_file_name(format!("{stem}{}", split.suffix(number))) };
    if split.number != 0 {
        let first = sibling(0);
        let number = split.number.saturating_add(1);
        return Err(Error::NotFirstShard { path: path.to_owned(), number, count: split.count, first });
    }
    let mut n_tensors = 0;
    for number in 1..split.count {
        let path = sibling(number);
        let bytes = SharedBytes::map(&path).map_err(|e| match e {
            Error::Io { source, path } if source.kind() == std::io::ErrorKind::NotFound => {
                Error::MissingShard { path, number: number + 1, count: split.count }
            }
            e => e,
        })?;
        let format = |source| Error::Format { path: path.clone(), source };
        let Layout { entries, tensors, .. } = parse::parse(&bytes).map_err(format)?;
        let metadata = Metadata { bytes: bytes.clone(), entries };
        match Split::of(&metadata).map_err(|e| format(e.into()))? {
            Some(found) if found.number == number && found.count == split.count => {}
            Some(found) => {
                let problem = format!(
                    "says it is shard {} of {}, expected {} of {}",
                    u64::from(found.number) + 1,
                    found.count,
                    number + 1,
                    split.count
                );
                return Err(inconsistent(&path, problem));
            }
            None => return Err(inconsistent(&path, "is not a shard of a split model".to_owned())),
        }
        n_tensors = add(bytes, tensors).map_err(format)?;
    }
    match split.n_tensors {
        Some(expected) if expected != n_tensors as u64 => Err(inconsistent(
            path,
            format!("split.tensors.count is {expected}, but the shards hold {n_tensors} tensors"),
        )),
        _ => Ok(()),
    }
}
