//! The portable implementation: arrays and ordinary Rust.

use super::{Isa, LANES, Simd, WithSimd};
use half::{bf16, f16};
use std::array::from_fn;

/// The token of the portable instruction set; always available.
#[derive(Clone, Copy, Debug)]
pub struct Scalar;

type F = [f32; LANES];
type I = [i32; LANES];

/// Folds the lanes in the order that [`Simd::reduce_add`] states.
#[inline]
fn fold<T: Copy>(mut a: [T; LANES], f: impl Fn(T, T) -> T) -> T {
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            a[i] = f(a[i], a[i + width]);
        }
    }
    a[0]
}

#[inline]
fn bytes(a: I, f: impl Fn([u8; 4]) -> [u8; 4]) -> I {
    a.map(|x| i32::from_le_bytes(f(x.to_le_bytes())))
}

#[inline]
fn dot(acc: I, w: I, a: I) -> I {
    from_fn(|i| {
        let (w, a) = (w[i].to_le_bytes(), a[i].to_le_bytes());
        (0..4).fold(acc[i], |s, j| s.wrapping_add(i32::from(w[j]) * i32::from(a[j] as i8)))
    })
}

impl Simd for Scalar {
    const ISA: Isa = Isa::Scalar;
    const WIDE_ZERO: i32 = 0;
    const TILE_ACTS: usize = 2;
    const TILE_GROUPS: usize = 1;
    const DIRECT_ROWS: usize = 0;
    type F = F;
    type I = I;

    #[inline]
    fn vectorize<O: WithSimd>(self, op: O) -> O::Output {
        op.with_simd(self)
    }

    #[inline]
    fn splat(self, x: f32) -> F {
        [x; LANES]
    }
    #[inline]
    unsafe fn load(self, p: *const f32) -> F {
        // SAFETY: the caller vouches for 16 reads.
        unsafe { p.cast::<F>().read_unaligned() }
    }
    #[inline]
    unsafe fn store(self, p: *mut f32, v: F) {
        // SAFETY: the caller vouches for 16 writes.
        unsafe { p.cast::<F>().write_unaligned(v) }
    }
    #[inline]
    unsafe fn load_f16(self, p: *const u16) -> F {
        // SAFETY: the caller vouches for 16 reads.
        unsafe { p.cast::<[u16; LANES]>().read_unaligned() }.map(|b| f16::from_bits(b).to_f32())
    }
    #[inline]
    unsafe fn store_f16(self, p: *mut u16, v: F) {
        // SAFETY: the caller vouches for 16 writes.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(v.map(|x| f16::from_f32(x).to_bits())) }
    }
    #[inline]
    unsafe fn load_bf16(self, p: *const u16) -> F {
        // SAFETY: the caller vouches for 16 reads.
        unsafe { p.cast::<[u16; LANES]>().read_unaligned() }.map(|b| bf16::from_bits(b).to_f32())
    }

    #[inline]
    fn add(self, a: F, b: F) -> F {
        from_fn(|i| a[i] + b[i])
    }
    #[inline]
    fn sub(self, a: F, b: F) -> F {
        from_fn(|i| a[i] - b[i])
    }
    #[inline]
    fn mul(self, a: F, b: F) -> F {
        from_fn(|i| a[i] * b[i])
    }
    #[inline]
    fn div(self, a: F, b: F) -> F {
        from_fn(|i| a[i] / b[i])
    }
    #[inline]
    fn fma(self, a: F, b: F, c: F) -> F {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline]
    fn min(self, a: F, b: F) -> F {
        from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline]
    fn max(self, a: F, b: F) -> F {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline]
    fn sqrt(self, a: F) -> F {
        a.map(f32::sqrt)
    }
    #[inline]
    fn select_lt(self, a: F, b: F, x: F, y: F) -> F {
        from_fn(|i| if a[i] < b[i] { x[i] } else { y[i] })
    }
    #[inline]
    fn swap_adjacent(self, a: F) -> F {
        from_fn(|i| a[i ^ 1])
    }
    #[inline]
    fn reduce_add(self, a: F) -> f32 {
        fold(a, |x, y| x + y)
    }
    #[inline]
    fn reduce_max(self, a: F) -> f32 {
        fold(a, |x, y| if x > y { x } else { y })
    }
    #[inline]
    fn round_i(self, a: F) -> I {
        a.map(|x| x.round_ties_even() as i32)
    }
    #[inline]
    fn to_f(self, a: I) -> F {
        a.map(|x| x as f32)
    }
    #[inline]
    fn bits_i(self, a: F) -> I {
        a.map(|x| x.to_bits().cast_signed())
    }
    #[inline]
    fn bits_f(self, a: I) -> F {
        a.map(|x| f32::from_bits(x.cast_unsigned()))
    }

    #[inline]
    fn splat_i(self, x: i32) -> I {
        [x; LANES]
    }
    #[inline]
    unsafe fn load_i(self, p: *const u8) -> I {
        // SAFETY: the caller vouches for 64 bytes.
        unsafe { p.cast::<I>().read_unaligned() }.map(i32::from_le)
    }
    #[inline]
    unsafe fn store_i(self, p: *mut u8, v: I) {
        // SAFETY: the caller vouches for 64 bytes.
        unsafe { p.cast::<I>().write_unaligned(v.map(i32::to_le)) }
    }
    #[inline]
    unsafe fn load_u8(self, p: *const u8) -> I {
        // SAFETY: the caller vouches for 16 reads.
        unsafe { p.cast::<[u8; LANES]>().read() }.map(i32::from)
    }
    #[inline]
    unsafe fn load_i8(self, p: *const i8) -> I {
        // SAFETY: the caller vouches for 16 reads.
        unsafe { p.cast::<[i8; LANES]>().read() }.map(i32::from)
    }
    #[inline]
    unsafe fn store_i8(self, p: *mut i8, v: I) {
        // SAFETY: the caller vouches for 16 writes.
        unsafe { p.cast::<[i8; LANES]>().write(v.map(|x| x as i8)) }
    }
    #[inline]
    fn add_i(self, a: I, b: I) -> I {
        from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline]
    fn sub_i(self, a: I, b: I) -> I {
        from_fn(|i| a[i].wrapping_sub(b[i]))
    }
    #[inline]
    fn mul_i(self, a: I, b: I) -> I {
        from_fn(|i| a[i].wrapping_mul(b[i]))
    }
    #[inline]
    fn max_i(self, a: I, b: I) -> I {
        from_fn(|i| a[i].max(b[i]))
    }
    #[inline]
    fn and_i(self, a: I, b: I) -> I {
        from_fn(|i| a[i] & b[i])
    }
    #[inline]
    fn or_i(self, a: I, b: I) -> I {
        from_fn(|i| a[i] | b[i])
    }
    #[inline]
    fn xor_i(self, a: I, b: I) -> I {
        from_fn(|i| a[i] ^ b[i])
    }
    #[inline]
    fn shl_i<const N: i32>(self, a: I) -> I {
        a.map(|x| x << N)
    }
    #[inline]
    fn shr_i<const N: i32>(self, a: I) -> I {
        a.map(|x| (x.cast_unsigned() >> N).cast_signed())
    }
    #[inline]
    fn sra_i<const N: i32>(self, a: I) -> I {
        a.map(|x| x >> N)
    }
    #[inline]
    fn reduce_add_i(self, a: I) -> i32 {
        fold(a, i32::wrapping_add)
    }
    #[inline]
    fn reduce_max_i(self, a: I) -> i32 {
        fold(a, |x, y| x.max(y))
    }

    #[inline]
    unsafe fn load_table(self, p: *const u8) -> I {
        // SAFETY: the caller vouches for 16 reads.
        let t = unsafe { p.cast::<[u8; 16]>().read() };
        from_fn(|i| {
            let j = i % 4 * 4;
            i32::from_le_bytes([t[j], t[j + 1], t[j + 2], t[j + 3]])
        })
    }
    #[inline]
    fn lookup(self, table: I, idx: I) -> I {
        bytes(idx, |b| b.map(|b| table[usize::from(b >> 2) & 3].to_le_bytes()[usize::from(b & 3)]))
    }
    #[inline]
    fn dot4(self, acc: I, w: I, a: I) -> I {
        dot(acc, w, a)
    }
    #[inline]
    fn dot4_wide(self, acc: I, w: I, a: I) -> I {
        dot(acc, w, a)
    }
    #[inline]
    fn prefetch(self, _p: *const u8) {}
}
