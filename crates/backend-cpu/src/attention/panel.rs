//! Bringing a panel of K or V from the cache into `f32` scratch, in the layout the products want.

use half::f16;

use super::kv::{Element, KvType};
use crate::simd::{LANES, Simd, WithSimd};

/// Positions in a panel.
pub(super) const PANEL: usize = 64;

/// Rows of one head of K or V, given by their offsets in bytes.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) kv_type: KvType,
    pub(super) base: *const u8,
    pub(super) offsets: &'a [usize],
    pub(super) dim: usize,
}

/// Writes the transpose `[dim][PANEL]` of the rows, whose number is a multiple of 16 and at most `PANEL`.
pub(super) struct LoadTransposed<'a> {
    pub(super) rows: Rows<'a>,
    pub(super) out: *mut f32,
}

/// Writes the rows `[row][stride]`, zeros after `dim`. `stride` is `dim` rounded up to a multiple of 16.
pub(super) struct LoadRows<'a> {
    pub(super) rows: Rows<'a>,
    pub(super) stride: usize,
    pub(super) out: *mut f32,
}

// Each runs in a function of its own (`Simd::vectorize`), which leaves it all the registers.

impl LoadTransposed<'_> {
    /// # Safety
    /// The rows are valid for reads; `out` is valid for `dim · PANEL` writes.
    #[inline(always)]
    pub(super) unsafe fn run<S: Simd>(self, s: S) {
        s.vectorize(self);
    }
}

impl WithSimd for LoadTransposed<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        // SAFETY: as the caller of `run` vouched.
        unsafe {
            match self.rows.kv_type {
                KvType::F16 => load_transposed::<S, f16>(s, self.rows, self.out),
                KvType::F32 => load_transposed::<S, f32>(s, self.rows, self.out),
            }
        }
    }
}

impl LoadRows<'_> {
    /// # Safety
    /// The rows are valid for reads; `out` is valid for `stride` writes a row.
    #[inline(always)]
    pub(super) unsafe fn run<S: Simd>(self, s: S) {
        s.vectorize(self);
    }
}

impl WithSimd for LoadRows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        // SAFETY: as the caller of `run` vouched.
        unsafe {
            match self.rows.kv_type {
                KvType::F16 => load_rows::<S, f16>(s, self.rows, self.stride, self.out),
                KvType::F32 => load_rows::<S, f32>(s, self.rows, self.stride, self.out),
            }
        }
    }
}

impl Rows<'_> {
    /// Asks for the rows' cache lines.
    #[inline(always)]
    pub(super) fn prefetch<S: Simd>(&self, s: S) {
        for &offset in self.offsets {
            for line in (0..self.kv_type.bytes(self.dim)).step_by(64) {
                s.prefetch(self.base.wrapping_add(offset + line));
            }
        }
    }
}

/// # Safety
/// As [`LoadTransposed::run`].
#[inline(always)]
unsafe fn load_transposed<S: Simd, E: Element>(s: S, rows: Rows<'_>, out: *mut f32) {
    let Rows { base, offsets, dim, .. } = rows;
    let whole = dim - dim % LANES;
    for (block, offsets) in offsets.as_chunks::<LANES>().0.iter().enumerate() {
        let mut rows = [std::ptr::null::<E>(); LANES];
        for (row, offset) in rows.iter_mut().zip(offsets) {
            *row = base.wrapping_add(*offset).cast();
        }
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

/// # Safety
/// As [`LoadRows::run`].
#[inline(always)]
unsafe fn load_rows<S: Simd, E: Element>(s: S, rows: Rows<'_>, stride: usize, out: *mut f32) {
    let Rows { base, offsets, dim, .. } = rows;
    let whole = dim - dim % LANES;
    for (i, offset) in offsets.iter().enumerate() {
        // SAFETY: all reads are below `dim`, all writes within row `i` of `out`.
        unsafe {
            let (x, out) = (base.add(*offset).cast::<E>(), out.add(i * stride));
            for d in (0..whole).step_by(LANES) {
                s.store(out.add(d), E::load(s, x.add(d)));
            }
            if whole < dim {
                s.store(out.add(whole), E::load_part(s, x.add(whole), dim - whole));
            }
        }
    }
}
