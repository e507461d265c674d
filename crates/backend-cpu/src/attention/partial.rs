//! Partial results of the softmax-weighted sum, and their merging.

use crate::simd::{LANES, Simd};

/// A partial result: maximum and sum in `stats`, the weighted sum of V in `acc`.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) stats: *mut f32,
    pub(super) acc: *mut f32,
}

impl Part {
    /// # Safety
    /// Both are valid for two stats and `stride` sums and do not overlap.
    #[inline(always)]
    pub(super) unsafe fn copy_from(self, other: Part, stride: usize) {
        // SAFETY: as the caller vouches.
        unsafe {
            std::ptr::copy_nonoverlapping(other.stats, self.stats, 2);
            std::ptr::copy_nonoverlapping(other.acc, self.acc, stride);
        }
    }
}

/// Merges `part`, of the next chunk, into `total`: both are brought to the common maximum and added.
///
/// # Safety
/// Both are valid for two stats and `stride` sums (a multiple of 16) and do not overlap.
#[inline(always)]
pub(super) unsafe fn merge<S: Simd>(s: S, total: Part, part: Part, stride: usize) {
    // SAFETY: as the caller vouches.
    unsafe {
        let (m, l) = (s.splat(*total.stats), s.splat(*total.stats.add(1)));
        let (part_m, part_l) = (s.splat(*part.stats), s.splat(*part.stats.add(1)));
        let max = s.max(m, part_m);
        let (keep, take) = (s.exp(s.sub(m, max)), s.exp(s.sub(part_m, max)));
        *total.stats = s.reduce_max(max);
        *total.stats.add(1) = s.reduce_max(s.fma(l, keep, s.mul(part_l, take)));
        for i in (0..stride).step_by(LANES) {
            let added = s.mul(s.load(part.acc.add(i)), take);
            s.store(total.acc.add(i), s.fma(s.load(total.acc.add(i)), keep, added));
        }
    }
}
