//! Matrix products and the quantization of their activations.

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
            // SAFETY: the activation has the layout's rows, and the working memory its bytes; each tile is one thread's.
            let (x, out) = unsafe {
                (
                    std::slice::from_raw_parts(x.add(rows.start * layout.k()), rows.len() * layout.k()),
                    std::slice::from_raw_parts_mut(context.shared.add(to + bytes.start), bytes.len()),
                )
            };
            layout.quantize_tile(context.isa, tile, x, layout.k(), out).expect("the slices have the layout's sizes");
        }
    }
}

/// `out = x · weightsᵀ (+ bias)`. Threads claim runs of weight rows one by one.
#[derive(Debug)]
pub(super) struct MatMul {
    pub layout: PackedLayout,
    pub weights: *const u8,
    pub x: Input,
    pub bias: Option<*const f32>,
    pub out: *mut f32,
    /// Bytes of each thread's working memory.
    pub scratch: usize,
}

/// Activations, in the form that the weights' type needs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Input {
    /// At an offset into the shared working memory.
    Quantized { layout: QuantizedLayout, from: usize },
    /// Rows of `k` elements.
    F32 { x: *const f32, rows: usize },
}

impl MatMul {
    /// # Safety
    /// As [`super::kernel::Kernel::run`]; all workers come from a barrier or the start.
    pub unsafe fn run(&self, context: &mut Context<'_>) {
        let Self { layout, weights, x, bias, out, scratch } = *self;
        let (rows, k) = (layout.rows(), layout.k());
        // SAFETY: `compile` resolved the addresses from live memory of these sizes; claimed groups are this thread's alone, and
        // so is its working memory.
        unsafe {
            let weights = std::slice::from_raw_parts(weights, layout.bytes());
            let weights = PackedMatrix::new(layout, weights).expect("the slice has the layout's size");
            let (x, n) = match x {
                Input::Quantized { layout, from } => {
                    let data = std::slice::from_raw_parts(context.shared.add(from), layout.bytes());
                    let rows = QuantizedRows::new(layout, data).expect("the slice has the layout's size");
                    (Activations::Quantized(rows), layout.rows())
                }
                Input::F32 { x, rows } => {
                    let data = std::slice::from_raw_parts(x, rows * k);
                    (Activations::F32 { data, rows, k, stride: k }, rows)
                }
            };
            let bias = bias.map(|b| std::slice::from_raw_parts(b, rows));
            let out = Output::from_raw(out, n * rows, rows);
            let scratch = std::slice::from_raw_parts_mut(context.own, scratch);
            let grain = grain(layout.groups(), context.worker.count());
            loop {
                let start = context.worker.next_chunk(grain);
                if start >= layout.groups() {
                    break;
                }
                let groups = start..(start + grain).min(layout.groups());
                matmul(context.isa, &weights, &x, bias, out, groups, scratch).expect("sizes are checked when compiled");
            }
        }
    }
}

/// Groups claimed at once: whole panels, and enough claims that a thread that is held up does not hold up the others.
fn grain(groups: usize, threads: usize) -> usize {
    if threads == 1 { groups } else { (groups / (threads * 8)).next_multiple_of(PANEL_GROUPS).max(PANEL_GROUPS) }
}
