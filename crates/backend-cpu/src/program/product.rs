//! Matrix products and the quantization of their activations.

use std::ops::Range;

use super::Context;
use crate::matmul::{Activations, Output, PANEL_GROUPS, matmul};
use crate::pack::{PackedLayout, PackedMatrix};
use crate::quantize::{QuantizedLayout, QuantizedRows};

/// Quantizes an activation into the shared working memory, a tile of rows at a time.
#[derive(Debug)]
pub(super) struct Quantize {
    pub layout: QuantizedLayout,
    pub x: *const f32,
    /// Where the quantized rows start in the shared working memory.
    pub to: usize,
}

impl Quantize {
    /// # Safety
    /// As [`super::kernel::Kernel::run`].
    pub unsafe fn run(&self, context: &mut Context<'_>) {
        let Self { layout, x, to } = *self;
        for tile in context.worker.split(layout.tiles(), 1) {
            let rows = layout.tile_rows(tile);
            let bytes = layout.tile_bytes(tile);
            // SAFETY: the activation has the layout's rows, and the working memory its bytes; each tile is one
            // thread's.
            let (x, out) = unsafe {
                (
                    std::slice::from_raw_parts(x.add(rows.start * layout.k()), rows.len() * layout.k()),
                    std::slice::from_raw_parts_mut(context.shared.add(to + bytes.start), bytes.len()),
                )
            };
            layout
                .quantize_tile(context.isa, tile, x, layout.k(), out)
                .expect("the slices have the layout's sizes");
        }
    }
}

/// Products of one activation with several matrices, such as Q, K and V: threads claim runs of weight rows one by
/// one, without waiting for each other between the matrices.
#[derive(Debug)]
pub(super) struct MatMuls {
    pub x: Input,
    pub products: Vec<MatMul>,
}

/// `out = x · weightsᵀ (+ bias)`.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatMul {
    pub layout: PackedLayout,
    pub weights: *const u8,
    pub bias: Option<*const f32>,
    pub out: *mut f32,
    /// Bytes of each thread's working memory.
    pub scratch: usize,
}

/// Activations, in the form that the weights' type needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Input {
    /// At an offset into the shared working memory.
    Quantized { layout: QuantizedLayout, from: usize },
    /// Rows of `k` elements.
    F32 { x: *const f32, rows: usize, k: usize },
}

impl MatMuls {
    /// # Safety
    /// As [`super::kernel::Kernel::run`]; all workers come from a barrier or the start.
    pub unsafe fn run(&self, context: &mut Context<'_>) {
        // SAFETY: `compile` resolved the addresses from live memory of these sizes; claimed groups are this
        // thread's alone, and so is its working memory.
        unsafe {
            let x = match self.x {
                Input::Quantized { layout, from } => {
                    let data = std::slice::from_raw_parts(context.shared.add(from), layout.bytes());
                    Activations::Quantized(
                        QuantizedRows::new(layout, data).expect("the slice has the layout's size"),
                    )
                }
                Input::F32 { x, rows, k } => {
                    let data = std::slice::from_raw_parts(x, rows * k);
                    Activations::F32 { data, rows, k, stride: k }
                }
            };
            let threads = context.worker.count();
            let mut claim = context.worker.next();
            // Claims are numbered through the products, and this thread's only grow.
            let mut first = 0;
            for product in &self.products {
                let grain = grain(product.layout.groups(), threads);
                let claims = product.layout.groups().div_ceil(grain);
                while claim < first + claims {
                    let start = (claim - first) * grain;
                    let groups = start..(start + grain).min(product.layout.groups());
                    product.run(context, &x, groups);
                    claim = context.worker.next();
                }
                first += claims;
            }
        }
    }
}

impl MatMul {
    /// # Safety
    /// As for [`MatMuls::run`]; the groups are this thread's alone.
    unsafe fn run(&self, context: &mut Context<'_>, x: &Activations<'_>, groups: Range<usize>) {
        let Self { layout, weights, bias, out, scratch } = *self;
        // SAFETY: by the caller.
        unsafe {
            let weights = std::slice::from_raw_parts(weights, layout.bytes());
            let weights = PackedMatrix::new(layout, weights).expect("the slice has the layout's size");
            let bias = bias.map(|b| std::slice::from_raw_parts(b, layout.rows()));
            let out = Output::from_raw(out, x.rows() * layout.rows(), layout.rows());
            let scratch = std::slice::from_raw_parts_mut(context.own, scratch);
            matmul(context.isa, &weights, x, bias, out, groups, scratch)
                .expect("sizes are checked when compiled");
        }
    }
}

/// Groups claimed at once: whole panels, and enough claims that a thread that is held up does not hold up the
/// others.
fn grain(groups: usize, threads: usize) -> usize {
    if threads == 1 {
        groups
    } else {
        (groups / (threads * 8)).next_multiple_of(PANEL_GROUPS).max(PANEL_GROUPS)
    }
}
