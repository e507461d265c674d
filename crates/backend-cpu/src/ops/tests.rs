//! Every operation against an f64 reference, and bit for bit between instruction sets.

use minfer_graph::{Rope as RopeParams, RopePairs, Yarn};

use super::*;
use crate::simd::Isa;
use crate::testing::{Rng, assert_bits, assert_near};

/// One unit in the last place of a number near 1, relative.
const ULP: f64 = f32::EPSILON as f64;

/// Widths with every kind of remainder, around one, two and four vectors.
const WIDTHS: [usize; 14] = [1, 2, 7, 15, 16, 17, 31, 33, 63, 64, 65, 80, 576, 1000];

const UNARY: [Unary; 6] = [
    Unary::Scale(1.7),
    Unary::Softcap(30.0),
    Unary::Softcap(0.5),
    Unary::Silu,
    Unary::Gelu,
    Unary::Scale(-0.0),
];
const BINARY: [Binary; 4] = [Binary::Add, Binary::Mul, Binary::SiluMul, Binary::GeluMul];

fn silu64(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn gelu64(x: f64) -> f64 {
    let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    // As written, but without the cancellation for negative u.
    x / (1.0 + (-2.0 * u).exp())
}

fn unary64(op: Unary, x: f64) -> f64 {
    match op {
        Unary::Scale(factor) => x * f64::from(factor),
        Unary::Softcap(cap) => f64::from(cap) * (x / f64::from(cap)).tanh(),
        Unary::Silu => silu64(x),
        Unary::Gelu => gelu64(x),
    }
}

fn binary64(op: Binary, a: f64, b: f64) -> f64 {
    match op {
        Binary::Add => a + b,
        Binary::Mul => a * b,
        Binary::SiluMul => silu64(a) * b,
        Binary::GeluMul => gelu64(a) * b,
    }
}

fn run_unary(isa: Isa, op: Unary, x: &[f32]) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len()];
    // SAFETY: both have `x.len()` elements.
    unsafe { unary(isa, op, out.as_mut_ptr(), x.as_ptr(), x.len()) };
    out
}

fn run_binary(isa: Isa, op: Binary, a: &[f32], b: &[f32]) -> Vec<f32> {
    let mut out = vec![f32::NAN; a.len()];
    assert_eq!(a.len(), b.len());
    // SAFETY: all have `a.len()` elements.
    unsafe { binary(isa, op, out.as_mut_ptr(), a.as_ptr(), b.as_ptr(), a.len()) };
    out
}

#[test]
fn elementwise_matches_the_reference_at_every_width() {
    let mut rng = Rng::new(1);
    for width in WIDTHS {
        for range in [0.01, 1.0, 12.0] {
            let (a, b) = (rng.vec(width, range), rng.vec(width, 3.0));
            // e^x turns an error of its argument, half a unit times |x|, into a relative one; GELU's argument is cubic.
            let relative = |cubic: bool| if cubic { 60.0 * ULP } else { 14.0 * ULP };
            for op in UNARY {
                let want: Vec<f64> = a.iter().map(|&x| unary64(op, x.into())).collect();
                let got = run_unary(Isa::detect(), op, &a);
                assert_near(&got, &want, relative(op == Unary::Gelu), 1e-16, &format!("{op:?}"));
            }
            for op in BINARY {
                let want: Vec<f64> =
                    a.iter().zip(&b).map(|(&a, &b)| binary64(op, a.into(), b.into())).collect();
                let got = run_binary(Isa::detect(), op, &a, &b);
                assert_near(&got, &want, relative(op == Binary::GeluMul), 1e-16, &format!("{op:?}"));
            }
        }
    }
}

#[test]
fn activations_have_the_right_limits() {
    let x = [0.0, -0.0, 1e-30, -200.0, 200.0, -1e30, 1e30, f32::NEG_INFINITY, f32::INFINITY, f32::NAN];
    let silu = run_unary(Isa::detect(), Unary::Silu, &x);
    assert_eq!(silu[..7], [0.0, 0.0, 0.5e-30, 0.0, 200.0, 0.0, 1e30]);
    let gelu = run_unary(Isa::detect(), Unary::Gelu, &x);
    assert_eq!(gelu[..7], [0.0, 0.0, 0.5e-30, 0.0, 200.0, 0.0, 1e30]);
    let capped = run_unary(Isa::detect(), Unary::Softcap(30.0), &x);
    assert_eq!(
        capped[..9],
        [
            0.0,
            -0.0,
            1e-30,
            -30.0 * (1.0 - 2.0 / (1.0 + (40f32 / 3.0).exp())),
            capped[4],
            -30.0,
            30.0,
            -30.0,
            30.0
        ]
    );
    assert_eq!(capped[1].to_bits(), (-0.0f32).to_bits());
    assert_eq!(capped[3], -capped[4]);
    for y in [silu[9], gelu[9], capped[9]] {
        assert!(y.is_nan());
    }
}

#[test]
fn elementwise_is_bit_equal_on_every_isa_and_in_place() {
    let mut rng = Rng::new(2);
    for width in WIDTHS {
        let (a, b) = (rng.vec(width, 20.0), rng.vec(width, 3.0));
        for isa in Isa::available() {
            for op in UNARY {
                let want = run_unary(Isa::Scalar, op, &a);
                assert_bits(&run_unary(isa, op, &a), &want, &format!("{isa} {op:?}"));
                let mut x = a.clone();
                let p = x.as_mut_ptr();
                // SAFETY: in place over `width` elements.
                unsafe { unary(isa, op, p, p, width) };
                assert_bits(&x, &want, &format!("{isa} {op:?} in place"));
            }
            for op in BINARY {
                let want = run_binary(Isa::Scalar, op, &a, &b);
                assert_bits(&run_binary(isa, op, &a, &b), &want, &format!("{isa} {op:?}"));
                let (mut x, mut y) = (a.clone(), b.clone());
                let (p, q) = (x.as_mut_ptr(), y.as_mut_ptr());
                // SAFETY: in place over `width` elements, first of `a`, then of `b`.
                unsafe { binary(isa, op, p, p, b.as_ptr(), width) };
                // SAFETY: as above.
                unsafe { binary(isa, op, q, a.as_ptr(), q, width) };
                assert_bits(&x, &want, &format!("{isa} {op:?} over a"));
                assert_bits(&y, &want, &format!("{isa} {op:?} over b"));
            }
        }
    }
}

#[test]
fn broadcast_repeats_the_row() {
    let mut rng = Rng::new(3);
    for width in [1, 5, 16, 37] {
        let (a, row) = (rng.vec(3 * width, 2.0), rng.vec(width, 2.0));
        for op in BINARY {
            let want: Vec<f32> = a.chunks(width).flat_map(|a| run_binary(Isa::Scalar, op, a, &row)).collect();
            let mut out = vec![f32::NAN; 3 * width];
            // SAFETY: 3 rows of `width`, and one row.
            unsafe {
                binary_broadcast(Isa::detect(), op, out.as_mut_ptr(), a.as_ptr(), row.as_ptr(), 3, width);
            }
            assert_bits(&out, &want, &format!("{op:?} {width}"));
        }
    }
}

fn run_norm(isa: Isa, norm: RmsNorm, x: &[f32], weight: Option<&[f32]>) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len()];
    // SAFETY: `rows · width` elements, and `width` weights.
    unsafe { rms_norm(isa, norm, out.as_mut_ptr(), x.as_ptr(), weight.map(<[f32]>::as_ptr)) };
    out
}

fn norm64(norm: RmsNorm, x: &[f32], weight: Option<&[f32]>) -> Vec<f64> {
    x.chunks(norm.width)
        .flat_map(|row| {
            let mean = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / norm.width as f64;
            let scale = 1.0 / (mean + f64::from(norm.eps)).sqrt();
            (0..row.len()).map(move |i| f64::from(row[i]) * scale * weight.map_or(1.0, |w| w[i].into()))
        })
        .collect()
}

#[test]
fn rms_norm_matches_the_reference_and_every_isa() {
    let mut rng = Rng::new(4);
    for width in WIDTHS.into_iter().chain([4096]) {
        let norm = RmsNorm { rows: 3, width, eps: 1e-5 };
        let (x, w) = (rng.vec(3 * width, 4.0), rng.vec(width, 2.0));
        for weight in [Some(&w[..]), None] {
            let want = run_norm(Isa::Scalar, norm, &x, weight);
            assert_near(&want, &norm64(norm, &x, weight), 8.0 * ULP, 0.0, &format!("width {width}"));
            for isa in Isa::available() {
                assert_bits(&run_norm(isa, norm, &x, weight), &want, &format!("{isa} width {width}"));
                let mut y = x.clone();
                let p = y.as_mut_ptr();
                // SAFETY: in place over all rows.
                unsafe { rms_norm(isa, norm, p, p, weight.map(<[f32]>::as_ptr)) };
                assert_bits(&y, &want, &format!("{isa} width {width} in place"));
            }
        }
    }
}

#[test]
fn rms_norm_of_zeros_is_zero_and_rows_are_independent() {
    let norm = RmsNorm { rows: 1, width: 20, eps: 1e-6 };
    assert_eq!(run_norm(Isa::detect(), norm, &[0.0; 20], None), [0.0; 20]);
    let mut rng = Rng::new(5);
    let x = rng.vec(5 * 20, 1.0);
    let all = run_norm(Isa::detect(), RmsNorm { rows: 5, ..norm }, &x, None);
    for (row, all) in x.chunks(20).zip(all.chunks(20)) {
        assert_bits(&run_norm(Isa::detect(), norm, row, None), all, "one row alone");
    }
}

const PLAIN: RopeParams =
    RopeParams { rotary_dim: 64, pairs: RopePairs::Halves, base: 10_000.0, scale: 1.0, yarn: None };

fn run_rope(isa: Isa, rope_: &Rope, x: &[f32], positions: &[i32], heads: usize, head_dim: usize) -> Vec<f32> {
    let mut table = vec![f32::NAN; positions.len() * rope_.row_len()];
    rope_.fill(isa, positions, &mut table);
    let mut out = vec![f32::NAN; x.len()];
    let shape = [positions.len(), heads, head_dim];
    assert_eq!(x.len(), shape.iter().product::<usize>());
    // SAFETY: the shape is that of `x` and `out`; the table has a row per position.
    unsafe { rope(isa, rope_, out.as_mut_ptr(), x.as_ptr(), table.as_ptr(), shape) };
    let mut y = x.to_vec();
    let p = y.as_mut_ptr();
    // SAFETY: as above, in place.
    unsafe { rope(isa, rope_, p, p, table.as_ptr(), shape) };
    assert_bits(&y, &out, "rope in place");
    out
}

/// `angles(position, pair)` in radians.
fn rope64(
    params: &RopeParams,
    x: &[f32],
    positions: &[i32],
    heads: usize,
    head_dim: usize,
    magnitude: f64,
    angle: impl Fn(f64, usize) -> f64,
) -> Vec<f64> {
    let mut out: Vec<f64> = x.iter().map(|&x| x.into()).collect();
    for (t, &position) in positions.iter().enumerate() {
        for h in 0..heads {
            let head = &mut out[(t * heads + h) * head_dim..][..head_dim];
            for i in 0..params.rotary_dim / 2 {
                let (a, b) = match params.pairs {
                    RopePairs::Halves => (i, i + params.rotary_dim / 2),
                    RopePairs::Adjacent => (2 * i, 2 * i + 1),
                };
                let (sin, cos) = angle(position.into(), i).sin_cos();
                let (x, y) = (head[a], head[b]);
                head[a] = (x * cos - y * sin) * magnitude;
                head[b] = (x * sin + y * cos) * magnitude;
            }
        }
    }
    out
}

#[test]
fn k13_rope_matches_the_reference_for_every_size_and_position() {
    let mut rng = Rng::new(7);
    let positions = [0, 1, 2, 511, 4095, 99_999, 131_071];
    for pairs in [RopePairs::Halves, RopePairs::Adjacent] {
        for (rotary_dim, head_dim) in [(64, 64), (32, 64), (80, 80), (24, 24), (2, 5), (96, 128), (256, 256)]
        {
            for base in [10_000.0, 1_000_000.0] {
                let params = RopeParams { rotary_dim, pairs, base, ..PLAIN };
                let rope = Rope::new(&params, None).unwrap();
                let x = rng.vec(positions.len() * 3 * head_dim, 1.0);
                let got = run_rope(Isa::Scalar, &rope, &x, &positions, 3, head_dim);
                let want = rope64(&params, &x, &positions, 3, head_dim, 1.0, |p, i| {
                    p * f64::from(base).powf(-2.0 * i as f64 / rotary_dim as f64)
                });
                assert_near(&got, &want, 0.0, 2.0 * ULP, &format!("{params:?}"));
                for isa in Isa::available() {
                    let same = run_rope(isa, &rope, &x, &positions, 3, head_dim);
                    assert_bits(&same, &got, &format!("{isa} {params:?}"));
                }
            }
        }
    }
}

#[test]
fn rope_scaling_and_factors_change_the_angles() {
    let mut rng = Rng::new(8);
    let positions = [0, 7, 1000, 60_000];
    let x = rng.vec(positions.len() * 64, 1.0);
    let linear = RopeParams { scale: 0.125, ..PLAIN };
    let rope = Rope::new(&linear, None).unwrap();
    let want =
        rope64(&linear, &x, &positions, 1, 64, 1.0, |p, i| p / 8.0 * 10_000f64.powf(-(i as f64) / 32.0));
    assert_near(&run_rope(Isa::detect(), &rope, &x, &positions, 1, 64), &want, 0.0, 2.0 * ULP, "linear");

    let factors: Vec<f32> = (0..32).map(|i| 1.0 + i as f32 / 4.0).collect();
    let rope = Rope::new(&PLAIN, Some(&factors)).unwrap();
    let want = rope64(&PLAIN, &x, &positions, 1, 64, 1.0, |p, i| {
        p * 10_000f64.powf(-(i as f64) / 32.0) / f64::from(factors[i])
    });
    assert_near(&run_rope(Isa::detect(), &rope, &x, &positions, 1, 64), &want, 0.0, 2.0 * ULP, "factors");
}

#[test]
fn yarn_keeps_fast_pairs_and_interpolates_slow_ones() {
    let yarn = Yarn { original_context: 4096, beta_fast: 32.0, beta_slow: 1.0, magnitude: 1.25 };
    let params = RopeParams { scale: 0.25, yarn: Some(yarn), ..PLAIN };
    let rope_ = Rope::new(&params, None).unwrap();
    let mut rng = Rng::new(9);
    let positions = [3, 5000];
    let x = rng.vec(2 * 64, 1.0);
    // 4096 / (2π · 32) = 20.4 → pair 32 · ln 20.4 / ln 10⁴ = 10.47 → 10; 4096 / 2π = 651.9 → pair 22.51 → 23.
    let want = rope64(&params, &x, &positions, 1, 64, 1.25, |p, i| {
        let kept = 1.0 - ((i as f64 - 10.0) / 13.0).clamp(0.0, 1.0);
        p * 10_000f64.powf(-(i as f64) / 32.0) * (0.25 * (1.0 - kept) + kept)
    });
    assert_near(&run_rope(Isa::detect(), &rope_, &x, &positions, 1, 64), &want, 2.0 * ULP, 2.0 * ULP, "yarn");
}

#[test]
fn rope_refuses_parameters_that_make_no_sense() {
    let message =
        |params: RopeParams, factors: Option<&[f32]>| Rope::new(&params, factors).unwrap_err().to_string();
    assert_eq!(
        message(RopeParams { rotary_dim: 7, ..PLAIN }, None),
        "rope rotary_dim 7 is not a positive even number"
    );
    assert_eq!(
        message(RopeParams { rotary_dim: 0, ..PLAIN }, None),
        "rope rotary_dim 0 is not a positive even number"
    );
    assert_eq!(message(PLAIN, Some(&[1.0; 31])), "rope has 31 frequency factors for 32 pairs");
    let mut factors = [1.0; 32];
    factors[5] = 0.0;
    assert!(message(PLAIN, Some(&factors)).contains("frequency factor is 0"));
    for base in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert!(message(RopeParams { base, ..PLAIN }, None).contains(&format!("base is {base}")));
    }
    let yarn = Yarn { original_context: 0, beta_fast: 32.0, beta_slow: 1.0, magnitude: 1.0 };
    assert!(message(RopeParams { yarn: Some(yarn), ..PLAIN }, None).contains("original_context is 0"));
}
