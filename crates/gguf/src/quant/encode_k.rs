//! Encoding of super-blocks: each sub-block's scale is searched for the least squared error, the scales are then
//! quantized themselves, and the elements are rounded to what is left.

use super::blocks::*;
use super::encode::{Encode, extreme, finite_f16};

/// The sum of `term(0..N)`, in eight partial sums: a compiler may not reorder additions itself, and a single chain of
/// them is slow.
fn sum<const N: usize>(term: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0; 8];
    for start in (0..N).step_by(8) {
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane += term(start + i);
        }
    }
    lanes.iter().sum()
}

/// How much an element's error counts: large weights matter more to a dot product than small ones, but a
/// sub-block of small ones still matters.
fn importance<const N: usize>(x: &[f32; N]) -> [f32; N] {
    let rms = (sum::<N>(|i| x[i] * x[i]) / N as f32).sqrt();
    x.map(|v| rms + v.abs())
}

/// The integer nearest to `v` in 0 to `max`. A cast is several times faster than `round` where that is a call.
fn nearest(v: f32, max: f32) -> f32 {
    (v + 0.5).clamp(0.0, max) as i32 as f32
}

/// Scale `s` and min `m`, both at least 0, for which `s·q − m` with `q` in 0 to `max` comes closest to `x`.
fn fit_affine(x: &[f32; 32], max: u8) -> (f32, f32) {
    let max = f32::from(max);
    let low = x.iter().copied().fold(0.0, f32::min);
    let high = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let range = high - low;
    // All elements equal and not positive, or a range without a reciprocal.
    if !(max / range).is_finite() {
        return (0.0, -low);
    }
    let w = importance(x);
    let sum_w = sum::<32>(|i| w[i]);
    let sum_wx = sum::<32>(|i| w[i] * x[i]);
    let mut best = (f32::INFINITY, range / max, -low);
    // Rounding with a step slightly wider or narrower than the range suggests, then fitting s and m to the
    // integers found, beats the plain step: the extremes may clip if the rest gains.
    for step in -10..=10 {
        let inverse = (max + 0.1 * step as f32) / range;
        let q = x.map(|x| nearest((x - low) * inverse, max));
        let wq = sum::<32>(|i| w[i] * q[i]);
        let wqq = sum::<32>(|i| w[i] * q[i] * q[i]);
        let wqx = sum::<32>(|i| w[i] * q[i] * x[i]);
        let det = sum_w * wqq - wq * wq;
        if det <= 0.0 {
            continue;
        }
        let mut s = (sum_w * wqx - wq * sum_wx) / det;
        let mut m = (wq * wqx - wqq * sum_wx) / det;
        if m < 0.0 {
            (s, m) = (wqx / wqq, 0.0);
        }
        let error = sum::<32>(|i| w[i] * (s * q[i] - m - x[i]).powi(2));
        if s > 0.0 && error < best.0 {
            best = (error, s, m);
        }
    }
    (best.1, best.2)
}

/// Scale `s`, of either sign, for which `s·q` with `q` in −32 to 31 comes closest to `x`.
fn fit_symmetric(x: &[f32; 16]) -> f32 {
    let extreme = extreme(x);
    let plain = extreme / -32.0;
    if !(1.0 / plain).is_finite() {
        return 0.0;
    }
    let w = importance(x);
    let mut best = (f32::INFINITY, plain);
    for step in -9..=9 {
        let inverse = (-32.0 + 0.1 * step as f32) / extreme;
        let q = x.map(|x| nearest(x * inverse + 32.0, 63.0) - 32.0);
        let s = sum::<16>(|i| w[i] * q[i] * x[i]) / sum::<16>(|i| w[i] * q[i] * q[i]);
        let error = sum::<16>(|i| w[i] * (s * q[i] - x[i]).powi(2));
        if error < best.0 {
            best = (error, s);
        }
    }
    best.1
}

/// The integer that comes closest to `v` when multiplied by `d`; 0 where `d` vanished in half precision.
fn ratio(v: f32, d: F16) -> f32 {
    let d = d.to_f32();
    if d == 0.0 { 0.0 } else { (v / d).round() }
}

/// What `Q4_K` and `Q5_K` share: everything but the packing of the integers (0 to `max`).
fn encode_affine(x: &[f32], max: u8) -> Option<(F16, F16, [u8; 12], [u8; QK_K])> {
    let (subs, _) = x.as_chunks::<32>();
    let mut fits = [(0.0, 0.0); 8];
    for (fit, sub) in fits.iter_mut().zip(subs) {
        *fit = fit_affine(sub, max);
    }
    let d = finite_f16(fits.iter().fold(0.0, |m: f32, f| m.max(f.0)) / 63.0)?;
    let dmin = finite_f16(fits.iter().fold(0.0, |m: f32, f| m.max(f.1)) / 63.0)?;
    let scales = fits.map(|f| ratio(f.0, d).min(63.0) as u8);
    let mins = fits.map(|f| ratio(f.1, dmin).min(63.0) as u8);
    let mut q = [0; QK_K];
    for (s, (q, sub)) in q.chunks_exact_mut(32).zip(subs).enumerate() {
        let scale = d.to_f32() * f32::from(scales[s]);
        let min = dmin.to_f32() * f32::from(mins[s]);
        if scale > 0.0 {
            for (q, x) in q.iter_mut().zip(sub) {
                *q = nearest((x + min) / scale, f32::from(max)) as u8;
            }
        }
    }
    Some((d, dmin, pack_scales_mins(&scales, &mins), q))
}

impl Encode for BlockQ4_K {
    fn encode(x: &[f32]) -> Option<Self> {
        let (d, dmin, scales, q) = encode_affine(x, 15)?;
        let mut qs = [0; 128];
        pack_nibbles(&q, 32, &mut qs);
        Some(BlockQ4_K { d, dmin, scales, qs })
    }
}

impl Encode for BlockQ5_K {
    fn encode(x: &[f32]) -> Option<Self> {
        let (d, dmin, scales, q) = encode_affine(x, 31)?;
        let (mut qs, mut qh) = ([0; 128], [0; 32]);
        pack_nibbles(&q, 32, &mut qs);
        pack_bit(&q, 4, &mut qh);
        Some(BlockQ5_K { d, dmin, scales, qh, qs })
    }
}

impl Encode for BlockQ6_K {
    fn encode(x: &[f32]) -> Option<Self> {
        let (subs, _) = x.as_chunks::<16>();
        let mut fits = [0.0; 16];
        for (fit, sub) in fits.iter_mut().zip(subs) {
            *fit = fit_symmetric(sub);
        }
        // The scale of the largest magnitude becomes −128, the end that reaches further.
        let d = finite_f16(extreme(&fits) / -128.0)?;
        let scales = fits.map(|s| ratio(s, d).clamp(-128.0, 127.0) as i8);
        let mut q = [32; QK_K];
        for (s, (q, sub)) in q.chunks_exact_mut(16).zip(subs).enumerate() {
            let scale = d.to_f32() * f32::from(scales[s]);
            if scale != 0.0 {
                for (q, x) in q.iter_mut().zip(sub) {
                    *q = nearest(x / scale + 32.0, 63.0) as u8;
                }
            }
        }
        let (mut ql, mut qh) = ([0; 128], [0; 64]);
        pack_nibbles(&q, 64, &mut ql);
        pack_2bit(&q, 4, &mut qh);
        Some(BlockQ6_K { ql, qh, scales, d })
    }
}
