//! Formats of 32 elements per scale: `Q4_0`, `Q4_1`, `Q5_0`, `Q5_1`, `Q8_0` and `IQ4_NL`.
//!
//! Scales (and minima) of 16 rows are half-precision vectors. In a GGUF block byte `j` of the quants holds elements
//! `j` (low nibble) and `j + 16`, so the four bytes of a quad are also four bytes of the file: packing moves whole
//! 32-bit words.

use super::format::{Format, Rows, Sink, bits, nibbles, put_f16, put_quads, put_quads_map, unroll};
use crate::simd::Simd;

/// Bytes of 16 half-precision numbers.
const HALVES: usize = 32;
/// Bytes of 16 rows × 32 nibbles.
const NIBBLES: usize = 256;

/// Unpacks 16 rows × 32 nibbles, each byte vector passed through `map(quad, bytes)`.
#[inline(always)]
unsafe fn nibble_quads<S: Simd>(s: S, q: *const u8, mut put: impl Put<S>) {
    unroll!(I in [0 1 2 3] {
        // SAFETY: the caller vouches for 256 bytes.
        let v = unsafe { s.load_i(q.add(I * 64)) };
        put.put::<I>(nibbles(s, v, false));
        put.put::<{ 4 + I }>(nibbles(s, v, true));
    });
}

/// A [`Sink`] of one block that knows the quad at compile time.
trait Put<S: Simd> {
    fn put<const QUAD: usize>(&mut self, w: S::I);
}

/// Passes nibbles on as they are.
struct Plain<'a, S, K>(S, &'a mut K);

impl<S: Simd, K: Sink<S>> Put<S> for Plain<'_, S, K> {
    #[inline(always)]
    fn put<const QUAD: usize>(&mut self, w: S::I) {
        self.1.put(self.0, 0, QUAD, w);
    }
}

/// Adds the fifth bit: bit `quad` of each byte of `high`.
struct Fifth<'a, S: Simd, K> {
    s: S,
    high: S::I,
    sink: &'a mut K,
}

impl<S: Simd, K: Sink<S>> Put<S> for Fifth<'_, S, K> {
    #[inline(always)]
    fn put<const QUAD: usize>(&mut self, w: S::I) {
        let s = self.s;
        self.sink.put(s, 0, QUAD, s.or_i(w, bits(s, self.high, QUAD, 4, 0x10)));
    }
}

/// Replaces nibbles by table entries.
struct Table<'a, S: Simd, K> {
    s: S,
    table: S::I,
    sink: &'a mut K,
}

impl<S: Simd, K: Sink<S>> Put<S> for Table<'_, S, K> {
    #[inline(always)]
    fn put<const QUAD: usize>(&mut self, w: S::I) {
        let s = self.s;
        self.sink.put(s, 0, QUAD, s.lookup(self.table, w));
    }
}

/// 4-bit, symmetric.
pub(crate) struct Q4_0;

impl Format for Q4_0 {
    const BYTES: usize = 18;
    const STEPS: usize = 1;
    const STEP_BLOCKS: usize = 1;
    const SUBS: usize = 1;
    const ZERO: i32 = 8;
    const MIN: bool = false;
    const WIDE: bool = false;
    const META: usize = HALVES;
    const QUANTS: usize = NIBBLES;

    #[inline(always)]
    fn pack(rows: &Rows<'_>, meta: &mut [u8], quants: &mut [u8]) {
        put_f16(rows, 0, meta);
        put_quads(rows, 2, 4, quants);
    }
    #[inline(always)]
    unsafe fn weights<S: Simd, const STEP: usize>(s: S, quants: *const u8, sink: &mut impl Sink<S>) {
        // SAFETY: the caller vouches for the unit.
        unsafe { nibble_quads(s, quants, Plain(s, sink)) }
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, meta: *const u8, _sub: usize) -> S::F {
        // SAFETY: the caller vouches for the unit.
        unsafe { s.load_f16(meta.cast()) }
    }
}

/// 4-bit with a minimum.
pub(crate) struct Q4_1;

impl Format for Q4_1 {
    const BYTES: usize = 20;
    const STEPS: usize = 1;
    const STEP_BLOCKS: usize = 1;
    const SUBS: usize = 1;
    const ZERO: i32 = 0;
    const MIN: bool = true;
    const WIDE: bool = false;
    const META: usize = 2 * HALVES;
    const QUANTS: usize = NIBBLES;

    #[inline(always)]
    fn pack(rows: &Rows<'_>, meta: &mut [u8], quants: &mut [u8]) {
        put_f16(rows, 0, &mut meta[..HALVES]);
        put_f16(rows, 2, &mut meta[HALVES..]);
        put_quads(rows, 4, 4, quants);
    }
    #[inline(always)]
    unsafe fn weights<S: Simd, const STEP: usize>(s: S, quants: *const u8, sink: &mut impl Sink<S>) {
        // SAFETY: the caller vouches for the unit.
        unsafe { nibble_quads(s, quants, Plain(s, sink)) }
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, meta: *const u8, _sub: usize) -> S::F {
        // SAFETY: the caller vouches for the unit.
        unsafe { s.load_f16(meta.cast()) }
    }
    #[inline(always)]
    unsafe fn min<S: Simd>(s: S, meta: *const u8, _sub: usize) -> S::F {
        // SAFETY: the caller vouches for the unit.
        unsafe { s.load_f16(meta.add(HALVES).cast()) }
    }
}

/// Turns the file's fifth bits (bit `j` for element `j`) into four bytes: bit `i` of byte `k` is element `4i + k`.
#[inline(always)]
fn fifth_bits(qh: u32) -> u32 {
    // A bit's place has the binary digits i2 i1 i0 k1 k0 and goes to k1 k0 i2 i1 i0. Each step swaps two digits.
    let swap = |x: u32, shift: u32, mask: u32| {
        let t = ((x >> shift) ^ x) & mask;
        x ^ t ^ (t << shift)
    };
    let x = swap(qh, 3, 0x0a0a_0a0a);
    let x = swap(x, 6, 0x00cc_00cc);
    let x = swap(x, 12, 0x0000_f0f0);
    swap(x, 8, 0x0000_ff00)
}

/// 5-bit, symmetric. The quants are four vectors of nibbles, then one of fifth bits.
pub(crate) struct Q5_0;

impl Format for Q5_0 {
    const BYTES: usize = 22;
    const STEPS: usize = 1;
    const STEP_BLOCKS: usize = 1;
    const SUBS: usize = 1;
    const ZERO: i32 = 16;
    const MIN: bool = false;
    const WIDE: bool = false;
    const META: usize = HALVES;
    const QUANTS: usize = NIBBLES + 64;

    #[inline(always)]
    fn pack(rows: &Rows<'_>, meta: &mut [u8], quants: &mut [u8]) {
        put_f16(rows, 0, meta);
        put_quads(rows, 6, 4, quants);
        put_quads_map(rows, 2, 1, &mut quants[NIBBLES..], fifth_bits);
    }
    #[inline(always)]
    unsafe fn weights<S: Simd, const STEP: usize>(s: S, quants: *const u8, sink: &mut impl Sink<S>) {
        // SAFETY: the caller vouches for the unit.
        unsafe {
            let high = s.load_i(quants.add(NIBBLES));
            nibble_quads(s, quants, Fifth { s, high, sink });
        }
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, meta: *const u8, _sub: usize) -> S::F {
        // SAFETY: the caller vouches for the unit.
        unsafe { s.load_f16(meta.cast()) }
    }
}

/// 5-bit with a minimum.
pub(crate) struct Q5_1;

impl Format for Q5_1 {
    const BYTES: usize = 24;
    const STEPS: usize = 1;
    const STEP_BLOCKS: usize = 1;
    const SUBS: usize = 1;
    const ZERO: i32 = 0;
    const MIN: bool = true;
    const WIDE: bool = false;
    const META: usize = 2 * HALVES;
    const QUANTS: usize = NIBBLES + 64;

    #[inline(always)]
    fn pack(rows: &Rows<'_>, meta: &mut [u8], quants: &mut [u8]) {
        put_f16(rows, 0, &mut meta[..HALVES]);
        put_f16(rows, 2, &mut meta[HALVES..]);
        put_quads(rows, 8, 4, quants);
        put_quads_map(rows, 4, 1, &mut quants[NIBBLES..], fifth_bits);
    }
    #[inline(always)]
    unsafe fn weights<S: Simd, const STEP: usize>(s: S, quants: *const u8, sink: &mut impl Sink<S>) {
        // SAFETY: the caller vouches for the unit.
        unsafe { Q5_0::weights::<S, STEP>(s, quants, sink) }
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, meta: *const u8, _sub: usize) -> S::F {
        // SAFETY: the caller vouches for the unit.
        unsafe { s.load_f16(meta.cast()) }
    }
    #[inline(always)]
    unsafe fn min<S: Simd>(s: S, meta: *const u8, _sub: usize) -> S::F {
        // SAFETY: the caller vouches for the unit.
        unsafe { s.load_f16(meta.add(HALVES).cast()) }
    }
}

/// 8-bit, symmetric; stored offset by 128.
pub(crate) struct Q8_0;

impl Format for Q8_0 {
    const BYTES: usize = 34;
    const STEPS: usize = 1;
    const STEP_BLOCKS: usize = 1;
    const SUBS: usize = 1;
    const ZERO: i32 = 128;
    const MIN: bool = false;
    const WIDE: bool = true;
    const META: usize = HALVES;
    const QUANTS: usize = 512;
    const PLAIN: bool = true;

    #[inline(always)]
    fn pack(rows: &Rows<'_>, meta: &mut [u8], quants: &mut [u8]) {
        put_f16(rows, 0, meta);
        put_quads_map(rows, 2, 8, quants, |x| x ^ 0x8080_8080);
    }
    #[inline(always)]
    unsafe fn weights<S: Simd, const STEP: usize>(s: S, quants: *const u8, sink: &mut impl Sink<S>) {
        unroll!(I in [0 1 2 3 4 5 6 7] {
            // SAFETY: the caller vouches for the unit.
            sink.put(s, 0, I, unsafe { s.load_i(quants.add(I * 64)) });
        });
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, meta: *const u8, _sub: usize) -> S::F {
        // SAFETY: the caller vouches for the unit.
        unsafe { s.load_f16(meta.cast()) }
    }
}

/// The values of the non-linear 4-bit formats, plus 128.
const IQ4_VALUES: [u8; 16] = {
    let signed = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = (signed[i] + 128) as u8;
        i += 1;
    }
    table
};

/// Unpacks 16 rows × 32 table indices as block 0 of a step.
///
/// # Safety
/// `q` is valid for 256 reads.
#[inline(always)]
pub(super) unsafe fn table_quads<S: Simd>(s: S, q: *const u8, sink: &mut impl Sink<S>) {
    // SAFETY: the table has 16 entries; the caller vouches for the quants.
    unsafe {
        let table = s.load_table(IQ4_VALUES.as_ptr());
        nibble_quads(s, q, Table { s, table, sink });
    }
}

/// 4-bit through a table of values.
#[allow(non_camel_case_types, reason = "the format's name")]
pub(crate) struct IQ4_NL;

impl Format for IQ4_NL {
    const BYTES: usize = 18;
    const STEPS: usize = 1;
    const STEP_BLOCKS: usize = 1;
    const SUBS: usize = 1;
    const ZERO: i32 = 128;
    const MIN: bool = false;
    const WIDE: bool = true;
    const META: usize = HALVES;
    const QUANTS: usize = NIBBLES;

    #[inline(always)]
    fn pack(rows: &Rows<'_>, meta: &mut [u8], quants: &mut [u8]) {
        Q4_0::pack(rows, meta, quants);
    }
    #[inline(always)]
    unsafe fn weights<S: Simd, const STEP: usize>(s: S, quants: *const u8, sink: &mut impl Sink<S>) {
        // SAFETY: the caller vouches for the unit.
        unsafe { table_quads(s, quants, sink) }
    }
    #[inline(always)]
    unsafe fn scale<S: Simd>(s: S, meta: *const u8, _sub: usize) -> S::F {
        // SAFETY: the caller vouches for the unit.
        unsafe { s.load_f16(meta.cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::fifth_bits;

    #[test]
    fn fifth_bits_of_each_element_land_in_its_quad_and_byte() {
        for element in 0..32 {
            let (quad, k) = (element / 4, element % 4);
            assert_eq!(fifth_bits(1 << element), 1 << (8 * k + quad), "element {element}");
        }
    }
}
