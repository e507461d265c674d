//! AVX2 with FMA and F16C: two 256-bit registers per vector.

use super::{Isa, Simd, WithSimd};
use std::arch::x86_64::*;

/// The token of AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// The token, if this machine has the instructions.
    #[inline]
    pub fn new() -> Option<Avx2> {
        (is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Avx2(()))
    }
}

/// Lanes 0–7 and 8–15.
type F = [__m256; 2];
type I = [__m256i; 2];

/// Calls an intrinsic of the instruction set.
macro_rules! op {
    ($e:expr) => {{
        // SAFETY: `self` exists only where `new` found every feature the intrinsics need, and where
        // they take a pointer, the trait method's caller vouches for it.
        unsafe { $e }
    }};
}

/// Applies an intrinsic of one, two or three operands to both halves.
macro_rules! both {
    ($f:expr, $a:expr) => {
        op!([$f($a[0]), $f($a[1])])
    };
    ($f:expr, $a:expr, $b:expr) => {
        op!([$f($a[0], $b[0]), $f($a[1], $b[1])])
    };
    ($f:expr, $a:expr, $b:expr, $c:expr) => {
        op!([$f($a[0], $b[0], $c[0]), $f($a[1], $b[1], $c[1])])
    };
}

#[target_feature(enable = "avx2,fma,f16c")]
fn vectorize<O: WithSimd>(simd: Avx2, op: O) -> O::Output {
    op.with_simd(simd)
}

/// Folds the lanes with a 256-bit and a 128-bit operation, in the trait's order.
macro_rules! fold {
    ($a:expr, $f256:ident, $f128:ident) => {
        op!({
            let a = $f256($a[0], $a[1]);
            let a = $f128(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = $f128(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32($f128(a, _mm_movehdup_ps(a)))
        })
    };
}

/// [`fold!`] for integers.
macro_rules! fold_i {
    ($a:expr, $f256:ident, $f128:ident) => {
        op!({
            let a = $f256($a[0], $a[1]);
            let a = $f128(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
            let a = $f128(a, _mm_shuffle_epi32::<0b01_00_11_10>(a));
            _mm_cvtsi128_si32($f128(a, _mm_shuffle_epi32::<0b10_11_00_01>(a)))
        })
    };
}

/// Transposes an 8 × 8 matrix.
///
/// # Safety
/// The machine has AVX.
#[inline(always)]
unsafe fn transpose_8x8(r: [__m256; 8]) -> [__m256; 8] {
    // SAFETY: the caller vouches for AVX.
    unsafe {
        // Pairs of rows, then quadruples, within each 128-bit half; then the halves.
        let pair = |i: usize| (_mm256_unpacklo_ps(r[i], r[i + 1]), _mm256_unpackhi_ps(r[i], r[i + 1]));
        let quad = |i: usize| {
            let ((a, b), (c, d)) = (pair(i), pair(i + 2));
            [
                _mm256_shuffle_ps::<0b01_00_01_00>(a, c),
                _mm256_shuffle_ps::<0b11_10_11_10>(a, c),
                _mm256_shuffle_ps::<0b01_00_01_00>(b, d),
                _mm256_shuffle_ps::<0b11_10_11_10>(b, d),
            ]
        };
        let (lo, hi) = (quad(0), quad(4));
        let first = |i: usize| _mm256_permute2f128_ps::<0x20>(lo[i], hi[i]);
        let second = |i: usize| _mm256_permute2f128_ps::<0x31>(lo[i], hi[i]);
        [first(0), first(1), first(2), first(3), second(0), second(1), second(2), second(3)]
    }
}

impl Simd for Avx2 {
    const ISA: Isa = Isa::Avx2;
    const WIDE_ZERO: i32 = 128;
    const TILE_ACTS: usize = 4;
    const TILE_GROUPS: usize = 1;
    const DIRECT_ROWS: usize = 1;
    type F = F;
    type I = I;

    #[inline]
    fn vectorize<O: WithSimd>(self, op: O) -> O::Output {
        op!(vectorize(self, op))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        op!([_mm256_set1_ps(x); 2])
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> F {
        op!([_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))])
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: F) {
        op!({
            _mm256_storeu_ps(p, v[0]);
            _mm256_storeu_ps(p.add(8), v[1]);
        })
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> F {
        op!([_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast()))])
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: F) {
        op!({
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
            _mm_storeu_si128(p.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]));
        })
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> F {
        let load = |p: *const u16| {
            op!(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(
                p.cast()
            )))))
        };
        op!([load(p), load(p.add(8))])
    }

    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        both!(_mm256_add_ps, a, b)
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        both!(_mm256_sub_ps, a, b)
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        both!(_mm256_mul_ps, a, b)
    }
    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        both!(_mm256_div_ps, a, b)
    }
    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        both!(_mm256_fmadd_ps, a, b, c)
    }
    #[inline(always)]
    fn min(self, a: F, b: F) -> F {
        both!(_mm256_min_ps, a, b)
    }
    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        both!(_mm256_max_ps, a, b)
    }
    #[inline(always)]
    fn sqrt(self, a: F) -> F {
        both!(_mm256_sqrt_ps, a)
    }
    #[inline(always)]
    fn select_lt(self, a: F, b: F, x: F, y: F) -> F {
        let m = both!(_mm256_cmp_ps::<_CMP_LT_OQ>, a, b);
        both!(_mm256_blendv_ps, y, x, m)
    }
    #[inline(always)]
    fn swap_adjacent(self, a: F) -> F {
        both!(_mm256_permute_ps::<0b10_11_00_01>, a)
    }
    #[inline(always)]
    fn transpose(self, rows: &mut [F; 16]) {
        // Four 8 × 8 blocks; those off the diagonal change places.
        let block = |row: usize, half: usize| {
            let r: [__m256; 8] = std::array::from_fn(|i| rows[row + i][half]);
            op!(transpose_8x8(r))
        };
        let [a, b, c, d] = [block(0, 0), block(0, 1), block(8, 0), block(8, 1)];
        for i in 0..8 {
            rows[i] = [a[i], c[i]];
            rows[i + 8] = [b[i], d[i]];
        }
    }
    #[inline(always)]
    fn reduce_add(self, a: F) -> f32 {
        fold!(a, _mm256_add_ps, _mm_add_ps)
    }
    #[inline(always)]
    fn reduce_max(self, a: F) -> f32 {
        fold!(a, _mm256_max_ps, _mm_max_ps)
    }
    #[inline(always)]
    fn round_i(self, a: F) -> I {
        // The mode is stated, not taken from MXCSR.
        let r = both!(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>, a);
        both!(_mm256_cvttps_epi32, r)
    }
    #[inline(always)]
    fn to_f(self, a: I) -> F {
        both!(_mm256_cvtepi32_ps, a)
    }
    #[inline(always)]
    fn bits_i(self, a: F) -> I {
        both!(_mm256_castps_si256, a)
    }
    #[inline(always)]
    fn bits_f(self, a: I) -> F {
        both!(_mm256_castsi256_ps, a)
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> I {
        op!([_mm256_set1_epi32(x); 2])
    }
    #[inline(always)]
    unsafe fn load_i(self, p: *const u8) -> I {
        op!([_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())])
    }
    #[inline(always)]
    unsafe fn store_i(self, p: *mut u8, v: I) {
        op!({
            _mm256_storeu_si256(p.cast(), v[0]);
            _mm256_storeu_si256(p.add(32).cast(), v[1]);
        })
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> I {
        op!([
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())),
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8).cast()))
        ])
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> I {
        op!([
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())),
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(8).cast()))
        ])
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8, v: I) {
        op!({
            // The low byte of each lane to the front of its 128 bits, then together.
            let pick = _mm256_set1_epi64x(0x0c08_0400);
            let lanes = v.map(|v| {
                let b = _mm256_shuffle_epi8(v, pick);
                _mm_unpacklo_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256::<1>(b))
            });
            _mm_storeu_si128(p.cast(), _mm_unpacklo_epi64(lanes[0], lanes[1]));
        })
    }
    #[inline(always)]
    fn add_i(self, a: I, b: I) -> I {
        both!(_mm256_add_epi32, a, b)
    }
    #[inline(always)]
    fn sub_i(self, a: I, b: I) -> I {
        both!(_mm256_sub_epi32, a, b)
    }
    #[inline(always)]
    fn mul_i(self, a: I, b: I) -> I {
        both!(_mm256_mullo_epi32, a, b)
    }
    #[inline(always)]
    fn max_i(self, a: I, b: I) -> I {
        both!(_mm256_max_epi32, a, b)
    }
    #[inline(always)]
    fn and_i(self, a: I, b: I) -> I {
        both!(_mm256_and_si256, a, b)
    }
    #[inline(always)]
    fn or_i(self, a: I, b: I) -> I {
        both!(_mm256_or_si256, a, b)
    }
    #[inline(always)]
    fn xor_i(self, a: I, b: I) -> I {
        both!(_mm256_xor_si256, a, b)
    }
    #[inline(always)]
    fn shl_i<const N: i32>(self, a: I) -> I {
        both!(_mm256_slli_epi32::<N>, a)
    }
    #[inline(always)]
    fn shr_i<const N: i32>(self, a: I) -> I {
        both!(_mm256_srli_epi32::<N>, a)
    }
    #[inline(always)]
    fn sra_i<const N: i32>(self, a: I) -> I {
        both!(_mm256_srai_epi32::<N>, a)
    }
    #[inline(always)]
    fn reduce_add_i(self, a: I) -> i32 {
        fold_i!(a, _mm256_add_epi32, _mm_add_epi32)
    }
    #[inline(always)]
    fn reduce_max_i(self, a: I) -> i32 {
        fold_i!(a, _mm256_max_epi32, _mm_max_epi32)
    }

    #[inline(always)]
    unsafe fn load_table(self, p: *const u8) -> I {
        op!([_mm256_broadcastsi128_si256(_mm_loadu_si128(p.cast())); 2])
    }
    #[inline(always)]
    fn lookup(self, table: I, bytes: I) -> I {
        both!(_mm256_shuffle_epi8, table, bytes)
    }
    #[inline(always)]
    fn dot4(self, acc: I, w: I, a: I) -> I {
        // 2 · 127 · 127 fits an i16, so the pair sums are exact.
        let pairs = both!(_mm256_maddubs_epi16, w, a);
        let ones = op!([_mm256_set1_epi16(1); 2]);
        self.add_i(acc, both!(_mm256_madd_epi16, pairs, ones))
    }
    #[inline(always)]
    fn dot4_wide(self, acc: I, w: I, a: I) -> I {
        // Offset to signed, then move the sign to `a`: 2 · 128 · 127 fits an i16 (a ≥ −127).
        let w = op!(w.map(|w| _mm256_xor_si256(w, _mm256_set1_epi8(-128))));
        let pairs = op!([
            _mm256_maddubs_epi16(_mm256_abs_epi8(w[0]), _mm256_sign_epi8(a[0], w[0])),
            _mm256_maddubs_epi16(_mm256_abs_epi8(w[1]), _mm256_sign_epi8(a[1], w[1]))
        ]);
        let ones = op!([_mm256_set1_epi16(1); 2]);
        self.add_i(acc, both!(_mm256_madd_epi16, pairs, ones))
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        op!(_mm_prefetch::<_MM_HINT_T0>(p.cast()))
    }
}
