//! Float weights: every product is fused into the sum, in order of `k`.
//!
//! One activation row reads the weights as they are stored; more rows first have a few groups widened to `f32` in
//! scratch memory.

use super::Target;
use crate::pack::float::{F32, FloatFormat};
use crate::pack::{GROUP_ROWS, PackedMatrix};
use crate::simd::{Simd, WithSimd};
use std::marker::PhantomData;
use std::ops::Range;

/// Activation rows, `stride` elements apart; sizes have been checked.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub data: &'a [f32],
    pub rows: usize,
    pub stride: usize,
}

/// Groups that meet the activations together.
const GROUPS: usize = 2;

/// Groups that are read together for one activation row: enough sums to hide the latency of the fused multiply-add.
const DIRECT_GROUPS: usize = 4;

/// Bytes of scratch memory for any number of activation rows.
pub(super) fn scratch_bytes(k: usize) -> usize {
    GROUPS * k * GROUP_ROWS * size_of::<f32>() + 63
}

/// A matmul of float weights.
pub(super) struct Floats<'a, F> {
    pub weights: &'a PackedMatrix<'a>,
    pub x: Rows<'a>,
    pub target: Target,
    pub groups: Range<usize>,
    pub scratch: &'a mut [u8],
    pub format: PhantomData<F>,
}

impl<F: FloatFormat> WithSimd for Floats<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let Floats { weights, x, target, groups, scratch, .. } = self;
        let k = weights.layout().k();
        let stored = |group: usize| weights.group(group).as_ptr();
        let mut at = groups.start;
        if x.rows == 1 {
            while groups.end - at >= DIRECT_GROUPS {
                let w = std::array::from_fn(|g| stored(at + g));
                s.vectorize(Kernel::<F, DIRECT_GROUPS, 1> {
                    w,
                    x,
                    k,
                    target,
                    group: at,
                    t: 0,
                    format: PhantomData,
                });
                at += DIRECT_GROUPS;
            }
            for group in at..groups.end {
                let w = [stored(group)];
                s.vectorize(Kernel::<F, 1, 1> { w, x, k, target, group, t: 0, format: PhantomData });
            }
            return;
        }
        let base = scratch.as_mut_ptr();
        let base = base.wrapping_add(base.align_offset(64) % 64);
        while at < groups.end {
            let n = GROUPS.min(groups.end - at);
            // A missing second group is the first again, and not used.
            let pair = [at, at + n - 1];
            let mut w = [base.cast_const(); GROUPS];
            for (g, w) in w.iter_mut().enumerate() {
                let wide = base.wrapping_add(g * k * GROUP_ROWS * 4);
                *w = wide;
                for i in 0..k {
                    // SAFETY: the group holds `k` elements of 16 rows, and the scratch memory has room for them.
                    unsafe {
                        s.store(wide.cast::<f32>().add(i * GROUP_ROWS), F::load(s, stored(pair[g]), i));
                    }
                }
            }
            let mut t = 0;
            while t < x.rows {
                t += kernel(s, w, x, k, target, at, n, t);
            }
            at += n;
        }
    }
}

/// Runs some rows from `t` on for one or two groups; returns how many.
#[allow(clippy::too_many_arguments, reason = "the parts of one kernel's arguments")]
#[inline(always)]
fn kernel<S: Simd>(
    s: S,
    w: [*const u8; GROUPS],
    x: Rows<'_>,
    k: usize,
    target: Target,
    group: usize,
    n: usize,
    t: usize,
) -> usize {
    macro_rules! run {
        ($g:literal, $w:expr, $n:literal) => {{
            s.vectorize(Kernel::<F32, $g, $n> { w: $w, x, k, target, group, t, format: PhantomData });
            $n
        }};
    }
    let left = x.rows - t;
    if n == 1 {
        return if left >= 4 { run!(1, [w[0]], 4) } else { run!(1, [w[0]], 1) };
    }
    if const { S::TILE_ACTS >= 6 } {
        match left {
            12.. => return run!(2, w, 12),
            8.. => return run!(2, w, 8),
            4.. => return run!(2, w, 4),
            _ => {}
        }
    }
    if left >= 2 { run!(2, w, 2) } else { run!(2, w, 1) }
}

/// `G` groups × `N` activation rows.
struct Kernel<'a, F, const G: usize, const N: usize> {
    /// Elements of the groups.
    w: [*const u8; G],
    x: Rows<'a>,
    k: usize,
    target: Target,
    /// The first group.
    group: usize,
    /// The first activation row.
    t: usize,
    format: PhantomData<F>,
}

#[allow(clippy::needless_range_loop, reason = "plain loops over constants unroll; adaptors may not inline")]
impl<F: FloatFormat, const G: usize, const N: usize> WithSimd for Kernel<'_, F, G, N> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let Kernel { w, x, k, target, group, t, .. } = self;
        let stride = x.stride;
        // SAFETY: the groups hold `k` elements of 16 rows; activation and output rows t..t + N exist.
        unsafe {
            let base = x.data.as_ptr().add(t * stride);
            let mut acc = [[s.splat(0.0); N]; G];
            for i in 0..k {
                let mut v = [s.splat(0.0); G];
                for g in 0..G {
                    v[g] = F::load(s, w[g], i);
                }
                for t in 0..N {
                    let a = s.splat(*base.add(t * stride + i));
                    for g in 0..G {
                        acc[g][t] = s.fma(a, v[g], acc[g][t]);
                    }
                }
            }
            for (g, acc) in acc.into_iter().enumerate() {
                for (i, acc) in acc.into_iter().enumerate() {
                    target.store(s, t + i, group + g, acc);
                }
            }
        }
    }
}
