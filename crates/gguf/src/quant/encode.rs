//! Encoding of small blocks: one pass, the scale from the extreme values.

use super::blocks::*;

/// A block that elements can be encoded to.
pub(super) trait Encode: Block {
    /// Encodes as many finite elements as a block has; `None` if a scale is beyond half precision.
    fn encode(x: &[f32]) -> Option<Self>;
}

/// Half precision, refusing what would become infinite.
pub(super) fn finite_f16(v: f32) -> Option<F16> {
    let h = F16::from_f32(v);
    h.to_f32().is_finite().then_some(h)
}

/// `1 / d`, or 0 where `d` is zero or too small to have a reciprocal.
fn reciprocal(d: f32) -> f32 {
    let r = 1.0 / d;
    if r.is_finite() { r } else { 0.0 }
}

/// The element of the largest magnitude, with its sign; the first of equals.
pub(super) fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |best: f32, &v| if v.abs() > best.abs() { v } else { best })
}

/// Scale and integers (0 to `2·half − 1`) of `d·(q − half)`. The extreme value gets the end of the range that
/// reaches further from zero.
fn symmetric(x: &[f32], half: u8) -> Option<(F16, [u8; QK])> {
    let d = extreme(x) / -f32::from(half);
    let inverse = reciprocal(d);
    let mut q = [0; QK];
    for (q, &x) in q.iter_mut().zip(x) {
        *q = ((x * inverse + (f32::from(half) + 0.5)) as u8).min(2 * half - 1);
    }
    Some((finite_f16(d)?, q))
}

/// Scale, minimum and integers (0 to `max`) of `d·q + m`.
fn affine(x: &[f32], max: u8) -> Option<(F16, F16, [u8; QK])> {
    let high = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let low = x.iter().copied().fold(f32::INFINITY, f32::min);
    let d = (high - low) / f32::from(max);
    let inverse = reciprocal(d);
    let mut q = [0; QK];
    for (q, &x) in q.iter_mut().zip(x) {
        *q = (((x - low) * inverse + 0.5) as u8).min(max);
    }
    Some((finite_f16(d)?, finite_f16(low)?, q))
}

fn nibbles(q: &[u8; QK]) -> [u8; 16] {
    let mut qs = [0; 16];
    pack_nibbles(q, 16, &mut qs);
    qs
}

impl Encode for BlockQ4_0 {
    fn encode(x: &[f32]) -> Option<Self> {
        let (d, q) = symmetric(x, 8)?;
        Some(BlockQ4_0 { d, qs: nibbles(&q) })
    }
}

impl Encode for BlockQ4_1 {
    fn encode(x: &[f32]) -> Option<Self> {
        let (d, m, q) = affine(x, 15)?;
        Some(BlockQ4_1 { d, m, qs: nibbles(&q) })
    }
}

impl Encode for BlockQ5_0 {
    fn encode(x: &[f32]) -> Option<Self> {
        let (d, q) = symmetric(x, 16)?;
        let (qs, qh) = pack_5bit(&q);
        Some(BlockQ5_0 { d, qh, qs })
    }
}

impl Encode for BlockQ5_1 {
    fn encode(x: &[f32]) -> Option<Self> {
        let (d, m, q) = affine(x, 31)?;
        let (qs, qh) = pack_5bit(&q);
        Some(BlockQ5_1 { d, m, qh, qs })
    }
}

impl Encode for BlockQ8_0 {
    fn encode(x: &[f32]) -> Option<Self> {
        let d = extreme(x).abs() / 127.0;
        let inverse = reciprocal(d);
        let mut qs = [0; QK];
        for (q, &x) in qs.iter_mut().zip(x) {
            *q = (x * inverse).round() as i8;
        }
        Some(BlockQ8_0 { d: finite_f16(d)?, qs })
    }
}
