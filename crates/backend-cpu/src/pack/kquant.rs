//! Super-blocks of 256 elements: `Q2_K` … `Q6_K` and `IQ4_XS`.
//!
//! A unit is a super-block, in four steps of two 32-blocks. Its scales are the half-precision `d` (and `dmin`) of
//! the 16 rows, then the sub-block scales as one byte each, `[sub][row]`. In the file the elements that share a byte
//! are 32 apart (or more), so here too packing moves whole 32-bit words.

use super::format::{Format, Rows, Sink, bits, nibbles, put_bytes, put_f16, put_quads, unroll};
use super::legacy::table_quads;
use crate::simd::Simd;

/// Bytes of 16 half-precision numbers.
const HALVES: usize = 32;
/// Bytes of 16 sub-block scales of 16 rows.
const SCALES16: usize = 256;

fn word(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes([bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]])
}

fn words<const W: usize, const N: usize>(words: [u32; W]) -> [u8; N] {
    let mut out = [0; N];
    for (dst, w) in out.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *dst = w.to_le_bytes();
    }
    out
}

/// The eight 6-bit scales and eight 6-bit minima of `Q4_K` and `Q5_K`, from 12 bytes.
#[inline(always)]
fn scales_and_mins(b: &[u8]) -> [u8; 16] {
    let (a, m, x) = (word(b, 0), word(b, 4), word(b, 8));
    let low = 0x3f3f_3f3f;
    let high = |part: u32, top: u32| (part & 0x0f0f_0f0f) | ((top >> 2) & 0x3030_3030);
    words([a & low, high(x, a), m & low, high(x >> 4, m)])
}

/// `f16(d) · byte`, exactly.
#[inline(always)]
unsafe fn scaled<S: Simd>(s: S, d: *const u8, bytes: *const u8) -> S::F {
    // SAFETY: the caller vouches for 16 halves and 16 bytes.
    unsafe { s.mul(s.load_f16(d.cast()), s.to_f(s.load_u8(bytes))) }
}

/// `f16(d) · signed byte`, exactly.
#[inline(always)]
unsafe fn scaled_signed<S: Simd>(s: S, d: *const u8, bytes: *const u8) -> S::F {
    // SAFETY: the caller vouches for 16 halves and 16 bytes.
    unsafe { s.mul(s.load_f16(d.cast()), s.to_f(s.load_i8(bytes.cast()))) }
}

/// 4-bit; 8 scales and 8 minima.
#[allow(non_camel_case_types, reason = "the format's name")]
pub(crate) struct Q4_K;

impl Format for Q4_K {
    const BYTES: usize = 144;
    const STEPS: usize = 4;
    const STEP_BLOCKS: usize = 2;
    const SUBS: usize = 1;
    const ZERO: i32 = 0;
    const MIN: bool = true;
    const WIDE: bool = false;
    const META: usize = 2 * HALVES + SCALES16;
    const QUANTS: usize = 32 * 64;

    #[inline(always)]
    fn pack(rows: &Rows<'_>, meta: &mut [u8], quants: &mut [u8]) {
        put_f16(rows, 0, &mut meta[..HALVES]);
        put_f16(rows, 2, &mut meta[HALVES..]);
        put_bytes(rows, &mut meta[2 * HALVES..], |row| scales_and_mins(&row[4..16]));
        put_quads(rows, 16, 32, quants);
    }
    #[inline(always)]
    unsafe fn weights<S: Simd, const STEP: usize>(s: S, quants: *const u8, sink: &mut impl Sink<S>) {
        unroll!(I in [0 1 2 3 4 5 6 7] {
            // SAFETY: the caller vouches for the unit.
            let v = unsafe { s.load_i(quants.add((STEP * 8 + I) * 64)) };
            sink.put(s, 0, I, nibbles(s, v, false));
            sink.put(s, 1, I, nibbles(s, v, true));
        });
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, meta: *const u8, sub: usize) -> S::F {
        // SAFETY: the caller vouches for the unit.
        unsafe { scaled(s, meta, meta.add(2 * HALVES + 16 * sub)) }
    }
    #[inline(always)]
    unsafe fn min<S: Simd>(s: S, meta: *const u8, sub: usize) -> S::F {
        // SAFETY: the caller vouches for the unit.
        s.neg(unsafe { scaled(s, meta.add(HALVES), meta.add(2 * HALVES + 128 + 16 * sub)) })
    }
}

/// 5-bit; the scales of `Q4_K`. Eight vectors of fifth bits (bit = 32-block), then the nibbles.
#[allow(non_camel_case_types, reason = "the format's name")]
pub(crate) struct Q5_K;

impl Format for Q5_K {
    const BYTES: usize = 176;
    const STEPS: usize = 4;
    const STEP_BLOCKS: usize = 2;
    const SUBS: usize = 1;
    const ZERO: i32 = 0;
    const MIN: bool = true;
    const WIDE: bool = false;
    const META: usize = Q4_K::META;
    const QUANTS: usize = 40 * 64;

    #[inline(always)]
    fn pack(rows: &Rows<'_>, meta: &mut [u8], quants: &mut [u8]) {
        put_f16(rows, 0, &mut meta[..HALVES]);
        put_f16(rows, 2, &mut meta[HALVES..]);
        put_bytes(rows, &mut meta[2 * HALVES..], |row| scales_and_mins(&row[4..16]));
        put_quads(rows, 16, 40, quants);
    }
    #[inline(always)]
    unsafe fn weights<S: Simd, const STEP: usize>(s: S, quants: *const u8, sink: &mut impl Sink<S>) {
        unroll!(I in [0 1 2 3 4 5 6 7] {
            // SAFETY: the caller vouches for the unit.
            let (v, h) = unsafe { (s.load_i(quants.add((8 + STEP * 8 + I) * 64)), s.load_i(quants.add(I * 64))) };
            sink.put(s, 0, I, s.or_i(nibbles(s, v, false), bits(s, h, 2 * STEP, 4, 0x10)));
            sink.put(s, 1, I, s.or_i(nibbles(s, v, true), bits(s, h, 2 * STEP + 1, 4, 0x10)));
        });
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, meta: *const u8, sub: usize) -> S::F {
        // SAFETY: the caller vouches for the unit.
        unsafe { Q4_K::scale(s, meta, sub) }
    }
    #[inline(always)]
    unsafe fn min<S: Simd>(s: S, meta: *const u8, sub: usize) -> S::F {
        // SAFETY: the caller vouches for the unit.
        unsafe { Q4_K::min(s, meta, sub) }
    }
}

/// 6-bit; 16 signed scales. Each half: 16 vectors of nibbles, then 8 of the upper bits.
#[allow(non_camel_case_types, reason = "the format's name")]
pub(crate) struct Q6_K;

impl Format for Q6_K {
    const BYTES: usize = 210;
    const STEPS: usize = 4;
    const STEP_BLOCKS: usize = 2;
    const SUBS: usize = 2;
    const ZERO: i32 = 32;
    const MIN: bool = false;
    const WIDE: bool = false;
    const META: usize = HALVES + SCALES16;
    const QUANTS: usize = 48 * 64;

    #[inline(always)]
    fn pack(rows: &Rows<'_>, meta: &mut [u8], quants: &mut [u8]) {
        put_f16(rows, 208, &mut meta[..HALVES]);
        put_bytes::<16>(rows, &mut meta[HALVES..], |row| std::array::from_fn(|i| row[192 + i]));
        for (half, dst) in quants.chunks_exact_mut(24 * 64).enumerate() {
            put_quads(rows, 64 * half, 16, dst);
            put_quads(rows, 128 + 32 * half, 8, &mut dst[16 * 64..]);
        }
    }
    #[inline(always)]
    unsafe fn weights<S: Simd, const STEP: usize>(s: S, quants: *const u8, sink: &mut impl Sink<S>) {
        let (half, high) = (STEP / 2, STEP % 2 == 1);
        let pair = 4 * (STEP % 2);
        unroll!(I in [0 1 2 3 4 5 6 7] {
            // SAFETY: the caller vouches for the unit.
            let (v0, v1, h) = unsafe {
                let q = quants.add(half * 24 * 64);
                (s.load_i(q.add(I * 64)), s.load_i(q.add((8 + I) * 64)), s.load_i(q.add((16 + I) * 64)))
            };
            sink.put(s, 0, I, s.or_i(nibbles(s, v0, high), bits(s, h, pair, 4, 0x30)));
            sink.put(s, 1, I, s.or_i(nibbles(s, v1, high), bits(s, h, pair + 2, 4, 0x30)));
        });
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, meta: *const u8, sub: usize) -> S::F {
        // SAFETY: the caller vouches for the unit.
        unsafe { scaled_signed(s, meta, meta.add(HALVES + 16 * sub)) }
    }
}

/// 2-bit; 16 4-bit scales and minima, kept together in a byte.
#[allow(non_camel_case_types, reason = "the format's name")]
pub(crate) struct Q2_K;

impl Format for Q2_K {
    const BYTES: usize = 84;
    const STEPS: usize = 4;
    const STEP_BLOCKS: usize = 2;
    const SUBS: usize = 2;
    const ZERO: i32 = 0;
    const MIN: bool = true;
    const WIDE: bool = false;
    const META: usize = 2 * HALVES + SCALES16;
    const QUANTS: usize = 16 * 64;

    #[inline(always)]
    fn pack(rows: &Rows<'_>, meta: &mut [u8], quants: &mut [u8]) {
        put_f16(rows, 80, &mut meta[..HALVES]);
        put_f16(rows, 82, &mut meta[HALVES..]);
        put_bytes::<16>(rows, &mut meta[2 * HALVES..], |row| std::array::from_fn(|i| row[i]));
        put_quads(rows, 16, 16, quants);
    }
    #[inline(always)]
    unsafe fn weights<S: Simd, const STEP: usize>(s: S, quants: *const u8, sink: &mut impl Sink<S>) {
        let shift = 4 * (STEP % 2);
        unroll!(I in [0 1 2 3 4 5 6 7] {
            // SAFETY: the caller vouches for the unit.
            let v = unsafe { s.load_i(quants.add((STEP / 2 * 8 + I) * 64)) };
            sink.put(s, 0, I, bits(s, v, shift, 0, 0x03));
            sink.put(s, 1, I, bits(s, v, shift + 2, 0, 0x03));
        });
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, meta: *const u8, sub: usize) -> S::F {
        // SAFETY: the caller vouches for the unit.
        unsafe {
            let scale = s.and_i(s.load_u8(meta.add(2 * HALVES + 16 * sub)), s.splat_i(0x0f));
            s.mul(s.load_f16(meta.cast()), s.to_f(scale))
        }
    }
    #[inline(always)]
    unsafe fn min<S: Simd>(s: S, meta: *const u8, sub: usize) -> S::F {
        // SAFETY: the caller vouches for the unit.
        unsafe {
            let min = s.shr_i::<4>(s.load_u8(meta.add(2 * HALVES + 16 * sub)));
            s.neg(s.mul(s.load_f16(meta.add(HALVES).cast()), s.to_f(min)))
        }
    }
}

/// 3-bit; 16 signed 6-bit scales. Eight vectors of third bits (bit = 32-block), then the lower two.
#[allow(non_camel_case_types, reason = "the format's name")]
pub(crate) struct Q3_K;

/// The 16 6-bit scales of `Q3_K`, offset to signed, from 12 bytes.
#[inline(always)]
fn q3_scales(b: &[u8]) -> [u8; 16] {
    let (a, c, top) = (word(b, 0), word(b, 4), word(b, 8));
    let join = |low: u32, shift: u32| (low & 0x0f0f_0f0f) | (((top >> shift) & 0x0303_0303) << 4);
    words([join(a, 0), join(c, 2), join(a >> 4, 4), join(c >> 4, 6)]).map(|x: u8| x.wrapping_sub(32))
}

impl Format for Q3_K {
    const BYTES: usize = 110;
    const STEPS: usize = 4;
    const STEP_BLOCKS: usize = 2;
    const SUBS: usize = 2;
    const ZERO: i32 = 4;
    const MIN: bool = false;
    const WIDE: bool = false;
    const META: usize = HALVES + SCALES16;
    const QUANTS: usize = 24 * 64;

    #[inline(always)]
    fn pack(rows: &Rows<'_>, meta: &mut [u8], quants: &mut [u8]) {
        put_f16(rows, 108, &mut meta[..HALVES]);
        put_bytes(rows, &mut meta[HALVES..], |row| q3_scales(&row[96..108]));
        put_quads(rows, 0, 24, quants);
    }
    #[inline(always)]
    unsafe fn weights<S: Simd, const STEP: usize>(s: S, quants: *const u8, sink: &mut impl Sink<S>) {
        let shift = 4 * (STEP % 2);
        unroll!(I in [0 1 2 3 4 5 6 7] {
            // SAFETY: the caller vouches for the unit.
            let (v, h) =
                unsafe { (s.load_i(quants.add((8 + STEP / 2 * 8 + I) * 64)), s.load_i(quants.add(I * 64))) };
            sink.put(s, 0, I, s.or_i(bits(s, v, shift, 0, 0x03), bits(s, h, 2 * STEP, 2, 0x04)));
            sink.put(s, 1, I, s.or_i(bits(s, v, shift + 2, 0, 0x03), bits(s, h, 2 * STEP + 1, 2, 0x04)));
        });
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, meta: *const u8, sub: usize) -> S::F {
        // SAFETY: the caller vouches for the unit.
        unsafe { scaled_signed(s, meta, meta.add(HALVES + 16 * sub)) }
    }
}

/// 4-bit through the table of `IQ4_NL`; 8 signed 6-bit scales.
#[allow(non_camel_case_types, reason = "the format's name")]
pub(crate) struct IQ4_XS;

/// The second block of a step.
struct Second<'a, K>(&'a mut K);

impl<S: Simd, K: Sink<S>> Sink<S> for Second<'_, K> {
    #[inline(always)]
    fn put(&mut self, s: S, block: usize, quad: usize, w: S::I) {
        self.0.put(s, block + 1, quad, w);
    }
}

impl Format for IQ4_XS {
    const BYTES: usize = 136;
    const STEPS: usize = 4;
    const STEP_BLOCKS: usize = 2;
    const SUBS: usize = 1;
    const ZERO: i32 = 128;
    const MIN: bool = false;
    const WIDE: bool = true;
    const META: usize = HALVES + 128;
    const QUANTS: usize = 32 * 64;

    #[inline(always)]
    fn pack(rows: &Rows<'_>, meta: &mut [u8], quants: &mut [u8]) {
        put_f16(rows, 0, &mut meta[..HALVES]);
        put_bytes::<8>(rows, &mut meta[HALVES..], |row| {
            let high = u16::from_le_bytes([row[2], row[3]]);
            std::array::from_fn(|i| {
                let low = (row[4 + i / 2] >> (4 * (i % 2))) & 0x0f;
                (low | (((high >> (2 * i)) & 3) as u8) << 4).wrapping_sub(32)
            })
        });
        put_quads(rows, 8, 32, quants);
    }
    #[inline(always)]
    unsafe fn weights<S: Simd, const STEP: usize>(s: S, quants: *const u8, sink: &mut impl Sink<S>) {
        // SAFETY: the caller vouches for the unit.
        unsafe {
            table_quads(s, quants.add(STEP * 512), sink);
            table_quads(s, quants.add(STEP * 512 + 256), &mut Second(sink));
        }
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, meta: *const u8, sub: usize) -> S::F {
        // SAFETY: the caller vouches for the unit.
        unsafe { scaled_signed(s, meta, meta.add(HALVES + 16 * sub)) }
    }
}
