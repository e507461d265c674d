//! Writing GGUF files: for tests, which build tiny models in memory, and for the quantizer.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::{self, Write};

use crate::value::ValueType;
use crate::{DEFAULT_ALIGNMENT, MAX_DIMS, TensorType};

/// Why a file could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The destination failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// What was asked for is not a valid file.
    #[error("{0}")]
    Invalid(String),
}

/// A metadata value to write.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // the variants are ValueType's
pub enum MetaValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(Vec<u8>),
    U64(u64),
    I64(i64),
    F64(f64),
    /// Elements of one type, which is stated so that an empty array has one.
    Array(ValueType, Vec<MetaValue>),
}

impl MetaValue {
    /// Its type.
    pub fn value_type(&self) -> ValueType {
        match self {
            MetaValue::U8(_) => ValueType::U8,
            MetaValue::I8(_) => ValueType::I8,
            MetaValue::U16(_) => ValueType::U16,
            MetaValue::I16(_) => ValueType::I16,
            MetaValue::U32(_) => ValueType::U32,
            MetaValue::I32(_) => ValueType::I32,
            MetaValue::F32(_) => ValueType::F32,
            MetaValue::Bool(_) => ValueType::Bool,
            MetaValue::String(_) => ValueType::String,
            MetaValue::U64(_) => ValueType::U64,
            MetaValue::I64(_) => ValueType::I64,
            MetaValue::F64(_) => ValueType::F64,
            MetaValue::Array(..) => ValueType::Array,
        }
    }

    /// The bytes of the value, without its type.
    fn put(&self, out: &mut Vec<u8>) -> Result<(), WriteError> {
        match self {
            MetaValue::U8(v) => out.push(*v),
            MetaValue::I8(v) => out.push(*v as u8),
            MetaValue::U16(v) => out.extend(v.to_le_bytes()),
            MetaValue::I16(v) => out.extend(v.to_le_bytes()),
            MetaValue::U32(v) => out.extend(v.to_le_bytes()),
            MetaValue::I32(v) => out.extend(v.to_le_bytes()),
            MetaValue::F32(v) => out.extend(v.to_le_bytes()),
            MetaValue::Bool(v) => out.push(u8::from(*v)),
            MetaValue::String(v) => put_bytes(out, v),
            MetaValue::U64(v) => out.extend(v.to_le_bytes()),
            MetaValue::I64(v) => out.extend(v.to_le_bytes()),
            MetaValue::F64(v) => out.extend(v.to_le_bytes()),
            MetaValue::Array(element, values) => {
                out.extend(element.id().to_le_bytes());
                out.extend((values.len() as u64).to_le_bytes());
                for v in values {
                    if v.value_type() != *element || *element == ValueType::Array {
                        return Err(WriteError::Invalid(format!(
                            "an array of {element} cannot hold a {}",
                            v.value_type()
                        )));
                    }
                    v.put(out)?;
                }
            }
        }
        Ok(())
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

macro_rules! into_meta_value {
    ($($ty:ty => $variant:ident),*) => {$(
        impl From<$ty> for MetaValue {
            fn from(v: $ty) -> Self {
                MetaValue::$variant(v.into())
            }
        }
        impl From<Vec<$ty>> for MetaValue {
            fn from(v: Vec<$ty>) -> Self {
                MetaValue::Array(ValueType::$variant, v.into_iter().map(MetaValue::from).collect())
            }
        }
        impl From<&[$ty]> for MetaValue {
            fn from(v: &[$ty]) -> Self {
                v.to_vec().into()
            }
        }
        impl<const N: usize> From<[$ty; N]> for MetaValue {
            fn from(v: [$ty; N]) -> Self {
                v.to_vec().into()
            }
        }
    )*};
}
into_meta_value!(
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32, bool => Bool,
    &str => String, String => String, u64 => U64, i64 => I64, f64 => F64
);

struct NewTensor<'a> {
    name: String,
    ty: TensorType,
    shape: Vec<u64>,
    data: Cow<'a, [u8]>,
}

/// Collects metadata and tensors, then writes a file.
///
/// ```
/// use minfer_gguf::{Gguf, TensorType, Writer};
///
/// let bytes = Writer::new()
///     .meta("general.architecture", "llama")
///     .meta("llama.block_count", 2u32)
///     .meta("tokenizer.ggml.tokens", ["<s>", "a", "b"])
///     .tensor_f32("output_norm.weight", &[4], &[1.0, 2.0, 3.0, 4.0])
///     .to_bytes()?;
/// let gguf = Gguf::from_bytes(bytes)?;
/// assert_eq!(gguf.metadata().require_u32("llama.block_count")?, 2);
/// let norm = gguf.tensor("output_norm.weight").unwrap();
/// assert_eq!((norm.ty, norm.shape), (TensorType::F32, &[4][..]));
/// assert_eq!(norm.dequantize()?, [1.0, 2.0, 3.0, 4.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Writer<'a> {
    version: u32,
    alignment: u64,
    meta: Vec<(String, MetaValue)>,
    tensors: Vec<NewTensor<'a>>,
}

impl Default for Writer<'_> {
    fn default() -> Self {
        Writer { version: 3, alignment: DEFAULT_ALIGNMENT, meta: Vec::new(), tensors: Vec::new() }
    }
}

impl<'a> Writer<'a> {
    /// An empty file of version 3 with the default alignment.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes this version instead: 2 or 3, which differ in nothing but the number.
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Aligns tensor data to this power of two and records it as `general.alignment`.
    pub fn alignment(mut self, alignment: u32) -> Self {
        self.alignment = alignment.into();
        self.meta("general.alignment", alignment)
    }

    /// Adds a metadata entry.
    pub fn meta(mut self, key: impl Into<String>, value: impl Into<MetaValue>) -> Self {
        self.meta.push((key.into(), value.into()));
        self
    }

    /// Adds a tensor. `shape` has the innermost dimension first; `data` is in the type's block format.
    pub fn tensor(
        mut self,
        name: impl Into<String>,
        ty: TensorType,
        shape: &[u64],
        data: impl Into<Cow<'a, [u8]>>,
    ) -> Self {
        self.tensors.push(NewTensor { name: name.into(), ty, shape: shape.to_vec(), data: data.into() });
        self
    }

    /// Adds an F32 tensor.
    pub fn tensor_f32(self, name: impl Into<String>, shape: &[u64], values: &[f32]) -> Self {
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.tensor(name, TensorType::F32, shape, data)
    }

    /// The whole file in memory.
    pub fn to_bytes(&self) -> Result<Vec<u8>, WriteError> {
        let mut out = Vec::new();
        self.write_to(&mut out)?;
        Ok(out)
    }

    /// Writes the file.
    pub fn write_to(&self, out: &mut impl Write) -> Result<(), WriteError> {
        self.check()?;
        let head = self.head()?;
        out.write_all(&head)?;
        let mut at = head.len() as u64;
        for data in std::iter::once(&[][..]).chain(self.tensors.iter().map(|t| &*t.data)) {
            // Padding follows every tensor, the last too, and precedes the first.
            out.write_all(data)?;
            at += data.len() as u64;
            let padding = at.next_multiple_of(self.alignment) - at;
            io::copy(&mut io::Read::take(io::repeat(0), padding), out)?;
            at += padding;
        }
        Ok(())
    }

    /// Everything before the tensor data, without padding.
    fn head(&self) -> Result<Vec<u8>, WriteError> {
        let mut out = Vec::new();
        out.extend(b"GGUF");
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.meta.len() as u64).to_le_bytes());
        for (key, value) in &self.meta {
            put_bytes(&mut out, key.as_bytes());
            out.extend(value.value_type().id().to_le_bytes());
            value.put(&mut out)?;
        }
        let mut offset = 0u64;
        for t in &self.tensors {
            put_bytes(&mut out, t.name.as_bytes());
            out.extend((t.shape.len() as u32).to_le_bytes());
            t.shape.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(t.ty.id().to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset = (offset + t.data.len() as u64).next_multiple_of(self.alignment);
        }
        Ok(out)
    }

    fn check(&self) -> Result<(), WriteError> {
        let invalid = |message: String| Err(WriteError::Invalid(message));
        if !matches!(self.version, 2 | 3) {
            return invalid(format!("version {} cannot be written, only 2 and 3", self.version));
        }
        if !self.alignment.is_power_of_two() {
            return invalid(format!("alignment {} is not a power of two", self.alignment));
        }
        let mut seen = HashSet::new();
        for (key, _) in &self.meta {
            if key.is_empty() || !seen.insert(key) {
                return invalid(format!("metadata key {key:?} is empty or occurs twice"));
            }
        }
        let mut seen = HashSet::new();
        for t in &self.tensors {
            let name = &t.name;
            if name.is_empty() || !seen.insert(name) {
                return invalid(format!("tensor name {name:?} is empty or occurs twice"));
            }
            if t.shape.len() > MAX_DIMS || t.shape.contains(&0) {
                return invalid(format!("tensor {name:?}: shape {:?} is not allowed", t.shape));
            }
            let row = t.ty.row_bytes(t.shape.first().copied().unwrap_or(1));
            let row = row.map_err(|e| WriteError::Invalid(format!("tensor {name:?}: {e}")))?;
            let size = t.shape.iter().skip(1).try_fold(row, |n, &d| n.checked_mul(d));
            if size != Some(t.data.len() as u64) {
                return invalid(format!(
                    "tensor {name:?}: {} bytes of data for shape {:?} of {}",
                    t.data.len(),
                    t.shape,
                    t.ty
                ));
            }
        }
        Ok(())
    }
}
