//! Block formats: layouts, and scalar reference code to decode and encode them.

mod blocks;

use crate::TensorType;

/// Why a row could not be decoded or encoded.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum QuantError {
    /// No code for this type.
    #[error("tensor type {ty} cannot be {action} here")]
    Unsupported {
        /// The type.
        ty: TensorType,
        /// `dequantized` or `quantized`.
        action: &'static str,
    },
}

/// d
pub fn dequantize(ty: TensorType, _src: &[u8], _dst: &mut [f32]) -> Result<(), QuantError> {
    Err(QuantError::Unsupported { ty, action: "dequantized" })
}
