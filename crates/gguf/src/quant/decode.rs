//! Scalar reference decoding. The order of operations is part of the definition: other implementations are
//! compared with this one bit by bit.

use super::blocks::*;

/// A block that can be decoded.
pub(super) trait Decode: Block {
    /// Writes the block's elements; `out` has as many as the block.
    fn decode(&self, out: &mut [f32]);
}

/// Sub-blocks of `out.len() / N` elements with a scale each: `scale · (q − zero)`.
fn scaled<const N: usize>(out: &mut [f32], q: &[u8], zero: i8, scales: [f32; N]) {
    let len = out.len() / N;
    for ((out, q), scale) in out.chunks_exact_mut(len).zip(q.chunks_exact(len)).zip(scales) {
        for (x, &q) in out.iter_mut().zip(q) {
            *x = scale * f32::from(q as i8 - zero);
        }
    }
}

/// Sub-blocks of `out.len() / N` elements with a scale and an offset each: `scale · q + offset`.
fn affine<const N: usize>(out: &mut [f32], q: &[u8], scales: [f32; N], offsets: [f32; N]) {
    let len = out.len() / N;
    let params = scales.into_iter().zip(offsets);
    for ((out, q), (scale, offset)) in out.chunks_exact_mut(len).zip(q.chunks_exact(len)).zip(params) {
        for (x, &q) in out.iter_mut().zip(q) {
            *x = scale * f32::from(q) + offset;
        }
    }
}

/// As [`scaled`], through the table of the IQ4 types.
fn lookup<const N: usize>(out: &mut [f32], q: &[u8], scales: [f32; N]) {
    let len = out.len() / N;
    for ((out, q), scale) in out.chunks_exact_mut(len).zip(q.chunks_exact(len)).zip(scales) {
        for (x, &q) in out.iter_mut().zip(q) {
            *x = scale * f32::from(IQ4_VALUES[usize::from(q & 15)]);
        }
    }
}

impl Decode for BlockQ4_0 {
    fn decode(&self, out: &mut [f32]) {
        scaled(out, &self.quants(), 8, [self.d.to_f32()]);
    }
}

impl Decode for BlockQ4_1 {
    fn decode(&self, out: &mut [f32]) {
        affine(out, &self.quants(), [self.d.to_f32()], [self.m.to_f32()]);
    }
}

impl Decode for BlockQ5_0 {
    fn decode(&self, out: &mut [f32]) {
        scaled(out, &self.quants(), 16, [self.d.to_f32()]);
    }
}

impl Decode for BlockQ5_1 {
    fn decode(&self, out: &mut [f32]) {
        affine(out, &self.quants(), [self.d.to_f32()], [self.m.to_f32()]);
    }
}

impl Decode for BlockQ8_0 {
    fn decode(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        for (x, &q) in out.iter_mut().zip(&self.qs) {
            *x = d * f32::from(q);
        }
    }
}

impl Decode for BlockQ2_K {
    fn decode(&self, out: &mut [f32]) {
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        let scales = self.scales.map(|s| d * f32::from(s & 15));
        affine(out, &self.quants(), scales, self.scales.map(|s| -(dmin * f32::from(s >> 4))));
    }
}

impl Decode for BlockQ3_K {
    fn decode(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        scaled(out, &self.quants(), 4, self.scales().map(|s| d * f32::from(s)));
    }
}

impl Decode for BlockQ4_K {
    fn decode(&self, out: &mut [f32]) {
        let (scales, offsets) = scales_offsets(self.d, self.dmin, &self.scales);
        affine(out, &self.quants(), scales, offsets);
    }
}

impl Decode for BlockQ5_K {
    fn decode(&self, out: &mut [f32]) {
        let (scales, offsets) = scales_offsets(self.d, self.dmin, &self.scales);
        affine(out, &self.quants(), scales, offsets);
    }
}

/// What a `Q4_K` or `Q5_K` sub-block's integers are multiplied by, and what is then added.
fn scales_offsets(d: F16, dmin: F16, packed: &[u8; 12]) -> ([f32; 8], [f32; 8]) {
    let (d, dmin) = (d.to_f32(), dmin.to_f32());
    let (scales, mins) = unpack_scales_mins(packed);
    (scales.map(|s| d * f32::from(s)), mins.map(|m| -(dmin * f32::from(m))))
}

impl Decode for BlockQ6_K {
    fn decode(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        scaled(out, &self.quants(), 32, self.scales.map(|s| d * f32::from(s)));
    }
}

impl Decode for BlockIQ4_NL {
    fn decode(&self, out: &mut [f32]) {
        lookup(out, &self.quants(), [self.d.to_f32()]);
    }
}

impl Decode for BlockIQ4_XS {
    fn decode(&self, out: &mut [f32]) {
        let d = self.d.to_f32();
        lookup(out, &self.quants(), self.scales().map(|s| d * f32::from(s)));
    }
}
