//! Zeroed memory for activations, KV caches, packed weights and scratch.

use memmap2::{MmapMut, MmapRaw};

/// Zero bytes straight from the system: page-aligned, and a page costs nothing until it is written.
#[derive(Debug)]
pub struct ZeroedBytes {
    map: MmapRaw,
}

/// An allocation that the system refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot allocate {bytes} bytes")]
pub struct AllocError {
    /// How many.
    pub bytes: usize,
}

impl ZeroedBytes {
    /// At least `len` zero bytes that will all be used and read as a stream: asks for huge pages, so that
    /// page-table walks do not show.
    pub fn streamed(len: usize) -> Result<Self, AllocError> {
        let bytes = Self::new(len)?;
        #[cfg(all(target_os = "linux", not(miri)))]
        {
            // A hint: a system without huge pages refuses it, which is as good.
            let _ = bytes.map.advise(memmap2::Advice::HugePage);
        }
        Ok(bytes)
    }

    /// At least `len` zero bytes.
    pub fn new(len: usize) -> Result<Self, AllocError> {
        let failed = AllocError { bytes: len };
        // Whole cache lines, so that a kernel may write the last vector in full.
        let padded = len.max(1).checked_next_multiple_of(64).ok_or(failed)?;
        let map = MmapMut::map_anon(padded).map_err(|_| failed)?;
        Ok(Self { map: map.into() })
    }

    /// The first byte. Valid for reads of [`ZeroedBytes::len`] bytes, and for writes by whoever has exclusive
    /// use.
    pub fn as_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Bytes available.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// All bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the mapping has `len` initialized bytes; who writes through `as_ptr` has exclusive use, so no
        // slice is alive then.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// All bytes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has `len` initialized bytes, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_and_aligned() {
        for len in [0, 1, 63, 64, 65, (2 << 20) - 1, (2 << 20) + 1] {
            for mut bytes in [ZeroedBytes::new(len).unwrap(), ZeroedBytes::streamed(len).unwrap()] {
                assert!(bytes.len() >= len && bytes.as_ptr().addr().is_multiple_of(64), "{len}");
                assert!(bytes.as_slice().iter().all(|&b| b == 0), "{len}");
                bytes.as_mut_slice().fill(1);
            }
        }
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        assert_eq!(ZeroedBytes::new(usize::MAX).unwrap_err(), AllocError { bytes: usize::MAX });
        // Miri gives up where a system refuses.
        assert!(cfg!(miri) || ZeroedBytes::new(isize::MAX as usize - 4096).is_err());
    }
}
