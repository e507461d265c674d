//! Block formats: layouts, and scalar reference code to decode and encode them.
//!
//! This is the reference that faster code is tested against; it is kept simple.

pub mod blocks;
mod decode;
mod encode;
mod encode_k;

use blocks::*;
use decode::Decode;
use encode::Encode;

use crate::TensorType;

/// Why elements could not be decoded or encoded.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum QuantError {
    /// There is no code for this type.
    #[error("tensor type {ty} cannot be {action}")]
    Unsupported {
        /// The type.
        ty: TensorType,
        /// `dequantized` or `quantized`.
        action: &'static str,
    },
    /// The elements do not fill whole blocks.
    #[error(transparent)]
    PartialBlock(#[from] crate::PartialBlock),
    /// Bytes and elements do not belong together.
    #[error("{elements} elements of {ty} take {expected} bytes, not {found}")]
    Length {
        /// The type.
        ty: TensorType,
        /// Elements asked for.
        elements: usize,
        /// Bytes they take.
        expected: u64,
        /// Bytes given.
        found: usize,
    },
    /// An element that a block format cannot hold.
    #[error("element {index} is {value}, which {ty} cannot hold")]
    NotFinite {
        /// The type.
        ty: TensorType,
        /// The element.
        index: usize,
        /// Its value.
        value: f32,
    },
    /// Elements, or a block's scale, are beyond the range of the type.
    #[error("elements from {index} on are too large for {ty}")]
    Overflow {
        /// The type.
        ty: TensorType,
        /// The first element of the block.
        index: usize,
    },
}

/// The types that [`dequantize`] decodes.
pub const DECODABLE: [TensorType; 15] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::BF16,
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q8_0,
    TensorType::Q2_K,
    TensorType::Q3_K,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::IQ4_NL,
    TensorType::IQ4_XS,
];

/// Decodes `src` into `dst`, whose length says how many elements there are.
///
/// Errors if `dst` is not whole blocks, if `src` is not exactly their bytes, or if there is no code for the type.
pub fn dequantize(ty: TensorType, src: &[u8], dst: &mut [f32]) -> Result<(), QuantError> {
    let expected = ty.row_bytes(dst.len() as u64)?;
    if expected != src.len() as u64 {
        return Err(QuantError::Length { ty, elements: dst.len(), expected, found: src.len() });
    }
    match ty {
        TensorType::F32 => decode_plain(src, dst, f32::from_le_bytes),
        TensorType::F16 => decode_plain(src, dst, |b| half::f16::from_le_bytes(b).to_f32()),
        TensorType::BF16 => decode_plain(src, dst, |b| half::bf16::from_le_bytes(b).to_f32()),
        TensorType::Q4_0 => decode_blocks::<BlockQ4_0>(src, dst),
        TensorType::Q4_1 => decode_blocks::<BlockQ4_1>(src, dst),
        TensorType::Q5_0 => decode_blocks::<BlockQ5_0>(src, dst),
        TensorType::Q5_1 => decode_blocks::<BlockQ5_1>(src, dst),
        TensorType::Q8_0 => decode_blocks::<BlockQ8_0>(src, dst),
        TensorType::Q2_K => decode_blocks::<BlockQ2_K>(src, dst),
        TensorType::Q3_K => decode_blocks::<BlockQ3_K>(src, dst),
        TensorType::Q4_K => decode_blocks::<BlockQ4_K>(src, dst),
        TensorType::Q5_K => decode_blocks::<BlockQ5_K>(src, dst),
        TensorType::Q6_K => decode_blocks::<BlockQ6_K>(src, dst),
        TensorType::IQ4_NL => decode_blocks::<BlockIQ4_NL>(src, dst),
        TensorType::IQ4_XS => decode_blocks::<BlockIQ4_XS>(src, dst),
        _ => return Err(QuantError::Unsupported { ty, action: "dequantized" }),
    }
    Ok(())
}

/// Encodes elements. `F32` copies; `F16` and `BF16` round to nearest even; block formats refuse NaN and ∞.
///
/// Errors if `src` is not whole blocks, holds what the type cannot, or if there is no code for the type.
pub fn quantize(ty: TensorType, src: &[f32]) -> Result<Vec<u8>, QuantError> {
    ty.row_bytes(src.len() as u64)?;
    match ty {
        TensorType::F32 => Ok(src.iter().flat_map(|x| x.to_le_bytes()).collect()),
        TensorType::F16 => encode_plain(ty, src, |x| {
            let h = half::f16::from_f32(x);
            (h.to_le_bytes(), h.is_infinite())
        }),
        TensorType::BF16 => encode_plain(ty, src, |x| {
            let h = half::bf16::from_f32(x);
            (h.to_le_bytes(), h.is_infinite())
        }),
        TensorType::Q4_0 => encode_blocks::<BlockQ4_0>(src),
        TensorType::Q4_1 => encode_blocks::<BlockQ4_1>(src),
        TensorType::Q5_0 => encode_blocks::<BlockQ5_0>(src),
        TensorType::Q5_1 => encode_blocks::<BlockQ5_1>(src),
        TensorType::Q8_0 => encode_blocks::<BlockQ8_0>(src),
        TensorType::Q4_K => encode_blocks::<BlockQ4_K>(src),
        TensorType::Q5_K => encode_blocks::<BlockQ5_K>(src),
        TensorType::Q6_K => encode_blocks::<BlockQ6_K>(src),
        _ => Err(QuantError::Unsupported { ty, action: "quantized" }),
    }
}

fn decode_plain<const N: usize>(src: &[u8], dst: &mut [f32], f: impl Fn([u8; N]) -> f32) {
    let (values, _) = src.as_chunks::<N>();
    for (x, &bytes) in dst.iter_mut().zip(values) {
        *x = f(bytes);
    }
}

fn decode_blocks<B: Decode>(src: &[u8], dst: &mut [f32]) {
    let blocks = view::<B>(src).expect("the caller checked that the bytes are whole blocks");
    for (block, out) in blocks.iter().zip(dst.chunks_exact_mut(B::TYPE.block_size())) {
        block.decode(out);
    }
}

/// `f` returns the bytes and whether they stand for infinity.
fn encode_plain(
    ty: TensorType,
    src: &[f32],
    f: impl Fn(f32) -> ([u8; 2], bool),
) -> Result<Vec<u8>, QuantError> {
    let mut out = Vec::with_capacity(src.len() * 2);
    for (index, &x) in src.iter().enumerate() {
        let (bytes, infinite) = f(x);
        if infinite && x.is_finite() {
            return Err(QuantError::Overflow { ty, index });
        }
        out.extend(bytes);
    }
    Ok(out)
}

fn encode_blocks<B: Encode>(src: &[f32]) -> Result<Vec<u8>, QuantError> {
    let (ty, len) = (B::TYPE, B::TYPE.block_size());
    if let Some((index, &value)) = src.iter().enumerate().find(|(_, x)| !x.is_finite()) {
        return Err(QuantError::NotFinite { ty, index, value });
    }
    let mut out = Vec::with_capacity(src.len() / len * ty.type_size());
    for (i, x) in src.chunks_exact(len).enumerate() {
        let block = B::encode(x).ok_or(QuantError::Overflow { ty, index: i * len })?;
        out.extend(bytemuck::bytes_of(&block));
    }
    Ok(out)
}
