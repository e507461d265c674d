//! AArch64 NEON with the dot-product extension: four 128-bit registers per vector.

use super::{Isa, Simd, WithSimd};
use std::arch::aarch64::*;
use std::arch::asm;

/// The token of NEON with `dotprod`.
#[derive(Clone, Copy, Debug)]
pub struct Neon(());

impl Neon {
    /// The token, if this machine has the instructions.
    #[inline]
    pub fn new() -> Option<Neon> {
        std::arch::is_aarch64_feature_detected!("dotprod").then_some(Neon(()))
    }
}

/// Lanes 0–3, 4–7, 8–11 and 12–15.
type F = [float32x4_t; 4];
type I = [int32x4_t; 4];

/// Calls an intrinsic of the instruction set.
macro_rules! op {
    ($e:expr) => {{
        // SAFETY: `self` exists only where `new` found every feature the intrinsics need, and where
        // they take a pointer, the trait method's caller vouches for it.
        unsafe { $e }
    }};
}

/// Applies an intrinsic of one, two or three operands to the four quarters.
macro_rules! each {
    ($f:expr, $a:expr) => {
        op!([$f($a[0]), $f($a[1]), $f($a[2]), $f($a[3])])
    };
    ($f:expr, $a:expr, $b:expr) => {
        op!([$f($a[0], $b[0]), $f($a[1], $b[1]), $f($a[2], $b[2]), $f($a[3], $b[3])])
    };
}

#[target_feature(enable = "neon,dotprod")]
fn vectorize<O: WithSimd>(simd: Neon, op: O) -> O::Output {
    op.with_simd(simd)
}

#[inline(always)]
unsafe fn min4(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    op!(vbslq_f32(vcltq_f32(a, b), a, b))
}

#[inline(always)]
unsafe fn max4(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    op!(vbslq_f32(vcgtq_f32(a, b), a, b))
}

/// Four half-precision values at `p`, as `f32`.
#[inline(always)]
unsafe fn load_f16x4(p: *const u16) -> float32x4_t {
    let r: float32x4_t;
    op!({
        let h = vld1_u16(p);
        asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) r, in(vreg) h, options(pure, nomem, nostack, preserves_flags));
    });
    r
}

#[inline(always)]
unsafe fn store_f16x4(p: *mut u16, v: float32x4_t) {
    op!({
        let h: uint16x4_t;
        asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) h, in(vreg) v, options(pure, nomem, nostack, preserves_flags));
        vst1_u16(p, h);
    })
}

/// `acc + Σ w·a` over signed bytes.
#[inline(always)]
fn sdot(mut acc: int32x4_t, w: int32x4_t, a: int32x4_t) -> int32x4_t {
    op!(asm!(
        ".arch_extension dotprod",
        "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
        inout(vreg) acc, in(vreg) w, in(vreg) a,
        options(pure, nomem, nostack, preserves_flags)
    ));
    acc
}

impl Simd for Neon {
    const ISA: Isa = Isa::Neon;
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
        op!([vdupq_n_f32(x); 4])
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> F {
        op!([vld1q_f32(p), vld1q_f32(p.add(4)), vld1q_f32(p.add(8)), vld1q_f32(p.add(12))])
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: F) {
        for (i, v) in v.into_iter().enumerate() {
            op!(vst1q_f32(p.add(4 * i), v));
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> F {
        op!([load_f16x4(p), load_f16x4(p.add(4)), load_f16x4(p.add(8)), load_f16x4(p.add(12))])
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16, v: F) {
        for (i, v) in v.into_iter().enumerate() {
            op!(store_f16x4(p.add(4 * i), v));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> F {
        let load = |p: *const u16| op!(vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p))));
        op!([load(p), load(p.add(4)), load(p.add(8)), load(p.add(12))])
    }

    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        each!(vaddq_f32, a, b)
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        each!(vsubq_f32, a, b)
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        each!(vmulq_f32, a, b)
    }
    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        each!(vdivq_f32, a, b)
    }
    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        op!([
            vfmaq_f32(c[0], a[0], b[0]),
            vfmaq_f32(c[1], a[1], b[1]),
            vfmaq_f32(c[2], a[2], b[2]),
            vfmaq_f32(c[3], a[3], b[3])
        ])
    }
    #[inline(always)]
    fn min(self, a: F, b: F) -> F {
        each!(min4, a, b)
    }
    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        each!(max4, a, b)
    }
    #[inline(always)]
    fn sqrt(self, a: F) -> F {
        each!(vsqrtq_f32, a)
    }
    #[inline(always)]
    fn select_lt(self, a: F, b: F, x: F, y: F) -> F {
        let m = each!(vcltq_f32, a, b);
        op!([
            vbslq_f32(m[0], x[0], y[0]),
            vbslq_f32(m[1], x[1], y[1]),
            vbslq_f32(m[2], x[2], y[2]),
            vbslq_f32(m[3], x[3], y[3])
        ])
    }
    #[inline(always)]
    fn swap_adjacent(self, a: F) -> F {
        each!(vrev64q_f32, a)
    }
    #[inline(always)]
    fn reduce_add(self, a: F) -> f32 {
        op!({
            // Lane i + (i+8), then i + (i+4).
            let a = vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]));
            let a = vadd_f32(vget_low_f32(a), vget_high_f32(a));
            vget_lane_f32::<0>(a) + vget_lane_f32::<1>(a)
        })
    }
    #[inline(always)]
    fn reduce_max(self, a: F) -> f32 {
        op!({
            let a = max4(max4(a[0], a[2]), max4(a[1], a[3]));
            let a = max4(a, vextq_f32::<2>(a, a));
            vgetq_lane_f32::<0>(max4(a, vextq_f32::<1>(a, a)))
        })
    }
    #[inline(always)]
    fn round_i(self, a: F) -> I {
        each!(vcvtnq_s32_f32, a)
    }
    #[inline(always)]
    fn to_f(self, a: I) -> F {
        each!(vcvtq_f32_s32, a)
    }
    #[inline(always)]
    fn bits_i(self, a: F) -> I {
        each!(vreinterpretq_s32_f32, a)
    }
    #[inline(always)]
    fn bits_f(self, a: I) -> F {
        each!(vreinterpretq_f32_s32, a)
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> I {
        op!([vdupq_n_s32(x); 4])
    }
    #[inline(always)]
    unsafe fn load_i(self, p: *const u8) -> I {
        let load = |p: *const u8| op!(vreinterpretq_s32_u8(vld1q_u8(p)));
        op!([load(p), load(p.add(16)), load(p.add(32)), load(p.add(48))])
    }
    #[inline(always)]
    unsafe fn store_i(self, p: *mut u8, v: I) {
        for (i, v) in v.into_iter().enumerate() {
            op!(vst1q_u8(p.add(16 * i), vreinterpretq_u8_s32(v)));
        }
    }
    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> I {
        op!({
            let b = vld1q_u8(p);
            let (lo, hi) = (vmovl_u8(vget_low_u8(b)), vmovl_high_u8(b));
            [vmovl_u16(vget_low_u16(lo)), vmovl_high_u16(lo), vmovl_u16(vget_low_u16(hi)), vmovl_high_u16(hi)]
                .map(|v| vreinterpretq_s32_u32(v))
        })
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> I {
        op!({
            let b = vld1q_s8(p);
            let (lo, hi) = (vmovl_s8(vget_low_s8(b)), vmovl_high_s8(b));
            [vmovl_s16(vget_low_s16(lo)), vmovl_high_s16(lo), vmovl_s16(vget_low_s16(hi)), vmovl_high_s16(hi)]
        })
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8, v: I) {
        op!({
            let lo = vmovn_high_s32(vmovn_s32(v[0]), v[1]);
            let hi = vmovn_high_s32(vmovn_s32(v[2]), v[3]);
            vst1q_s8(p, vmovn_high_s16(vmovn_s16(lo), hi));
        })
    }
    #[inline(always)]
    fn add_i(self, a: I, b: I) -> I {
        each!(vaddq_s32, a, b)
    }
    #[inline(always)]
    fn sub_i(self, a: I, b: I) -> I {
        each!(vsubq_s32, a, b)
    }
    #[inline(always)]
    fn mul_i(self, a: I, b: I) -> I {
        each!(vmulq_s32, a, b)
    }
    #[inline(always)]
    fn max_i(self, a: I, b: I) -> I {
        each!(vmaxq_s32, a, b)
    }
    #[inline(always)]
    fn and_i(self, a: I, b: I) -> I {
        each!(vandq_s32, a, b)
    }
    #[inline(always)]
    fn or_i(self, a: I, b: I) -> I {
        each!(vorrq_s32, a, b)
    }
    #[inline(always)]
    fn xor_i(self, a: I, b: I) -> I {
        each!(veorq_s32, a, b)
    }
    #[inline(always)]
    fn shl_i<const N: i32>(self, a: I) -> I {
        let by = op!(vdupq_n_s32(N));
        op!(a.map(|a| vshlq_s32(a, by)))
    }
    #[inline(always)]
    fn shr_i<const N: i32>(self, a: I) -> I {
        let by = op!(vdupq_n_s32(-N));
        op!(a.map(|a| vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), by))))
    }
    #[inline(always)]
    fn sra_i<const N: i32>(self, a: I) -> I {
        let by = op!(vdupq_n_s32(-N));
        op!(a.map(|a| vshlq_s32(a, by)))
    }
    #[inline(always)]
    fn reduce_add_i(self, a: I) -> i32 {
        op!(vaddvq_s32(vaddq_s32(vaddq_s32(a[0], a[2]), vaddq_s32(a[1], a[3]))))
    }
    #[inline(always)]
    fn reduce_max_i(self, a: I) -> i32 {
        op!(vmaxvq_s32(vmaxq_s32(vmaxq_s32(a[0], a[2]), vmaxq_s32(a[1], a[3]))))
    }

    #[inline(always)]
    unsafe fn load_table(self, p: *const u8) -> I {
        op!([vreinterpretq_s32_u8(vld1q_u8(p)); 4])
    }
    #[inline(always)]
    fn lookup(self, table: I, bytes: I) -> I {
        let look =
            |t, b| op!(vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(t), vreinterpretq_u8_s32(b))));
        [
            look(table[0], bytes[0]),
            look(table[1], bytes[1]),
            look(table[2], bytes[2]),
            look(table[3], bytes[3]),
        ]
    }
    #[inline(always)]
    fn dot4(self, acc: I, w: I, a: I) -> I {
        // Weights of at most 127 read the same signed or unsigned.
        [
            sdot(acc[0], w[0], a[0]),
            sdot(acc[1], w[1], a[1]),
            sdot(acc[2], w[2], a[2]),
            sdot(acc[3], w[3], a[3]),
        ]
    }
    #[inline(always)]
    fn dot4_wide(self, acc: I, w: I, a: I) -> I {
        // Flipping the top bit subtracts 128 and makes the byte signed.
        self.dot4(acc, self.xor_i(w, self.splat_i(0x8080_8080_u32.cast_signed())), a)
    }
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        op!(asm!("prfm pldl1keep, [{0}]", in(reg) p, options(nostack, preserves_flags, readonly)))
    }
}
