//! Looking up a model's tensors. Each is checked when it is asked for: presence, type, shape.

use std::collections::HashSet;

use minfer_gguf::{Gguf, TensorType, quant};
use minfer_graph::{GraphBuilder, NodeId, Shape};

use crate::ModelError;
use crate::block::{Linear, Norm};
use crate::hyper::Dims;

/// A tensor of the file, checked: what a graph needs to know of it.
#[derive(Clone, Debug)]
pub(crate) struct Weight {
    name: String,
    dtype: TensorType,
    /// Outermost first.
    shape: Shape,
}

impl Weight {
    pub(crate) fn node(&self, b: &mut GraphBuilder) -> NodeId {
        b.weight(self.name.clone(), self.dtype, self.shape)
    }
}

/// Whether a projection has a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bias {
    Never,
    IfPresent,
    Always,
}

/// The tensors of a file, with those that have been asked for.
pub(crate) struct Tensors<'g> {
    gguf: &'g Gguf,
    taken: HashSet<String>,
}

impl<'g> Tensors<'g> {
    pub(crate) fn new(gguf: &'g Gguf) -> Self {
        Self { gguf, taken: HashSet::new() }
    }

    /// A `[rows, columns]` matrix, of any type with reference code to decode it.
    pub(crate) fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<Weight, ModelError> {
        self.take(name, &[rows, columns], &quant::DECODABLE)?.ok_or_else(|| missing(name, &[rows, columns]))
    }

    /// A vector, always F32: norms and biases are small and not quantized.
    pub(crate) fn vector(&mut self, name: &str, len: usize) -> Result<Weight, ModelError> {
        self.optional_vector(name, len)?.ok_or_else(|| missing(name, &[len]))
    }

    /// As [`Tensors::vector`], `None` if there is none.
    pub(crate) fn optional_vector(&mut self, name: &str, len: usize) -> Result<Option<Weight>, ModelError> {
        self.take(name, &[len], &[TensorType::F32])
    }

    /// Whether the file has this tensor.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    /// `name.weight` of a norm over vectors of `len`.
    pub(crate) fn norm(&mut self, name: &str, len: usize, eps: f32) -> Result<Norm, ModelError> {
        let weight = self.vector(&format!("{name}.weight"), len)?;
        Ok(Norm { label: name.to_owned(), weight, eps })
    }

    /// The norm `name` of a layer, over the residual stream.
    pub(crate) fn layer_norm(&mut self, layer: usize, name: &str, dims: &Dims) -> Result<Norm, ModelError> {
        self.norm(&format!("blk.{layer}.{name}"), dims.n_embd, dims.eps)
    }

    /// `name.weight` and perhaps `name.bias` of a projection from `inputs` to `outputs`.
    pub(crate) fn linear(
        &mut self,
        name: &str,
        outputs: usize,
        inputs: usize,
        bias: Bias,
    ) -> Result<Linear, ModelError> {
        let weight = self.matrix(&format!("{name}.weight"), outputs, inputs)?;
        let bias = match bias {
            Bias::Never => None,
            Bias::IfPresent => self.optional_vector(&format!("{name}.bias"), outputs)?,
            Bias::Always => Some(self.vector(&format!("{name}.bias"), outputs)?),
        };
        Ok(Linear { label: name.to_owned(), weight, bias })
    }

    /// Ends the look-up: a tensor that nobody asked for is an error.
    pub(crate) fn finish(self, architecture: &str) -> Result<(), ModelError> {
        match self.gguf.tensors().find(|t| !self.taken.contains(t.name)) {
            Some(t) => Err(ModelError::UnexpectedTensor {
                name: t.name.to_owned(),
                architecture: architecture.to_owned(),
            }),
            None => Ok(()),
        }
    }

    fn take(
        &mut self,
        name: &str,
        dims: &[usize],
        types: &[TensorType],
    ) -> Result<Option<Weight>, ModelError> {
        let Some(tensor) = self.gguf.tensor(name) else { return Ok(None) };
        let expected = file_order(dims);
        // A file may leave out outermost dimensions of one.
        if trimmed(tensor.shape) != trimmed(&expected) {
            let found = tensor.shape.to_vec();
            return Err(ModelError::TensorShape { name: name.to_owned(), found, expected });
        }
        if !types.contains(&tensor.ty) {
            let expected = types.iter().map(|t| t.name()).collect::<Vec<_>>().join(", ");
            return Err(ModelError::TensorType { name: name.to_owned(), ty: tensor.ty, expected });
        }
        self.taken.insert(name.to_owned());
        Ok(Some(Weight { name: name.to_owned(), dtype: tensor.ty, shape: Shape::new(dims) }))
    }
}

fn missing(name: &str, dims: &[usize]) -> ModelError {
    ModelError::MissingTensor { name: name.to_owned(), shape: file_order(dims) }
}

/// Innermost first, as files have it.
fn file_order(dims: &[usize]) -> Vec<u64> {
    dims.iter().rev().map(|&d| d as u64).collect()
}

fn trimmed(mut shape: &[u64]) -> &[u64] {
    while let [rest @ .., 1] = shape {
        shape = rest;
    }
    shape
}
