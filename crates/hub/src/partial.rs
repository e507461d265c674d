//! A download on its way: the bytes on disk and their running SHA-256.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::digest::{hash_into, hex};
use crate::error::{IoContext, IoError};

/// A file that grows at its end and knows its digest at every moment.
pub(crate) struct Partial {
    file: File,
    path: PathBuf,
    hasher: Sha256,
    len: u64,
}

impl Partial {
    /// Opens what an earlier run left at `path`, or begins anew. A file longer than `limit` is not a part of what is
    /// wanted and is emptied.
    pub(crate) fn open(path: &Path, limit: u64) -> Result<Self, IoError> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = file.context("open", path)?;
        let mut hasher = Sha256::new();
        let len = hash_into(&mut file, path, &mut hasher)?;
        let mut partial = Self { file, path: path.to_owned(), hasher, len };
        if len > limit {
            partial.restart()?;
        }
        Ok(partial)
    }

    /// Bytes held.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), IoError> {
        self.file.write_all(bytes).context("write", &self.path)?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Throws away everything held.
    pub(crate) fn restart(&mut self) -> Result<(), IoError> {
        self.file.set_len(0).context("truncate", &self.path)?;
        self.file.seek(SeekFrom::Start(0)).context("truncate", &self.path)?;
        self.hasher = Sha256::new();
        self.len = 0;
        Ok(())
    }

    /// The SHA-256 of what is held.
    pub(crate) fn sha256(&self) -> String {
        hex(&self.hasher.clone().finalize())
    }

    /// Makes the bytes survive a power cut.
    pub(crate) fn sync(&self) -> Result<(), IoError> {
        self.file.sync_all().context("sync", &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_on_where_it_was_left_and_empties_what_is_too_long() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        let mut first = Partial::open(&path, 3).unwrap();
        first.append(b"a").unwrap();
        drop(first);
        let mut second = Partial::open(&path, 3).unwrap();
        assert_eq!(second.len(), 1);
        second.append(b"bc").unwrap();
        assert_eq!(second.sha256(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(std::fs::read(&path).unwrap(), b"abc");
        second.restart().unwrap();
        second.append(b"xyz!").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"xyz!");
        assert_eq!(Partial::open(&path, 3).unwrap().len(), 0);
    }
}
