//! Where a file's bytes live: a read-only mapping or memory of our own, shared by reference count.

use std::fs::File;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use crate::error::{Error, FormatError};

#[derive(Debug)]
enum Backing {
    Map(Mmap),
    Owned(Vec<u8>),
}

/// A range of a file's bytes that keeps the mapping alive; a clone costs one reference count.
#[derive(Debug, Clone)]
pub struct SharedBytes {
    backing: Arc<Backing>,
    start: usize,
    len: usize,
}

impl SharedBytes {
    pub(crate) fn owned(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        SharedBytes { backing: Arc::new(Backing::Owned(bytes)), start: 0, len }
    }

    /// Maps a whole file read-only.
    pub(crate) fn map(path: &Path) -> Result<Self, Error> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        // Opening a directory succeeds on some systems and says something unhelpful on others.
        let info = std::fs::metadata(path).map_err(io)?;
        if info.is_dir() {
            return Err(Error::IsDirectory { path: path.to_owned() });
        }
        if !info.is_file() {
            // Opening a pipe would wait for a writer, and none of these can be mapped.
            return Err(io(std::io::Error::new(std::io::ErrorKind::InvalidInput, "is not a regular file")));
        }
        let file = File::open(path).map_err(io)?;
        if info.len() == 0 {
            return Err(Error::Format { path: path.to_owned(), source: FormatError::Empty });
        }
        // SAFETY: the mapping is read-only and private to this process. Like every reader that maps model
        // files we rely on nobody truncating or rewriting the file while it is in use; a file that changes
        // all the same can give wrong numbers or a bus error, but every range we read is computed once, from
        // bytes already checked, and never from a length read again.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let len = map.len();
        Ok(SharedBytes { backing: Arc::new(Backing::Map(map)), start: 0, len })
    }

    /// The part `start..start + len` of these bytes. Panics if it does not lie within them.
    pub fn slice(&self, start: usize, len: usize) -> Self {
        assert!(start <= self.len && len <= self.len - start, "slice outside its bytes");
        SharedBytes { backing: Arc::clone(&self.backing), start: self.start + start, len }
    }

    /// Tells the operating system that the pages of this range are not needed for now. They stay readable: a
    /// later read fetches them from the file again. No effect on memory of our own or on other systems.
    pub fn advise_dont_need(&self) -> std::io::Result<()> {
        match &*self.backing {
            #[cfg(unix)]
            Backing::Map(map) if self.len > 0 => {
                // SAFETY: this advice may drop pages, which for a read-only mapping of a file means that they
                // are read from the file again when touched; what a reader sees does not change.
                unsafe {
                    map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, self.start, self.len)
                }
            }
            _ => Ok(()),
        }
    }

    /// Tells the operating system that this range will be read soon. A hint with no other effect.
    pub fn advise_will_need(&self) -> std::io::Result<()> {
        match &*self.backing {
            #[cfg(unix)]
            Backing::Map(map) if self.len > 0 => {
                map.advise_range(memmap2::Advice::WillNeed, self.start, self.len)
            }
            _ => Ok(()),
        }
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &*self.backing {
            Backing::Map(map) => map,
            Backing::Owned(bytes) => bytes,
        };
        &all[self.start..self.start + self.len]
    }
}
