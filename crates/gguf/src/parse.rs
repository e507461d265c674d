//! Parsing one file: header, metadata, tensor infos. Every check is O(1) per entry and nothing is allocated
//! on the word of the file alone.

use indexmap::IndexMap;

use crate::cursor::Cursor;
use crate::error::FormatError;
use crate::metadata::Slot;
use crate::value::{STRING_PREFIX, ValueType};
use crate::{DEFAULT_ALIGNMENT, MAX_DIMS, TensorType};

/// A file's tensors by name, in the file's order.
pub(crate) type Tensors = IndexMap<Box<str>, TensorSlot>;

/// What one file holds; positions count from the start of the file.
#[derive(Debug)]
pub(crate) struct Layout {
    pub version: u32,
    pub alignment: u64,
    pub entries: IndexMap<Box<str>, Slot>,
    pub tensors: Tensors,
}

/// A tensor's type, shape and place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TensorSlot {
    pub ty: TensorType,
    pub n_dims: usize,
    pub dims: [u64; MAX_DIMS],
    pub start: usize,
    pub len: usize,
}

/// The longest metadata key or tensor name; the format's limit for keys.
const MAX_NAME: u64 = 65535;

/// Key with one byte, value type, a one-byte value.
const MIN_ENTRY: u64 = 8 + 1 + 4 + 1;
/// Name with one byte, number of dimensions, type, offset.
const MIN_TENSOR: u64 = 8 + 1 + 4 + 4 + 8;

pub(crate) fn parse(bytes: &[u8]) -> Result<Layout, FormatError> {
    let mut cursor = Cursor::new(bytes);
    let version = header(bytes, &mut cursor)?;
    let n_tensors = cursor.u64(|| "the tensor count".into())?;
    let n_entries = cursor.u64(|| "the metadata count".into())?;
    let n_entries = cursor.check_count(n_entries, MIN_ENTRY, || "the metadata count".into())?;
    cursor.check_count(n_tensors, MIN_TENSOR, || "the tensor count".into())?;

    let mut entries = IndexMap::with_capacity(n_entries);
    for index in 0..n_entries as u64 {
        let key = name(&mut cursor, "metadata key", index)?;
        let slot = entry(&mut cursor, bytes, key)?;
        if entries.insert(Box::from(key), slot).is_some() {
            return Err(FormatError::DuplicateKey(key.to_owned()));
        }
    }
    let alignment = alignment(bytes, &entries)?;

    // Metadata lies between the header and here, so the earlier check of the count is no longer tight.
    let n_tensors = cursor.check_count(n_tensors, MIN_TENSOR, || "the tensor count".into())?;
    let mut tensors = IndexMap::with_capacity(n_tensors);
    for index in 0..n_tensors as u64 {
        let name = name(&mut cursor, "tensor name", index)?;
        let info = tensor_info(&mut cursor, name, alignment)?;
        if tensors.insert(Box::from(name), info).is_some() {
            return Err(FormatError::DuplicateTensor(name.to_owned()));
        }
    }
    let tensors = place_tensors(tensors, cursor.position() as u64, bytes.len() as u64, alignment)?;
    Ok(Layout { version, alignment, entries, tensors })
}

/// Checks magic and version; things that people mistake for a model get an error of their own.
fn header(bytes: &[u8], cursor: &mut Cursor<'_>) -> Result<u32, FormatError> {
    const LFS: &[u8] = b"version https://git-lfs.github.com/spec/";
    const MAGIC: &[u8] = b"GGUF";
    if bytes.is_empty() {
        return Err(FormatError::Empty);
    }
    if bytes.starts_with(LFS) || (bytes.len() >= MAGIC.len() && LFS.starts_with(bytes)) {
        return Err(FormatError::LfsPointer);
    }
    if !bytes.starts_with(MAGIC) && !MAGIC.starts_with(bytes) {
        let start = &bytes[..bytes.len().min(16)];
        let printable = |b: &u8| b.is_ascii_graphic() || b.is_ascii_whitespace();
        return Err(match std::str::from_utf8(start) {
            Ok(text) if bytes.len() >= 4 && bytes.iter().take(256).all(printable) => {
                FormatError::Text { start: text.to_owned() }
            }
            _ => FormatError::BadMagic { start: bytes[..bytes.len().min(4)].to_vec() },
        });
    }
    cursor.take(MAGIC.len() as u64, || "the magic number".into())?;
    let version = cursor.u32(|| "the version".into())?;
    match version {
        2 | 3 => Ok(version),
        // The magic is written byte by byte, so the version is the first thing that is swapped.
        v if v != 0 && v & 0xFFFF == 0 => Err(FormatError::BigEndian { version: v.swap_bytes() }),
        v => Err(FormatError::UnsupportedVersion(v)),
    }
}

fn name<'a>(cursor: &mut Cursor<'a>, what: &'static str, index: u64) -> Result<&'a str, FormatError> {
    let bad = |problem| FormatError::BadName { what, index, problem };
    let len = cursor.u64(|| format!("the length of {what} number {index}"))?;
    if len == 0 {
        return Err(bad("empty"));
    }
    // A length beyond the file is a truncation, whatever it is otherwise.
    if len > MAX_NAME && len <= cursor.left() {
        return Err(bad("longer than 65535 bytes"));
    }
    let bytes = cursor.take(len, || format!("{what} number {index}"))?;
    std::str::from_utf8(bytes).map_err(|_| bad("not valid UTF-8"))
}

/// Reads an entry's type and passes over its value.
fn entry(cursor: &mut Cursor<'_>, bytes: &[u8], key: &str) -> Result<Slot, FormatError> {
    let what = || format!("the value of metadata key {key:?}");
    let ty = value_type(cursor, key)?;
    if ty == ValueType::Array {
        return array(cursor, bytes, key);
    }
    if let Some(size) = ty.size() {
        let at = cursor.position();
        let value = cursor.take(size as u64, what)?;
        if ty == ValueType::Bool {
            check_bools(value, key)?;
        }
        return Ok(Slot::Scalar { ty, at });
    }
    let len = cursor.string(what)?.len();
    Ok(Slot::String { at: cursor.position() - len, len })
}

fn array(cursor: &mut Cursor<'_>, bytes: &[u8], key: &str) -> Result<Slot, FormatError> {
    let element = value_type(cursor, key)?;
    if element == ValueType::Array {
        return Err(FormatError::NestedArray { key: key.to_owned() });
    }
    let count = || format!("the array length of metadata key {key:?}");
    let len = cursor.u64(count)?;
    let len = cursor.check_count(len, element.size().unwrap_or(STRING_PREFIX) as u64, count)?;
    let at = cursor.position();
    let mut starts = Vec::new();
    if let Some(size) = element.size() {
        // Cannot overflow: the count was checked against the bytes left.
        let values = cursor.take((len * size) as u64, count)?;
        if element == ValueType::Bool {
            check_bools(values, key)?;
        }
    } else {
        starts.reserve_exact(len + 1);
        for i in 0..len {
            let text = cursor.string(|| format!("element {i} of metadata key {key:?}"))?;
            starts.push(cursor.position() - text.len() - at);
        }
        starts.push(cursor.position() + STRING_PREFIX - at);
    }
    let size = cursor.position() - at;
    debug_assert!(at + size <= bytes.len());
    Ok(Slot::Array { element, len, at, size, starts: starts.into_boxed_slice() })
}

fn value_type(cursor: &mut Cursor<'_>, key: &str) -> Result<ValueType, FormatError> {
    let id = cursor.u32(|| format!("the type of metadata key {key:?}"))?;
    ValueType::from_id(id).ok_or_else(|| FormatError::UnknownValueType { key: key.to_owned(), id })
}

fn check_bools(values: &[u8], key: &str) -> Result<(), FormatError> {
    match values.iter().find(|&&v| v > 1) {
        Some(&value) => Err(FormatError::BadBool { key: key.to_owned(), value }),
        None => Ok(()),
    }
}

fn alignment(bytes: &[u8], entries: &IndexMap<Box<str>, Slot>) -> Result<u64, FormatError> {
    let at = match entries.get("general.alignment") {
        None => return Ok(DEFAULT_ALIGNMENT),
        Some(&Slot::Scalar { ty: ValueType::U32, at }) => at,
        Some(&Slot::Scalar { ty: found, .. }) => return Err(FormatError::AlignmentType { found }),
        Some(Slot::String { .. }) => return Err(FormatError::AlignmentType { found: ValueType::String }),
        Some(Slot::Array { .. }) => return Err(FormatError::AlignmentType { found: ValueType::Array }),
    };
    let value = Cursor::new(&bytes[at..]).u32(|| "general.alignment".into())?;
    if !value.is_power_of_two() {
        return Err(FormatError::BadAlignment(value));
    }
    Ok(value.into())
}

/// Reads one tensor info; `start` of the result is still relative to the data section.
fn tensor_info(cursor: &mut Cursor<'_>, name: &str, alignment: u64) -> Result<RelativeTensor, FormatError> {
    let what = || format!("the info of tensor {name:?}");
    let owned = || name.to_owned();
    let n_dims = cursor.u32(what)?;
    if n_dims as usize > MAX_DIMS {
        return Err(FormatError::TooManyDims { name: owned(), n_dims });
    }
    let n_dims = n_dims as usize;
    let mut dims = [1u64; MAX_DIMS];
    for (dim, size) in dims[..n_dims].iter_mut().enumerate() {
        *size = cursor.u64(what)?;
        if *size == 0 {
            return Err(FormatError::ZeroDim { name: owned(), dim });
        }
    }
    let id = cursor.u32(what)?;
    let Some(ty) = TensorType::from_id(id) else {
        return Err(match TensorType::removed_name(id) {
            Some(old_name) => FormatError::RemovedTensorType { name: owned(), id, old_name },
            None => FormatError::UnknownTensorType { name: owned(), id },
        });
    };
    let offset = cursor.u64(what)?;
    if !dims[0].is_multiple_of(ty.block_size() as u64) {
        return Err(FormatError::PartialBlock { name: owned(), row_len: dims[0], ty });
    }
    let size = byte_size(ty, &dims).ok_or_else(|| FormatError::SizeOverflow {
        name: owned(),
        shape: dims[..n_dims].to_vec(),
        ty,
    })?;
    if !offset.is_multiple_of(alignment) {
        return Err(FormatError::Misaligned { name: owned(), offset, alignment });
    }
    Ok(RelativeTensor { ty, n_dims, dims, offset, size })
}

/// Bytes of a tensor; `None` if they, or its elements, cannot be counted in 63 bits.
fn byte_size(ty: TensorType, dims: &[u64; MAX_DIMS]) -> Option<u64> {
    let elements = dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d))?;
    let size = (elements / ty.block_size() as u64).checked_mul(ty.type_size() as u64)?;
    (elements <= i64::MAX as u64 && size <= i64::MAX as u64).then_some(size)
}

struct RelativeTensor {
    ty: TensorType,
    n_dims: usize,
    dims: [u64; MAX_DIMS],
    offset: u64,
    size: u64,
}

/// Checks that every tensor lies within the file and that no two overlap.
fn place_tensors(
    tensors: IndexMap<Box<str>, RelativeTensor>,
    infos_end: u64,
    file_len: u64,
    alignment: u64,
) -> Result<Tensors, FormatError> {
    // A file without tensors may end right after its metadata.
    let data_start = infos_end.next_multiple_of(alignment).min(file_len);
    let available = file_len - data_start;
    let mut placed = Tensors::with_capacity(tensors.len());
    for (name, t) in tensors {
        let inside = t.offset.checked_add(t.size).is_some_and(|end| end <= available);
        if !inside {
            return Err(FormatError::OutOfFile {
                name: name.into(),
                offset: t.offset,
                size: t.size,
                available,
            });
        }
        let RelativeTensor { ty, n_dims, dims, offset, size } = t;
        let slot = TensorSlot { ty, n_dims, dims, start: (data_start + offset) as usize, len: size as usize };
        placed.insert(name, slot);
    }
    let mut order: Vec<(&str, &TensorSlot)> = placed.iter().map(|(name, slot)| (&**name, slot)).collect();
    order.sort_by_key(|(_, slot)| slot.start);
    for pair in order.windows(2) {
        if pair[0].1.start + pair[0].1.len > pair[1].1.start {
            return Err(FormatError::Overlap { first: pair[0].0.to_owned(), second: pair[1].0.to_owned() });
        }
    }
    Ok(placed)
}
