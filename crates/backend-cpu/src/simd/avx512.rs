//! AVX-512 with VNNI: one 512-bit register per vector.

use super::{Isa, Simd, WithSimd};
use std::arch::x86_64::*;

/// The token of AVX-512 F/BW/VL/DQ with VNNI.
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

impl Avx512 {
    /// The token, if this machine has the instructions.
    #[inline]
    pub fn new() -> Option<Avx512> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Avx512(()))
    }
}

/// Calls an intrinsic of the instruction set.
macro_rules! op {
    ($e:expr) => {{
        // SAFETY: `self` exists only where `new` found every feature the intrinsics need, and where
        // they take a pointer, the trait method's caller vouches for it.
        unsafe { $e }
    }};
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn vectorize<O: WithSimd>(simd: Avx512, op: O) -> O::Output {
    op.with_simd(simd)
}

/// The lower and upper halves.
#[inline(always)]
fn halves(s: Avx512, a: __m512) -> (__m256, __m256) {
    let _ = s;
    op!((_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a)))
}

impl Simd for Avx512 {
    const ISA: Isa = Isa::Avx512Vnni;
    const WIDE_ZERO: i32 = 0;
    const TILE_ACTS: usize = 6;
    const TILE_GROUPS: usize = 2;
    const DIRECT_ROWS: usize = 4;
    type F = __m512;
    type I = __m512i;

    #[inline]
    fn vectorize<O: WithSimd>(self, op: O) -> O::Output {
        op!(vectorize(self, op))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        op!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        op!(_mm512_loadu_ps(p))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m512) {
        op!(_mm512_storeu_ps(p, v))
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize) -> __m512 {
        op!(_mm512_maskz_loadu_ps(((1u32 << n.min(16)) - 1) as u16, p))
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, v: __m512, n: usize) {
        op!(_mm512_mask_storeu_ps(p, ((1u32 << n.min(16)) - 1) as u16, v))
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m512 {
        // Not `_mm512_cvtph_ps`: it suppresses exceptions, and that form takes no memory operand.
        op!(_mm512_cvt_roundph_ps::<_MM_FROUND_CUR_DIRECTION>(_mm256_loadu_si256(p.cast())))
    }
    #[inline(always)]
    unsafe fn transpose_f16(self, rows: &[*const u16; 16], out: *mut f32, stride: usize) {
        op!({
            // Row i in the lower half, row i + 8 in the upper one.
            let both = |i: usize| {
                let low = _mm512_castsi256_si512(_mm256_loadu_si256(rows[i].cast()));
                _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(rows[i + 8].cast()))
            };
            let r: [__m512i; 8] = std::array::from_fn(both);
            // Within each 128-bit quarter: pairs of rows, quadruples, then all eight. `columns[c]` then holds the
            // quarters (column c, rows 0–7), (column c + 8, rows 0–7), (c, 8–15), (c + 8, 8–15).
            let pairs = [
                _mm512_unpacklo_epi16(r[0], r[1]),
                _mm512_unpackhi_epi16(r[0], r[1]),
                _mm512_unpacklo_epi16(r[2], r[3]),
                _mm512_unpackhi_epi16(r[2], r[3]),
                _mm512_unpacklo_epi16(r[4], r[5]),
                _mm512_unpackhi_epi16(r[4], r[5]),
                _mm512_unpacklo_epi16(r[6], r[7]),
                _mm512_unpackhi_epi16(r[6], r[7]),
            ];
            let quads = [
                _mm512_unpacklo_epi32(pairs[0], pairs[2]),
                _mm512_unpackhi_epi32(pairs[0], pairs[2]),
                _mm512_unpacklo_epi32(pairs[1], pairs[3]),
                _mm512_unpackhi_epi32(pairs[1], pairs[3]),
                _mm512_unpacklo_epi32(pairs[4], pairs[6]),
                _mm512_unpackhi_epi32(pairs[4], pairs[6]),
                _mm512_unpacklo_epi32(pairs[5], pairs[7]),
                _mm512_unpackhi_epi32(pairs[5], pairs[7]),
            ];
            let columns = [
                _mm512_unpacklo_epi64(quads[0], quads[4]),
                _mm512_unpackhi_epi64(quads[0], quads[4]),
                _mm512_unpacklo_epi64(quads[1], quads[5]),
                _mm512_unpackhi_epi64(quads[1], quads[5]),
                _mm512_unpacklo_epi64(quads[2], quads[6]),
                _mm512_unpackhi_epi64(quads[2], quads[6]),
                _mm512_unpacklo_epi64(quads[3], quads[7]),
                _mm512_unpackhi_epi64(quads[3], quads[7]),
            ];
            for c in 0..4 {
                // Two columns each: (2c, 2c + 1) and (2c + 8, 2c + 9), all 16 rows.
                let (even, odd) = (columns[2 * c], columns[2 * c + 1]);
                let near = _mm512_shuffle_i64x2::<0b10_00_10_00>(even, odd);
                let far = _mm512_shuffle_i64x2::<0b11_01_11_01>(even, odd);
                for (v, column) in [(near, 2 * c), (far, 2 * c + 8)] {
                    let first = _mm512_castsi512_si256(v);
                    let second = _mm512_extracti64x4_epi64::<1>(v);
                    self.store(out.add(column * stride), _mm512_cvtph_ps(first));
                    self.store(out.add((column + 1) * stride), _mm512_cvtph_ps(second));
                }
            }
        })
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: __m512) {
        op!(_mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)))
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m512 {
        op!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())))))
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        op!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        op!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn sqrt(self, a: __m512) -> __m512 {
        op!(_mm512_sqrt_ps(a))
    }
    #[inline(always)]
    fn select_lt(self, a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 {
        op!(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x))
    }
    #[inline(always)]
    fn swap_adjacent(self, a: __m512) -> __m512 {
        op!(_mm512_permute_ps::<0b10_11_00_01>(a))
    }
    #[inline(always)]
    fn transpose(self, rows: &mut [__m512; 16]) {
        op!({
            // Within each 128-bit quarter: pairs of rows, then quadruples. `quads[4g + c]` then holds, in quarter q,
            // column 4q + c of rows 4g..4g + 4.
            let mut quads = *rows;
            for g in (0..16).step_by(4) {
                let [r0, r1, r2, r3] = [rows[g], rows[g + 1], rows[g + 2], rows[g + 3]];
                let (a, b) = (_mm512_unpacklo_ps(r0, r1), _mm512_unpackhi_ps(r0, r1));
                let (c, d) = (_mm512_unpacklo_ps(r2, r3), _mm512_unpackhi_ps(r2, r3));
                quads[g] = _mm512_shuffle_ps::<0b01_00_01_00>(a, c);
                quads[g + 1] = _mm512_shuffle_ps::<0b11_10_11_10>(a, c);
                quads[g + 2] = _mm512_shuffle_ps::<0b01_00_01_00>(b, d);
                quads[g + 3] = _mm512_shuffle_ps::<0b11_10_11_10>(b, d);
            }
            // Then a 4 × 4 transpose of whole quarters.
            for c in 0..4 {
                let [g0, g1, g2, g3] = [quads[c], quads[c + 4], quads[c + 8], quads[c + 12]];
                let even_lo = _mm512_shuffle_f32x4::<0b10_00_10_00>(g0, g1);
                let odd_lo = _mm512_shuffle_f32x4::<0b11_01_11_01>(g0, g1);
                let even_hi = _mm512_shuffle_f32x4::<0b10_00_10_00>(g2, g3);
                let odd_hi = _mm512_shuffle_f32x4::<0b11_01_11_01>(g2, g3);
                rows[c] = _mm512_shuffle_f32x4::<0b10_00_10_00>(even_lo, even_hi);
                rows[c + 4] = _mm512_shuffle_f32x4::<0b10_00_10_00>(odd_lo, odd_hi);
                rows[c + 8] = _mm512_shuffle_f32x4::<0b11_01_11_01>(even_lo, even_hi);
                rows[c + 12] = _mm512_shuffle_f32x4::<0b11_01_11_01>(odd_lo, odd_hi);
            }
        })
    }
    #[inline(always)]
    fn reduce_add(self, a: __m512) -> f32 {
        let (lo, hi) = halves(self, a);
        op!({
            let a = _mm256_add_ps(lo, hi);
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
        })
    }
    #[inline(always)]
    fn reduce_max(self, a: __m512) -> f32 {
        let (lo, hi) = halves(self, a);
        op!({
            let a = _mm256_max_ps(lo, hi);
            let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)))
        })
    }
    #[inline(always)]
    fn round_i(self, a: __m512) -> __m512i {
        op!(_mm512_cvt_roundps_epi32::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }
    #[inline(always)]
    fn to_f(self, a: __m512i) -> __m512 {
        op!(_mm512_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn bits_i(self, a: __m512) -> __m512i {
        op!(_mm512_castps_si512(a))
    }
    #[inline(always)]
    fn bits_f(self, a: __m512i) -> __m512 {
        op!(_mm512_castsi512_ps(a))
    }
    #[inline(always)]
    fn ldexp(self, a: __m512, n: __m512i) -> __m512 {
        op!(_mm512_scalef_ps(a, _mm512_cvtepi32_ps(n)))
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> __m512i {
        op!(_mm512_set1_epi32(x))
    }
    #[inline(always)]
    unsafe fn load_i(self, p: *const u8) -> __m512i {
        op!(_mm512_loadu_si512(p.cast()))
    }
    #[inline(always)]
    unsafe fn store_i(self, p: *mut u8, v: __m512i) {
        op!(_mm512_storeu_si512(p.cast(), v))
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> __m512i {
        op!(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())))
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> __m512i {
        op!(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())))
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8, v: __m512i) {
        op!(_mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(v)))
    }
    #[inline(always)]
    fn add_i(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn sub_i(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_sub_epi32(a, b))
    }
    #[inline(always)]
    fn mul_i(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_mullo_epi32(a, b))
    }
    #[inline(always)]
    fn max_i(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_max_epi32(a, b))
    }
    #[inline(always)]
    fn and_i(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn or_i(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn xor_i(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_xor_si512(a, b))
    }
    #[inline(always)]
    fn shl_i<const N: i32>(self, a: __m512i) -> __m512i {
        op!(_mm512_sll_epi32(a, _mm_cvtsi32_si128(N)))
    }
    #[inline(always)]
    fn shr_i<const N: i32>(self, a: __m512i) -> __m512i {
        op!(_mm512_srl_epi32(a, _mm_cvtsi32_si128(N)))
    }
    #[inline(always)]
    fn sra_i<const N: i32>(self, a: __m512i) -> __m512i {
        op!(_mm512_sra_epi32(a, _mm_cvtsi32_si128(N)))
    }
    #[inline(always)]
    fn reduce_add_i(self, a: __m512i) -> i32 {
        op!(_mm512_reduce_add_epi32(a))
    }
    #[inline(always)]
    fn reduce_max_i(self, a: __m512i) -> i32 {
        op!(_mm512_reduce_max_epi32(a))
    }

    #[inline(always)]
    unsafe fn load_table(self, p: *const u8) -> __m512i {
        op!(_mm512_broadcast_i32x4(_mm_loadu_si128(p.cast())))
    }
    #[inline(always)]
    fn lookup(self, table: __m512i, bytes: __m512i) -> __m512i {
        op!(_mm512_shuffle_epi8(table, bytes))
    }
    #[inline(always)]
    fn dot4(self, acc: __m512i, w: __m512i, a: __m512i) -> __m512i {
        op!(_mm512_dpbusd_epi32(acc, w, a))
    }
    #[inline(always)]
    fn dot4_wide(self, acc: __m512i, w: __m512i, a: __m512i) -> __m512i {
        op!(_mm512_dpbusd_epi32(acc, w, a))
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        op!(_mm_prefetch::<_MM_HINT_T0>(p.cast()))
    }
}
