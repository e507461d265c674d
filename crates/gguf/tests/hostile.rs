//! Files that lie. Each is rejected with an error that names the field and its value, without a panic and
//! without allocating more than its own size warrants.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use minfer_gguf::FormatError::*;
use minfer_gguf::{FormatError, Gguf, TensorType, ValueType, Writer};

/// Counts the bytes that the current thread asks for.
struct Counting;

thread_local! {
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on unchanged to the system allocator; counting touches only a thread-local
// integer without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.set(ASKED.get().saturating_add(layout.size()));
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `alloc` above with this `layout`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Parses, checking that memory is asked for in proportion to the file (which `parse` copies) only.
fn parse(bytes: &[u8]) -> Result<Gguf, FormatError> {
    let before = ASKED.get();
    let result = Gguf::parse(bytes);
    let asked = ASKED.get() - before;
    let limit = 32 * bytes.len() + 4096;
    assert!(asked <= limit, "asked for {asked} bytes to read a file of {}", bytes.len());
    result
}

fn reject(bytes: &[u8]) -> FormatError {
    match parse(bytes) {
        Err(error) => error,
        Ok(_) => panic!("accepted {} bytes that it should not", bytes.len()),
    }
}

/// Builds files byte by byte, right or wrong.
#[derive(Clone, Default)]
struct Raw(Vec<u8>);

impl Raw {
    fn new(n_tensors: u64, n_entries: u64) -> Self {
        Raw::default().bytes(b"GGUF").u32(3).u64(n_tensors).u64(n_entries)
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn u32(self, v: u32) -> Self {
        self.bytes(&v.to_le_bytes())
    }

    fn u64(self, v: u64) -> Self {
        self.bytes(&v.to_le_bytes())
    }

    fn string(self, s: &str) -> Self {
        self.u64(s.len() as u64).bytes(s.as_bytes())
    }

    fn key(self, key: &str, ty: ValueType) -> Self {
        self.string(key).u32(ty.id())
    }

    fn tensor(self, name: &str, dims: &[u64], ty: u32, offset: u64) -> Self {
        let raw = self.string(name).u32(dims.len() as u32);
        dims.iter().fold(raw, |raw, &d| raw.u64(d)).u32(ty).u64(offset)
    }

    /// Pads to the default alignment and adds `n` bytes of data.
    fn data(mut self, n: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(32) + n, 7);
        self
    }

    fn reject(&self) -> FormatError {
        reject(&self.0)
    }
}

const F32: u32 = TensorType::F32.id();
const I8: u32 = TensorType::I8.id();

/// Negative control: the builder makes acceptable files, so the cases below fail for the reason they name.
#[test]
fn the_builder_can_make_a_valid_file() {
    let raw = Raw::new(2, 1).key("k", ValueType::U32).u32(7);
    let raw = raw.tensor("a", &[8], F32, 0).tensor("b", &[2, 2], F32, 32).data(48);
    let gguf = parse(&raw.0).unwrap();
    assert_eq!(gguf.metadata().require_u32("k").unwrap(), 7);
    assert_eq!(gguf.tensor("b").unwrap().data, [7; 16]);
}

#[test]
fn g01_sum_of_sizes_beyond_64_bits() {
    let big = 1u64 << 62;
    let mut raw = Raw::new(5, 0);
    for (i, name) in ["a", "b", "c", "d"].iter().enumerate() {
        raw = raw.tensor(name, &[big], I8, (i as u64).wrapping_mul(big));
    }
    let error = raw.tensor("e", &[32], I8, 0).data(64).reject();
    assert_eq!(error, OutOfFile { name: "a".into(), offset: 0, size: big, available: 64 });
}

#[test]
fn g02_sum_and_overhead_beyond_64_bits() {
    let near = (1u64 << 63) - 32;
    let raw = Raw::new(2, 0).tensor("a", &[near], I8, 0).tensor("b", &[near], I8, near).data(64);
    assert_eq!(raw.reject(), OutOfFile { name: "a".into(), offset: 0, size: near, available: 64 });
    // An offset that wraps around when the size is added.
    let offset = u64::MAX - 31;
    let raw = Raw::new(1, 0).tensor("a", &[64], I8, offset).data(64);
    assert_eq!(raw.reject(), OutOfFile { name: "a".into(), offset, size: 64, available: 64 });
    // The start of the data section itself may not wrap.
    let raw = Raw::new(0, 1).key("general.alignment", ValueType::U32).u32(1 << 31);
    assert_eq!(parse(&raw.0).unwrap().alignment(), 1 << 31);
}

#[test]
fn g03_size_of_one_tensor_beyond_64_bits() {
    // Rows of 2^22 bytes, 2^42 + 1 of them: one row modulo 2^64.
    let shape = [1u64 << 20, (1 << 42) + 1];
    let raw = Raw::new(1, 0).tensor("a", &shape, F32, 0).data(1 << 12);
    assert_eq!(raw.reject(), SizeOverflow { name: "a".into(), shape: shape.to_vec(), ty: TensorType::F32 });
    // Elements can be counted, bytes cannot.
    let shape = [(1u64 << 62) - 1];
    let raw = Raw::new(1, 0).tensor("a", &shape, F32, 0).data(64);
    assert_eq!(raw.reject(), SizeOverflow { name: "a".into(), shape: shape.to_vec(), ty: TensorType::F32 });
}

#[test]
fn g04_tensor_reaches_beyond_the_file() {
    let raw = Raw::new(1, 0).tensor("a", &[4096], I8, 32).data(64);
    assert_eq!(raw.reject(), OutOfFile { name: "a".into(), offset: 32, size: 4096, available: 64 });
    let message = raw.reject().to_string();
    assert!(message.contains("\"a\"") && message.contains("4096") && message.contains("64"), "{message}");
    let raw = Raw::new(1, 0).tensor("a", &[65], I8, 0).data(64);
    assert_eq!(raw.reject(), OutOfFile { name: "a".into(), offset: 0, size: 65, available: 64 });
    // No data section at all.
    let raw = Raw::new(1, 0).tensor("a", &[1], I8, 0);
    assert!(matches!(raw.reject(), OutOfFile { available: 0, .. }));
}

#[test]
fn g06_string_length_beyond_the_file() {
    let len = 1u64 << 48;
    let error = Raw::new(0, 1).u64(len).bytes(&[b'k'; 20]).reject();
    assert_eq!(error, Truncated { what: "metadata key number 0".into(), at: 32, need: len, left: 20 });
    let error = Raw::new(0, 1).key("k", ValueType::String).u64(len).bytes(b"text").reject();
    assert_eq!(
        error,
        Truncated { what: "the value of metadata key \"k\"".into(), at: 45, need: len, left: 4 }
    );
    let raw = Raw::new(0, 1).key("k", ValueType::Array).u32(ValueType::String.id());
    let error = raw.u64(1).u64(u64::MAX).bytes(b"text").reject();
    assert!(matches!(error, Truncated { need: u64::MAX, left: 4, .. }), "{error}");
    let error = Raw::new(1, 0).u64(len).bytes(&[b'n'; 40]).reject();
    assert!(matches!(error, Truncated { left: 40, .. }), "{error}");
}

#[test]
fn g08_alignment_not_a_power_of_two() {
    for value in [0, 13, 3, 48, u32::MAX] {
        let raw = Raw::new(0, 1).key("general.alignment", ValueType::U32).u32(value);
        assert_eq!(raw.reject(), BadAlignment(value));
    }
    for value in [1, 8, 64, 4096] {
        let raw = Raw::new(0, 1).key("general.alignment", ValueType::U32).u32(value);
        assert_eq!(parse(&raw.0).unwrap().alignment(), u64::from(value));
    }
}

#[test]
fn g09_alignment_of_another_type() {
    for (ty, value) in [
        (ValueType::I32, &32i32.to_le_bytes()[..]),
        (ValueType::U64, &32u64.to_le_bytes()),
        (ValueType::F32, &32f32.to_le_bytes()),
        (ValueType::Bool, &[1]),
    ] {
        let error = Raw::new(0, 1).key("general.alignment", ty).bytes(value).reject();
        assert_eq!(error, AlignmentType { found: ty });
        assert!(error.to_string().contains("expected u32, found"), "{error}");
    }
    let error = Raw::new(0, 1).key("general.alignment", ValueType::String).string("32").reject();
    assert_eq!(error, AlignmentType { found: ValueType::String });
}

#[test]
fn g11_tensor_type_unknown_or_removed() {
    for id in [9999, u32::MAX, 43, i32::MIN as u32] {
        let error = Raw::new(1, 0).tensor("blk.0.w", &[32], id, 0).data(64).reject();
        assert_eq!(error, UnknownTensorType { name: "blk.0.w".into(), id });
        assert!(error.to_string().contains("blk.0.w") && error.to_string().contains(&id.to_string()));
    }
    for id in [4, 5, 31, 32, 33, 36, 37, 38] {
        let error = Raw::new(1, 0).tensor("blk.0.w", &[32], id, 0).data(64).reject();
        assert!(matches!(&error, RemovedTensorType { name, id: i, .. } if name == "blk.0.w" && *i == id));
        assert!(error.to_string().contains("removed"), "{error}");
    }
    // A type that is known but that nothing computes with is for the reader of the tensor to refuse.
    let raw = Raw::new(1, 0).tensor("t", &[256], TensorType::IQ1_M.id(), 0).data(56);
    assert_eq!(parse(&raw.0).unwrap().tensor("t").unwrap().ty, TensorType::IQ1_M);
}

#[test]
fn g12_too_many_dimensions() {
    for n_dims in [5, 9, 1_000_000, u32::MAX] {
        let error = Raw::new(1, 0).string("a").u32(n_dims).data(200).reject();
        assert_eq!(error, TooManyDims { name: "a".into(), n_dims });
    }
    let raw = Raw::new(1, 0).tensor("a", &[2, 2, 2, 2], I8, 0).data(16);
    assert_eq!(parse(&raw.0).unwrap().tensor("a").unwrap().shape, [2, 2, 2, 2]);
    // A scalar.
    let raw = Raw::new(1, 0).tensor("a", &[], F32, 0).data(4);
    assert_eq!(parse(&raw.0).unwrap().tensor("a").unwrap().data.len(), 4);
}

#[test]
fn g13_nested_arrays() {
    let mut raw = Raw::new(0, 1).key("deep", ValueType::Array);
    for _ in 0..100_000 {
        raw = raw.u32(ValueType::Array.id()).u64(1);
    }
    assert_eq!(raw.reject(), NestedArray { key: "deep".into() });
}

#[test]
fn g15_product_of_dimensions_wraps() {
    for shape in [
        vec![u64::MAX, 2],
        vec![1 << 32, 1 << 32],
        vec![1 << 63, 2],
        vec![u64::MAX, u64::MAX, 1, 1],
        // (2^32 + 1)(2^32 − 1) = 2^64 − 1, times itself is 1 modulo 2^64.
        vec![(1 << 32) + 1, (1 << 32) - 1, (1 << 32) + 1, (1 << 32) - 1],
    ] {
        let error = Raw::new(1, 0).tensor("a", &shape, I8, 0).data(64).reject();
        assert_eq!(error, SizeOverflow { name: "a".into(), shape, ty: TensorType::I8 });
    }
    let error = Raw::new(1, 0).tensor("a", &[4, 0, 4], I8, 0).data(64).reject();
    assert_eq!(error, ZeroDim { name: "a".into(), dim: 1 });
}

#[test]
fn g16_header() {
    let head = |magic: &[u8], version: u32| Raw::default().bytes(magic).u32(version).u64(0).u64(0);
    assert!(parse(&head(b"GGUF", 3).0).is_ok());
    assert!(parse(&head(b"GGUF", 2).0).is_ok());
    for version in [0, 1, 4, 99] {
        assert_eq!(head(b"GGUF", version).reject(), UnsupportedVersion(version));
    }
    for version in [2, 3] {
        let error = head(b"GGUF", u32::swap_bytes(version)).reject();
        assert_eq!(error, BigEndian { version });
        assert!(error.to_string().contains("big-endian file"), "{error}");
    }
    assert_eq!(head(b"GGML\xff", 3).reject(), BadMagic { start: b"GGML".to_vec() });
    assert_eq!(head(b"\0\0\0\0", 3).reject(), BadMagic { start: vec![0; 4] });
    assert_eq!(reject(b""), Empty);
    assert_eq!(reject(b"# A model card\n"), Text { start: "# A model card\n".into() });
}

#[test]
fn g16_names() {
    let two = Raw::new(0, 2).key("k", ValueType::U8).bytes(&[1]).key("k", ValueType::U8).bytes(&[2]);
    assert_eq!(two.reject(), DuplicateKey("k".into()));
    let two = Raw::new(2, 0).tensor("t", &[32], I8, 0).tensor("t", &[32], I8, 32).data(64);
    assert_eq!(two.reject(), DuplicateTensor("t".into()));
    let bad = |what, problem| BadName { what, index: 0, problem };
    let error = Raw::new(0, 1).key("", ValueType::U32).u32(1).reject();
    assert_eq!(error, bad("metadata key", "empty"));
    let error = Raw::new(0, 1).u64(2).bytes(b"\xff\xfe").u32(0).bytes(&[1]).reject();
    assert_eq!(error, bad("metadata key", "not valid UTF-8"));
    let error = Raw::new(0, 1).key(&"k".repeat(65536), ValueType::U32).u32(1).reject();
    assert_eq!(error, bad("metadata key", "longer than 65535 bytes"));
    let error = Raw::new(1, 0).tensor("", &[1], I8, 0).data(32).reject();
    assert_eq!(error, bad("tensor name", "empty"));
}

#[test]
fn g16_values() {
    let error = Raw::new(0, 1).string("k").u32(13).u64(0).reject();
    assert_eq!(error, UnknownValueType { key: "k".into(), id: 13 });
    let error = Raw::new(0, 1).key("k", ValueType::Array).u32(u32::MAX).u64(0).reject();
    assert_eq!(error, UnknownValueType { key: "k".into(), id: u32::MAX });
    let error = Raw::new(0, 1).key("k", ValueType::Bool).bytes(&[2]).reject();
    assert_eq!(error, BadBool { key: "k".into(), value: 2 });
    let raw = Raw::new(0, 1).key("k", ValueType::Array).u32(ValueType::Bool.id());
    assert_eq!(raw.u64(3).bytes(&[1, 0, 255]).reject(), BadBool { key: "k".into(), value: 255 });
}

#[test]
fn g16_offsets() {
    let raw = Raw::new(1, 0).tensor("a", &[32], I8, 33).data(128);
    assert_eq!(raw.reject(), Misaligned { name: "a".into(), offset: 33, alignment: 32 });
    let overlap = Overlap { first: "a".into(), second: "b".into() };
    for (a, b) in [((64, 0), (32, 32)), ((32, 0), (32, 0)), ((128, 0), (1, 96))] {
        let raw = Raw::new(2, 0).tensor("a", &[a.0], I8, a.1).tensor("b", &[b.0], I8, b.1).data(128);
        assert_eq!(raw.reject(), overlap, "{a:?} {b:?}");
    }
    // The order in the file is free, gaps are too.
    let raw = Raw::new(2, 0).tensor("a", &[32], I8, 96).tensor("b", &[1], I8, 32).data(128);
    assert!(parse(&raw.0).is_ok());
    let raw = Raw::new(1, 0).tensor("a", &[100], TensorType::Q4_0.id(), 0).data(128);
    assert_eq!(raw.reject(), PartialBlock { name: "a".into(), row_len: 100, ty: TensorType::Q4_0 });
}

/// A file with every kind of entry.
fn sample() -> Vec<u8> {
    Writer::new()
        .meta("u8", 1u8)
        .meta("text", "some text")
        .meta("tokens", ["a", "", "ccc"])
        .meta("scores", [0.5f32, -1.0])
        .meta("flags", [true, false])
        .meta("big", u64::MAX)
        .tensor_f32("norm", &[3], &[1.0, 2.0, 3.0])
        .tensor("w", TensorType::Q8_0, &[32, 2], vec![1u8; 68])
        .to_bytes()
        .unwrap()
}

#[test]
fn g16_truncated_at_every_byte() {
    let bytes = sample();
    let whole = parse(&bytes).unwrap();
    let end = whole.tensors().map(|t| t.file_offset() + t.data.len()).max().unwrap();
    assert_eq!(bytes.len(), end.next_multiple_of(32));
    for len in 0..end {
        let error = reject(&bytes[..len]);
        let expected = matches!(error, Empty | Truncated { .. } | ImpossibleCount { .. } | OutOfFile { .. });
        assert!(expected, "{len} bytes: {error}");
    }
    // Padding after the last tensor is not missed.
    for len in end..=bytes.len() {
        assert!(parse(&bytes[..len]).is_ok(), "{len} bytes");
    }
}

#[test]
fn g17_counts_that_no_file_can_hold() {
    for count in [1 << 60, 1 << 63, u64::MAX, 1 << 32, 100] {
        let error = Raw::new(0, count).bytes(&[0; 100]).reject();
        assert_eq!(
            error,
            ImpossibleCount { what: "the metadata count".into(), count, min_size: 14, left: 100 }
        );
        let error = Raw::new(count, 0).bytes(&[0; 100]).reject();
        assert_eq!(
            error,
            ImpossibleCount { what: "the tensor count".into(), count, min_size: 25, left: 100 }
        );
        for element in ValueType::ALL.iter().filter(|t| **t != ValueType::Array) {
            let raw = Raw::new(0, 1).key("k", ValueType::Array).u32(element.id());
            let error = raw.u64(count).bytes(&[0; 64]).reject();
            let expected = matches!(&error, ImpossibleCount { what, count: c, left: 64, .. }
                if what == "the array length of metadata key \"k\"" && *c == count);
            assert!(expected, "{element}: {error}");
        }
    }
    // The largest count that passes the first check is not believed either.
    let error = Raw::new(0, 7).bytes(&[0; 100]).reject();
    assert!(matches!(error, BadName { .. }), "{error}");
}

#[test]
fn g25_git_lfs_pointer() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n";
    for len in [4, 8, 20, pointer.len()] {
        let error = reject(&pointer[..len]);
        assert_eq!(error, LfsPointer, "{len} bytes");
        assert!(error.to_string().contains("Git LFS pointer, not a model"), "{error}");
    }
    // Negative control: other text that starts alike.
    assert!(matches!(reject(b"version 2 of my notes\n"), Text { .. }));
}
