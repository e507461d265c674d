//! How far a result may be from the reference's, and why.

use crate::DType;

/// A bound on each element's error.
#[derive(Clone, Debug)]
pub(super) enum Tolerance {
    /// The same bits, or both NaN.
    Exact,
    /// At most `abs + rel · |reference|`.
    Within {
        /// Absolute part.
        abs: f64,
        /// Relative part.
        rel: f64,
    },
    /// One bound an element.
    Each(Vec<f64>),
}

/// One rounding to f32, or a flush of a subnormal to zero.
pub(super) const ROUNDING: Tolerance = Tolerance::Within { abs: 1.2e-38, rel: 1.2e-7 };
/// Sums of squares in f32 and a reciprocal root: some units in the last place.
pub(super) const NORM: Tolerance = Tolerance::Within { abs: 1e-30, rel: 1e-5 };
/// Polynomial exponentials, good to about 1e-6; near zero of GELU's left side two numbers close to 1 are
/// subtracted.
pub(super) const ACTIVATION: Tolerance = Tolerance::Within { abs: 2e-6, rel: 4e-6 };
/// Two products of rounded factors; the angle itself must be exact (see [`crate::Rope`]).
pub(super) const ROPE: Tolerance = Tolerance::Within { abs: 2e-6, rel: 1e-6 };
/// f32 scores err by about 1e-6 of their terms, which the exponential hands on; values are of the order of 1.
pub(super) const ATTENTION: Tolerance = Tolerance::Within { abs: 4e-5, rel: 1e-5 };

/// `cap · tanh(x / cap)`: the hyperbolic tangent is good to about 1e-6 of its range.
pub(super) fn softcap(cap: f32) -> Tolerance {
    Tolerance::Within { abs: 1e-6 * f64::from(cap), rel: 4e-6 }
}

/// The bound on `x · weightᵀ` (plus an addend that is rounded once).
///
/// With activations in f32, the error is that of summing `k` products in f32, in any order that is not plain
/// left-to-right: `(8 + √k) · 2⁻²⁴ · Σ|w x|`. With activations in blocks of 8 bits and quantized weights,
/// each element of x is off by up to half a step `max|x| / 127`, which adds up like a random walk: six
/// deviations of it, and a rounding of the block scales to 11 bits.
pub(super) fn mat_mul(
    dtype: DType,
    weight: &[f32],
    x: &[f32],
    k: usize,
    activation_bits: Option<u32>,
) -> Tolerance {
    let rounded = activation_bits.filter(|_| dtype.is_quantized());
    let unit = 2f64.powi(-24);
    let mut bounds = Vec::new();
    for x in x.chunks_exact(k) {
        for w in weight.chunks_exact(k) {
            let products = || w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
            let sum: f64 = products().map(f64::abs).sum();
            let mut bound = (8.0 + (k as f64).sqrt()) * unit * sum + unit * products().sum::<f64>().abs();
            if let Some(bits) = rounded {
                let levels = f64::from((1u32 << (bits - 1)) - 1);
                // Blocks of activations are 32 or 256 long; the longer ones are the coarser.
                let variance: f64 = (w.chunks(256).zip(x.chunks(256)))
                    .map(|(w, x)| {
                        let step = f64::from(x.iter().fold(0f32, |m, x| m.max(x.abs()))) / levels;
                        w.iter().map(|&w| f64::from(w).powi(2)).sum::<f64>() * step * step / 12.0
                    })
                    .sum();
                bound += 6.0 * variance.sqrt() + 2f64.powi(-11) * sum;
            }
            bounds.push(bound);
        }
    }
    Tolerance::Each(bounds)
}

impl Tolerance {
    /// Adds to each bound what rounding a sum with an addend costs.
    pub fn plus_rounding(self, addend: f64) -> Self {
        match self {
            Self::Each(bounds) => {
                Self::Each(bounds.into_iter().map(|b| b + addend * 2f64.powi(-23)).collect())
            }
            other => other,
        }
    }

    /// The first element that is off, with the number of such elements.
    pub fn violation(&self, got: &[f32], reference: &[f32]) -> Option<String> {
        let off = |i: usize| {
            let (g, r) = (got[i], reference[i]);
            if g.to_bits() == r.to_bits() || (g.is_nan() && r.is_nan()) {
                return false;
            }
            let bound = match self {
                Self::Exact => return true,
                Self::Within { abs, rel } => abs + rel * f64::from(r).abs(),
                Self::Each(bounds) => bounds[i],
            };
            let error = (f64::from(g) - f64::from(r)).abs();
            error.is_nan() || error > bound
        };
        let wrong: Vec<usize> = (0..reference.len()).filter(|&i| off(i)).collect();
        let &first = wrong.first()?;
        let bound = match self {
            Self::Exact => 0.0,
            Self::Within { abs, rel } => abs + rel * f64::from(reference[first]).abs(),
            Self::Each(bounds) => bounds[first],
        };
        Some(format!(
            "{} of {} elements are off, first element {first}: {} instead of {} (± {bound:.3e})",
            wrong.len(),
            reference.len(),
            got[first],
            reference[first]
        ))
    }
}
