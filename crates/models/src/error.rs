//! Why a file's model cannot be used.
//!
//! Keys and names come from the file, so messages print them escaped.

use minfer_gguf::{MetadataError, TensorType};
use minfer_graph::GraphError;

/// Why a model cannot be used, or a step of it cannot be laid out.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// A key is missing or holds another type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// No file here builds this architecture.
    #[error("architecture {name:?} is not supported; known are {known}")]
    UnknownArchitecture {
        /// `general.architecture`.
        name: String,
        /// The names that are known, separated by commas.
        known: String,
    },
    /// A hyper-parameter has a value with which no model can exist, or that is not supported.
    #[error("metadata key {key:?} is {value}, expected {expected}")]
    HyperParameter {
        /// The metadata key.
        key: String,
        /// Its value.
        value: String,
        /// What would be accepted.
        expected: String,
    },
    /// A tensor that the architecture needs is not in the file.
    #[error("tensor {name:?} is missing; the model needs it with shape {shape:?}")]
    MissingTensor {
        /// Its name.
        name: String,
        /// The shape it would have, innermost first.
        shape: Vec<u64>,
    },
    /// A tensor's shape contradicts the hyper-parameters.
    #[error("tensor {name:?} has shape {found:?}, expected {expected:?}")]
    TensorShape {
        /// Its name.
        name: String,
        /// Its shape in the file, innermost first.
        found: Vec<u64>,
        /// The shape that the hyper-parameters imply, innermost first.
        expected: Vec<u64>,
    },
    /// A tensor is stored in a type that its use does not allow.
    #[error("tensor {name:?} has type {ty}, which is not supported here; expected {expected}")]
    TensorType {
        /// Its name.
        name: String,
        /// Its type.
        ty: TensorType,
        /// The types allowed.
        expected: String,
    },
    /// The file has a tensor that the architecture has no place for: ignoring it would compute another model.
    #[error("tensor {name:?} is not part of a {architecture} model as known here")]
    UnexpectedTensor {
        /// Its name.
        name: String,
        /// The file's architecture.
        architecture: String,
    },
    /// A batch or cache size is not possible.
    #[error("{what} is {value}, expected 1 to {max}", max = i32::MAX)]
    Size {
        /// The field.
        what: &'static str,
        /// Its value.
        value: usize,
    },
    /// The graph does not fit together.
    #[error(transparent)]
    Graph(#[from] GraphError),
}
