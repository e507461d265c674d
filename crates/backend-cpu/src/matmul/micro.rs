//! The inner loop of the matmul: unpacked weights of two groups against a few activation rows.

use crate::pack::GROUP_ROWS;
use crate::simd::{Simd, WithSimd};

/// The unpacked weights of a group: bytes `[k/4][16][4]`, then per sub-block 16 scales and 16 minima.
#[derive(Clone, Copy)]
pub(super) struct GroupPanel {
    pub q: *const u8,
    pub scales: *const f32,
    pub mins: *const f32,
}

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

/// `G` groups × `N` activation rows over all of `k`. The results go to `acc`, `[G][N][16]`.
pub(super) struct Micro<const SUBS: usize, const MIN: bool, const WIDE: bool, const G: usize, const N: usize>
{
    pub w: [GroupPanel; G],
    pub x: Acts,
    /// 32-blocks.
    pub blocks: usize,
    pub acc: *mut f32,
}

impl<const SUBS: usize, const MIN: bool, const WIDE: bool, const G: usize, const N: usize> WithSimd
    for Micro<SUBS, MIN, WIDE, G, N>
{
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let Micro { w, mut x, blocks, acc } = self;
        // SAFETY: the pointers are valid for `blocks` blocks of the groups and of the `N` rows; `acc` is scratch
        // memory for G · N vectors.
        unsafe {
            for i in 0..G * N {
                s.store(acc.add(i * GROUP_ROWS), s.splat(0.0));
            }
            for sub in 0..blocks * SUBS {
                let mut sums = [[s.splat_i(0); N]; G];
                for t in 0..N {
                    let init = s.splat_i(*x.init.add(t));
                    for sums in &mut sums {
                        sums[t] = init;
                    }
                }
                for quad in 0..8 / SUBS {
                    let bytes = w.map(|w| s.load_i(w.q.add((sub * (8 / SUBS) + quad) * 64)));
                    for t in 0..N {
                        let a = s.bcast4(x.q.add((quad * x.stride + t) * 4));
                        for (sums, bytes) in sums.iter_mut().zip(bytes) {
                            sums[t] =
                                if WIDE { s.dot4_wide(sums[t], bytes, a) } else { s.dot4(sums[t], bytes, a) };
                        }
                    }
                }
                let scales = w.map(|w| s.load(w.scales.add(sub * GROUP_ROWS)));
                for t in 0..N {
                    let (d, c) = (s.splat(*x.d.add(t)), s.splat(*x.c.add(t)));
                    for g in 0..G {
                        let at = acc.add((g * N + t) * GROUP_ROWS);
                        let nd = s.fma(s.bits_f(sums[g][t]), d, c);
                        let mut sum = s.fma(nd, scales[g], s.load(at));
                        if MIN {
                            let min = s.load(w[g].mins.add(sub * GROUP_ROWS));
                            sum = s.fma(min, s.splat(*x.mins.add(t)), sum);
                        }
                        s.store(at, sum);
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
        }
    }
}
