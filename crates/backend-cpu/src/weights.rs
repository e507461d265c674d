//! Weights as the kernels read them.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use minfer_graph::{DType, DeviceError, Shape, WeightRequest, WeightSource, WeightUse};

use crate::backend::out_of_memory;
use crate::memory::ZeroedBytes;
use crate::pack::{GROUP_ROWS, PackError, PackedLayout};
use crate::pool::{PoolError, ThreadPool};

/// A loaded weight.
#[derive(Debug)]
pub(crate) enum Weight {
    /// A matrix of a product, in interleaved rows.
    Matrix { layout: PackedLayout, data: ZeroedBytes },
    /// A table read in place, in the file's format.
    Table(Table),
    /// A vector of f32.
    Vector(Vec<f32>),
}

/// Rows in the file's format, kept alive by their source.
pub(crate) struct Table {
    start: *const u8,
    len: usize,
    _source: Arc<dyn WeightSource>,
}

// SAFETY: the bytes are read-only and live as long as the source, which is itself Send and Sync.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Table({} bytes)", self.len)
    }
}

impl Table {
    /// The first row.
    pub fn as_ptr(&self) -> *const u8 {
        self.start
    }

    /// Bytes of all rows.
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Weight {
    /// Whether there are kernels for a product with such a matrix.
    pub fn can_multiply(dtype: DType, shape: Shape) -> bool {
        PackedLayout::new(dtype, shape.rows(), shape.width()).is_ok()
    }

    /// The memory that such a matrix takes.
    pub fn matrix_bytes(dtype: DType, shape: Shape) -> usize {
        PackedLayout::new(dtype, shape.rows(), shape.width()).map_or(0, |layout| layout.bytes())
    }

    /// Whether rows of this type can be decoded.
    pub fn can_look_up(dtype: DType) -> bool {
        let mut row = vec![0.0; dtype.block_size()];
        minfer_gguf::quant::dequantize(dtype, &vec![0; dtype.type_size()], &mut row).is_ok()
    }

    /// Loads a weight for its use. Matrices are packed by all threads.
    pub fn load(pool: &ThreadPool, request: &WeightRequest<'_>) -> Result<Self, DeviceError> {
        let missing = || DeviceError::Failed(format!("tensor {} is missing", request.name));
        let bytes = request.source.bytes(request.name).ok_or_else(missing)?;
        let failed = |e: &dyn std::fmt::Display| DeviceError::Unsupported(format!("{}: {e}", request.name));
        match request.usage {
            WeightUse::Lookup => Ok(Self::Table(Table {
                start: bytes.as_ptr(),
                len: bytes.len(),
                _source: Arc::clone(&request.source),
            })),
            WeightUse::Vector => {
                let mut vector = vec![0.0; request.shape.len()];
                minfer_gguf::quant::dequantize(request.dtype, bytes, &mut vector).map_err(|e| failed(&e))?;
                request.source.release(request.name, 0..bytes.len());
                Ok(Self::Vector(vector))
            }
            WeightUse::MatMul => {
                let (rows, k) = (request.shape.rows(), request.shape.width());
                let layout = PackedLayout::new(request.dtype, rows, k).map_err(|e| failed(&e))?;
                let mut data = ZeroedBytes::streamed(layout.bytes())
                    .map_err(|e| out_of_memory(e, request.name.to_owned()))?;
                pack(pool, &layout, bytes, &mut data, &|range| request.source.release(request.name, range))
                    .map_err(|e| failed(&e))?;
                Ok(Self::Matrix { layout, data })
            }
        }
    }
}

/// Source bytes that a thread packs before it gives their pages back: memory never holds a large tensor twice.
const RELEASE: usize = 8 << 20;

/// Packs a matrix on all threads, giving the source's pages back on the way.
fn pack(
    pool: &ThreadPool,
    layout: &PackedLayout,
    source: &[u8],
    packed: &mut ZeroedBytes,
    release: &(dyn Fn(Range<usize>) + Sync),
) -> Result<(), PackFailure> {
    let group_source = GROUP_ROWS * layout.row_bytes();
    // Small enough that every thread gets some of a small matrix, too.
    let chunk_groups = (RELEASE / group_source).min(layout.groups().div_ceil(4 * pool.size())).max(1);
    let chunks: Vec<_> = packed.as_mut_slice()[..layout.bytes()]
        .chunks_mut(chunk_groups * layout.group_bytes())
        .map(|chunk| Mutex::new(Some(chunk)))
        .collect();
    let error = Mutex::new(None);
    pool.run(|worker| {
        loop {
            let i = worker.next();
            let Some(chunk) = chunks.get(i) else { return Ok(()) };
            // Each chunk is claimed once, so it is always there.
            let Some(to) = chunk.lock().unwrap_or_else(PoisonError::into_inner).take() else { return Ok(()) };
            let groups = i * chunk_groups..(i * chunk_groups) + to.len() / layout.group_bytes();
            let bytes = groups.start * group_source..(groups.end * group_source).min(source.len());
            if let Err(e) = layout.pack(source, groups, to) {
                error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
            }
            release(bytes);
        }
    })?;
    match error.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(e) => Err(e.into()),
        None => Ok(()),
    }
}

/// Why a matrix was not packed.
#[derive(Debug, thiserror::Error)]
enum PackFailure {
    #[error(transparent)]
    Layout(#[from] PackError),
    #[error(transparent)]
    Pool(#[from] PoolError),
}
