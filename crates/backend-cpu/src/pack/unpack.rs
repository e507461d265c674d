//! Exact dequantization of single rows.

use super::float::FloatFormat;
use super::format::{Format, Sink, unit_blocks};
use super::{GROUP_ROWS, PackedMatrix, with_format};
use crate::simd::{Isa, LANES, Simd, WithSimd};
use std::marker::PhantomData;

/// Dequantizes a row; the caller has checked the sizes.
pub(super) fn row(isa: Isa, matrix: &PackedMatrix<'_>, row: usize, out: &mut [f32]) {
    with_format!(matrix.layout().ty(),
        quantized F => isa.run(Quantized::<F> { matrix, row, out, format: PhantomData }),
        float G => isa.run(Float::<G> { matrix, row, out, format: PhantomData }),
        else unreachable!("a layout has a supported type")
    );
}

/// A row of a quantized matrix.
struct Quantized<'a, F> {
    matrix: &'a PackedMatrix<'a>,
    row: usize,
    out: &'a mut [f32],
    format: PhantomData<F>,
}

/// Bytes of a step: `[block][quad][row][4]`.
struct Step([[[[u8; 4]; GROUP_ROWS]; 8]; 2]);

impl<S: Simd> Sink<S> for Step {
    #[inline(always)]
    fn put(&mut self, s: S, block: usize, quad: usize, w: S::I) {
        // SAFETY: a quad of 16 rows is 64 bytes.
        unsafe { s.store_i(self.0[block][quad].as_mut_ptr().cast(), w) }
    }
}

impl<F: Format> WithSimd for Quantized<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let group = self.matrix.group(self.row / GROUP_ROWS);
        let lane = self.row % GROUP_ROWS;
        let (meta, quants) = group.split_at(self.matrix.layout().quants_at());
        let units = meta.chunks_exact(F::META).zip(quants.chunks_exact(F::QUANTS));
        for ((meta, quants), out) in units.zip(self.out.chunks_exact_mut(32 * unit_blocks::<F>())) {
            let mut steps = out.chunks_exact_mut(32 * F::STEP_BLOCKS).enumerate();
            let mut run = |bytes: &Step| {
                let Some((step, out)) = steps.next() else { return };
                for (sub, out) in out.chunks_exact_mut(32 / F::SUBS).enumerate() {
                    let at = (step * F::STEP_BLOCKS * F::SUBS) + sub;
                    let (mut scale, mut min) = ([0f32; LANES], [0f32; LANES]);
                    // SAFETY: the chunks are a unit's bytes; `at` is within its subs.
                    unsafe {
                        s.store(scale.as_mut_ptr(), F::scale(s, meta.as_ptr(), at));
                        s.store(min.as_mut_ptr(), F::min(s, meta.as_ptr(), at));
                    }
                    let first = sub * (8 / F::SUBS);
                    for (i, out) in out.iter_mut().enumerate() {
                        let (block, quad) = ((first + i / 4) / 8, (first + i / 4) % 8);
                        let q = f32::from(i16::from(bytes.0[block][quad][lane][i % 4]) - F::ZERO as i16);
                        let product = scale[lane] * q;
                        *out = if F::MIN { product + min[lane] } else { product };
                    }
                }
            };
            let mut bytes = Step([[[[0; 4]; GROUP_ROWS]; 8]; 2]);
            // SAFETY: the chunk is a unit's quants; the step numbers are below F::STEPS.
            unsafe {
                F::weights::<S, 0>(s, quants.as_ptr(), &mut bytes);
                run(&bytes);
                if const { F::STEPS == 4 } {
                    F::weights::<S, 1>(s, quants.as_ptr(), &mut bytes);
                    run(&bytes);
                    F::weights::<S, 2>(s, quants.as_ptr(), &mut bytes);
                    run(&bytes);
                    F::weights::<S, 3>(s, quants.as_ptr(), &mut bytes);
                    run(&bytes);
                }
            }
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
