//! The kernels against an `f64` reference and, bit for bit, against each other.

use super::*;
use crate::pack::tests::{Rng, TYPES, pack, random_matrix, reference};
use crate::quantize::QuantizedLayout;
use minfer_gguf::TensorType;

/// A problem with its activations in every form.
struct Case {
    layout: PackedLayout,
    packed: Vec<u8>,
    /// `[rows][k]`
    weights: Vec<f32>,
    /// `[t][k]`
    x: Vec<f32>,
    bias: Vec<f32>,
}

impl Case {
    fn new(ty: TensorType, rows: usize, k: usize, t: usize, rng: &mut Rng) -> Case {
        let src = random_matrix(ty, rows, k, rng);
        let (layout, packed) = pack(ty, &src, rows, k);
        // Blocks of different magnitudes.
        let x = (0..t * k).map(|i| rng.unit() * (1.0 + (i / 32 % 7) as f32)).collect();
        let bias = (0..rows).map(|_| rng.unit()).collect();
        Case { layout, packed, weights: reference(ty, &src, rows, k), x, bias }
    }

    fn k(&self) -> usize {
        self.layout.k()
    }

    /// The first `t` rows, quantized if the weights need it.
    fn quantize(&self, isa: Isa, t: usize) -> (QuantizedLayout, Vec<u8>) {
        let layout = QuantizedLayout::new(t, self.k()).unwrap();
        let mut data = vec![0; layout.bytes()];
        layout.quantize(isa, &self.x[..t * self.k()], self.k(), &mut data).unwrap();
        (layout, data)
    }

    /// The product for the first `t` rows, groups split in runs of `split`.
    fn run(&self, isa: Isa, t: usize, bias: bool, split: usize) -> Vec<f32> {
        let (rows, stride) = (self.layout.rows(), self.layout.rows() + 3);
        let mut out = vec![f32::NAN; t * stride];
        let quantized = self.layout.quantized().then(|| self.quantize(isa, t));
        let x = match &quantized {
            Some((layout, data)) => Activations::Quantized(QuantizedRows::new(*layout, data).unwrap()),
            None => Activations::F32 { data: &self.x, rows: t, k: self.k(), stride: self.k() },
        };
        let mut scratch = vec![0x5a; scratch_bytes(&self.layout)];
        let weights = PackedMatrix::new(self.layout, &self.packed).unwrap();
        let bias = bias.then_some(&self.bias[..]);
        let output = Output::new(&mut out, stride);
        for start in (0..self.layout.groups()).step_by(split) {
            let groups = start..self.layout.groups().min(start + split);
            // SAFETY: one thread.
            unsafe { matmul(isa, &weights, &x, bias, output, groups, &mut scratch) }.unwrap();
        }
        for (t, row) in out.chunks(stride).enumerate() {
            assert!(row[..rows].iter().all(|x| x.is_finite()), "row {t} was not written whole");
            assert!(row[rows..].iter().all(|x| x.is_nan()), "row {t} was written beyond its end");
        }
        out.chunks(stride).flat_map(|row| row[..rows].to_vec()).collect()
    }

    /// The activations that the kernels see, and the largest error of each element.
    fn seen(&self, t: usize) -> (Vec<f32>, Vec<f32>) {
        let k = self.k();
        if !self.layout.quantized() {
            return (self.x.clone(), vec![0.0; self.x.len()]);
        }
        let (layout, data) = self.quantize(Isa::Scalar, t);
        let q = QuantizedRows::new(layout, &data).unwrap();
        let mut seen = vec![0.0; t * k];
        for (t, row) in seen.chunks_mut(k).enumerate() {
            q.dequantize_row(t, row);
        }
        let error = self.x.chunks(32).flat_map(|b| {
            let top = b.iter().fold(0f32, |m, x| m.max(x.abs()));
            [top / 127.0 * 0.500_01; 32]
        });
        (seen, error.collect())
    }

    /// Checks results against sums in `f64`.
    fn check(&self, got: &[f32], t: usize, bias: bool) {
        let (rows, k) = (self.layout.rows(), self.k());
        let (seen, error) = self.seen(t);
        for t in 0..t {
            for r in 0..rows {
                let (w, x) = (&self.weights[r * k..][..k], &self.x[t * k..][..k]);
                let (seen, error) = (&seen[t * k..][..k], &error[t * k..][..k]);
                let bias = if bias { f64::from(self.bias[r]) } else { 0.0 };
                let dot = |x: &[f32]| {
                    w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>() + bias
                };
                // What is rounded: terms as large as a block's largest weight times its activations.
                let terms: f64 = w
                    .chunks(32)
                    .zip(seen.chunks(32))
                    .map(|(w, x)| {
                        let top = w.iter().fold(0f32, |m, w| m.max(w.abs()));
                        f64::from(top) * x.iter().map(|x| f64::from(x.abs())).sum::<f64>()
                    })
                    .sum::<f64>()
                    + bias.abs();
                let got = f64::from(got[t * rows + r]);
                let rounding = 1e-5 * terms;
                let ty = self.layout.ty();
                let diff = (got - dot(seen)).abs();
                assert!(
                    diff <= rounding,
                    "{ty} {rows}x{k}: row {r}, t {t}: {got} is off by {diff} > {rounding}"
                );
                // Against the activations before quantization: each is off by at most half a step.
                let steps: f64 = w.iter().zip(error).map(|(w, e)| f64::from(w.abs()) * f64::from(*e)).sum();
                let diff = (got - dot(x)).abs();
                assert!(diff <= steps + rounding, "{ty}: row {r}, t {t}: {got} is off by {diff} > {steps}");
            }
        }
    }
}

/// The shapes: `k` where the type's blocks allow.
fn shapes(ty: TensorType) -> impl Iterator<Item = (usize, usize)> {
    let ks = [32, 64, 256, 576, 768, 896].into_iter().filter(move |k| k % ty.block_size() == 0);
    ks.flat_map(|k| [1, 15, 16, 17, 48].map(|rows| (rows, k)))
}

fn assert_same_bits(got: &[f32], want: &[f32], what: impl Fn() -> String) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert_eq!(g.to_bits(), w.to_bits(), "{}: element {i}: {g} != {w}", what());
    }
}

#[test]
fn every_type_matches_f64_and_every_isa_and_row_count_gives_the_same_bits() {
    let mut rng = Rng(10);
    for (ty, _) in TYPES {
        for (rows, k) in shapes(ty) {
            let case = Case::new(ty, rows, k, 33, &mut rng);
            let want = case.run(Isa::Scalar, 33, false, 99);
            case.check(&want, 33, false);
            for isa in Isa::available() {
                for t in [1, 2, 3, 5, 16, 33] {
                    let got = case.run(isa, t, false, 99);
                    assert_same_bits(&got, &want[..t * rows], || format!("{ty} {isa} {rows}x{k}, {t} rows"));
                }
            }
        }
    }
}

#[test]
fn every_tile_width_gives_the_same_bits_whatever_the_split() {
    let mut rng = Rng(11);
    for (ty, _) in TYPES {
        let case = Case::new(ty, 100, 256, 27, &mut rng);
        let want = case.run(Isa::Scalar, 27, true, 99);
        case.check(&want, 27, true);
        for isa in Isa::available() {
            for t in 1..=27 {
                let got = case.run(isa, t, true, 1 + t % 6);
                assert_same_bits(&got, &want[..t * 100], || format!("{ty} {isa}, {t} rows"));
            }
        }
    }
}

#[test]
fn extreme_weights_neither_overflow_nor_lose_bits() {
    // The largest integer sums: every weight byte at its ends, every activation at ±127 steps.
    let mut rng = Rng(12);
    for (ty, halves) in TYPES.into_iter().filter(|(ty, _)| ty.is_quantized()) {
        for fill in [0x00, 0xff, 0x80, 0x7f] {
            let (rows, k, t) = (17, 256, 13);
            let mut src = random_matrix(ty, rows, k, &mut rng);
            for block in src.chunks_exact_mut(ty.type_size()) {
                block.fill(fill);
                for at in halves {
                    block[*at..at + 2].copy_from_slice(&half::f16::from_f32(0.25).to_le_bytes());
                }
            }
            let (layout, packed) = pack(ty, &src, rows, k);
            for signs in [1.0, -1.0] {
                let case = Case {
                    layout,
                    packed: packed.clone(),
                    weights: reference(ty, &src, rows, k),
                    x: vec![signs * 3.0; t * k],
                    bias: vec![0.0; rows],
                };
                let want = case.run(Isa::Scalar, t, false, 9);
                case.check(&want, t, false);
                for isa in Isa::available() {
                    for t in [1, 4, 13] {
                        assert_same_bits(&case.run(isa, t, false, 9), &want[..t * rows], || {
                            format!("{ty} {isa} {fill}")
                        });
                    }
                }
            }
        }
    }
}

#[test]
fn a_nan_activation_reaches_every_output_of_its_row_only() {
    let mut rng = Rng(13);
    for ty in [TensorType::Q8_0, TensorType::Q4_K, TensorType::Q6_K, TensorType::Q2_K, TensorType::F16] {
        for isa in Isa::available() {
            let mut case = Case::new(ty, 20, 256, 6, &mut rng);
            case.x[2 * 256 + 77] = f32::NAN;
            let q = case.layout.quantized().then(|| case.quantize(isa, 6));
            let x = match &q {
                Some((layout, data)) => Activations::Quantized(QuantizedRows::new(*layout, data).unwrap()),
                None => Activations::F32 { data: &case.x, rows: 6, k: 256, stride: 256 },
            };
            let mut out = vec![0.0; 6 * 20];
            let mut scratch = vec![0; scratch_bytes(&case.layout)];
            let weights = PackedMatrix::new(case.layout, &case.packed).unwrap();
            // SAFETY: one thread.
            unsafe { matmul(isa, &weights, &x, None, Output::new(&mut out, 20), 0..2, &mut scratch) }
                .unwrap();
            for (t, row) in out.chunks(20).enumerate() {
                assert!(row.iter().all(|y| y.is_nan() == (t == 2)), "{ty} {isa}: row {t}");
            }
        }
    }
}

#[test]
fn mismatched_operands_are_refused() {
    let mut rng = Rng(14);
    let case = Case::new(TensorType::Q8_0, 20, 64, 2, &mut rng);
    let weights = PackedMatrix::new(case.layout, &case.packed).unwrap();
    let (ql, qd) = case.quantize(Isa::Scalar, 2);
    let good = Activations::Quantized(QuantizedRows::new(ql, &qd).unwrap());
    let mut out = vec![0.0; 64];
    let need = scratch_bytes(&case.layout);
    let mut scratch = vec![0; need];
    let mut run =
        |x: &Activations<'_>, bias: Option<&[f32]>, len: usize, stride, groups, scratch: &mut [u8]| {
            // SAFETY: one thread.
            unsafe {
                matmul(Isa::Scalar, &weights, x, bias, Output::new(&mut out[..len], stride), groups, scratch)
            }
        };
    assert_eq!(run(&good, None, 40, 20, 0..2, &mut scratch), Ok(()));
    let length = |what, got, expected| Err(MatmulError::Length { what, got, expected });
    assert_eq!(run(&good, None, 39, 20, 0..2, &mut scratch), length("the output", 39, 40));
    assert_eq!(run(&good, None, 40, 19, 0..2, &mut scratch), length("the output's stride", 19, 20));
    assert_eq!(run(&good, Some(&[0.0; 19]), 40, 20, 0..2, &mut scratch), length("the bias", 19, 20));
    assert_eq!(
        run(&good, None, 40, 20, 0..2, &mut scratch[1..]),
        length("the scratch memory", need - 1, need)
    );
    assert_eq!(
        run(&good, None, 40, 20, 0..3, &mut scratch),
        Err(MatmulError::Groups { start: 0, end: 3, groups: 2 })
    );
    let floats = Activations::F32 { data: &case.x, rows: 2, k: 64, stride: 64 };
    let e = run(&floats, None, 40, 20, 0..2, &mut scratch).unwrap_err();
    assert_eq!(e, MatmulError::ActivationType { ty: TensorType::Q8_0, quantized: true });
    assert_eq!(e.to_string(), "Q8_0 weights need quantized activations");
    let short = Activations::F32 { data: &case.x, rows: 2, k: 32, stride: 64 };
    assert_eq!(
        run(&short, None, 40, 20, 0..2, &mut scratch),
        Err(MatmulError::InnerDimension { weights: 64, activations: 32 })
    );
    let long = Activations::F32 { data: &case.x, rows: 3, k: 64, stride: 64 };
    assert_eq!(run(&long, None, 60, 20, 0..2, &mut scratch), length("the activation", 128, 192));
}
