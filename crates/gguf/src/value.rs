//! Views of metadata values, read in place from the file's bytes.

use std::fmt;

macro_rules! value_types {
    ($($(#[$doc:meta])* $variant:ident = $id:literal, $name:literal, $size:expr;)*) => {
        /// The type of a metadata value. The discriminant is the id stored in files.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum ValueType { $($(#[$doc])* $variant = $id,)* }

        impl ValueType {
            /// Every type, in the order of ids.
            pub const ALL: &'static [ValueType] = &[$(ValueType::$variant,)*];

            /// The type with this id.
            pub const fn from_id(id: u32) -> Option<ValueType> {
                match id { $($id => Some(ValueType::$variant),)* _ => None }
            }

            /// The id stored in files.
            pub const fn id(self) -> u32 {
                self as u32
            }

            /// A short name, such as `u32`.
            pub const fn name(self) -> &'static str {
                match self { $(ValueType::$variant => $name,)* }
            }

            /// Bytes of a scalar of this type; `None` for strings and arrays.
            pub const fn size(self) -> Option<usize> {
                match self { $(ValueType::$variant => $size,)* }
            }
        }
    };
}

value_types! {
    /// Unsigned 8-bit integer.
    U8 = 0, "u8", Some(1);
    /// Signed 8-bit integer.
    I8 = 1, "i8", Some(1);
    /// Unsigned 16-bit integer.
    U16 = 2, "u16", Some(2);
    /// Signed 16-bit integer.
    I16 = 3, "i16", Some(2);
    /// Unsigned 32-bit integer.
    U32 = 4, "u32", Some(4);
    /// Signed 32-bit integer.
    I32 = 5, "i32", Some(4);
    /// IEEE 754 single.
    F32 = 6, "f32", Some(4);
    /// One byte, 0 or 1.
    Bool = 7, "bool", Some(1);
    /// Length-prefixed bytes, meant to be UTF-8.
    String = 8, "string", None;
    /// A counted sequence of values of one type.
    Array = 9, "array", None;
    /// Unsigned 64-bit integer.
    U64 = 10, "u64", Some(8);
    /// Signed 64-bit integer.
    I64 = 11, "i64", Some(8);
    /// IEEE 754 double.
    F64 = 12, "f64", Some(8);
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A metadata value. Strings and arrays borrow the file's bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // the variants are ValueType's
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// Meant to be UTF-8, which is checked only when it is read as a `str`.
    String(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// Its type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// The value of any integer type.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// Decodes a scalar. `bytes` holds exactly the scalar; `None` for strings and arrays.
    pub(crate) fn scalar(ty: ValueType, bytes: &[u8]) -> Option<Value<'a>> {
        Some(match ty {
            ValueType::U8 => Value::U8(*bytes.first()?),
            ValueType::I8 => Value::I8(*bytes.first()? as i8),
            ValueType::U16 => Value::U16(u16::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::Bool => Value::Bool(*bytes.first()? != 0),
            ValueType::U64 => Value::U64(u64::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::String | ValueType::Array => return None,
        })
    }
}

/// For messages and listings: text is quoted and cut, arrays show their type and length.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U8(v) => write!(f, "{v}"),
            Value::I8(v) => write!(f, "{v}"),
            Value::U16(v) => write!(f, "{v}"),
            Value::I16(v) => write!(f, "{v}"),
            Value::U32(v) => write!(f, "{v}"),
            Value::I32(v) => write!(f, "{v}"),
            Value::F32(v) => write!(f, "{v}"),
            Value::Bool(v) => write!(f, "{v}"),
            Value::String(v) => {
                const SHOWN: usize = 64;
                write!(f, "{:?}", String::from_utf8_lossy(&v[..v.len().min(SHOWN)]))?;
                if v.len() > SHOWN { write!(f, "… ({} bytes)", v.len()) } else { Ok(()) }
            }
            Value::Array(v) => write!(f, "{} × {}", v.len(), v.element_type()),
            Value::U64(v) => write!(f, "{v}"),
            Value::I64(v) => write!(f, "{v}"),
            Value::F64(v) => write!(f, "{v}"),
        }
    }
}

/// An array of one type of scalars or of strings, read in place.
#[derive(Clone, Copy, PartialEq)]
pub struct Array<'a> {
    pub(crate) element: ValueType,
    pub(crate) len: usize,
    /// Scalars back to back, or the strings with their length prefixes.
    pub(crate) bytes: &'a [u8],
    /// For strings only: where the text of each starts in `bytes`, and one more entry where the next would.
    pub(crate) starts: &'a [usize],
}

impl<'a> Array<'a> {
    /// The type of every element; a scalar type or `String`.
    pub fn element_type(&self) -> ValueType {
        self.element
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The element at `index`, `None` beyond the end.
    pub fn get(&self, index: usize) -> Option<Value<'a>> {
        match self.element.size() {
            Some(size) => {
                let start = index.checked_mul(size)?;
                Value::scalar(self.element, self.bytes.get(start..start.checked_add(size)?)?)
            }
            None => self.strings()?.get(index).map(Value::String),
        }
    }

    /// All elements in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Value<'a>> + use<'a> {
        let array = *self;
        // Every index below `len` was checked to be there when the file was parsed.
        (0..array.len).map(move |i| array.get(i).expect("array index below its length"))
    }

    /// This array as strings, `None` if it holds something else.
    pub fn strings(&self) -> Option<StringArray<'a>> {
        (self.element == ValueType::String).then_some(StringArray { bytes: self.bytes, starts: self.starts })
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({} × {})", self.len, self.element)
    }
}

/// An array of strings, such as a vocabulary. Access by index is constant-time and copies nothing.
#[derive(Clone, Copy)]
pub struct StringArray<'a> {
    bytes: &'a [u8],
    starts: &'a [usize],
}

/// Each string is preceded by its length as a u64.
pub(crate) const STRING_PREFIX: usize = 8;

impl<'a> StringArray<'a> {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of the string at `index`, `None` beyond the end. They are not checked to be UTF-8.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        let start = *self.starts.get(index)?;
        let next = *self.starts.get(index.checked_add(1)?)?;
        self.bytes.get(start..next.checked_sub(STRING_PREFIX)?)
    }

    /// All strings in order, as bytes.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let array = *self;
        (0..array.len()).map(move |i| array.get(i).expect("string index below the array's length"))
    }

    /// All strings in order, each checked to be UTF-8.
    pub fn iter_str(&self) -> impl ExactSizeIterator<Item = Result<&'a str, std::str::Utf8Error>> + use<'a> {
        self.iter().map(std::str::from_utf8)
    }
}

impl fmt::Debug for StringArray<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StringArray({})", self.len())
    }
}
