//! A view of one tensor in a file.

use crate::TensorType;
use crate::quant::{self, QuantError};
use crate::source::SharedBytes;

/// A tensor in an open file. Cheap to copy; the data is read in place.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    /// Its name, unique in the model.
    pub name: &'a str,
    /// How its elements are stored.
    pub ty: TensorType,
    /// Its dimensions in the file's order: innermost (contiguous) first, so a weight matrix is
    /// `[inputs, outputs]` and a row has `shape[0]` elements. One to four entries, none for a scalar.
    pub shape: &'a [u64],
    /// Its bytes. They start at a multiple of the file's alignment from the start of the data section; in a mapped
    /// file this is an alignment in memory too, in one built in memory it is not.
    pub data: &'a [u8],
    pub(crate) file: &'a SharedBytes,
    pub(crate) start: usize,
}

impl<'a> Tensor<'a> {
    /// Elements in all.
    pub fn n_elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Elements of a row, the innermost dimension.
    pub fn row_len(&self) -> u64 {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Number of rows: the product of all dimensions but the innermost.
    pub fn n_rows(&self) -> u64 {
        self.shape.iter().skip(1).product()
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        // Whole blocks, since the file was checked when opened.
        self.row_len() as usize / self.ty.block_size() * self.ty.type_size()
    }

    /// The bytes of one row, `None` beyond the last.
    pub fn row(&self, index: u64) -> Option<&'a [u8]> {
        let size = self.row_bytes();
        let start = usize::try_from(index).ok()?.checked_mul(size)?;
        self.data.get(start..start.checked_add(size)?)
    }

    /// A handle on the data that does not borrow the file and can be sent to other threads.
    pub fn share(&self) -> SharedBytes {
        self.file.slice(self.start, self.data.len())
    }

    /// Where the data starts, in bytes from the start of its file.
    pub fn file_offset(&self) -> usize {
        self.start
    }

    /// Tells the operating system that the tensor's mapped pages are not needed for now, typically because the
    /// data was copied into another layout. It stays readable; a later read fetches it from the file again.
    pub fn advise_dont_need(&self) -> std::io::Result<()> {
        self.share().advise_dont_need()
    }

    /// Tells the operating system that the tensor will be read soon.
    pub fn advise_will_need(&self) -> std::io::Result<()> {
        self.share().advise_will_need()
    }

    /// All elements as `f32`, by the scalar reference code; an error for types it does not know.
    pub fn dequantize(&self) -> Result<Vec<f32>, QuantError> {
        let mut out = vec![0.0; self.n_elements() as usize];
        quant::dequantize(self.ty, self.data, &mut out)?;
        Ok(out)
    }
}
