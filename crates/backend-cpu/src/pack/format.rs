//! What a quantized weight format tells the kernels: how its bytes are laid out for 16 rows, and how a vector
//! of them is unpacked.

use super::GROUP_ROWS;
use crate::simd::Simd;

/// Receives the weights of a step, 16 rows × 4 elements at a time.
pub(crate) trait Sink<S: Simd> {
    /// `w` holds, as unsigned bytes, elements `4·quad..4·quad+4` of the step's 32-block `block`; lane = row.
    fn put(&mut self, s: S, block: usize, quad: usize, w: S::I);
}

/// A format of quantized weights.
///
/// Weights come in *units* of [`Format::STEPS`] steps of [`Format::STEP_BLOCKS`] blocks of 32 elements. A unit of
/// 16 rows is [`Format::META`] bytes of scales and [`Format::QUANTS`] bytes of quants.
///
/// Element value: `scale(sub) · (byte - ZERO) + min(sub)`, a sub being `32 / SUBS` elements.
pub(crate) trait Format: 'static {
    /// Bytes of one row's unit in a GGUF file.
    const BYTES: usize;
    /// Steps per unit: 1, or 4 for super-blocks of 256.
    const STEPS: usize;
    /// 32-blocks per step.
    const STEP_BLOCKS: usize;
    /// Scales per 32-block: 1 or 2.
    const SUBS: usize;
    /// The byte that stands for 0.
    const ZERO: i32;
    /// Whether elements have a minimum added.
    const MIN: bool;
    /// Whether bytes can exceed 127.
    const WIDE: bool;
    /// Bytes of scales of a unit of 16 rows.
    const META: usize;
    /// Bytes of quants of a unit of 16 rows.
    const QUANTS: usize;
    /// Whether the quants are stored as the bytes that [`Sink::put`] gets, in order.
    const PLAIN: bool = false;

    /// Lays out one unit of 16 rows: `rows[r]` are the unit's `BYTES` bytes of row `r`.
    fn pack(rows: &Rows<'_>, meta: &mut [u8], quants: &mut [u8]);

    /// Unpacks one step.
    ///
    /// # Safety
    /// `quants` is valid for `QUANTS` reads, and `STEP < STEPS`.
    unsafe fn weights<S: Simd, const STEP: usize>(s: S, quants: *const u8, sink: &mut impl Sink<S>);

    /// The scales of the 16 rows for sub `sub` of the unit.
    ///
    /// # Safety
    /// `meta` is valid for `META` reads, and `sub < STEPS · STEP_BLOCKS · SUBS`.
    unsafe fn scale<S: Simd>(s: S, meta: *const u8, sub: usize) -> S::F;

    /// The minima of the 16 rows for sub `sub` of the unit (0 where `!MIN`).
    ///
    /// # Safety
    /// As [`Format::scale`].
    #[inline(always)]
    unsafe fn min<S: Simd>(s: S, meta: *const u8, sub: usize) -> S::F {
        let _ = (meta, sub);
        s.splat(0.0)
    }
}

/// Blocks of 32 elements in a unit of `F`.
pub(crate) const fn unit_blocks<F: Format>() -> usize {
    F::STEPS * F::STEP_BLOCKS
}

/// The kernels are written for these shapes only.
pub(crate) const fn checked<F: Format>() {
    assert!(F::STEPS == 1 || F::STEPS == 4);
    assert!(!F::WIDE || F::SUBS == 1 && !F::MIN, "wide formats have one scale per block and no minimum");
}

/// One unit's bytes in each of the 16 rows of a group.
pub(crate) type Rows<'a> = [&'a [u8]; GROUP_ROWS];

/// Writes `n` vectors of 64 bytes: vector `i` holds bytes `4i..4i+4` from `offset` of each row.
#[inline(always)]
pub(crate) fn put_quads(rows: &Rows<'_>, offset: usize, n: usize, dst: &mut [u8]) {
    put_quads_map(rows, offset, n, dst, |x| x);
}

/// [`put_quads`] with each little-endian 32-bit word mapped.
#[inline(always)]
pub(crate) fn put_quads_map(
    rows: &Rows<'_>,
    offset: usize,
    n: usize,
    dst: &mut [u8],
    map: impl Fn(u32) -> u32,
) {
    let dst = &mut dst.as_chunks_mut::<4>().0[..n * GROUP_ROWS];
    for (r, row) in rows.iter().enumerate() {
        let src = &row[offset..offset + 4 * n].as_chunks::<4>().0[..n];
        for (i, quad) in src.iter().enumerate() {
            dst[i * GROUP_ROWS + r] = map(u32::from_le_bytes(*quad)).to_le_bytes();
        }
    }
}

/// Writes the half-precision numbers at `offset` of each row.
#[inline(always)]
pub(crate) fn put_f16(rows: &Rows<'_>, offset: usize, dst: &mut [u8]) {
    for (row, dst) in rows.iter().zip(dst.as_chunks_mut::<2>().0) {
        dst.copy_from_slice(&row[offset..offset + 2]);
    }
}

/// Writes `N` bytes of each row, made by `get`, as `N` vectors of 16.
#[inline(always)]
pub(crate) fn put_bytes<const N: usize>(rows: &Rows<'_>, dst: &mut [u8], get: impl Fn(&[u8]) -> [u8; N]) {
    let dst = &mut dst.as_chunks_mut::<GROUP_ROWS>().0[..N];
    for (r, row) in rows.iter().enumerate() {
        for (dst, b) in dst.iter_mut().zip(get(row)) {
            dst[r] = b;
        }
    }
}

/// Repeats a block with a constant index, for indices that become shift counts.
macro_rules! unroll {
    ($i:ident in [$($n:literal)*] $body:block) => {
        $({ const $i: usize = $n; $body })*
    };
}
pub(crate) use unroll;

/// Bytes with their bits `from..` moved to `to..` and all others cleared by `mask` (after the move).
///
/// The lanes are shifted whole; the mask drops what crosses into the next byte.
#[inline(always)]
pub(crate) fn bits<S: Simd>(s: S, v: S::I, from: usize, to: usize, mask: u8) -> S::I {
    // The arms are needed because a shift count is part of the instruction; callers pass constants.
    let moved = match from as isize - to as isize {
        -4 => s.shl_i::<4>(v),
        -3 => s.shl_i::<3>(v),
        -2 => s.shl_i::<2>(v),
        -1 => s.shl_i::<1>(v),
        0 => v,
        1 => s.shr_i::<1>(v),
        2 => s.shr_i::<2>(v),
        3 => s.shr_i::<3>(v),
        4 => s.shr_i::<4>(v),
        5 => s.shr_i::<5>(v),
        6 => s.shr_i::<6>(v),
        _ => unreachable!("bit fields move by at most 6"),
    };
    s.and_i(moved, s.splat_i(i32::from_le_bytes([mask; 4])))
}

/// The low or high nibbles.
#[inline(always)]
pub(crate) fn nibbles<S: Simd>(s: S, v: S::I, high: bool) -> S::I {
    bits(s, v, if high { 4 } else { 0 }, 0, 0x0f)
}
