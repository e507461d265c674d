//! Few activation rows: weights are unpacked in registers while they stream from memory.

use super::Target;
use super::panel::{Inits, ScratchParts, TileInits};
use crate::pack::PackedMatrix;
use crate::pack::format::{Format, Sink, unit_blocks};
use crate::pack::unpack::PREFETCH;
use crate::quantize::{QuantizedRows, Tile};
use crate::simd::{Simd, WithSimd};
use std::marker::PhantomData;
use std::ops::Range;

/// Computes some groups for at most [`Simd::DIRECT_ROWS`] activation rows.
#[inline(always)]
pub(super) fn run<S: Simd, F: Format>(
    s: S,
    weights: &PackedMatrix<'_>,
    x: &QuantizedRows<'_>,
    target: Target,
    groups: Range<usize>,
    scratch: ScratchParts,
) {
    let tile = x.tile(0);
    let inits = s.vectorize(Inits::<F> { tile, k: weights.layout().k(), scratch, format: PhantomData });
    let job = (weights, tile, inits, target, groups);
    // Constant conditions, so that no instruction set compiles widths it does not use.
    if const { S::DIRECT_ROWS >= 1 } && tile.n == 1 {
        s.vectorize(Direct::<F, 1> { job, format: PhantomData });
    } else if const { S::DIRECT_ROWS >= 4 } {
        match tile.n {
            2 => s.vectorize(Direct::<F, 2> { job, format: PhantomData }),
            _ => s.vectorize(Direct::<F, 4> { job, format: PhantomData }),
        }
    }
}

/// The kernel for exactly `N` activation rows (with padding).
struct Direct<'a, F, const N: usize> {
    job: (&'a PackedMatrix<'a>, Tile, TileInits, Target, Range<usize>),
    format: PhantomData<F>,
}

impl<F: Format, const N: usize> WithSimd for Direct<'_, F, N> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let (weights, x, inits, target, groups) = self.job;
        let layout = weights.layout();
        let units = layout.k() / (32 * unit_blocks::<F>());
        for group in groups {
            let meta = weights.group(group).as_ptr();
            // SAFETY: the group holds `units` units of scales and quants; the tile and the inits have `N` rows of
            // as many elements; output rows 0..N exist.
            unsafe {
                let quants = meta.add(layout.quants_at());
                let mut acc = [s.splat(0.0); N];
                for unit in 0..units {
                    let at = At {
                        meta: meta.add(unit * F::META),
                        quants: quants.add(unit * F::QUANTS),
                        block: unit * unit_blocks::<F>(),
                        x,
                        init: inits.init,
                        mins: inits.mins,
                    };
                    // Far enough to cover the latency of the outer caches.
                    for line in 0..F::QUANTS / 64 {
                        s.prefetch(at.quants.wrapping_add(PREFETCH + line * 64));
                    }
                    step::<S, F, N, 0>(s, &at, &mut acc);
                    if const { F::STEPS == 4 } {
                        step::<S, F, N, 1>(s, &at, &mut acc);
                        step::<S, F, N, 2>(s, &at, &mut acc);
                        step::<S, F, N, 3>(s, &at, &mut acc);
                    }
                }
                for (t, acc) in acc.into_iter().enumerate().take(x.rows) {
                    target.store(s, t, group, acc);
                }
            }
        }
    }
}

/// Where a unit of weights and the activations it meets lie.
struct At {
    meta: *const u8,
    quants: *const u8,
    /// The unit's first 32-block.
    block: usize,
    x: Tile,
    init: *const i32,
    mins: *const f32,
}

/// Integer sums `[block · SUBS + sub][t]` of a step of at most two blocks.
struct Sums<S: Simd, F, const N: usize> {
    sums: [[S::I; N]; 4],
    /// The step's first quad of activations.
    q: *const i8,
    format: PhantomData<F>,
}

impl<S: Simd, F: Format, const N: usize> Sink<S> for Sums<S, F, N> {
    #[inline(always)]
    fn put(&mut self, s: S, block: usize, quad: usize, w: S::I) {
        let sums = &mut self.sums[block * F::SUBS + quad / (8 / F::SUBS)];
        for (t, sum) in sums.iter_mut().enumerate() {
            // SAFETY: `q` points to the quads of the step's blocks, of `N` rows each.
            let x = unsafe { s.bcast4(self.q.add(((block * 8 + quad) * N + t) * 4)) };
            *sum = if F::WIDE { s.dot4_wide(*sum, w, x) } else { s.dot4(*sum, w, x) };
        }
    }
}

/// Adds one step of a unit.
///
/// # Safety
/// The pointers of `at` are valid for the unit, and for `N` activation rows.
#[allow(clippy::needless_range_loop, reason = "plain loops over constants unroll; adaptors may not inline")]
#[inline(always)]
unsafe fn step<S: Simd, F: Format, const N: usize, const STEP: usize>(s: S, at: &At, acc: &mut [S::F; N]) {
    let subs = F::STEP_BLOCKS * F::SUBS;
    let block = at.block + STEP * F::STEP_BLOCKS;
    // SAFETY: the caller vouches for the unit; `block` is within it.
    unsafe {
        let mut sink = Sums::<S, F, N> {
            sums: [[s.splat_i(0); N]; 4],
            q: at.x.q.add(block * 32 * N),
            format: PhantomData,
        };
        for sub in 0..subs {
            for t in 0..N {
                sink.sums[sub][t] = s.splat_i(at.init.add((block * F::SUBS + sub) * N + t).read_unaligned());
            }
        }
        F::weights::<S, STEP>(s, at.quants, &mut sink);
        for sub in 0..subs {
            let in_unit = STEP * subs + sub;
            let scale = F::scale(s, at.meta, in_unit);
            let (b, sum) = (block + sub / F::SUBS, block * F::SUBS + sub);
            for t in 0..N {
                let n = s.bits_f(sink.sums[sub][t]);
                let nd = s.fma(
                    n,
                    s.splat(at.x.d.add(b * N + t).read_unaligned()),
                    s.splat(at.x.c.add(b * N + t).read_unaligned()),
                );
                acc[t] = s.fma(nd, scale, acc[t]);
                if F::MIN {
                    let min = F::min(s, at.meta, in_unit);
                    acc[t] = s.fma(min, s.splat(at.mins.add(sum * N + t).read_unaligned()), acc[t]);
                }
            }
        }
    }
}
