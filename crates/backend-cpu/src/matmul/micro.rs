//! The inner loop of the matmul: unpacked weights of two groups against a few activation rows.

use crate::pack::GROUP_ROWS;
use crate::pack::format::Format;
use crate::pack::unpack::GroupPanel;
use crate::simd::{Simd, WithSimd};

/// `N` consecutive activation rows of a tile; blocks are `stride` rows apart.
#[derive(Clone, Copy)]
pub(super) struct Acts {
    pub q: *const i8,
    pub d: *const f32,
    pub c: *const f32,
    pub mins: *const f32,
    pub init: *const i32,
    pub stride: usize,
}

/// The arguments of an inner loop.
#[derive(Clone, Copy)]
pub(super) struct Args {
    /// Two groups; kernels for one take the first.
    pub w: [GroupPanel; 2],
    pub x: Acts,
    /// 32-blocks.
    pub blocks: usize,
    /// Receives the results: activation row `t`, group `g` at `t · stride + 16 g`.
    pub out: *mut f32,
    pub stride: usize,
    /// Added to the results of the groups' rows, unless null.
    pub bias: *const f32,
}

/// An inner loop for some number of groups and activation rows.
///
/// It is called through a pointer, so that it is compiled once and not inlined into the code of every format.
///
/// The arguments stay where they were made: copied so soon after being written piece by piece, they would stall the loads.
pub(super) type Kernel<S> = unsafe fn(S, &Args);

/// The inner loop for [`Simd::TILE_GROUPS`] groups and `n ≤` [`Simd::TILE_ACTS`] activation rows (1 or an even number).
#[inline(always)]
pub(super) fn kernel<S: Simd, F: Format>(n: usize) -> Kernel<S> {
    // The conditions are constant, so that each instruction set compiles only what it uses.
    if const { F::MIN } {
        if const { F::SUBS == 1 } { widths::<S, 1, true, false>(n) } else { widths::<S, 2, true, false>(n) }
    } else if const { F::SUBS == 2 } {
        widths::<S, 2, false, false>(n)
    } else if const { F::WIDE && S::WIDE_ZERO != 0 } {
        widths::<S, 1, false, true>(n)
    } else {
        widths::<S, 1, false, false>(n)
    }
}

#[inline(always)]
fn widths<S: Simd, const SUBS: usize, const MIN: bool, const WIDE: bool>(n: usize) -> Kernel<S> {
    macro_rules! table {
        ($g:literal: $($n:literal)*) => {
            const { [$(run::<S, SUBS, MIN, WIDE, $g, $n> as Kernel<S>),*] }[n / 2]
        };
    }
    if const { S::TILE_GROUPS == 2 } {
        table!(2: 1 2 4 6)
    } else if const { S::TILE_ACTS == 4 } {
        table!(1: 1 2 4)
    } else {
        table!(1: 1 2)
    }
}

/// # Safety
/// The pointers of `args` are valid for `args.blocks` blocks of `G` groups and of `N` activation rows.
unsafe fn run<
    S: Simd,
    const SUBS: usize,
    const MIN: bool,
    const WIDE: bool,
    const G: usize,
    const N: usize,
>(
    s: S,
    args: &Args,
) {
    s.vectorize(Micro::<'_, SUBS, MIN, WIDE, G, N>(args));
}

/// `G` groups × `N` activation rows over all of `k`.
struct Micro<'a, const SUBS: usize, const MIN: bool, const WIDE: bool, const G: usize, const N: usize>(
    &'a Args,
);

#[allow(clippy::needless_range_loop, reason = "plain loops over constants unroll; adaptors may not inline")]
impl<const SUBS: usize, const MIN: bool, const WIDE: bool, const G: usize, const N: usize> WithSimd
    for Micro<'_, SUBS, MIN, WIDE, G, N>
{
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let &Args { w, mut x, blocks, out, stride, bias } = self.0;
        // SAFETY: `run`'s caller vouches for the pointers.
        unsafe {
            let mut acc = [[s.splat(0.0); N]; G];
            for sub in 0..blocks * SUBS {
                let mut sums = [[s.splat_i(0); N]; G];
                for t in 0..N {
                    let init = s.splat_i(x.init.add(t).read_unaligned());
                    for g in 0..G {
                        sums[g][t] = init;
                    }
                }
                for quad in 0..8 / SUBS {
                    let mut bytes = [s.splat_i(0); G];
                    for g in 0..G {
                        bytes[g] = s.load_i(w[g].q.add((sub * (8 / SUBS) + quad) * 64));
                    }
                    for t in 0..N {
                        let a = s.bcast4(x.q.add((quad * x.stride + t) * 4));
                        for g in 0..G {
                            sums[g][t] = if WIDE {
                                s.dot4_wide(sums[g][t], bytes[g], a)
                            } else {
                                s.dot4(sums[g][t], bytes[g], a)
                            };
                        }
                    }
                }
                let mut scales = [s.splat(0.0); G];
                for g in 0..G {
                    scales[g] = s.load(w[g].scales.add(sub * GROUP_ROWS));
                }
                for t in 0..N {
                    let (d, c) = (s.splat(x.d.add(t).read_unaligned()), s.splat(x.c.add(t).read_unaligned()));
                    for g in 0..G {
                        let nd = s.fma(s.bits_f(sums[g][t]), d, c);
                        acc[g][t] = s.fma(nd, scales[g], acc[g][t]);
                        if MIN {
                            let min = s.load(w[g].mins.add(sub * GROUP_ROWS));
                            acc[g][t] = s.fma(min, s.splat(x.mins.add(t).read_unaligned()), acc[g][t]);
                        }
                    }
                }
                x.q = x.q.add(8 / SUBS * x.stride * 4);
                x.init = x.init.add(x.stride);
                x.mins = x.mins.add(x.stride);
                if SUBS == 1 || sub % 2 == 1 {
                    x.d = x.d.add(x.stride);
                    x.c = x.c.add(x.stride);
                }
            }
            for g in 0..G {
                let bias = if bias.is_null() { None } else { Some(s.load(bias.add(g * GROUP_ROWS))) };
                for t in 0..N {
                    let sum = match bias {
                        Some(bias) => s.add(acc[g][t], bias),
                        None => acc[g][t],
                    };
                    s.store(out.add(t * stride + g * GROUP_ROWS), sum);
                }
            }
        }
    }
}
