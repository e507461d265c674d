//! The small matrix product inside attention: `C += A · B` with a few rows of A against a panel of B.
//!
//! Each element of C is one chain of fused multiply-adds over `k` in ascending order, so neither the tiling here nor
//! the division of `k` into calls changes a bit of the result.

use crate::simd::{Isa, LANES, Simd, WithSimd};

/// The row stride of A, and so the most `k` in a call. A constant, so that rows are at constant offsets.
pub(super) const A_STRIDE: usize = 256;

/// The operands. `A` is `[rows][k]`, `B` `[k][columns]` and `C` `[rows][columns]`, each with its row stride.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gemm {
    pub(super) rows: usize,
    pub(super) k: usize,
    /// A multiple of 16.
    pub(super) columns: usize,
    pub(super) a: *const f32,
    pub(super) b: *const f32,
    pub(super) b_stride: usize,
    pub(super) c: *mut f32,
    pub(super) c_stride: usize,
    /// Whether C's old content is added to.
    pub(super) accumulate: bool,
}

/// Most rows that one register tile takes.
pub(super) const fn tile_rows(isa: Isa) -> usize {
    match isa {
        Isa::Avx512Vnni => 8,
        // Twelve accumulators, two of B and one of A fill the 16 registers of AVX2.
        Isa::Scalar | Isa::Avx2 | Isa::Neon => 6,
    }
}

impl Gemm {
    /// Computes the product for at most [`tile_rows`] rows.
    ///
    /// # Safety
    /// The operands are valid for their sizes, and C overlaps neither A nor B.
    #[inline(always)]
    pub(super) unsafe fn run<S: Simd>(self, s: S) {
        match self.rows {
            0 => {}
            1 => s.vectorize(Tile::<1>(self)),
            2 => s.vectorize(Tile::<2>(self)),
            3 => s.vectorize(Tile::<3>(self)),
            4 => s.vectorize(Tile::<4>(self)),
            5 => s.vectorize(Tile::<5>(self)),
            6 => s.vectorize(Tile::<6>(self)),
            7 => s.vectorize(Tile::<7>(self)),
            8 => s.vectorize(Tile::<8>(self)),
            rows => unreachable!("{rows} rows in a register tile"),
        }
    }
}

/// The product for exactly `R` rows.
struct Tile<const R: usize>(Gemm);

impl<const R: usize> WithSimd for Tile<R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let g = self.0;
        let vectors = g.columns / LANES;
        let mut v = 0;
        // SAFETY: columns up to `vectors · 16` of what the caller of `Gemm::run` vouched for.
        unsafe {
            if S::ISA == Isa::Avx512Vnni {
                while v + 2 <= vectors {
                    tile::<S, R, 2>(s, &g, v * LANES);
                    v += 2;
                }
            }
            while v < vectors {
                tile::<S, R, 1>(s, &g, v * LANES);
                v += 1;
            }
        }
    }
}

/// `R` rows by `P` vectors of C, held in registers.
///
/// # Safety
/// Columns `column..column + 16 P` are within the operands.
#[inline(always)]
unsafe fn tile<S: Simd, const R: usize, const P: usize>(s: S, g: &Gemm, column: usize) {
    // SAFETY: indices stay below `R` rows, `k` and the columns of the tile.
    unsafe {
        let c = g.c.add(column);
        let mut acc = [[s.splat(0.0); P]; R];
        if g.accumulate {
            for (r, acc) in acc.iter_mut().enumerate() {
                for (p, acc) in acc.iter_mut().enumerate() {
                    *acc = s.load(c.add(r * g.c_stride + p * LANES));
                }
            }
        }
        let (mut a, mut b) = (g.a, g.b.add(column));
        for _ in 0..g.k {
            let mut row = [s.splat(0.0); P];
            for (p, row) in row.iter_mut().enumerate() {
                *row = s.load(b.add(p * LANES));
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let x = s.splat(*a.add(r * A_STRIDE));
                for (acc, row) in acc.iter_mut().zip(row) {
                    *acc = s.fma(x, row, *acc);
                }
            }
            (a, b) = (a.wrapping_add(1), b.wrapping_add(g.b_stride));
        }
        for (r, acc) in acc.iter().enumerate() {
            for (p, acc) in acc.iter().enumerate() {
                s.store(c.add(r * g.c_stride + p * LANES), *acc);
            }
        }
    }
}
