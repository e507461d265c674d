//! `F32`, `F16` and `BF16`: 16 rows interleaved element by element.

use super::{GROUP_ROWS, PackedLayout};
use crate::simd::Simd;

/// A format of plain numbers.
pub(crate) trait FloatFormat: 'static {
    /// Bytes per element.
    const BYTES: usize;

    /// Loads element `i` of 16 rows, exactly.
    ///
    /// # Safety
    /// `group` is valid for `(i + 1) · 16 · BYTES` reads.
    unsafe fn load<S: Simd>(s: S, group: *const u8, i: usize) -> S::F;
}

/// Single precision.
pub(crate) struct F32;

impl FloatFormat for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, group: *const u8, i: usize) -> S::F {
        // SAFETY: the caller vouches for the element.
        unsafe { s.load(group.cast::<f32>().add(i * GROUP_ROWS)) }
    }
}

/// Half precision.
pub(crate) struct F16;

impl FloatFormat for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, group: *const u8, i: usize) -> S::F {
        // SAFETY: the caller vouches for the element.
        unsafe { s.load_f16(group.cast::<u16>().add(i * GROUP_ROWS)) }
    }
}

/// The upper half of single precision.
pub(crate) struct Bf16;

impl FloatFormat for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, group: *const u8, i: usize) -> S::F {
        // SAFETY: the caller vouches for the element.
        unsafe { s.load_bf16(group.cast::<u16>().add(i * GROUP_ROWS)) }
    }
}

/// Interleaves the rows of a group.
pub(super) fn pack_group<F: FloatFormat>(layout: &PackedLayout, src: &[u8], group: usize, dst: &mut [u8]) {
    match F::BYTES {
        2 => interleave::<2>(layout, src, group, dst),
        _ => interleave::<4>(layout, src, group, dst),
    }
}

fn interleave<const B: usize>(layout: &PackedLayout, src: &[u8], group: usize, dst: &mut [u8]) {
    let rows = layout.group_rows(src, group);
    let dst = dst.as_chunks_mut::<B>().0;
    for (i, dst) in dst.chunks_exact_mut(GROUP_ROWS).enumerate() {
        if i < layout.k {
            for (row, dst) in rows.iter().zip(dst) {
                *dst = row.map_or([0; B], |row| row.as_chunks::<B>().0[i]);
            }
        } else {
            // The padding to whole cache lines.
            dst.as_flattened_mut().fill(0);
        }
    }
}
