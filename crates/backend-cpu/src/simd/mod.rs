//! One 16-lane vector abstraction over every instruction set the kernels run on.
//!
//! A kernel is written once, generic over [`Simd`], marked `#[inline(always)]`, and run through
//! [`Isa::run`], which compiles it once per instruction set inside a `#[target_feature]` function.
//! A value of a type that implements `Simd` is a token: it exists only where its instructions do.
//!
//! **Every instruction set gives the same bits.** A vector has 16 lanes everywhere, [`Simd::fma`] is
//! always fused, reductions have one fixed order, and [`Simd::exp`] is one polynomial. So a kernel that
//! uses only this trait is bit-equal on AVX-512, AVX2, NEON and the scalar fallback.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod isa;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
pub use isa::{Isa, IsaError};
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub use scalar::Scalar;

/// Lanes of [`Simd::F`] and [`Simd::I`].
pub const LANES: usize = 16;

/// A computation to be compiled for each instruction set: the body of a kernel with its arguments.
///
/// The implementation of `with_simd`, and all it calls with the token, must be `#[inline(always)]`:
/// what is not inlined is compiled without the vector instructions (right, but slow).
pub trait WithSimd {
    /// What the computation returns.
    type Output;

    /// Runs the computation with the vectors of `S`.
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output;
}

/// The operations of one instruction set on 16 lanes of `f32` and 16 lanes of `i32` (64 bytes each).
///
/// Methods that take a pointer are unsafe: it must be valid for the stated elements, and need not be aligned.
/// All others are safe, since a token exists only where the instructions do.
pub trait Simd: Copy + Send + Sync + 'static {
    /// The instruction set of this token.
    const ISA: Isa;

    /// The zero point of the weights of [`Simd::dot4_wide`]: it computes `Σ (w - WIDE_ZERO) · a`.
    const WIDE_ZERO: i32;

    /// Activation rows that a matmul's inner loop keeps in registers.
    const TILE_ACTS: usize;

    /// Groups of 16 weight rows that a matmul's inner loop keeps in registers: 1 or 2.
    const TILE_GROUPS: usize;

    /// The most activation rows for which a matmul unpacks weights in registers: 0, 1 or 4.
    const DIRECT_ROWS: usize;

    /// 16 lanes of `f32`.
    type F: Copy;

    /// 16 lanes of `i32`, also seen as 64 bytes (lane `i` holds bytes `4i..4i+4`, little endian).
    type I: Copy;

    /// Runs `op` in a function compiled with these instructions.
    fn vectorize<O: WithSimd>(self, op: O) -> O::Output;

    // --- f32: memory ---

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::F;

    /// Loads 16 values.
    ///
    /// # Safety
    /// `p` is valid for 16 reads.
    unsafe fn load(self, p: *const f32) -> Self::F;

    /// Stores 16 values.
    ///
    /// # Safety
    /// `p` is valid for 16 writes.
    unsafe fn store(self, p: *mut f32, v: Self::F);

    /// Loads `n ≤ 16` values; the other lanes are 0.
    ///
    /// # Safety
    /// `p` is valid for `n` reads.
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize) -> Self::F {
        let mut a = [0f32; LANES];
        // SAFETY: the caller vouches for `n` reads; `a` has room for 16.
        unsafe {
            std::ptr::copy_nonoverlapping(
                p.cast::<u8>(),
                a.as_mut_ptr().cast(),
                n.min(LANES) * size_of::<f32>(),
            );
            self.load(a.as_ptr())
        }
    }

    /// Stores the first `n ≤ 16` lanes.
    ///
    /// # Safety
    /// `p` is valid for `n` writes.
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, v: Self::F, n: usize) {
        let mut a = [0f32; LANES];
        // SAFETY: the caller vouches for `n` writes; `a` has room for 16.
        unsafe {
            self.store(a.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(a.as_ptr().cast::<u8>(), p.cast(), n.min(LANES) * size_of::<f32>());
        }
    }

    /// Loads 16 IEEE half-precision values, exactly.
    ///
    /// # Safety
    /// `p` is valid for 16 reads.
    unsafe fn load_f16(self, p: *const u16) -> Self::F;

    /// Loads 16 half-precision values from each of 16 rows and stores the transpose of that matrix as `f32`, its rows
    /// `stride` elements apart.
    ///
    /// # Safety
    /// Each of `rows` is valid for 16 reads; `out` is valid for 16 writes at each of 16 multiples of `stride`.
    #[inline(always)]
    unsafe fn transpose_f16(self, rows: &[*const u16; LANES], out: *mut f32, stride: usize) {
        let mut square = [self.splat(0.0); LANES];
        // SAFETY: as the caller vouches.
        unsafe {
            for (lanes, row) in square.iter_mut().zip(rows) {
                *lanes = self.load_f16(*row);
            }
            self.transpose(&mut square);
            for (i, column) in square.iter().enumerate() {
                self.store(out.add(i * stride), *column);
            }
        }
    }

    /// Stores 16 lanes as IEEE half precision, rounded to nearest even.
    ///
    /// # Safety
    /// `p` is valid for 16 writes.
    unsafe fn store_f16(self, p: *mut u16, v: Self::F);

    /// Loads 16 bfloat16 values, exactly.
    ///
    /// # Safety
    /// `p` is valid for 16 reads.
    unsafe fn load_bf16(self, p: *const u16) -> Self::F;

    // --- f32: arithmetic ---

    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a · b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a · b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a < b ? a : b`: where either is NaN, `b`.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a > b ? a : b`: where either is NaN, `b`.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// The square root, correctly rounded.
    fn sqrt(self, a: Self::F) -> Self::F;
    /// `a < b ? x : y`, lane by lane (`y` where `a` or `b` is NaN).
    fn select_lt(self, a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F;

    /// `|a|`.
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        self.bits_f(self.and_i(self.bits_i(a), self.splat_i(0x7fff_ffff)))
    }

    /// `-a`.
    #[inline(always)]
    fn neg(self, a: Self::F) -> Self::F {
        self.bits_f(self.xor_i(self.bits_i(a), self.splat_i(i32::MIN)))
    }

    /// Exchanges lanes `2i` and `2i + 1`.
    fn swap_adjacent(self, a: Self::F) -> Self::F;

    /// Transposes the 16 × 16 matrix whose rows are given.
    #[inline(always)]
    fn transpose(self, rows: &mut [Self::F; LANES]) {
        let mut a = [[0f32; LANES]; LANES];
        // SAFETY: every row of `a` has 16 elements.
        unsafe {
            for (a, row) in a.iter_mut().zip(&*rows) {
                self.store(a.as_mut_ptr(), *row);
            }
            let columns: [[f32; LANES]; LANES] = std::array::from_fn(|i| std::array::from_fn(|j| a[j][i]));
            for (row, column) in rows.iter_mut().zip(&columns) {
                *row = self.load(column.as_ptr());
            }
        }
    }

    /// The lanes' sum, in the order `i + (i+8)`, then `i + (i+4)`, `i + (i+2)`, `i + (i+1)`.
    fn reduce_add(self, a: Self::F) -> f32;

    /// The lanes' maximum (of [`Simd::max`]), in the order of [`Simd::reduce_add`].
    fn reduce_max(self, a: Self::F) -> f32;

    /// The nearest integer, ties to even. Unspecified where it does not fit, or for NaN.
    fn round_i(self, a: Self::F) -> Self::I;

    /// Integers to `f32`, rounded to nearest even.
    fn to_f(self, a: Self::I) -> Self::F;

    /// The bits of the lanes.
    fn bits_i(self, a: Self::F) -> Self::I;

    /// The lanes that have these bits.
    fn bits_f(self, a: Self::I) -> Self::F;

    /// `a · 2^n` for `|n| ≤ 250` and `|a|` between 0.5 and 2 (or NaN), rounded once.
    #[inline(always)]
    fn ldexp(self, a: Self::F, n: Self::I) -> Self::F {
        // Two exact powers of two: the first product is exact, so only the second rounds.
        let half = self.sra_i::<1>(n);
        let bias = self.splat_i(127);
        let p0 = self.bits_f(self.shl_i::<23>(self.add_i(half, bias)));
        let p1 = self.bits_f(self.shl_i::<23>(self.add_i(self.sub_i(n, half), bias)));
        self.mul(self.mul(a, p0), p1)
    }

    /// `e^a`, within 2 units in the last place; −∞ gives 0, beyond 88.73 gives ∞, NaN stays NaN.
    #[inline(always)]
    fn exp(self, a: Self::F) -> Self::F {
        // The bounds give 0 and ∞; `a` second, so that NaN stays.
        let a = self.max(self.splat(-104.0), a);
        let a = self.min(self.splat(89.0), a);
        let n = self.round_i(self.mul(a, self.splat(std::f32::consts::LOG2_E)));
        let nf = self.to_f(n);
        // ln 2 in two parts; the first product is fused, so it loses nothing.
        let r = self.fma(nf, self.splat(-std::f32::consts::LN_2), a);
        let r = self.fma(nf, self.splat(1.904_654_3e-9), r);
        // A minimax polynomial of (e^r - 1 - r) / r² on |r| ≤ ln 2 / 2.
        let mut p = self.splat(1.987_569_1e-4);
        for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            p = self.fma(p, r, self.splat(c));
        }
        let r2 = self.mul(r, r);
        let y = self.add(self.fma(p, r2, r), self.splat(1.0));
        self.ldexp(y, n)
    }

    // --- i32 ---

    /// `x` in every lane.
    fn splat_i(self, x: i32) -> Self::I;

    /// Loads 64 bytes.
    ///
    /// # Safety
    /// `p` is valid for 64 bytes of reads.
    unsafe fn load_i(self, p: *const u8) -> Self::I;

    /// Stores 64 bytes.
    ///
    /// # Safety
    /// `p` is valid for 64 bytes of writes.
    unsafe fn store_i(self, p: *mut u8, v: Self::I);

    /// Loads 16 bytes, each zero-extended into a lane.
    ///
    /// # Safety
    /// `p` is valid for 16 reads.
    unsafe fn load_u8(self, p: *const u8) -> Self::I;

    /// Loads 16 bytes, each sign-extended into a lane.
    ///
    /// # Safety
    /// `p` is valid for 16 reads.
    unsafe fn load_i8(self, p: *const i8) -> Self::I;

    /// Stores the low byte of each lane.
    ///
    /// # Safety
    /// `p` is valid for 16 writes.
    unsafe fn store_i8(self, p: *mut i8, v: Self::I);

    /// The four bytes at `p` in every lane.
    ///
    /// # Safety
    /// `p` is valid for 4 reads.
    #[inline(always)]
    unsafe fn bcast4(self, p: *const i8) -> Self::I {
        // SAFETY: the caller vouches for four bytes.
        self.splat_i(unsafe { p.cast::<i32>().read_unaligned() })
    }

    /// `a + b`, wrapping.
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a - b`, wrapping.
    fn sub_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a · b`, wrapping.
    fn mul_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// The larger of the signed lanes.
    fn max_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise and.
    fn and_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise or.
    fn or_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise exclusive or.
    fn xor_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// Lanes shifted left by `N`.
    fn shl_i<const N: i32>(self, a: Self::I) -> Self::I;
    /// Lanes shifted right by `N`, zeros coming in.
    fn shr_i<const N: i32>(self, a: Self::I) -> Self::I;
    /// Lanes shifted right by `N`, copies of the sign coming in.
    fn sra_i<const N: i32>(self, a: Self::I) -> Self::I;

    /// The lanes' sum, wrapping.
    fn reduce_add_i(self, a: Self::I) -> i32;
    /// The largest lane.
    fn reduce_max_i(self, a: Self::I) -> i32;

    // --- bytes ---

    /// Sixteen table bytes, repeated four times, for [`Simd::lookup`].
    ///
    /// # Safety
    /// `p` is valid for 16 reads.
    unsafe fn load_table(self, p: *const u8) -> Self::I;

    /// Replaces each byte `b < 16` by `table[b]`. Unspecified for other bytes.
    fn lookup(self, table: Self::I, bytes: Self::I) -> Self::I;

    /// `acc + Σ w·a` over the four bytes of each lane: `w` unsigned and **at most 127**, `a` signed and at least −127.
    fn dot4(self, acc: Self::I, w: Self::I, a: Self::I) -> Self::I;

    /// `acc + Σ (w - WIDE_ZERO)·a` over the four bytes of each lane: `w` any unsigned byte, `a` signed and at least −127.
    fn dot4_wide(self, acc: Self::I, w: Self::I, a: Self::I) -> Self::I;

    /// Asks for the cache line of `p`, which need not be valid.
    fn prefetch(self, p: *const u8);
}

#[cfg(test)]
mod tests;
