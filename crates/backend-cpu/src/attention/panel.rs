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
    let whole = dim - dim % LANES;
    for block in 0..PANEL / LANES {
        let rows: [*const E; LANES] = std::array::from_fn(|i| rows[block * LANES + i].cast());
        let out = out.wrapping_add(block * LANES);
        // SAFETY: elements up to `dim` of each row, and rows up to `dim` of `out`.
        unsafe {
            for d in (0..whole).step_by(LANES) {
                E::transpose(s, &rows.map(|row| row.add(d)), out.add(d * PANEL), PANEL);
            }
            if whole < dim {
                let mut square = [s.splat(0.0); LANES];
                for (lanes, row) in square.iter_mut().zip(rows) {
                    *lanes = E::load_part(s, row.add(whole), dim - whole);
                }
                s.transpose(&mut square);
                for (d, column) in (whole..dim).zip(square) {
                    s.store(out.add(d * PANEL), column);
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
