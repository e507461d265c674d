//! Weights times activations: `out[t][r] = Σ_k w[r][k] · x[t][k] (+ bias[r])`.
//!
//! # One definition of the arithmetic
//!
//! For a quantized weight row `r` and an activation row `t`, over the weight's scales in order of `k`, with `n` the exact
//! integer sum `Σ (byte - zero)·quant` over the elements that share the scale:
//!
//! ```text
//! acc = fma(round(n · d), scale, acc)        d: the activation block's scale
//! acc = fma(min, round(d · Σ quant), acc)    for types with a minimum
//! ```
//!
//! For float weights: `acc = fma(x[t][k], w[r][k], acc)` in order of `k`. Last, `acc + bias`.
//!
//! A result depends on nothing else: not on the instruction set, the number of rows, their tiling or the split over
//! threads. So one row and many rows give the same bits.
//!
//! # Kernels
//!
//! - few rows ([`Simd::DIRECT_ROWS`]): weights are unpacked in registers as they stream by;
//! - more: a panel of rows is unpacked to bytes in scratch memory once, then met by tiles of activation rows.

mod direct;
mod floats;
mod micro;
mod panel;

use crate::pack::format::Format;
use crate::pack::{GROUP_ROWS, PackedLayout, PackedMatrix, with_format};
use crate::quantize::QuantizedRows;
use crate::simd::{Isa, Simd, WithSimd};
use panel::Scratch;
use std::marker::PhantomData;
use std::ops::Range;

/// Why a matmul cannot run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatmulError {
    /// Weights and activations differ in their inner dimension.
    #[error("weights have rows of {weights} elements, activations of {activations}")]
    InnerDimension {
        /// Elements of a weight row.
        weights: usize,
        /// Elements of an activation row.
        activations: usize,
    },
    /// Quantized weights got `f32` activations or the other way round.
    #[error("{ty} weights need {} activations", if *.quantized { "quantized" } else { "f32" })]
    ActivationType {
        /// The weights' type.
        ty: minfer_gguf::TensorType,
        /// Whether they need quantized activations.
        quantized: bool,
    },
    /// A buffer is too short.
    #[error("{what} has {got} elements, expected at least {expected}")]
    Length {
        /// Which buffer.
        what: &'static str,
        /// Its length.
        got: usize,
        /// The least length.
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

/// The activations of a matmul.
#[derive(Clone, Copy, Debug)]
pub enum Activations<'a> {
    /// For quantized weights.
    Quantized(QuantizedRows<'a>),
    /// For float weights: rows `stride` elements apart.
    F32 {
        /// The elements.
        data: &'a [f32],
        /// Rows.
        rows: usize,
        /// Elements per row.
        k: usize,
        /// Elements from one row to the next.
        stride: usize,
    },
}

impl Activations<'_> {
    /// Rows.
    pub fn rows(&self) -> usize {
        match self {
            Activations::Quantized(q) => q.layout().rows(),
            Activations::F32 { rows, .. } => *rows,
        }
    }
}

/// Where results go: `out[t · stride + r]`. Threads that work on disjoint groups of rows share it.
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    data: *mut f32,
    len: usize,
    stride: usize,
    life: PhantomData<&'a mut [f32]>,
}

// SAFETY: writing is unsafe (`matmul`), and there the caller vouches that no two threads write the same element.
unsafe impl Send for Output<'_> {}
// SAFETY: as for Send.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    /// Output rows `stride` elements apart, one per activation row.
    pub fn new(out: &'a mut [f32], stride: usize) -> Output<'a> {
        Output { data: out.as_mut_ptr(), len: out.len(), stride, life: PhantomData }
    }

    /// As [`Output::new`], from raw parts.
    ///
    /// # Safety
    /// `data` is valid for writes of `len` elements for `'a`, and nothing else reads or writes those that are written.
    pub unsafe fn from_raw(data: *mut f32, len: usize, stride: usize) -> Output<'a> {
        Output { data, len, stride, life: PhantomData }
    }
}

/// Bytes of scratch memory that [`matmul`] needs on each thread, whatever the number of activation rows.
pub fn scratch_bytes(weights: &PackedLayout) -> usize {
    with_format!(weights.ty(),
        quantized F => Scratch::new::<F>(weights.k()).bytes,
        float _F => floats::scratch_bytes(weights.k()),
        else 0
    )
}

/// Computes the rows of some groups: work for one thread.
///
/// Split the groups over threads in runs of [`PANEL_GROUPS`] where there are enough. Groups may be split in any way
/// without changing a bit of the result.
///
/// # Safety
/// No other thread reads or writes the output elements of these groups' rows meanwhile.
pub unsafe fn matmul(
    isa: Isa,
    weights: &PackedMatrix<'_>,
    x: &Activations<'_>,
    bias: Option<&[f32]>,
    out: Output<'_>,
    groups: Range<usize>,
    scratch: &mut [u8],
) -> Result<(), MatmulError> {
    let layout = weights.layout();
    let length = |what, got, expected| {
        if got >= expected { Ok(()) } else { Err(MatmulError::Length { what, got, expected }) }
    };
    if groups.start > groups.end || groups.end > layout.groups() {
        return Err(MatmulError::Groups { start: groups.start, end: groups.end, groups: layout.groups() });
    }
    let (rows, k) = match x {
        Activations::Quantized(q) => (q.layout().rows(), q.layout().k()),
        Activations::F32 { data, rows, k, stride } => {
            length(
                "the activation",
                data.len(),
                rows.saturating_sub(1) * stride + if *rows > 0 { *k } else { 0 },
            )?;
            (*rows, *k)
        }
    };
    if k != layout.k() {
        return Err(MatmulError::InnerDimension { weights: layout.k(), activations: k });
    }
    if rows == 0 || groups.is_empty() {
        return Ok(());
    }
    length("the output's stride", if rows > 1 { out.stride } else { layout.rows() }, layout.rows())?;
    length("the output", out.len, (rows - 1) * out.stride + layout.rows())?;
    length("the bias", bias.map_or(layout.rows(), <[f32]>::len), layout.rows())?;
    length("the scratch memory", scratch.len(), scratch_bytes(layout))?;
    let target =
        Target { out: out.data, stride: out.stride, bias: bias.map(<[f32]>::as_ptr), rows: layout.rows() };
    let mismatch = MatmulError::ActivationType { ty: layout.ty(), quantized: layout.quantized() };
    with_format!(layout.ty(),
        quantized F => {
            let Activations::Quantized(x) = x else { return Err(mismatch) };
            isa.run(Quantized::<F> { weights, x, target, groups, scratch, format: PhantomData });
        },
        float F => {
            let Activations::F32 { data, rows, stride, .. } = *x else { return Err(mismatch) };
            let x = floats::Rows { data, rows, stride };
            isa.run(floats::Floats::<F> { weights, x, target, groups, scratch, format: PhantomData });
        },
        else return Err(mismatch)
    );
    Ok(())
}

/// The most groups whose weights are unpacked together; a good grain for splitting over threads.
pub const PANEL_GROUPS: usize = 4;

/// A matmul of quantized weights whose sizes have been checked.
struct Quantized<'a, F> {
    weights: &'a PackedMatrix<'a>,
    x: &'a QuantizedRows<'a>,
    target: Target,
    groups: Range<usize>,
    scratch: &'a mut [u8],
    format: PhantomData<F>,
}

impl<F: Format> WithSimd for Quantized<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let sizes = Scratch::new::<F>(self.weights.layout().k());
        let parts = sizes.parts(self.scratch);
        if self.x.layout().rows() <= S::DIRECT_ROWS {
            direct::run::<S, F>(s, self.weights, self.x, self.target, self.groups, parts);
        } else {
            panel::run::<S, F>(s, self.weights, self.x, self.target, self.groups, sizes, parts);
        }
    }
}

/// The checked output.
#[derive(Clone, Copy)]
struct Target {
    out: *mut f32,
    stride: usize,
    bias: Option<*const f32>,
    rows: usize,
}

impl Target {
    /// Where the results of a group for activation row `t` go.
    #[inline(always)]
    fn at(&self, t: usize, group: usize) -> *mut f32 {
        self.out.wrapping_add(t * self.stride + group * GROUP_ROWS)
    }

    /// Writes the results of one group for activation row `t`.
    ///
    /// # Safety
    /// `t` and `group` are in range.
    #[inline(always)]
    unsafe fn store<S: Simd>(&self, s: S, t: usize, group: usize, acc: S::F) {
        let row = group * GROUP_ROWS;
        let n = (self.rows - row).min(GROUP_ROWS);
        // SAFETY: rows `row..row + n` of output row `t` are within the output, and of the bias.
        unsafe {
            let out = self.at(t, group);
            if n == GROUP_ROWS {
                let acc = match self.bias {
                    Some(bias) => s.add(acc, s.load(bias.add(row))),
                    None => acc,
                };
                s.store(out, acc);
            } else {
                let acc = match self.bias {
                    Some(bias) => s.add(acc, s.load_part(bias.add(row), n)),
                    None => acc,
                };
                s.store_part(out, acc, n);
            }
        }
    }
}

#[cfg(test)]
mod tests;
