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
    let n = (clamped * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = (clamped - n * LN2_HI) - n * LN2_LO;
    let mut poly = 1.0 / 720.0;
    for c in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        poly = poly * r + c;
    }
    let scale = f32::from_bits((((n as i32) + 127) << 23) as u32);
    if x > -87.0 { poly * scale } else { 0.0 }
}

/// Σ e^(x − max), in f64 and in a fixed order.
pub(super) fn sum_exp(values: &[f32], max: f32) -> f64 {
    const LANES: usize = 8;
    let mut lanes = [0f64; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(exp_nonpositive(x - max));
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane += f64::from(exp_nonpositive(x - max));
    }
    lanes.iter().sum()
}

/// The best token (lowest id on a tie) and its logit, in one pass.
///
/// # Errors
/// [`SamplingError::BadLogit`] for the first NaN or +inf, [`SamplingError::NoCandidate`] when all are −inf.
pub(super) fn argmax(logits: &[f32]) -> Result<(TokenId, f32), SamplingError> {
    const BLOCK: usize = 1024;
    const LANES: usize = 8;
    let mut best = (0usize, f32::NEG_INFINITY);
    let mut bad = false;
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        let mut wrong = [false; LANES];
        let (chunks, rest) = block.as_chunks::<LANES>();
        for chunk in chunks {
            for i in 0..LANES {
                let x = chunk[i];
                lanes[i] = if x > lanes[i] { x } else { lanes[i] };
                // False for NaN as well.
                wrong[i] |= !(x < f32::INFINITY);
            }
        }
        for (i, &x) in rest.iter().enumerate() {
            lanes[i] = if x > lanes[i] { x } else { lanes[i] };
            wrong[i] |= !(x < f32::INFINITY);
        }
        bad |= wrong.contains(&true);
        let max = lanes.iter().fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
        if max > best.1 {
            best = (index * BLOCK, max);
        }
    }
    if bad && let Some(token) = logits.iter().position(|x| !(*x < f32::INFINITY)) {
        return Err(SamplingError::BadLogit { token: token as TokenId, value: logits[token] });
    }
    if best.1 == f32::NEG_INFINITY {
        return Err(SamplingError::NoCandidate);
    }
    let start = best.0;
    let offset = logits[start..].iter().position(|&x| x == best.1).ok_or(SamplingError::NoCandidate)?;
    Ok(((start + offset) as TokenId, best.1))
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
