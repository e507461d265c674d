//! Many activation rows: weights of a few groups are unpacked once into scratch memory, then meet every tile.

use super::micro::{self, Acts, Args};
use super::{PANEL_GROUPS, Target};
use crate::pack::format::{Format, unit_blocks};
use crate::pack::unpack::{GroupPanel, UnpackUnits};
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
    fn with_simd<S: Simd>(self, s: S) -> TileInits {
        let Inits { tile, k, scratch, .. } = self;
        let zero = F::ZERO - if F::WIDE { S::WIDE_ZERO } else { 0 };
        let sums = if F::SUBS == 1 { tile.sums } else { tile.halves };
        let count = k / 32 * F::SUBS * tile.n;
        // SAFETY: the tile has `count` sums, and the scratch parts have room for as many.
        unsafe {
            // Both buffers are padded to whole vectors.
            for i in (0..count).step_by(LANES) {
                let sum = s.mul_i(s.load_i(sums.add(i).cast()), s.splat_i(zero));
                s.store_i(scratch.init.add(i).cast(), s.sub_i(s.splat_i(MAGIC_BITS), sum));
            }
            if F::SUBS == 2 && F::MIN {
                for block in 0..k / 32 {
                    for half in 0..2 {
                        for t in 0..tile.n {
                            let at = (block * 2 + half) * tile.n + t;
                            *scratch.act_mins.add(at) = tile.d.add(block * tile.n + t).read_unaligned()
                                * sums.add(at).read_unaligned() as f32;
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
            let meta = weights.group(group).as_ptr();
            let quants = meta.wrapping_add(weights.layout().quants_at());
            // The scratch memory has PANEL_GROUPS places.
            let panel = place(i);
            s.vectorize(UnpackUnits::<F> {
                meta,
                quants,
                units: k / (32 * unit_blocks::<F>()),
                panel,
                format: PhantomData,
            });
            panels[i] = if F::PLAIN { GroupPanel { q: quants.cast_mut(), ..panel } } else { panel };
        }
        for index in 0..x.layout().tiles() {
            let tile = x.tile(index);
            let inits = s.vectorize(Inits::<F> { tile, k, scratch: parts, format: PhantomData });
            for first in (0..groups.len()).step_by(S::TILE_GROUPS) {
                // A missing second group is the first again; its results are dropped.
                let used = S::TILE_GROUPS.min(groups.len() - first);
                let pair = [panels[first], panels[first + used - 1]];
                let mut t = 0;
                let whole =
                    target.rows >= (groups.start + first + used) * GROUP_ROWS && used == S::TILE_GROUPS;
                while t < tile.n {
                    let n = S::TILE_ACTS.min(tile.n - t);
                    let row = index * TILE_ROWS + t;
                    let group = groups.start + first;
                    let real = n.min(tile.rows - t);
                    let acts = Acts {
                        q: tile.q.wrapping_add(t * 4),
                        d: tile.d.wrapping_add(t),
                        c: tile.c.wrapping_add(t),
                        mins: inits.mins.wrapping_add(t),
                        init: inits.init.wrapping_add(t),
                        stride: tile.n,
                    };
                    let kernel = micro::kernel::<S, F>(n);
                    // SAFETY: rows t..t + n are within the tile. Where all rows and columns of the result exist, they
                    // are written to the output, else to scratch memory and those that do exist copied.
                    unsafe {
                        if whole && real == n {
                            let out = target.at(row, group);
                            let bias = target.bias.map_or(std::ptr::null(), |b| b.add(group * GROUP_ROWS));
                            kernel(
                                s,
                                &Args { w: pair, x: acts, blocks: k / 32, out, stride: target.stride, bias },
                            );
                        } else {
                            let (out, stride) = (parts.acc, S::TILE_GROUPS * GROUP_ROWS);
                            let bias = std::ptr::null();
                            kernel(s, &Args { w: pair, x: acts, blocks: k / 32, out, stride, bias });
                            for (i, g) in (0..real).flat_map(|i| (0..used).map(move |g| (i, g))) {
                                let sums = s.load(out.add(i * stride + g * GROUP_ROWS));
                                target.store(s, row + i, group + g, sums);
                            }
                        }
                    }
                    t += n;
                }
            }
        }
    }
}
