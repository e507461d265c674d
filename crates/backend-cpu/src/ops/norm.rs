//! Root-mean-square normalization.

use crate::simd::{Isa, LANES, Simd, WithSimd};

/// Rows to normalize: a model's hidden states, or, with `width` the head size, the heads of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RmsNorm {
    /// Number of rows, contiguous.
    pub rows: usize,
    /// Elements per row.
    pub width: usize,
    /// Added to the mean of squares.
    pub eps: f32,
}

/// `out = x / sqrt(mean(x²) + eps) · weight`, row by row; without a weight, the factor is 1.
///
/// # Safety
/// `x` is valid for `rows · width` reads, `weight` for `width`, `out` for `rows · width` writes; `out` is `x` or
/// overlaps nothing.
pub unsafe fn rms_norm(isa: Isa, norm: RmsNorm, out: *mut f32, x: *const f32, weight: Option<*const f32>) {
    isa.run(NormRun { norm, out, x, weight });
}

struct NormRun {
    norm: RmsNorm,
    out: *mut f32,
    x: *const f32,
    weight: Option<*const f32>,
}

impl WithSimd for NormRun {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let RmsNorm { rows, width, eps } = self.norm;
        for row in 0..rows {
            let at = row * width;
            // SAFETY: row `row` of the caller's matrices.
            unsafe {
                let x = self.x.add(at);
                let mean = f64::from(sum_of_squares(s, x, width)) / width as f64;
                let factor = (1.0 / (mean + f64::from(eps)).sqrt()) as f32;
                scale(s, self.out.add(at), x, factor, self.weight, width);
            }
        }
    }
}

/// # Safety
/// `x` is valid for `n ≤ 16` reads.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, x: *const f32, n: usize) -> S::F {
    // SAFETY: as the caller vouches.
    unsafe { if n == LANES { s.load(x) } else { s.load_part(x, n) } }
}

/// # Safety
/// `out` is valid for `n ≤ 16` writes.
#[inline(always)]
unsafe fn store<S: Simd>(s: S, out: *mut f32, v: S::F, n: usize) {
    // SAFETY: as the caller vouches.
    unsafe { if n == LANES { s.store(out, v) } else { s.store_part(out, v, n) } }
}

/// In a fixed order: vector `j` of the row goes to accumulator `j % 4`; then (0 + 1) + (2 + 3); then over the
/// lanes.
///
/// # Safety
/// `x` is valid for `width` reads.
#[inline(always)]
unsafe fn sum_of_squares<S: Simd>(s: S, x: *const f32, width: usize) -> f32 {
    let mut acc = [s.splat(0.0); 4];
    let quads = width - width % (4 * LANES);
    // SAFETY: each access is within the row.
    unsafe {
        for i in (0..quads).step_by(4 * LANES) {
            for (j, acc) in acc.iter_mut().enumerate() {
                let v = s.load(x.add(i + j * LANES));
                *acc = s.fma(v, v, *acc);
            }
        }
        for (acc, i) in acc.iter_mut().zip((quads..width).step_by(LANES)) {
            let v = load(s, x.add(i), LANES.min(width - i));
            *acc = s.fma(v, v, *acc);
        }
    }
    s.reduce_add(s.add(s.add(acc[0], acc[1]), s.add(acc[2], acc[3])))
}

/// # Safety
/// `x`, `out` and `weight`, if given, are valid for `width` elements.
#[inline(always)]
unsafe fn scale<S: Simd>(
    s: S,
    out: *mut f32,
    x: *const f32,
    factor: f32,
    weight: Option<*const f32>,
    width: usize,
) {
    let factor = s.splat(factor);
    for i in (0..width).step_by(LANES) {
        let n = LANES.min(width - i);
        // SAFETY: each access is within the row.
        unsafe {
            let v = s.mul(load(s, x.add(i), n), factor);
            let v = if let Some(w) = weight { s.mul(v, load(s, w.add(i), n)) } else { v };
            store(s, out.add(i), v, n);
        }
    }
}
