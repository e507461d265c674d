//! Weights rearranged at load for the matmul kernels: lossless, and about the size of the file.
//!
//! Rows are interleaved in groups of 16 (the last group is padded with zero rows). A group holds its scales, then
//! its quants, so that one 64-byte load gives the same elements of all 16 rows and each row has a vector lane
//! of its own: a dot product needs no sum across lanes. `F32`, `F16` and `BF16` are interleaved element by element.

pub(crate) mod float;
pub(crate) mod format;
mod kquant;
mod legacy;
pub(crate) mod unpack;

use crate::simd::Isa;
use float::FloatFormat;
use format::{Format, Rows, checked, unit_blocks};
use minfer_gguf::TensorType;
use std::ops::Range;

/// Rows per group.
pub const GROUP_ROWS: usize = 16;

/// Runs an expression with the [`Format`] of a quantized tensor type, or another for the float types.
macro_rules! with_format {
    ($ty:expr, quantized $F:ident => $quantized:expr, float $G:ident => $float:expr, else $other:expr) => {{
        use $crate::pack::float;
        use $crate::pack::formats::*;
        macro_rules! quantized {
            ($T:ty) => {{
                type $F = $T;
                $quantized
            }};
        }
        macro_rules! float {
            ($T:ty) => {{
                type $G = $T;
                $float
            }};
        }
        match $ty {
            minfer_gguf::TensorType::Q4_0 => quantized!(Q4_0),
            minfer_gguf::TensorType::Q4_1 => quantized!(Q4_1),
            minfer_gguf::TensorType::Q5_0 => quantized!(Q5_0),
            minfer_gguf::TensorType::Q5_1 => quantized!(Q5_1),
            minfer_gguf::TensorType::Q8_0 => quantized!(Q8_0),
            minfer_gguf::TensorType::Q2_K => quantized!(Q2_K),
            minfer_gguf::TensorType::Q3_K => quantized!(Q3_K),
            minfer_gguf::TensorType::Q4_K => quantized!(Q4_K),
            minfer_gguf::TensorType::Q5_K => quantized!(Q5_K),
            minfer_gguf::TensorType::Q6_K => quantized!(Q6_K),
            minfer_gguf::TensorType::IQ4_NL => quantized!(IQ4_NL),
            minfer_gguf::TensorType::IQ4_XS => quantized!(IQ4_XS),
            minfer_gguf::TensorType::F32 => float!(float::F32),
            minfer_gguf::TensorType::F16 => float!(float::F16),
            minfer_gguf::TensorType::BF16 => float!(float::Bf16),
            _ => $other,
        }
    }};
}
pub(crate) use with_format;

/// The quantized formats.
pub(crate) mod formats {
    pub(crate) use super::kquant::{IQ4_XS, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K};
    pub(crate) use super::legacy::{IQ4_NL, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
}

/// Why weights cannot be packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// The CPU has no kernels for this type.
    #[error("weights of type {ty} are not supported by the CPU backend")]
    UnsupportedType {
        /// The tensor's type.
        ty: TensorType,
    },
    /// The row length is not a whole number of blocks.
    #[error("rows of {k} elements are not a whole number of {ty} blocks of {block}")]
    PartialBlock {
        /// The tensor's type.
        ty: TensorType,
        /// Elements per row.
        k: usize,
        /// Elements per block.
        block: usize,
    },
    /// A matrix without rows or columns, or one whose size does not fit the address space.
    #[error("a matrix of {rows} rows of {k} elements has no packed form")]
    Size {
        /// Rows.
        rows: usize,
        /// Elements per row.
        k: usize,
    },
    /// A buffer's length is not what the layout needs.
    #[error("{what} is {got} bytes, expected {expected}")]
    Length {
        /// Which buffer.
        what: &'static str,
        /// Its length.
        got: usize,
        /// The length needed.
        expected: usize,
    },
    /// Groups outside the matrix.
    #[error("groups {start}..{end} of {groups}")]
    Groups {
        /// First group asked for.
        start: usize,
        /// One past the last group asked for.
        end: usize,
        /// Groups of the matrix.
        groups: usize,
    },
}

/// Where the parts of a packed matrix lie. Rows are the weights' output features, `k` their input features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedLayout {
    ty: TensorType,
    rows: usize,
    k: usize,
    groups: usize,
    row_bytes: usize,
    quants_at: usize,
    group_bytes: usize,
}

impl PackedLayout {
    /// The layout of a matrix of `rows` rows of `k` elements of type `ty`.
    pub fn new(ty: TensorType, rows: usize, k: usize) -> Result<PackedLayout, PackError> {
        let size = PackError::Size { rows, k };
        let block = ty.block_size();
        // (bytes of a group's scales, bytes of its quants)
        let (meta, quants) = with_format!(ty,
            quantized F => {
                let units = k / block * (block / 32) / unit_blocks::<F>();
                (units.checked_mul(F::META), units.checked_mul(F::QUANTS))
            },
            float G => (Some(0), k.checked_mul(GROUP_ROWS * G::BYTES)),
            else return Err(PackError::UnsupportedType { ty })
        );
        if !k.is_multiple_of(block) {
            return Err(PackError::PartialBlock { ty, k, block });
        }
        if rows == 0 || k == 0 {
            return Err(size);
        }
        // Aligned, so that the kernels' 64-byte loads stay within cache lines.
        let quants_at = meta.and_then(|m| m.checked_next_multiple_of(64)).ok_or(size)?;
        let group_bytes = quants
            .and_then(|q| q.checked_add(quants_at))
            .and_then(|b| b.checked_next_multiple_of(64))
            .ok_or(size)?;
        let groups = rows.div_ceil(GROUP_ROWS);
        let row_bytes = (k / block).checked_mul(ty.type_size()).ok_or(size)?;
        groups.checked_mul(group_bytes).filter(|&b| isize::try_from(b).is_ok()).ok_or(size)?;
        rows.checked_mul(row_bytes).ok_or(size)?;
        Ok(PackedLayout { ty, rows, k, groups, row_bytes, quants_at, group_bytes })
    }

    /// The type the weights have in the file.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// Rows (output features).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements per row (input features).
    pub fn k(&self) -> usize {
        self.k
    }

    /// Groups of 16 rows; the unit of work when a matmul is split over threads.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// Bytes of one group, a multiple of 64.
    pub fn group_bytes(&self) -> usize {
        self.group_bytes
    }

    /// Bytes of the packed matrix. Align the buffer to 64 for speed.
    pub fn bytes(&self) -> usize {
        self.groups * self.group_bytes
    }

    /// Bytes of one row in the file.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Whether the matmul reads quantized activations (else `f32`).
    pub fn quantized(&self) -> bool {
        self.ty.is_quantized()
    }

    /// Offset of the quants in a group.
    pub(crate) fn quants_at(&self) -> usize {
        self.quants_at
    }

    /// Packs some groups: `src` is the whole matrix as in the file, `dst` exactly the bytes of these groups.
    ///
    /// Independent of any other group, so threads can each take a range.
    pub fn pack(&self, src: &[u8], groups: Range<usize>, dst: &mut [u8]) -> Result<(), PackError> {
        let length = |what, got, expected| {
            if got == expected { Ok(()) } else { Err(PackError::Length { what, got, expected }) }
        };
        if groups.start > groups.end || groups.end > self.groups {
            return Err(PackError::Groups { start: groups.start, end: groups.end, groups: self.groups });
        }
        length("the source matrix", src.len(), self.rows * self.row_bytes)?;
        length("the packed groups", dst.len(), groups.len() * self.group_bytes)?;
        for (group, dst) in groups.zip(dst.chunks_exact_mut(self.group_bytes)) {
            with_format!(self.ty,
                quantized F => self.pack_group::<F>(src, group, dst),
                float G => float::pack_group::<G>(self, src, group, dst),
                else return Err(PackError::UnsupportedType { ty: self.ty })
            );
        }
        Ok(())
    }

    /// The bytes of a group's rows; none for those past the last row.
    fn group_rows<'a>(&self, src: &'a [u8], group: usize) -> [Option<&'a [u8]>; GROUP_ROWS] {
        std::array::from_fn(|i| {
            let row = group * GROUP_ROWS + i;
            (row < self.rows).then(|| &src[row * self.row_bytes..][..self.row_bytes])
        })
    }

    fn pack_group<F: Format>(&self, src: &[u8], group: usize, dst: &mut [u8]) {
        const { checked::<F>() };
        // An all-zero block of any format has scale 0, so it stands for zeros.
        const ZEROS: [u8; 256] = [0; 256];
        let rows = self.group_rows(src, group);
        let (meta, quants) = dst.split_at_mut(self.quants_at);
        let units = meta.chunks_exact_mut(F::META).zip(quants.chunks_exact_mut(F::QUANTS));
        for (unit, (meta, quants)) in units.enumerate().take(self.row_bytes / F::BYTES) {
            let rows: Rows<'_> = rows.map(|row| match row {
                Some(row) => &row[unit * F::BYTES..][..F::BYTES],
                None => &ZEROS[..F::BYTES],
            });
            F::pack(&rows, meta, quants);
        }
        let used = self.row_bytes / F::BYTES * F::META;
        meta[used..].fill(0);
    }
}

/// A packed matrix in memory.
#[derive(Clone, Copy, Debug)]
pub struct PackedMatrix<'a> {
    layout: PackedLayout,
    data: &'a [u8],
}

impl<'a> PackedMatrix<'a> {
    /// The matrix that [`PackedLayout::pack`] wrote to `data`.
    pub fn new(layout: PackedLayout, data: &'a [u8]) -> Result<PackedMatrix<'a>, PackError> {
        if data.len() == layout.bytes() {
            Ok(PackedMatrix { layout, data })
        } else {
            Err(PackError::Length { what: "the packed matrix", got: data.len(), expected: layout.bytes() })
        }
    }

    /// Its layout.
    pub fn layout(&self) -> &PackedLayout {
        &self.layout
    }

    /// The bytes of a group.
    pub(crate) fn group(&self, group: usize) -> &'a [u8] {
        &self.data[group * self.layout.group_bytes..][..self.layout.group_bytes]
    }

    /// Dequantizes one row, exactly, into `out` (`k` elements): an embedding lookup.
    ///
    /// # Panics
    /// If `row` or the length of `out` does not fit the matrix.
    pub fn unpack_row(&self, isa: Isa, row: usize, out: &mut [f32]) {
        assert!(row < self.layout.rows, "row {row} of {}", self.layout.rows);
        assert_eq!(out.len(), self.layout.k, "elements of an unpacked row");
        unpack::row(isa, self, row, out);
    }
}

#[cfg(test)]
pub(crate) mod tests;
