//! Exact dequantization of single rows.

use super::float::FloatFormat;
use super::format::{Format, Sink, unit_blocks};
use super::{GROUP_ROWS, PackedMatrix, with_format};
use crate::simd::{Isa, LANES, Simd, WithSimd};
use std::marker::PhantomData;

/// Dequantizes a row; the caller has checked the sizes.
pub(super) fn row(isa: Isa, matrix: &PackedMatrix<'_>, row: usize, out: &mut [f32]) {
    with_format!(matrix.layout().ty(),
        quantized F => quantized::<F>(isa, matrix, row, out),
        float G => isa.run(Float::<G> { matrix, row, out, format: PhantomData }),
        else unreachable!("a layout has a supported type")
    );
}

/// The unpacked weights of a group: bytes `[k/4][16][4]`, then per sub-block 16 scales and 16 minima.
#[derive(Clone, Copy)]
pub(crate) struct GroupPanel {
    pub q: *mut u8,
    pub scales: *mut f32,
    pub mins: *mut f32,
}

/// Unpacks some units of a group. Quants that are stored as bytes ([`Format::PLAIN`]) are left where they are.
pub(crate) struct UnpackUnits<F> {
    /// The first unit's scales.
    pub meta: *const u8,
    /// The first unit's quants.
    pub quants: *const u8,
    /// How many.
    pub units: usize,
    /// Where to.
    pub panel: GroupPanel,
    pub format: PhantomData<F>,
}

/// Bytes that quants are fetched ahead while streaming through a matrix.
pub(crate) const PREFETCH: usize = 4096;

/// Stores unpacked quants.
struct Store(*mut u8);

impl<S: Simd> Sink<S> for Store {
    #[inline(always)]
    fn put(&mut self, s: S, block: usize, quad: usize, w: S::I) {
        // SAFETY: points to the step's blocks within the panel.
        unsafe { s.store_i(self.0.add((block * 8 + quad) * 64), w) }
    }
}

impl<F: Format> WithSimd for UnpackUnits<F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let UnpackUnits { meta, quants, units, panel, .. } = self;
        let subs = unit_blocks::<F>() * F::SUBS;
        let step_bytes = F::STEP_BLOCKS * 512;
        for unit in 0..units {
            // SAFETY: whoever made this vouches for the units, and for as much room.
            unsafe {
                let (meta, quants) = (meta.add(unit * F::META), quants.add(unit * F::QUANTS));
                for line in 0..F::QUANTS / 64 {
                    s.prefetch(quants.wrapping_add(PREFETCH + line * 64));
                }
                for sub in 0..subs {
                    let at = (unit * subs + sub) * GROUP_ROWS;
                    s.store(panel.scales.add(at), F::scale(s, meta, sub));
                    if F::MIN {
                        s.store(panel.mins.add(at), F::min(s, meta, sub));
                    }
                }
                if !F::PLAIN {
                    let out = panel.q.add(unit * F::STEPS * step_bytes);
                    F::weights::<S, 0>(s, quants, &mut Store(out));
                    if const { F::STEPS == 4 } {
                        F::weights::<S, 1>(s, quants, &mut Store(out.add(step_bytes)));
                        F::weights::<S, 2>(s, quants, &mut Store(out.add(2 * step_bytes)));
                        F::weights::<S, 3>(s, quants, &mut Store(out.add(3 * step_bytes)));
                    }
                }
            }
        }
    }
}

/// A row of a quantized matrix.
fn quantized<F: Format>(isa: Isa, matrix: &PackedMatrix<'_>, row: usize, out: &mut [f32]) {
    let (meta, quants) = matrix.group(row / GROUP_ROWS).split_at(matrix.layout().quants_at());
    let lane = row % GROUP_ROWS;
    let units = meta.chunks_exact(F::META).zip(quants.chunks_exact(F::QUANTS));
    // Room for a unit of any format: 8 blocks, two scales each.
    let mut q = [[[[0u8; 4]; GROUP_ROWS]; 8]; 8];
    let (mut scales, mut mins) = ([[0f32; GROUP_ROWS]; 16], [[0f32; GROUP_ROWS]; 16]);
    for ((meta, quants), out) in units.zip(out.chunks_exact_mut(32 * unit_blocks::<F>())) {
        let panel = GroupPanel {
            q: q.as_mut_ptr().cast(),
            scales: scales.as_mut_ptr().cast(),
            mins: mins.as_mut_ptr().cast(),
        };
        if F::PLAIN {
            q.as_flattened_mut().as_flattened_mut().as_flattened_mut()[..F::QUANTS].copy_from_slice(quants);
        }
        // One unit, whose room is above.
        isa.run(UnpackUnits::<F> {
            meta: meta.as_ptr(),
            quants: quants.as_ptr(),
            units: 1,
            panel,
            format: PhantomData,
        });
        for (i, out) in out.iter_mut().enumerate() {
            let sub = i / (32 / F::SUBS);
            let byte = q[i / 32][i % 32 / 4][lane][i % 4];
            let product = scales[sub][lane] * (i32::from(byte) - F::ZERO) as f32;
            *out = if F::MIN { product + mins[sub][lane] } else { product };
        }
    }
}

/// A row of a matrix of plain numbers.
struct Float<'a, F> {
    matrix: &'a PackedMatrix<'a>,
    row: usize,
    out: &'a mut [f32],
    format: PhantomData<F>,
}

impl<F: FloatFormat> WithSimd for Float<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let group = self.matrix.group(self.row / GROUP_ROWS);
        let lane = self.row % GROUP_ROWS;
        for (i, out) in self.out.iter_mut().enumerate() {
            let mut all = [0f32; LANES];
            // SAFETY: the group holds `k` elements of 16 rows, and `out` has `k`.
            unsafe { s.store(all.as_mut_ptr(), F::load(s, group.as_ptr(), i)) };
            *out = all[lane];
        }
    }
}
