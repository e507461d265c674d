//! What a step computes, over resolved addresses, and how the threads share it.

use std::sync::Arc;

use minfer_gguf::{TensorType, quant::dequantize};

use super::Context;
use super::checks::Ids;
use crate::ops::{self, Binary, RmsNorm, Rope, Unary};
use crate::pool::Stop;

/// One step's computation. Kernels by row give each thread the static share of rows that
/// [`crate::pool::Worker::split`] says.
#[derive(Debug)]
pub(super) enum Kernel {
    /// Rows of a weight in the file's format.
    LookUp {
        table: *const u8,
        dtype: TensorType,
        row_bytes: usize,
        width: usize,
        ids: Ids,
        out: *mut f32,
    },
    /// Rows of an f32 value.
    SelectRows {
        table: *const f32,
        width: usize,
        ids: Ids,
        out: *mut f32,
    },
    Unary {
        op: Unary,
        rows: usize,
        width: usize,
        x: *const f32,
        out: *mut f32,
    },
    Binary {
        op: Binary,
        rows: usize,
        width: usize,
        a: *const f32,
        b: *const f32,
        out: *mut f32,
    },
    /// `b` is one row, which meets each of the `inner` in a shared row.
    Broadcast {
        op: Binary,
        rows: usize,
        inner: usize,
        width: usize,
        a: *const f32,
        b: *const f32,
        out: *mut f32,
    },
    /// `inner` normalized rows in each shared row.
    RmsNorm {
        rows: usize,
        inner: usize,
        width: usize,
        eps: f32,
        x: *const f32,
        weight: Option<*const f32>,
        out: *mut f32,
    },
    /// Cosines and sines of each token, at `table` bytes into the shared working memory.
    RopeTable {
        rope: Arc<Rope>,
        positions: Ids,
        table: usize,
    },
    Rope {
        rope: Arc<Rope>,
        rows: usize,
        heads: usize,
        head_dim: usize,
        table: usize,
        x: *const f32,
        out: *mut f32,
    },
    Store(super::cache::Store),
    Attention(super::cache::Attend),
    Quantize(super::product::Quantize),
    MatMuls(super::product::MatMuls),
}

impl Kernel {
    /// Does this thread's share.
    ///
    /// # Safety
    /// The addresses are those of live memory of the shapes given, indices in range, and no other thread touches
    /// at the same time what this one writes.
    #[inline]
    pub unsafe fn run(&self, context: &mut Context<'_>) -> Result<(), Stop> {
        let isa = context.isa;
        let share = |rows: usize| context.worker.split(rows, 1);
        // SAFETY: every arm offsets its pointers by whole rows within the shapes that the caller vouches for.
        unsafe {
            match *self {
                Self::LookUp { table, dtype, row_bytes, width, ids, out } => {
                    for i in share(ids.len) {
                        let id = *ids.start.add(i) as usize;
                        let row = std::slice::from_raw_parts(table.add(id * row_bytes), row_bytes);
                        let out = std::slice::from_raw_parts_mut(out.add(i * width), width);
                        dequantize(dtype, row, out)
                            .expect("types that cannot be decoded are refused at placement");
                    }
                }
                Self::SelectRows { table, width, ids, out } => {
                    for i in share(ids.len) {
                        let id = *ids.start.add(i) as usize;
                        out.add(i * width).copy_from_nonoverlapping(table.add(id * width), width);
                    }
                }
                Self::Unary { op, rows, width, x, out } => {
                    let r = share(rows);
                    let at = r.start * width;
                    ops::unary(isa, op, out.add(at), x.add(at), r.len() * width);
                }
                Self::Binary { op, rows, width, a, b, out } => {
                    let r = share(rows);
                    let at = r.start * width;
                    ops::binary(isa, op, out.add(at), a.add(at), b.add(at), r.len() * width);
                }
                Self::Broadcast { op, rows, inner, width, a, b, out } => {
                    let r = share(rows);
                    let at = r.start * inner * width;
                    ops::binary_broadcast(isa, op, out.add(at), a.add(at), b, r.len() * inner, width);
                }
                Self::RmsNorm { rows, inner, width, eps, x, weight, out } => {
                    let r = share(rows);
                    let at = r.start * inner * width;
                    let norm = RmsNorm { rows: r.len() * inner, width, eps };
                    ops::rms_norm(isa, norm, out.add(at), x.add(at), weight);
                }
                Self::RopeTable { ref rope, positions, table } => {
                    let r = share(positions.len);
                    let at = context.shared.add(table).cast::<f32>().add(r.start * rope.row_len());
                    let positions = std::slice::from_raw_parts(positions.start.add(r.start), r.len());
                    let rows = std::slice::from_raw_parts_mut(at, r.len() * rope.row_len());
                    rope.fill(isa, positions, rows);
                }
                Self::Rope { ref rope, rows, heads, head_dim, table, x, out } => {
                    let r = share(rows);
                    let at = r.start * heads * head_dim;
                    let table = context.shared.add(table).cast::<f32>().add(r.start * rope.row_len());
                    ops::rope(isa, rope, out.add(at), x.add(at), table, [r.len(), heads, head_dim]);
                }
                Self::Store(ref store) => store.run(isa, share(store.slots.len)),
                Self::Attention(ref attend) => return attend.run(context),
                Self::Quantize(ref quantize) => quantize.run(context),
                Self::MatMuls(ref products) => products.run(context),
            }
        }
        Ok(())
    }

    /// Whether the threads claim parts of it one by one, which needs a barrier before it.
    pub fn claims(&self) -> bool {
        matches!(self, Self::Attention(_) | Self::MatMuls(_))
    }
}
