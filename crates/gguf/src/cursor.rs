//! Reading little-endian values from a slice, never past its end.

use crate::error::FormatError;

pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Cursor { bytes, at: 0 }
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `n` bytes. `what` is called for the error message only.
    pub(crate) fn take(&mut self, n: u64, what: impl FnOnce() -> String) -> Result<&'a [u8], FormatError> {
        if n > self.left() {
            return Err(FormatError::Truncated { what: what(), at: self.at, need: n, left: self.left() });
        }
        let start = self.at;
        self.at += n as usize;
        Ok(&self.bytes[start..self.at])
    }

    fn array<const N: usize>(&mut self, what: impl FnOnce() -> String) -> Result<[u8; N], FormatError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    pub(crate) fn u32(&mut self, what: impl FnOnce() -> String) -> Result<u32, FormatError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: impl FnOnce() -> String) -> Result<u64, FormatError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A string: its length as u64, then its bytes.
    pub(crate) fn string(&mut self, what: impl Fn() -> String) -> Result<&'a [u8], FormatError> {
        let len = self.u64(|| format!("the length of {}", what()))?;
        self.take(len, what)
    }

    /// Checks a count against what the rest of the file can hold, so that nothing is sized by a lie.
    pub(crate) fn check_count(
        &self,
        count: u64,
        min_size: u64,
        what: impl FnOnce() -> String,
    ) -> Result<usize, FormatError> {
        let left = self.left();
        if count > left / min_size {
            return Err(FormatError::ImpossibleCount { what: what(), count, min_size, left });
        }
        Ok(count as usize)
    }
}
