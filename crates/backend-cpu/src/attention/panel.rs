//! Bringing a panel of K or V from the cache into `f32` scratch, in the layout the products want.

use super::kv::Element;
use crate::simd::{LANES, Simd};

/// Positions in a panel.
pub(super) const PANEL: usize = 64;

/// Writes the transpose `[dim][PANEL]` of the rows given by address.
///
/// # Safety
/// Each of `rows` is valid for `dim` reads; `out` is valid for `dim · PANEL` writes.
#[inline(always)]
pub(super) unsafe fn load_transposed<S: Simd, E: Element>(
    s: S,
    rows: &[*const u8; PANEL],
    dim: usize,
    out: *mut f32,
) {
    for (block, rows) in rows.chunks_exact(LANES).enumerate() {
        for d in (0..dim).step_by(LANES) {
            let n = LANES.min(dim - d);
            let mut square = [s.splat(0.0); LANES];
            // SAFETY: `n` elements from `d` are within the row, and rows `d..d + n` of `out` within `dim`.
            unsafe {
                for (lane, row) in square.iter_mut().zip(rows) {
                    let p = row.cast::<E>().add(d);
                    *lane = if n == LANES { E::load(s, p) } else { E::load_part(s, p, n) };
                }
                s.transpose(&mut square);
                let out = out.add(d * PANEL + block * LANES);
                for (i, column) in square.iter().enumerate().take(n) {
                    s.store(out.add(i * PANEL), *column);
                }
            }
        }
    }
}

/// Writes the rows `[row][stride]`, zeros after `dim`.
///
/// # Safety
/// Each of `rows` is valid for `dim` reads; `stride` is `dim` rounded up to a multiple of 16; `out` is valid for
/// `rows.len() · stride` writes.
#[inline(always)]
pub(super) unsafe fn load_rows<S: Simd, E: Element>(
    s: S,
    rows: &[*const u8],
    dim: usize,
    stride: usize,
    out: *mut f32,
) {
    let whole = dim - dim % LANES;
    for (i, row) in rows.iter().enumerate() {
        // SAFETY: all reads are below `dim`, all writes within row `i` of `out`.
        unsafe {
            let (x, out) = (row.cast::<E>(), out.add(i * stride));
            for d in (0..whole).step_by(LANES) {
                s.store(out.add(d), E::load(s, x.add(d)));
            }
            if whole < dim {
                s.store(out.add(whole), E::load_part(s, x.add(whole), dim - whole));
            }
        }
    }
}
