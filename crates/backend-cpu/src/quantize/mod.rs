//! Activations quantized to 8 bits, once for all the matmuls that read them.
//!
//! Each row is cut into blocks of 32 elements: signed bytes in −127..=127 and a scale `d = max |x| / 127`, its two
//! lowest mantissa bits cleared (the kernels rely on `3·2²²·d` being exact). The sums of each half block serve
//! weights with a zero point or a minimum.
//!
//! Rows are stored in tiles of up to [`TILE_ROWS`], quads of elements interleaved over the rows of the tile, as the
//! kernels read them.
//!
//! A block that holds a NaN or a magnitude of 2^110 or more gets the scale NaN: its products are NaN, not garbage. A
//! block whose magnitudes are all below 2^−100 becomes 0.

use crate::simd::{Isa, LANES, Simd, WithSimd};
use std::ops::Range;

/// Rows per tile (the last tile may have fewer).
pub const TILE_ROWS: usize = 12;

/// Elements per block.
pub const BLOCK: usize = 32;

/// As a float's bits: 1.5·2²³. An integer of less than 2²² added to these bits is that integer added to the float.
pub(crate) const MAGIC_BITS: i32 = 0x4b40_0000;

/// [`MAGIC_BITS`] as a number.
const MAGIC: f32 = 12_582_912.0;

/// Why activations cannot be quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantizeError {
    /// Rows are not whole blocks.
    #[error("rows of {k} elements are not a whole number of blocks of 32")]
    PartialBlock {
        /// Elements per row.
        k: usize,
    },
    /// A buffer is too short.
    #[error("{what} has {got} elements, expected {expected}")]
    Length {
        /// Which buffer.
        what: &'static str,
        /// Its length.
        got: usize,
        /// The length needed.
        expected: usize,
    },
}

/// Where the quantized rows lie in a byte buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantizedLayout {
    rows: usize,
    k: usize,
}

impl QuantizedLayout {
    /// The layout of `rows` activations of `k` elements; `k` is a multiple of 32.
    pub fn new(rows: usize, k: usize) -> Result<QuantizedLayout, QuantizeError> {
        if k.is_multiple_of(BLOCK) {
            Ok(QuantizedLayout { rows, k })
        } else {
            Err(QuantizeError::PartialBlock { k })
        }
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements per row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Tiles; the unit of work when quantization is split over threads.
    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    /// The rows of a tile.
    pub fn tile_rows(&self, tile: usize) -> Range<usize> {
        tile * TILE_ROWS..self.rows.min((tile + 1) * TILE_ROWS)
    }

    /// Where a tile lies in the buffer; tiles follow one another.
    pub fn tile_bytes(&self, tile: usize) -> Range<usize> {
        let start = tile * Parts::new(TILE_ROWS, self.k).bytes;
        start..start + Parts::new(self.tile_rows(tile).len(), self.k).bytes
    }

    /// Bytes of the buffer, which should be aligned to 64.
    pub fn bytes(&self) -> usize {
        if self.rows == 0 { 0 } else { self.tile_bytes(self.tiles() - 1).end }
    }

    /// Quantizes the rows of one tile.
    ///
    /// `x` starts at the tile's first row, rows `stride` elements apart. `out` is the tile's bytes.
    pub fn quantize_tile(
        &self,
        isa: Isa,
        tile: usize,
        x: &[f32],
        stride: usize,
        out: &mut [u8],
    ) -> Result<(), QuantizeError> {
        let rows = self.tile_rows(tile).len();
        let need = if rows == 0 { 0 } else { (rows - 1) * stride + self.k };
        if x.len() < need {
            return Err(QuantizeError::Length { what: "the activation", got: x.len(), expected: need });
        }
        let expected = self.tile_bytes(tile).len();
        if out.len() != expected {
            return Err(QuantizeError::Length { what: "the quantized tile", got: out.len(), expected });
        }
        if rows > 0 && self.k > 0 {
            isa.run(QuantizeTile { x, stride, rows, k: self.k, out });
        }
        Ok(())
    }

    /// Quantizes all rows, on this thread. `x` has rows `stride` elements apart.
    pub fn quantize(&self, isa: Isa, x: &[f32], stride: usize, out: &mut [u8]) -> Result<(), QuantizeError> {
        if out.len() != self.bytes() {
            let expected = self.bytes();
            return Err(QuantizeError::Length { what: "the quantized rows", got: out.len(), expected });
        }
        for tile in 0..self.tiles() {
            let x = x.get(self.tile_rows(tile).start * stride..).unwrap_or(&[]);
            self.quantize_tile(isa, tile, x, stride, &mut out[self.tile_bytes(tile)])?;
        }
        Ok(())
    }
}

/// The rows that a tile has room for: more than one are padded to an even number, so that kernels come in few widths.
#[inline(always)]
fn room(rows: usize) -> usize {
    if rows <= 1 { rows } else { rows.next_multiple_of(2) }
}

/// Offsets of a tile's parts, each aligned to 64 bytes. For `n` rows (with padding) and `b` blocks they are: quants
/// `i8[8b][n][4]`; scales `d`, `-3·2²²·d` and `d·sum`, `f32[b][n]` each; sums of blocks
/// `i32[b][n]`, and of half blocks `i32[b][2][n]`.
#[derive(Clone, Copy)]
struct Parts {
    n: usize,
    d: usize,
    c: usize,
    ds: usize,
    sums: usize,
    halves: usize,
    bytes: usize,
}

impl Parts {
    #[inline(always)]
    fn new(rows: usize, k: usize) -> Parts {
        let n = room(rows);
        let align = |x: usize| x.next_multiple_of(64);
        let scales = align(k / BLOCK * n * 4);
        let d = align(k * n);
        Parts {
            n,
            d,
            c: d + scales,
            ds: d + 2 * scales,
            sums: d + 3 * scales,
            halves: d + 4 * scales,
            bytes: d + 4 * scales + align(k / BLOCK * n * 8),
        }
    }
}

/// The parts of one tile, for the kernels.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// Quants, `[k/4][n][4]`.
    pub q: *const i8,
    /// Scales `d`, `[k/32][n]`.
    pub d: *const f32,
    /// `-3·2²²·d`, `[k/32][n]`.
    pub c: *const f32,
    /// `d · (sum of the block's quants)`, `[k/32][n]`.
    pub ds: *const f32,
    /// Sums of blocks, `[k/32][n]`.
    pub sums: *const i32,
    /// Sums of half blocks, `[k/32][2][n]`.
    pub halves: *const i32,
    /// Rows with padding: the `n` above.
    pub n: usize,
    /// Rows.
    pub rows: usize,
}

/// Quantized activations in memory.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedRows<'a> {
    layout: QuantizedLayout,
    data: &'a [u8],
}

impl<'a> QuantizedRows<'a> {
    /// The rows that [`QuantizedLayout::quantize`] wrote to `data`.
    pub fn new(layout: QuantizedLayout, data: &'a [u8]) -> Result<QuantizedRows<'a>, QuantizeError> {
        if data.len() == layout.bytes() {
            Ok(QuantizedRows { layout, data })
        } else {
            let expected = layout.bytes();
            Err(QuantizeError::Length { what: "the quantized rows", got: data.len(), expected })
        }
    }

    /// The layout.
    pub fn layout(&self) -> &QuantizedLayout {
        &self.layout
    }

    /// One tile's parts.
    #[inline(always)]
    pub(crate) fn tile(&self, tile: usize) -> Tile {
        let rows = self.layout.tile_rows(tile).len();
        let parts = Parts::new(rows, self.layout.k);
        let p = self.data[self.layout.tile_bytes(tile)].as_ptr();
        Tile {
            q: p.cast(),
            d: p.wrapping_add(parts.d).cast(),
            c: p.wrapping_add(parts.c).cast(),
            ds: p.wrapping_add(parts.ds).cast(),
            sums: p.wrapping_add(parts.sums).cast(),
            halves: p.wrapping_add(parts.halves).cast(),
            n: parts.n,
            rows,
        }
    }

    /// The values that the quantized row stands for: `quant · d`, into `out` (`k` elements).
    ///
    /// # Panics
    /// If `row` or the length of `out` does not fit.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.layout.rows, "row {row} of {}", self.layout.rows);
        assert_eq!(out.len(), self.layout.k, "elements of a dequantized row");
        let (tile, t) = (self.tile(row / TILE_ROWS), row % TILE_ROWS);
        for (i, out) in out.iter_mut().enumerate() {
            // SAFETY: `i` and `t` are within the tile, whose buffer has the layout's size.
            let (q, d) = unsafe {
                (
                    tile.q.add((i / 4 * tile.n + t) * 4 + i % 4).read(),
                    tile.d.add(i / BLOCK * tile.n + t).read_unaligned(),
                )
            };
            *out = f32::from(q) * d;
        }
    }
}

/// Quantizes a tile whose sizes have been checked.
struct QuantizeTile<'a> {
    x: &'a [f32],
    stride: usize,
    rows: usize,
    k: usize,
    out: &'a mut [u8],
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

#[cfg(test)]
mod tests;
