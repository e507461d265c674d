//! The layouts of quantized blocks, as they lie in files, and how their packed fields are read and written.
//!
//! All structs are plain bytes without padding or alignment, so any slice of whole blocks can be viewed in place
//! with [`view`]. In the tables below `e` is an element's index in its block, `q` its stored integer, and all
//! numbers are little-endian.
//!
//! | type | value of an element | sub-blocks |
//! |---|---|---|
//! | Q4_0 | `d·(q − 8)` | – |
//! | Q4_1 | `d·q + m` | – |
//! | Q5_0 | `d·(q − 16)` | – |
//! | Q5_1 | `d·q + m` | – |
//! | Q8_0 | `d·q` | – |
//! | Q2_K | `d·scale·q − dmin·min` | 16 of 16, 4-bit scale and min |
//! | Q3_K | `d·scale·(q − 4)` | 16 of 16, 6-bit scale less 32 |
//! | Q4_K, Q5_K | `d·scale·q − dmin·min` | 8 of 32, 6-bit scale and min |
//! | Q6_K | `d·scale·(q − 32)` | 16 of 16, signed 8-bit scale |
//! | IQ4_NL | `d·IQ4_VALUES[q]` | – |
//! | IQ4_XS | `d·scale·IQ4_VALUES[q]` | 8 of 32, 6-bit scale less 32 |

use bytemuck::{Pod, Zeroable};

use crate::TensorType;

/// Elements of the small blocks (`Q4_0` … `Q8_0`, `IQ4_NL`).
pub const QK: usize = 32;

/// Elements of a super-block (`Q2_K` … `Q6_K`, `IQ4_XS`).
pub const QK_K: usize = 256;

/// The 16 values that `IQ4_NL` and `IQ4_XS` choose from.
pub const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// A half-precision number as two bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct F16(pub [u8; 2]);

impl F16 {
    /// The nearest half-precision number.
    pub fn from_f32(v: f32) -> Self {
        F16(half::f16::from_f32(v).to_le_bytes())
    }

    /// The number.
    pub fn to_f32(self) -> f32 {
        half::f16::from_le_bytes(self.0).to_f32()
    }
}

/// A block of quantized elements.
pub trait Block: Pod {
    /// The tensor type made of such blocks.
    const TYPE: TensorType;
}

/// Views bytes as blocks; `None` unless they are whole blocks.
pub fn view<B: Block>(bytes: &[u8]) -> Option<&[B]> {
    bytemuck::try_cast_slice(bytes).ok()
}

macro_rules! blocks {
    ($($(#[$doc:meta])* $name:ident = $ty:ident { $($(#[$fdoc:meta])* $field:ident: $fty:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
        #[repr(C)]
        pub struct $name { $($(#[$fdoc])* pub $field: $fty,)* }

        impl Block for $name {
            const TYPE: TensorType = TensorType::$ty;
        }

        const _: () = assert!(size_of::<$name>() == TensorType::$ty.type_size() && align_of::<$name>() == 1);
    )*};
}

blocks! {
    /// 32 elements in 18 bytes.
    BlockQ4_0 = Q4_0 {
        /// Scale.
        d: F16,
        /// `e < 16`: low nibble of `qs[e]`; else high nibble of `qs[e − 16]`.
        qs: [u8; 16],
    }
    /// 32 elements in 20 bytes.
    BlockQ4_1 = Q4_1 {
        /// Scale.
        d: F16,
        /// Minimum.
        m: F16,
        /// Nibbles, as in `Q4_0`.
        qs: [u8; 16],
    }
    /// 32 elements in 22 bytes.
    BlockQ5_0 = Q5_0 {
        /// Scale.
        d: F16,
        /// Bit 4 of `q`: bit `e` of this as a u32.
        qh: [u8; 4],
        /// Bits 0–3 of `q`: nibbles, as in `Q4_0`.
        qs: [u8; 16],
    }
    /// 32 elements in 24 bytes.
    BlockQ5_1 = Q5_1 {
        /// Scale.
        d: F16,
        /// Minimum.
        m: F16,
        /// Bit 4 of `q`, as in `Q5_0`.
        qh: [u8; 4],
        /// Bits 0–3 of `q`, as in `Q4_0`.
        qs: [u8; 16],
    }
    /// 32 elements in 34 bytes.
    BlockQ8_0 = Q8_0 {
        /// Scale.
        d: F16,
        /// `q`, signed.
        qs: [i8; 32],
    }
    /// 256 elements in 84 bytes.
    BlockQ2_K = Q2_K {
        /// Sub-block `e / 16`: scale in the low nibble, min in the high one.
        scales: [u8; 16],
        /// Two bits each: see [`unpack_2bit`].
        qs: [u8; 64],
        /// Scale of the scales.
        d: F16,
        /// Scale of the mins.
        dmin: F16,
    }
    /// 256 elements in 110 bytes.
    BlockQ3_K = Q3_K {
        /// Bit 2 of `q`: bit `e / 32` of `hmask[e % 32]`.
        hmask: [u8; 32],
        /// Bits 0–1 of `q`: see [`unpack_2bit`].
        qs: [u8; 64],
        /// Sixteen 6-bit scales: see [`BlockQ3_K::scales`].
        scales: [u8; 12],
        /// Scale of the scales.
        d: F16,
    }
    /// 256 elements in 144 bytes.
    BlockQ4_K = Q4_K {
        /// Scale of the scales.
        d: F16,
        /// Scale of the mins.
        dmin: F16,
        /// Eight 6-bit scales and mins: see [`unpack_scales_mins`].
        scales: [u8; 12],
        /// Four bits each: see [`unpack_nibbles`] with runs of 32.
        qs: [u8; 128],
    }
    /// 256 elements in 176 bytes.
    BlockQ5_K = Q5_K {
        /// Scale of the scales.
        d: F16,
        /// Scale of the mins.
        dmin: F16,
        /// Eight 6-bit scales and mins: see [`unpack_scales_mins`].
        scales: [u8; 12],
        /// Bit 4 of `q`: bit `e / 32` of `qh[e % 32]`.
        qh: [u8; 32],
        /// Bits 0–3 of `q`: see [`unpack_nibbles`] with runs of 32.
        qs: [u8; 128],
    }
    /// 256 elements in 210 bytes.
    BlockQ6_K = Q6_K {
        /// Bits 0–3 of `q`: see [`unpack_nibbles`] with runs of 64.
        ql: [u8; 128],
        /// Bits 4–5 of `q`: see [`unpack_2bit`].
        qh: [u8; 64],
        /// Scale of sub-block `e / 16`.
        scales: [i8; 16],
        /// Scale of the scales.
        d: F16,
    }
    /// 32 elements in 18 bytes.
    BlockIQ4_NL = IQ4_NL {
        /// Scale.
        d: F16,
        /// Indices into [`IQ4_VALUES`]: nibbles, as in `Q4_0`.
        qs: [u8; 16],
    }
    /// 256 elements in 136 bytes.
    BlockIQ4_XS = IQ4_XS {
        /// Scale of the scales.
        d: F16,
        /// Bits 4–5 of sub-block `s`'s scale: bits `2s` and `2s + 1` of this as a u16.
        scales_h: [u8; 2],
        /// Bits 0–3 of sub-block `s`'s scale: `scales_l[s / 2]`, low nibble for even `s`.
        scales_l: [u8; 4],
        /// Indices into [`IQ4_VALUES`]: see [`unpack_nibbles`] with runs of 16.
        qs: [u8; 128],
    }
}

/// Splits bytes into nibbles: each run of `run` bytes holds `2 · run` elements, first all low nibbles, then all
/// high ones. `out` is twice as long as `bytes`.
pub fn unpack_nibbles(bytes: &[u8], run: usize, out: &mut [u8]) {
    for (src, dst) in bytes.chunks_exact(run).zip(out.chunks_exact_mut(2 * run)) {
        let (low, high) = dst.split_at_mut(run);
        for ((&b, l), h) in src.iter().zip(low).zip(high) {
            *l = b & 15;
            *h = b >> 4;
        }
    }
}

/// The inverse of [`unpack_nibbles`]; only the low four bits of each element are used.
pub fn pack_nibbles(q: &[u8], run: usize, out: &mut [u8]) {
    for (src, dst) in q.chunks_exact(2 * run).zip(out.chunks_exact_mut(run)) {
        let (low, high) = src.split_at(run);
        for ((b, l), h) in dst.iter_mut().zip(low).zip(high) {
            *b = l & 15 | h << 4;
        }
    }
}

/// Adds two bits to each element, shifted left by `shift`: within each half of the super-block (128 elements, 32
/// bytes), element `r` is in byte `r % 32`, bits `2·(r / 32)` and the next.
pub fn unpack_2bit(bytes: &[u8; 64], shift: u32, q: &mut [u8; QK_K]) {
    for (half, src) in q.chunks_exact_mut(128).zip(bytes.chunks_exact(32)) {
        for (j, quarter) in half.chunks_exact_mut(32).enumerate() {
            for (q, &b) in quarter.iter_mut().zip(src) {
                *q |= (b >> (2 * j) & 3) << shift;
            }
        }
    }
}

/// The inverse of [`unpack_2bit`]: stores bits `shift` and the next of each element.
pub fn pack_2bit(q: &[u8; QK_K], shift: u32, out: &mut [u8; 64]) {
    for (half, dst) in q.chunks_exact(128).zip(out.chunks_exact_mut(32)) {
        for (l, b) in dst.iter_mut().enumerate() {
            *b = (0..4).fold(0, |b, j| b | (half[32 * j + l] >> shift & 3) << (2 * j));
        }
    }
}

/// Adds one bit to each element, shifted left by `shift`: element `e` is in byte `e % 32`, bit `e / 32`.
pub fn unpack_bit(bytes: &[u8; 32], shift: u32, q: &mut [u8; QK_K]) {
    for (j, run) in q.chunks_exact_mut(32).enumerate() {
        for (q, &b) in run.iter_mut().zip(bytes) {
            *q |= (b >> j & 1) << shift;
        }
    }
}

/// The inverse of [`unpack_bit`]: stores bit `shift` of each element.
pub fn pack_bit(q: &[u8; QK_K], shift: u32, out: &mut [u8; 32]) {
    for (l, b) in out.iter_mut().enumerate() {
        *b = (0..8).fold(0, |b, j| b | (q[32 * j + l] >> shift & 1) << j);
    }
}

/// The eight 6-bit scales and the eight 6-bit mins of `Q4_K` and `Q5_K`.
///
/// Bytes 0–3 hold scales 0–3 and bytes 4–7 mins 0–3 in their low six bits. For sub-blocks 4–7 byte `4 + s` holds the
/// low four bits of the scale in its low nibble and of the min in its high nibble; the upper two bits are the
/// upper two of byte `s − 4` (scale) and of byte `s` (min).
pub fn unpack_scales_mins(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for s in 0..4 {
        scales[s] = packed[s] & 63;
        mins[s] = packed[s + 4] & 63;
        scales[s + 4] = packed[s + 8] & 15 | packed[s] >> 6 << 4;
        mins[s + 4] = packed[s + 8] >> 4 | packed[s + 4] >> 6 << 4;
    }
    (scales, mins)
}

/// The inverse of [`unpack_scales_mins`]; every input is below 64.
pub fn pack_scales_mins(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for s in 0..4 {
        packed[s] = scales[s] | scales[s + 4] >> 4 << 6;
        packed[s + 4] = mins[s] | mins[s + 4] >> 4 << 6;
        packed[s + 8] = scales[s + 4] & 15 | mins[s + 4] << 4;
    }
    packed
}

/// The elements of a small block, bit 4 from `qh`, the others from nibbles.
fn unpack_5bit(qs: &[u8; 16], qh: [u8; 4]) -> [u8; QK] {
    let mut q = [0; QK];
    unpack_nibbles(qs, 16, &mut q);
    let high = u32::from_le_bytes(qh);
    for (e, q) in q.iter_mut().enumerate() {
        *q |= (high >> e & 1) as u8 * 16;
    }
    q
}

/// The inverse of [`unpack_5bit`].
pub(super) fn pack_5bit(q: &[u8; QK]) -> ([u8; 16], [u8; 4]) {
    let mut qs = [0; 16];
    pack_nibbles(q, 16, &mut qs);
    let high = q.iter().enumerate().fold(0u32, |h, (e, q)| h | u32::from(q >> 4 & 1) << e);
    (qs, high.to_le_bytes())
}

macro_rules! nibble_quants {
    ($($block:ty: $run:literal => $n:expr),*) => {$(
        impl $block {
            /// The stored integers (0 to 15), in the order of elements.
            pub fn quants(&self) -> [u8; $n] {
                let mut q = [0; $n];
                unpack_nibbles(&self.qs, $run, &mut q);
                q
            }
        }
    )*};
}
nibble_quants!(BlockQ4_0: 16 => QK, BlockQ4_1: 16 => QK, BlockIQ4_NL: 16 => QK, BlockQ4_K: 32 => QK_K, BlockIQ4_XS: 16 => QK_K);

impl BlockQ5_0 {
    /// The stored integers (0 to 31), in the order of elements.
    pub fn quants(&self) -> [u8; QK] {
        unpack_5bit(&self.qs, self.qh)
    }
}

impl BlockQ5_1 {
    /// The stored integers (0 to 31), in the order of elements.
    pub fn quants(&self) -> [u8; QK] {
        unpack_5bit(&self.qs, self.qh)
    }
}

impl BlockQ2_K {
    /// The stored integers (0 to 3), in the order of elements.
    pub fn quants(&self) -> [u8; QK_K] {
        let mut q = [0; QK_K];
        unpack_2bit(&self.qs, 0, &mut q);
        q
    }
}

impl BlockQ3_K {
    /// The stored integers (0 to 7, of which 4 stands for zero), in the order of elements.
    pub fn quants(&self) -> [u8; QK_K] {
        let mut q = [0; QK_K];
        unpack_2bit(&self.qs, 0, &mut q);
        unpack_bit(&self.hmask, 2, &mut q);
        q
    }

    /// The scales of the sub-blocks, −32 to 31.
    ///
    /// Scale `s` has its low four bits in byte `s % 8`, low nibble for `s < 8`, and its upper two in byte
    /// `8 + s % 4`, bits `2·(s / 4)` and the next.
    pub fn scales(&self) -> [i8; 16] {
        std::array::from_fn(|s| {
            let low = self.scales[s % 8] >> (4 * (s / 8)) & 15;
            let high = self.scales[8 + s % 4] >> (2 * (s / 4)) & 3;
            (low | high << 4) as i8 - 32
        })
    }
}

impl BlockQ5_K {
    /// The stored integers (0 to 31), in the order of elements.
    pub fn quants(&self) -> [u8; QK_K] {
        let mut q = [0; QK_K];
        unpack_nibbles(&self.qs, 32, &mut q);
        unpack_bit(&self.qh, 4, &mut q);
        q
    }
}

impl BlockQ6_K {
    /// The stored integers (0 to 63, of which 32 stands for zero), in the order of elements.
    pub fn quants(&self) -> [u8; QK_K] {
        let mut q = [0; QK_K];
        unpack_nibbles(&self.ql, 64, &mut q);
        unpack_2bit(&self.qh, 4, &mut q);
        q
    }
}

impl BlockIQ4_XS {
    /// The scales of the sub-blocks, −32 to 31.
    pub fn scales(&self) -> [i8; 8] {
        let high = u16::from_le_bytes(self.scales_h);
        std::array::from_fn(|s| {
            let low = self.scales_l[s / 2] >> (4 * (s % 2)) & 15;
            (low | ((high >> (2 * s) & 3) as u8) << 4) as i8 - 32
        })
    }
}
