//! How a worker's scratch is divided.

use std::ops::Range;

use super::Sizes;
use super::gemm::A_STRIDE;
use super::panel::PANEL;
use super::partial::Part;
use super::tile::CHUNK;
use crate::simd::LANES;

/// Scratch of one worker, in `f32`s; every part starts on a multiple of 16.
pub(super) struct Scratch {
    /// Scaled queries, `[head_dim / 256][row][256]`.
    pub(super) q: *mut f32,
    /// Scores, then weights, of a chunk, `[row][CHUNK]`.
    pub(super) scores: *mut f32,
    /// Maximum and sum of the chunk, per row.
    pub(super) stats: *mut f32,
    /// Weighted sums of V over the chunk, `[row][stride]`.
    pub(super) acc: *mut f32,
    /// Maximum and sum of all chunks so far, per row.
    pub(super) total_stats: *mut f32,
    /// The same over all chunks so far.
    pub(super) total: *mut f32,
    /// A panel of K, `[head_dim][PANEL]`, or of V, `[PANEL][stride]`.
    pub(super) panel: *mut f32,
    /// The positions that each row sees in the current chunk, counted from its start: from, to.
    visible: *mut [u32; 2],
}

/// The sizes of [`Scratch`]'s parts, in its order.
fn parts(sizes: &Sizes) -> [usize; 8] {
    let Sizes { tile_rows: rows, head_dim, stride, .. } = *sizes;
    [
        head_dim.div_ceil(A_STRIDE) * rows * A_STRIDE,
        rows * CHUNK,
        (2 * rows).next_multiple_of(LANES),
        rows * stride,
        (2 * rows).next_multiple_of(LANES),
        rows * stride,
        PANEL * stride,
        (2 * rows).next_multiple_of(LANES),
    ]
}

/// Scratch a worker needs, in `f32`s.
pub(super) fn len(sizes: &Sizes) -> usize {
    parts(sizes).iter().sum()
}

impl Scratch {
    /// # Safety
    /// `base` is valid for [`len`] elements.
    pub(super) unsafe fn new(base: *mut f32, sizes: &Sizes) -> Self {
        let mut at = 0;
        let parts = parts(sizes).map(|len| {
            let part = base.wrapping_add(at);
            at += len;
            part
        });
        let [q, scores, stats, acc, total_stats, total, panel, visible] = parts;
        Self { q, scores, stats, acc, total_stats, total, panel, visible: visible.cast() }
    }

    /// # Safety
    /// `row` is one of the tile's, and the chunk has been begun.
    #[inline(always)]
    pub(super) unsafe fn visible(&self, row: usize) -> Range<usize> {
        // SAFETY: as the caller vouches.
        let [from, to] = unsafe { *self.visible.add(row) };
        from as usize..to as usize
    }

    /// # Safety
    /// `row` is one of the tile's.
    #[inline(always)]
    pub(super) unsafe fn set_visible(&self, row: usize, range: Range<usize>) {
        // SAFETY: as the caller vouches.
        unsafe { *self.visible.add(row) = [range.start as u32, range.end as u32] };
    }

    /// A row's result for the current chunk.
    #[inline(always)]
    pub(super) fn part(&self, row: usize, stride: usize) -> Part {
        Part { stats: self.stats.wrapping_add(2 * row), acc: self.acc.wrapping_add(row * stride) }
    }

    /// A row's result for all chunks so far.
    #[inline(always)]
    pub(super) fn total(&self, row: usize, stride: usize) -> Part {
        Part { stats: self.total_stats.wrapping_add(2 * row), acc: self.total.wrapping_add(row * stride) }
    }
}
