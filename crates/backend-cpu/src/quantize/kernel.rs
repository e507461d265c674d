//! The quantization of a tile's blocks, vector lane by vector lane.

use super::{BLOCK, Parts};
use crate::simd::{LANES, Simd, WithSimd};

/// [`MAGIC_BITS`](super::MAGIC_BITS) as a number.
const MAGIC: f32 = 12_582_912.0;

/// Quantizes a tile whose sizes have been checked.
pub(super) struct QuantizeTile<'a> {
    pub x: &'a [f32],
    pub stride: usize,
    pub rows: usize,
    pub k: usize,
    pub out: &'a mut [u8],
}

impl WithSimd for QuantizeTile<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let QuantizeTile { x, stride, rows, k, out } = self;
        assert!(x.len() >= (rows - 1) * stride + k, "sizes were checked");
        let parts = Parts::new(rows, k);
        if parts.n > rows {
            out.fill(0);
        }
        let (x, out, blocks) = (x.as_ptr(), out.as_mut_ptr(), k / BLOCK);
        // SAFETY: all blocks are within `x` and within the tile, whose size the caller has checked.
        unsafe {
            if rows == 1 {
                for b in (0..blocks).step_by(LANES) {
                    let lanes = Lanes { count: LANES.min(blocks - b), x: BLOCK, out: BLOCK };
                    lanes.quantize(s, x.add(b * BLOCK), out, &parts, b);
                    lanes.sum_contiguous(s, out, &parts, b);
                }
            } else {
                for b in 0..blocks {
                    let lanes = Lanes { count: rows, x: stride, out: 4 };
                    lanes.quantize(s, x.add(b * BLOCK), out, &parts, b);
                    lanes.sum_interleaved(s, out, &parts, b);
                }
            }
        }
    }
}

/// Up to 16 blocks that are quantized together, one per vector lane where a value belongs to a whole block: the same block of
/// all rows of a tile, or consecutive blocks of a tile's only row.
#[derive(Clone, Copy)]
struct Lanes {
    count: usize,
    /// Elements from one lane's activations to the next one's.
    x: usize,
    /// Bytes from one lane's quants to the next one's.
    out: usize,
}

#[allow(clippy::needless_range_loop, reason = "lanes index several arrays and pointers alike")]
impl Lanes {
    /// Writes quants and scales of the lanes that start at block `b`.
    ///
    /// # Safety
    /// `x` points to the first lane's activations; `out` is a tile of these parts that has the blocks.
    #[inline(always)]
    unsafe fn quantize<S: Simd>(&self, s: S, x: *const f32, out: *mut u8, parts: &Parts, b: usize) {
        // SAFETY: as above.
        unsafe {
            let mut top = [0f32; LANES];
            for lane in 0..self.count {
                let x = x.add(lane * self.x);
                // As integers, magnitudes keep their order, and NaN is the largest.
                let (a0, a1) = (s.abs(s.load(x)), s.abs(s.load(x.add(LANES))));
                let max = s.reduce_max_i(s.max_i(s.bits_i(a0), s.bits_i(a1)));
                top[lane] = f32::from_bits(max.cast_unsigned());
            }
            let (d, inverse) = scales(s, s.load(top.as_ptr()));
            let at = b * parts.n * 4;
            s.store_part(out.add(parts.d + at).cast(), d, self.count);
            s.store_part(out.add(parts.c + at).cast(), s.mul(d, s.splat(-MAGIC)), self.count);
            let mut inverses = [0f32; LANES];
            s.store(inverses.as_mut_ptr(), inverse);
            let out = out.add(b * BLOCK * parts.n).cast::<i8>();
            for lane in 0..self.count {
                let (x, inverse) = (x.add(lane * self.x), s.splat(inverses[lane]));
                let mut bytes = [0i8; BLOCK];
                s.store_i8(bytes.as_mut_ptr(), s.round_i(s.mul(s.load(x), inverse)));
                s.store_i8(bytes.as_mut_ptr().add(LANES), s.round_i(s.mul(s.load(x.add(LANES)), inverse)));
                let out = out.add(lane * self.out);
                for (i, quad) in bytes.as_chunks::<4>().0.iter().enumerate() {
                    out.add(i * parts.n * 4).cast::<[i8; 4]>().write(*quad);
                }
            }
        }
    }

    /// Writes the sums of block `b` of all rows.
    ///
    /// # Safety
    /// As for [`Lanes::quantize`], whose results are in `out`.
    #[inline(always)]
    unsafe fn sum_interleaved<S: Simd>(&self, s: S, out: *mut u8, parts: &Parts, b: usize) {
        let ones = s.splat_i(0x0101_0101);
        let mut halves = [s.splat_i(0); 2];
        for (half, sum) in halves.iter_mut().enumerate() {
            for i in 0..4 {
                // SAFETY: a tile has at least 16 rows' worth of bytes after its last quad, so a whole vector can be read.
                let quads = unsafe { s.load_i(out.add((b * 8 + half * 4 + i) * parts.n * 4)) };
                *sum = s.dot4(*sum, ones, quads);
            }
        }
        let mut sums = [[0i32; LANES]; 2];
        // SAFETY: vectors of 64 bytes.
        unsafe {
            s.store_i(sums[0].as_mut_ptr().cast(), halves[0]);
            s.store_i(sums[1].as_mut_ptr().cast(), halves[1]);
        }
        for lane in 0..self.count {
            // SAFETY: the caller vouches for the tile.
            unsafe { put_sums(out, parts, b, lane, sums[0][lane], sums[1][lane]) };
        }
    }

    /// Writes the sums of the lanes' blocks, from `b` on, of the only row.
    ///
    /// # Safety
    /// As for [`Lanes::quantize`], whose results are in `out`.
    #[inline(always)]
    unsafe fn sum_contiguous<S: Simd>(&self, s: S, out: *mut u8, parts: &Parts, b: usize) {
        let ones = s.splat_i(0x0101_0101);
        // SAFETY: the caller vouches for the tile; a tile has more than 64 bytes after its quants.
        unsafe {
            for pair in (0..self.count).step_by(2) {
                let mut quads = [0i32; LANES];
                let bytes = s.load_i(out.add((b + pair) * BLOCK));
                s.store_i(quads.as_mut_ptr().cast(), s.dot4(s.splat_i(0), ones, bytes));
                for (i, q) in quads.as_chunks::<8>().0.iter().enumerate().take(self.count - pair) {
                    put_sums(
                        out,
                        parts,
                        b + pair + i,
                        0,
                        q[0] + q[1] + q[2] + q[3],
                        q[4] + q[5] + q[6] + q[7],
                    );
                }
            }
        }
    }
}

/// Writes the sums of block `b` of row `t`, whose scale is in place.
///
/// # Safety
/// `out` is a tile of these parts that has the row and the block.
#[inline(always)]
unsafe fn put_sums(out: *mut u8, parts: &Parts, b: usize, t: usize, half0: i32, half1: i32) {
    let (n, at, sum) = (parts.n, (b * parts.n + t) * 4, half0 + half1);
    // SAFETY: as above.
    unsafe {
        let d = out.add(parts.d + at).cast::<f32>().read_unaligned();
        out.add(parts.ds + at).cast::<f32>().write_unaligned(d * sum as f32);
        out.add(parts.sums + at).cast::<i32>().write_unaligned(sum);
        let halves = out.add(parts.halves + (b * 2 * n + t) * 4);
        halves.cast::<i32>().write_unaligned(half0);
        halves.add(4 * n).cast::<i32>().write_unaligned(half1);
    }
}

/// The scales of blocks whose largest magnitudes are `top`, and their inverses.
#[inline(always)]
fn scales<S: Simd>(s: S, top: S::F) -> (S::F, S::F) {
    let (zero, smallest) = (s.splat(0.0), s.splat(f32::from_bits((127 - 100) << 23))); // 2^-100
    let largest = s.splat(f32::from_bits((127 + 110) << 23)); // 2^110
    let d = s.bits_f(s.and_i(s.bits_i(s.div(top, s.splat(127.0))), s.splat_i(!3)));
    let inverse = s.div(s.splat(1.0), d);
    // Not below the largest: too large, infinite or NaN. The inverse 0 keeps finite elements' quants at 0.
    let d = s.select_lt(top, largest, d, s.splat(f32::NAN));
    let inverse = s.select_lt(top, largest, inverse, zero);
    (s.select_lt(top, smallest, zero, d), s.select_lt(top, smallest, zero, inverse))
}
