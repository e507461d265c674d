//! Arithmetic with the same result everywhere, written so that the compiler can vectorize it.

use super::{SamplingError, TokenId};

/// e^x for x ≤ 0, with a relative error below 3e-7; 0 where the result would be below the smallest normal f32.
///
/// Only additions and multiplications, hence the same bits on every IEEE-754 machine.
#[inline]
pub fn exp_nonpositive(x: f32) -> f32 {
    // ln 2 in two parts, the first with enough trailing zeros that its product with n is exact.
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = -2.121_944_4e-4;
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x > -87.0 { x } else { -87.0 };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN2_HI) - n * LN2_LO;
    let mut poly = 1.0 / 720.0;
    for c in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        poly = poly * r + c;
    }
    // The integer stands in the low bits of `shifted`; 2^n has it in the exponent.
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
    let scale = f32::from_bits(exponent << 23);
    if x > -87.0 { poly * scale } else { 0.0 }
}

/// Σ e^(x − max), in f64 and in a fixed order.
pub(super) fn sum_exp(values: &[f32], max: f32) -> f64 {
    const BLOCK: usize = 64;
    let mut lanes = [0f64; LANES];
    for block in values.chunks(BLOCK) {
        let mut terms = [0f32; BLOCK];
        for (term, &x) in terms.iter_mut().zip(block) {
            *term = exp_nonpositive(x - max);
        }
        for chunk in terms.as_chunks::<LANES>().0 {
            for (lane, &term) in lanes.iter_mut().zip(chunk) {
                *lane += f64::from(term);
            }
        }
    }
    lanes.iter().sum()
}

const LANES: usize = 8;

/// The largest of `values` (−inf if there is none), and whether any of them is NaN or +inf.
#[inline]
pub(super) fn scan(values: &[f32]) -> (f32, bool) {
    let mut max = [f32::NEG_INFINITY; LANES];
    let mut bad = [false; LANES];
    let mut step = |chunk: &[f32]| {
        for ((max, bad), &x) in max.iter_mut().zip(&mut bad).zip(chunk) {
            *max = if x > *max { x } else { *max };
            *bad |= is_bad(x);
        }
    };
    let (chunks, rest) = values.as_chunks::<LANES>();
    chunks.iter().for_each(|chunk| step(chunk));
    step(rest);
    (max.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a }), bad.contains(&true))
}

/// No forward pass in order gives such a logit.
fn is_bad(logit: f32) -> bool {
    logit.is_nan() | (logit == f32::INFINITY)
}

/// The best token (lowest id on a tie) and its logit, in one pass.
///
/// # Errors
/// [`SamplingError::BadLogit`] for the first NaN or +inf, [`SamplingError::NoCandidate`] when all are −inf.
pub(super) fn argmax(logits: &[f32]) -> Result<(TokenId, f32), SamplingError> {
    const BLOCK: usize = 1024;
    let (mut start, mut best) = (0, f32::NEG_INFINITY);
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        let (max, bad) = scan(block);
        if bad && let Some(at) = block.iter().position(|&x| is_bad(x)) {
            return Err(SamplingError::BadLogit { token: (index * BLOCK + at) as TokenId, value: block[at] });
        }
        if max > best {
            (start, best) = (index * BLOCK, max);
        }
    }
    let offset = logits[start..].iter().position(|&x| x == best && best > f32::NEG_INFINITY);
    offset.map(|offset| ((start + offset) as TokenId, best)).ok_or(SamplingError::NoCandidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_is_accurate_and_flushes_to_zero() {
        let mut worst = 0f64;
        for i in 0..870_000 {
            let x = -(i as f32) * 1e-4;
            let exact = libm::exp(f64::from(x));
            worst = worst.max((f64::from(exp_nonpositive(x)) - exact).abs() / exact);
        }
        assert!(worst < 3e-7, "relative error {worst}");
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!(exp_nonpositive(-0.0), 1.0);
        assert_eq!(exp_nonpositive(-1000.0), 0.0);
        assert_eq!(exp_nonpositive(f32::NEG_INFINITY), 0.0);
        // Fixed bits: what makes streams equal across machines.
        assert_eq!(exp_nonpositive(-1.0).to_bits(), 0x3ebc_5ab2);
        assert_eq!(exp_nonpositive(-17.25).to_bits(), 0x330a_7a4f);
    }

    #[test]
    fn argmax_takes_the_lowest_id_on_ties_in_every_position() {
        for len in [1usize, 7, 8, 9, 1023, 1024, 1025, 5000] {
            for at in [0, len / 2, len - 1] {
                let mut logits = vec![-3.0f32; len];
                logits[at] = 2.0;
                if len > 1 {
                    logits[len - 1] = 2.0;
                }
                assert_eq!(argmax(&logits).unwrap(), (at as TokenId, 2.0), "len {len} at {at}");
            }
        }
        assert_eq!(argmax(&[0.0, -0.0, 0.0]).unwrap().0, 0);
        assert_eq!(argmax(&[-0.0, 0.0]).unwrap().0, 0);
    }
}
