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

mod kernel;

use crate::simd::Isa;
use kernel::QuantizeTile;
use std::ops::Range;

/// Rows per tile (the last tile may have fewer).
pub const TILE_ROWS: usize = 12;

/// Elements per block.
pub const BLOCK: usize = 32;

/// As a float's bits: 1.5·2²³. An integer of less than 2²² added to these bits is that integer added to the float.
pub(crate) const MAGIC_BITS: i32 = 0x4b40_0000;

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

#[cfg(test)]
mod tests;
