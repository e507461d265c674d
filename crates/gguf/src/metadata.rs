//! A file's metadata: keys in the file's order, typed access that says what is wrong.

use indexmap::IndexMap;

use crate::source::SharedBytes;
use crate::value::{Array, StringArray, Value, ValueType};

/// More layers than any model has; a bound on what a file's `block_count` can make us allocate.
pub const MAX_LAYERS: usize = 1 << 16;

/// A metadata entry is missing or is not what its reader needs.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MetadataError {
    /// A key that must be there is not.
    #[error("metadata key {key:?} is missing (expected {expected})")]
    Missing {
        /// The key.
        key: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// The value has another type.
    #[error("metadata key {key:?}: expected {expected}, found {found}")]
    WrongType {
        /// The key.
        key: String,
        /// What it should hold.
        expected: &'static str,
        /// What it holds.
        found: String,
    },
    /// The value is of a fitting kind but beyond the range of the type asked for.
    #[error("metadata key {key:?}: {value} does not fit {expected}")]
    OutOfRange {
        /// The key.
        key: String,
        /// The type asked for.
        expected: &'static str,
        /// The value.
        value: String,
    },
    /// A string is not UTF-8.
    #[error("metadata key {key:?}: the text is not valid UTF-8")]
    NotUtf8 {
        /// The key.
        key: String,
    },
    /// An array has another length than the model's other values ask for.
    #[error("metadata key {key:?}: expected {expected} elements, found {found}")]
    WrongLength {
        /// The key.
        key: String,
        /// Elements needed.
        expected: usize,
        /// Elements there.
        found: usize,
    },
    /// More layers were asked for than any model has.
    #[error(
        "metadata key {key:?}: a value for each of {layers} layers was asked for, at most {MAX_LAYERS} are allowed"
    )]
    TooManyLayers {
        /// The key.
        key: String,
        /// Layers asked for.
        layers: usize,
    },
}

/// Why a value could not be converted; the key is added by the caller.
#[derive(Debug)]
pub enum Mismatch {
    /// Another type; what was found.
    Type(String),
    /// A fitting kind, but out of range; the value.
    Range(String),
    /// A string that is not UTF-8.
    Utf8,
}

impl Mismatch {
    fn ty(value: Value<'_>) -> Self {
        match value {
            Value::Array(a) => Mismatch::Type(format!("array of {}", a.element_type())),
            Value::String(_) => Mismatch::Type("string".to_owned()),
            v => Mismatch::Type(format!("{} {v}", v.value_type())),
        }
    }
}

/// A Rust type that a metadata value can be read as.
///
/// Integers accept every integer type whose value fits; floats accept f32 and f64; nothing else converts.
pub trait FromValue<'a>: Sized {
    /// The type's name in messages.
    const EXPECTED: &'static str;
    /// Converts a value.
    fn from_value(value: Value<'a>) -> Result<Self, Mismatch>;
}

macro_rules! integer_from_value {
    ($($ty:ident),*) => {$(
        impl<'a> FromValue<'a> for $ty {
            const EXPECTED: &'static str = stringify!($ty);
            fn from_value(value: Value<'a>) -> Result<Self, Mismatch> {
                let v = value.as_integer().ok_or_else(|| Mismatch::ty(value))?;
                v.try_into().map_err(|_| Mismatch::Range(format!("{} {v}", value.value_type())))
            }
        }
    )*};
}
integer_from_value!(u8, i8, u16, i16, u32, i32, u64, i64, usize);

impl<'a> FromValue<'a> for f32 {
    const EXPECTED: &'static str = "f32";
    fn from_value(value: Value<'a>) -> Result<Self, Mismatch> {
        match value {
            Value::F32(v) => Ok(v),
            Value::F64(v) if v.is_finite() && !(v as f32).is_finite() => {
                Err(Mismatch::Range(format!("f64 {v:e}")))
            }
            Value::F64(v) => Ok(v as f32),
            v => Err(Mismatch::ty(v)),
        }
    }
}

impl<'a> FromValue<'a> for f64 {
    const EXPECTED: &'static str = "f64";
    fn from_value(value: Value<'a>) -> Result<Self, Mismatch> {
        match value {
            Value::F32(v) => Ok(v.into()),
            Value::F64(v) => Ok(v),
            v => Err(Mismatch::ty(v)),
        }
    }
}

impl<'a> FromValue<'a> for bool {
    const EXPECTED: &'static str = "bool";
    fn from_value(value: Value<'a>) -> Result<Self, Mismatch> {
        if let Value::Bool(v) = value { Ok(v) } else { Err(Mismatch::ty(value)) }
    }
}

impl<'a> FromValue<'a> for &'a [u8] {
    const EXPECTED: &'static str = "string";
    fn from_value(value: Value<'a>) -> Result<Self, Mismatch> {
        if let Value::String(v) = value { Ok(v) } else { Err(Mismatch::ty(value)) }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const EXPECTED: &'static str = "string";
    fn from_value(value: Value<'a>) -> Result<Self, Mismatch> {
        std::str::from_utf8(<&[u8]>::from_value(value)?).map_err(|_| Mismatch::Utf8)
    }
}

impl<'a> FromValue<'a> for Array<'a> {
    const EXPECTED: &'static str = "array";
    fn from_value(value: Value<'a>) -> Result<Self, Mismatch> {
        if let Value::Array(v) = value { Ok(v) } else { Err(Mismatch::ty(value)) }
    }
}

impl<'a> FromValue<'a> for StringArray<'a> {
    const EXPECTED: &'static str = "array of string";
    fn from_value(value: Value<'a>) -> Result<Self, Mismatch> {
        match value {
            Value::Array(v) => v.strings().ok_or_else(|| Mismatch::ty(value)),
            v => Err(Mismatch::ty(v)),
        }
    }
}

macro_rules! vec_from_value {
    ($($ty:ident: $name:literal),*) => {$(
        impl<'a> FromValue<'a> for Vec<$ty> {
            const EXPECTED: &'static str = $name;
            fn from_value(value: Value<'a>) -> Result<Self, Mismatch> {
                let array = Array::from_value(value)?;
                array.iter().map(|v| $ty::from_value(v).map_err(|e| match e {
                    // One element's type is every element's: name the array's.
                    Mismatch::Type(_) => Mismatch::ty(value),
                    e => e,
                })).collect()
            }
        }
    )*};
}
vec_from_value!(u32: "array of u32", i32: "array of i32", u64: "array of u64", f32: "array of f32", bool: "array of bool");

/// Where an entry's value lies in the file.
#[derive(Debug)]
pub(crate) enum Slot {
    Scalar { ty: ValueType, at: usize },
    String { at: usize, len: usize },
    Array { element: ValueType, len: usize, at: usize, size: usize, starts: Box<[usize]> },
}

/// The metadata of a model, in the file's order. Values are read in place.
#[derive(Debug)]
pub struct Metadata {
    pub(crate) bytes: SharedBytes,
    pub(crate) entries: IndexMap<Box<str>, Slot>,
}

macro_rules! typed_getters {
    ($($get:ident, $require:ident, $ty:ty, $what:literal;)*) => {$(
        #[doc = concat!("The value of `key` as ", $what, "; `None` if the key is absent, an error if it holds something else.")]
        pub fn $get(&self, key: &str) -> Result<Option<$ty>, MetadataError> {
            self.get_as(key)
        }

        #[doc = concat!("The value of `key` as ", $what, "; an error if the key is absent or holds something else.")]
        pub fn $require(&self, key: &str) -> Result<$ty, MetadataError> {
            self.require_as(key)
        }
    )*};
}

impl Metadata {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// True if `key` is present.
    pub fn contains_key(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.entries.get(key).map(|slot| self.value(slot))
    }

    /// All entries in the file's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, Value<'_>)> {
        self.entries.iter().map(|(key, slot)| (&**key, self.value(slot)))
    }

    fn value<'a>(&'a self, slot: &'a Slot) -> Value<'a> {
        let bytes: &[u8] = &self.bytes;
        match slot {
            Slot::Scalar { ty, at } => {
                let size = ty.size().expect("a scalar type has a size");
                Value::scalar(*ty, &bytes[*at..*at + size]).expect("a scalar type of its own size")
            }
            Slot::String { at, len } => Value::String(&bytes[*at..*at + *len]),
            Slot::Array { element, len, at, size, starts } => {
                Value::Array(Array { element: *element, len: *len, bytes: &bytes[*at..*at + *size], starts })
            }
        }
    }

    /// The value of `key` as a `T`; `None` if the key is absent, an error if it holds something else.
    pub fn get_as<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, MetadataError> {
        self.get(key).map(|value| convert(key, value)).transpose()
    }

    /// The value of `key` as a `T`; an error if the key is absent or holds something else.
    pub fn require_as<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, MetadataError> {
        self.get_as(key)?.ok_or_else(|| MetadataError::Missing { key: key.to_owned(), expected: T::EXPECTED })
    }

    typed_getters! {
        get_bool, require_bool, bool, "a boolean";
        get_u32, require_u32, u32, "a `u32`, from any integer type that fits";
        get_i32, require_i32, i32, "an `i32`, from any integer type that fits";
        get_u64, require_u64, u64, "a `u64`, from any integer type that fits";
        get_f32, require_f32, f32, "an `f32`, from f32 or f64";
        get_str, require_str, &str, "UTF-8 text";
        get_array, require_array, Array<'_>, "an array of any type";
        get_strings, require_strings, StringArray<'_>, "an array of strings";
        get_u32s, require_u32s, Vec<u32>, "an array of `u32`, from any integer type that fits";
        get_i32s, require_i32s, Vec<i32>, "an array of `i32`, from any integer type that fits";
        get_f32s, require_f32s, Vec<f32>, "an array of `f32`, from f32 or f64";
        get_bools, require_bools, Vec<bool>, "an array of booleans";
    }

    /// A value for each of `n_layers` layers: an array of exactly that length, or one scalar for all.
    pub fn get_per_layer<'a, T: FromValue<'a> + Clone>(
        &'a self,
        key: &str,
        n_layers: usize,
    ) -> Result<Option<Vec<T>>, MetadataError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        if n_layers > MAX_LAYERS {
            return Err(MetadataError::TooManyLayers { key: key.to_owned(), layers: n_layers });
        }
        let Value::Array(array) = value else {
            return Ok(Some(vec![convert(key, value)?; n_layers]));
        };
        if array.len() != n_layers {
            return Err(MetadataError::WrongLength {
                key: key.to_owned(),
                expected: n_layers,
                found: array.len(),
            });
        }
        array.iter().map(|v| convert(key, v)).collect::<Result<_, _>>().map(Some)
    }

    /// As [`get_per_layer`](Self::get_per_layer), but the key must be there.
    pub fn require_per_layer<'a, T: FromValue<'a> + Clone>(
        &'a self,
        key: &str,
        n_layers: usize,
    ) -> Result<Vec<T>, MetadataError> {
        self.get_per_layer(key, n_layers)?
            .ok_or_else(|| MetadataError::Missing { key: key.to_owned(), expected: T::EXPECTED })
    }
}

fn convert<'a, T: FromValue<'a>>(key: &str, value: Value<'a>) -> Result<T, MetadataError> {
    T::from_value(value).map_err(|mismatch| {
        let key = key.to_owned();
        match mismatch {
            Mismatch::Type(found) => MetadataError::WrongType { key, expected: T::EXPECTED, found },
            Mismatch::Range(value) => MetadataError::OutOfRange { key, expected: T::EXPECTED, value },
            Mismatch::Utf8 => MetadataError::NotUtf8 { key },
        }
    })
}
