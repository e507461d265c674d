//! Many activation rows: weights of a few groups are unpacked once into scratch memory, then meet every tile.

use super::micro::{Acts, GroupPanel, Micro};
use super::{PANEL_GROUPS, Target};
use crate::pack::format::{Format, Sink, unit_blocks};
use crate::pack::{GROUP_ROWS, PackedMatrix};
use crate::quantize::{MAGIC_BITS, QuantizedRows, TILE_ROWS, Tile};
use crate::simd::{LANES, Simd, WithSimd};
use std::marker::PhantomData;
use std::ops::Range;

/// Sizes of a thread's scratch memory; all parts are aligned to 64.
#[derive(Clone, Copy)]
pub(super) struct Scratch {
    /// Bytes of a group's unpacked quants (0 if they are stored unpacked).
    quants: usize,
    /// Bytes of a group's scales, and of its minima.
    scales: usize,
    /// Bytes of a tile's initial sums, and of its minima.
    inits: usize,
    /// All.
    pub bytes: usize,
}

/// The parts of the scratch memory.
#[derive(Clone, Copy)]
pub(super) struct ScratchParts {
    quants: *mut u8,
    scales: *mut f32,
    mins: *mut f32,
    init: *mut i32,
    act_mins: *mut f32,
    acc: *mut f32,
}

impl Scratch {
    pub fn new<F: Format>(k: usize) -> Scratch {
        let subs = k / 32 * F::SUBS;
        let quants = if F::PLAIN { 0 } else { k * GROUP_ROWS };
        let scales = subs * GROUP_ROWS * 4;
        let inits = (subs * TILE_ROWS * 4).next_multiple_of(64);
        let acc = 2 * TILE_ROWS * GROUP_ROWS * 4;
        Scratch { quants, scales, inits, bytes: PANEL_GROUPS * (quants + 2 * scales) + 2 * inits + acc + 63 }
    }

    /// Cuts checked scratch memory into its parts.
    pub fn parts(&self, scratch: &mut [u8]) -> ScratchParts {
        assert!(scratch.len() >= self.bytes, "scratch memory was checked");
        let base = scratch.as_mut_ptr();
        let quants = base.wrapping_add(base.align_offset(64) % 64);
        let scales = quants.wrapping_add(PANEL_GROUPS * self.quants);
        let mins = scales.wrapping_add(PANEL_GROUPS * self.scales);
        let init = mins.wrapping_add(PANEL_GROUPS * self.scales);
        let act_mins = init.wrapping_add(self.inits);
        let acc = act_mins.wrapping_add(self.inits);
        ScratchParts {
            quants,
            scales: scales.cast(),
            mins: mins.cast(),
            init: init.cast(),
            act_mins: act_mins.cast(),
            acc: acc.cast(),
        }
    }
}

/// What the kernels need of a tile beyond the quants, for weights of one format; `[sub][n]`.
#[derive(Clone, Copy)]
pub(super) struct TileInits {
    /// Initial sums: the magic bits less the zero point's share.
    pub init: *const i32,
    /// `d · Σ quant`.
    pub mins: *const f32,
}

/// Computes a tile's [`TileInits`].
pub(super) struct Inits<F> {
    pub tile: Tile,
    pub k: usize,
    pub scratch: ScratchParts,
    pub format: PhantomData<F>,
}

impl<F: Format> WithSimd for Inits<F> {
    type Output = TileInits;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _s: S) -> TileInits {
        let Inits { tile, k, scratch, .. } = self;
        let zero = F::ZERO - if F::WIDE { S::WIDE_ZERO } else { 0 };
        let (n, blocks) = (tile.n, k / 32);
        // SAFETY: the tile has `blocks` blocks of `n` rows; the scratch parts have room for TILE_ROWS ≥ n rows.
        unsafe {
            for b in 0..blocks {
                for t in 0..n {
                    let h = |half: usize| *tile.sums.add((b * 2 + half) * n + t);
                    if F::SUBS == 1 {
                        *scratch.init.add(b * n + t) =
                            MAGIC_BITS.wrapping_sub(h(0).wrapping_add(h(1)).wrapping_mul(zero));
                    } else {
                        for half in 0..2 {
                            let at = (b * 2 + half) * n + t;
                            *scratch.init.add(at) = MAGIC_BITS.wrapping_sub(h(half).wrapping_mul(zero));
                            if F::MIN {
                                *scratch.act_mins.add(at) = *tile.d.add(b * n + t) * h(half) as f32;
                            }
                        }
                    }
                }
            }
        }
        let mins = if F::SUBS == 1 { tile.ds } else { scratch.act_mins };
        TileInits { init: scratch.init, mins }
    }
}

/// Computes some groups for any number of activation rows.
#[inline(always)]
pub(super) fn run<S: Simd, F: Format>(
    s: S,
    weights: &PackedMatrix<'_>,
    x: &QuantizedRows<'_>,
    target: Target,
    groups: Range<usize>,
    sizes: Scratch,
    parts: ScratchParts,
) {
    let mut start = groups.start;
    while start < groups.end {
        let groups = start..groups.end.min(start + PANEL_GROUPS);
        start = groups.end;
        s.vectorize(Panel::<F> { weights, x, target, groups, sizes, parts, format: PhantomData });
    }
}

/// At most [`PANEL_GROUPS`] groups against all tiles.
struct Panel<'a, F> {
    weights: &'a PackedMatrix<'a>,
    x: &'a QuantizedRows<'a>,
    target: Target,
    groups: Range<usize>,
    sizes: Scratch,
    parts: ScratchParts,
    format: PhantomData<F>,
}

/// Stores unpacked quants.
struct Store(*mut u8);

impl<S: Simd> Sink<S> for Store {
    #[inline(always)]
    fn put(&mut self, s: S, block: usize, quad: usize, w: S::I) {
        // SAFETY: points to the step's blocks within the panel.
        unsafe { s.store_i(self.0.add((block * 8 + quad) * 64), w) }
    }
}

/// Unpacks a group.
///
/// # Safety
/// `panel` has room for a group's quants, scales and minima.
#[inline(always)]
unsafe fn unpack<S: Simd, F: Format>(
    s: S,
    weights: &PackedMatrix<'_>,
    group: usize,
    panel: GroupPanel,
) -> GroupPanel {
    let layout = weights.layout();
    let meta = weights.group(group).as_ptr();
    // SAFETY: a group holds `k` elements' units; the panel has room for them.
    unsafe {
        let quants = meta.add(layout.quants_at());
        for unit in 0..layout.k() / (32 * unit_blocks::<F>()) {
            let (meta, quants) = (meta.add(unit * F::META), quants.add(unit * F::QUANTS));
            let subs = unit_blocks::<F>() * F::SUBS;
            for sub in 0..subs {
                let at = (unit * subs + sub) * GROUP_ROWS;
                s.store(panel.scales.cast_mut().add(at), F::scale(s, meta, sub));
                if F::MIN {
                    s.store(panel.mins.cast_mut().add(at), F::min(s, meta, sub));
                }
            }
            if !F::PLAIN {
                let step_bytes = F::STEP_BLOCKS * 512;
                let out = panel.q.cast_mut().add(unit * F::STEPS * step_bytes);
                F::weights::<S, 0>(s, quants, &mut Store(out));
                if const { F::STEPS == 4 } {
                    F::weights::<S, 1>(s, quants, &mut Store(out.add(step_bytes)));
                    F::weights::<S, 2>(s, quants, &mut Store(out.add(2 * step_bytes)));
                    F::weights::<S, 3>(s, quants, &mut Store(out.add(3 * step_bytes)));
                }
            }
        }
        if F::PLAIN { GroupPanel { q: quants, ..panel } } else { panel }
    }
}

impl<F: Format> WithSimd for Panel<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let Panel { weights, x, target, groups, sizes, parts, .. } = self;
        let k = weights.layout().k();
        let place = |i: usize| GroupPanel {
            q: parts.quants.wrapping_add(i * sizes.quants),
            scales: parts.scales.wrapping_byte_add(i * sizes.scales),
            mins: parts.mins.wrapping_byte_add(i * sizes.scales),
        };
        let mut panels = [place(0); PANEL_GROUPS];
        for (i, group) in groups.clone().enumerate() {
            // SAFETY: the scratch memory has PANEL_GROUPS places.
            panels[i] = unsafe { unpack::<S, F>(s, weights, group, place(i)) };
        }
        for index in 0..x.layout().tiles() {
            let tile = x.tile(index);
            let inits = s.vectorize(Inits::<F> { tile, k, scratch: parts, format: PhantomData });
            for first in (0..groups.len()).step_by(S::TILE_GROUPS) {
                // A missing second group is the first again; its results are dropped.
                let used = S::TILE_GROUPS.min(groups.len() - first);
                let pair = [panels[first], panels[first + used - 1]];
                let mut t = 0;
                while t < tile.n {
                    let n = S::TILE_ACTS.min(tile.n - t);
                    // SAFETY: rows t..t + n are within the tile, and the output has them.
                    unsafe {
                        let acts = Acts {
                            q: tile.q.add(t * 4),
                            d: tile.d.add(t),
                            c: tile.c.add(t),
                            mins: inits.mins.add(t),
                            init: inits.init.add(t),
                            stride: tile.n,
                        };
                        micro::<S, F>(s, pair, acts, n, k / 32, parts.acc);
                        for g in 0..used {
                            for i in 0..n.min(tile.rows - t) {
                                let acc = s.load(parts.acc.add((g * n + i) * LANES));
                                target.store(s, index * TILE_ROWS + t + i, groups.start + first + g, acc);
                            }
                        }
                    }
                    t += n;
                }
            }
        }
    }
}

/// Runs the inner loop for `S::TILE_GROUPS` groups and `n ≤ S::TILE_ACTS` activation rows.
///
/// # Safety
/// As for [`Micro`].
#[inline(always)]
unsafe fn micro<S: Simd, F: Format>(
    s: S,
    w: [GroupPanel; 2],
    x: Acts,
    n: usize,
    blocks: usize,
    acc: *mut f32,
) {
    macro_rules! with_n {
        ($subs:literal, $min:literal, $wide:literal, $g:literal, $w:expr, $($n:literal)*) => {
            match n {
                $($n => s.vectorize(Micro::<$subs, $min, $wide, $g, $n> { w: $w, x, blocks, acc }),)*
                _ => unreachable!("a tile has 1 or an even number of rows, up to {}", S::TILE_ACTS),
            }
        };
    }
    // The conditions are constant, so that each instruction set compiles only what it uses.
    macro_rules! with_tile {
        ($subs:literal, $min:literal, $wide:literal) => {
            if const { S::TILE_GROUPS == 2 } {
                with_n!($subs, $min, $wide, 2, w, 1 2 4 6 8 10 12)
            } else if const { S::TILE_ACTS == 4 } {
                with_n!($subs, $min, $wide, 1, [w[0]], 1 2 4)
            } else {
                with_n!($subs, $min, $wide, 1, [w[0]], 1 2)
            }
        };
    }
    if const { F::MIN } {
        if const { F::SUBS == 1 } { with_tile!(1, true, false) } else { with_tile!(2, true, false) }
    } else if const { F::SUBS == 2 } {
        with_tile!(2, false, false)
    } else if const { F::WIDE && S::WIDE_ZERO != 0 } {
        with_tile!(1, false, true)
    } else {
        with_tile!(1, false, false)
    }
}
