//! Reading what was written: values, tensors, mapped files, split models, load time.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use minfer_gguf::{
    Error, FormatError, Gguf, MAX_LAYERS, MetaValue, MetadataError, TensorType, Value, ValueType, Writer,
};
use tempfile::tempdir;

fn memory(writer: Writer<'_>) -> Gguf {
    Gguf::from_bytes(writer.to_bytes().unwrap()).unwrap()
}

fn save(dir: &Path, name: &str, writer: Writer<'_>) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, writer.to_bytes().unwrap()).unwrap();
    path
}

/// Written by the `gguf` Python package, see `data/make_vectors.py`.
#[test]
fn a_file_of_another_writer_is_read() {
    let gguf = Gguf::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/sample.gguf")).unwrap();
    let m = gguf.metadata();
    assert_eq!((gguf.version(), gguf.alignment(), gguf.n_shards()), (3, 32, 1));
    let scalars: Vec<(&str, Value)> =
        m.iter().filter(|(_, v)| !matches!(v, Value::String(_) | Value::Array(_))).collect();
    let expected = [
        ("u8", Value::U8(200)),
        ("i8", Value::I8(-100)),
        ("u16", Value::U16(60000)),
        ("i16", Value::I16(-30000)),
        ("u32", Value::U32(4_000_000_000)),
        ("i32", Value::I32(-2_000_000_000)),
        ("f32", Value::F32(0.15625)),
        ("bool", Value::Bool(true)),
        ("u64", Value::U64((1 << 63) + 5)),
        ("i64", Value::I64(-(1 << 62))),
        ("f64", Value::F64(1e300)),
    ];
    assert_eq!(scalars, expected);
    assert_eq!(m.require_str("general.architecture"), Ok("test"));
    assert_eq!(m.require_str("string"), Ok("grüße 🦙"));
    assert_eq!(m.require_i32s("ints"), Ok(vec![3, -1, 2]));
    assert_eq!(m.require_f32s("floats"), Ok(vec![0.5, -2.0]));
    assert_eq!(m.require_bools("bools"), Ok(vec![true, false, true]));
    let strings: Vec<&str> = m.require_strings("strings").unwrap().iter_str().map(Result::unwrap).collect();
    assert_eq!(strings, ["<s>", "", "ö", "a b"]);

    let names: Vec<&str> = gguf.tensors().map(|t| t.name).collect();
    assert_eq!(names, ["matrix", "half", "quantized"]);
    let t = gguf.tensor("matrix").unwrap();
    assert_eq!(
        (t.ty, t.shape, t.n_rows(), t.row_len(), t.row_bytes()),
        (TensorType::F32, &[3, 2][..], 2, 3, 12)
    );
    assert_eq!(t.dequantize().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(t.row(1).unwrap(), [3f32, 4.0, 5.0].map(f32::to_le_bytes).as_flattened());
    assert_eq!(t.row(2), None);
    assert_eq!(gguf.tensor("half").unwrap().dequantize().unwrap(), [1.5, -2.0]);
    let q = gguf.tensor("quantized").unwrap();
    assert_eq!((q.ty, q.shape, q.row_bytes()), (TensorType::Q8_0, &[32, 2][..], 34));
    for (i, v) in q.dequantize().unwrap().into_iter().enumerate() {
        assert!((v - i as f32).abs() < 0.3, "{v} for {i}");
    }
    assert!(gguf.tensor("Matrix").is_none());
}

#[test]
fn every_value_is_read_back_as_written() {
    for version in [2, 3] {
        let gguf = memory(
            Writer::new()
                .version(version)
                .alignment(64)
                .meta("i64", -5i64)
                .meta("raw", MetaValue::String(vec![0xff, 0xfe]))
                .meta("empty", MetaValue::Array(ValueType::F64, vec![]))
                .meta("u16s", [1u16, 65535])
                .meta("tokens", vec!["x".to_owned(), "yz".to_owned()])
                .tensor("a", TensorType::I8, &[3], vec![1u8, 2, 3])
                .tensor_f32("b", &[1, 2], &[4.0, 5.0]),
        );
        assert_eq!((gguf.version(), gguf.alignment()), (version, 64));
        let m = gguf.metadata();
        assert_eq!(m.len(), 6);
        assert_eq!(m.get("i64"), Some(Value::I64(-5)));
        assert_eq!(m.get_as::<&[u8]>("raw"), Ok(Some(&[0xff, 0xfe][..])));
        assert_eq!(m.get_str("raw"), Err(MetadataError::NotUtf8 { key: "raw".into() }));
        let empty = m.require_array("empty").unwrap();
        assert_eq!((empty.element_type(), empty.len(), empty.get(0)), (ValueType::F64, 0, None));
        assert_eq!(m.require_u32s("u16s"), Ok(vec![1, 65535]));
        assert_eq!(m.require_strings("tokens").unwrap().get(1), Some(&b"yz"[..]));
        let b = gguf.tensor("b").unwrap();
        assert_eq!(b.dequantize().unwrap(), [4.0, 5.0]);
        assert_eq!(b.file_offset() % 64, 0);
        assert_eq!(gguf.tensor("a").unwrap().data, [1, 2, 3]);
    }
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let bad = |writer: Writer<'_>| writer.to_bytes().unwrap_err().to_string();
    assert!(bad(Writer::new().version(1)).contains("version 1"));
    assert!(bad(Writer::new().alignment(12)).contains("alignment 12"));
    assert!(bad(Writer::new().meta("k", 1u8).meta("k", 2u8)).contains("\"k\""));
    let mixed = MetaValue::Array(ValueType::U8, vec![MetaValue::U8(1), MetaValue::I8(1)]);
    assert!(bad(Writer::new().meta("k", mixed)).contains("array of u8"));
    assert!(bad(Writer::new().tensor("t", TensorType::F32, &[2], vec![0u8; 7])).contains("7 bytes"));
    assert!(bad(Writer::new().tensor("t", TensorType::Q4_0, &[33], vec![0u8; 18])).contains("Q4_0"));
    assert!(bad(Writer::new().tensor("t", TensorType::F32, &[2, 0], vec![])).contains("shape"));
}

#[test]
fn integers_convert_when_they_fit_and_only_then() {
    let gguf = memory(
        Writer::new()
            .meta("u8", 7u8)
            .meta("i32", 7i32)
            .meta("negative", -1i32)
            .meta("wide", 1u64 << 32)
            .meta("float", 7.0f32)
            .meta("double", 1e300f64)
            .meta("bool", true)
            .meta("mixed", [1i64, -1]),
    );
    let m = gguf.metadata();
    assert_eq!(m.get_u32("u8"), Ok(Some(7)));
    assert_eq!(m.get_u64("i32"), Ok(Some(7)));
    assert_eq!(m.get_u32("absent"), Ok(None));
    let error = |r: Result<Option<u32>, MetadataError>| r.unwrap_err().to_string();
    assert_eq!(error(m.get_u32("negative")), "metadata key \"negative\": i32 -1 does not fit u32");
    assert_eq!(error(m.get_u32("wide")), "metadata key \"wide\": u64 4294967296 does not fit u32");
    assert_eq!(error(m.get_u32("float")), "metadata key \"float\": expected u32, found f32 7");
    assert_eq!(error(m.get_u32("bool")), "metadata key \"bool\": expected u32, found bool true");
    assert_eq!(
        m.require_u32("absent").unwrap_err().to_string(),
        "metadata key \"absent\" is missing (expected u32)"
    );
    assert_eq!(m.get_f32("u8").unwrap_err().to_string(), "metadata key \"u8\": expected f32, found u8 7");
    assert_eq!(
        m.get_f32("double").unwrap_err().to_string(),
        "metadata key \"double\": f64 1e300 does not fit f32"
    );
    assert_eq!(m.get_bool("u8").unwrap_err().to_string(), "metadata key \"u8\": expected bool, found u8 7");
    assert_eq!(
        m.get_u32s("mixed").unwrap_err().to_string(),
        "metadata key \"mixed\": i64 -1 does not fit array of u32"
    );
}

#[test]
fn per_layer_values_come_from_an_array_or_one_scalar() {
    let gguf = memory(
        Writer::new().meta("one", 4u32).meta("each", [1u32, 2, 3]).meta("pattern", [true, false, true]),
    );
    let m = gguf.metadata();
    assert_eq!(m.get_per_layer::<u32>("one", 3), Ok(Some(vec![4, 4, 4])));
    assert_eq!(m.get_per_layer::<u32>("each", 3), Ok(Some(vec![1, 2, 3])));
    assert_eq!(m.require_per_layer::<bool>("pattern", 3), Ok(vec![true, false, true]));
    assert_eq!(m.get_per_layer::<u32>("absent", 3), Ok(None));
    for n in [2, 4] {
        let expected = MetadataError::WrongLength { key: "each".into(), expected: n, found: 3 };
        assert_eq!(m.get_per_layer::<u32>("each", n), Err(expected));
    }
    let huge = MetadataError::TooManyLayers { key: "one".into(), layers: usize::MAX };
    assert_eq!(m.get_per_layer::<u32>("one", usize::MAX), Err(huge));
    assert_eq!(m.get_per_layer::<u32>("one", MAX_LAYERS).unwrap().unwrap().len(), MAX_LAYERS);
    assert!(matches!(m.get_per_layer::<u32>("pattern", 3), Err(MetadataError::WrongType { .. })));
}

/// The container's part: arrays that disagree are readable without ever reaching beyond the shorter.
#[test]
fn g26_arrays_of_wrong_type_or_length() {
    let gguf = memory(
        Writer::new()
            .meta("tokenizer.ggml.tokens", ["a", "b", "c"])
            .meta("tokenizer.ggml.token_type", [1i32, 1])
            .meta("tokenizer.ggml.scores", "none")
            .meta("tokenizer.ggml.bos_token_id", u32::MAX),
    );
    let m = gguf.metadata();
    let tokens = m.require_strings("tokenizer.ggml.tokens").unwrap();
    assert_eq!((tokens.len(), tokens.get(3), tokens.get(usize::MAX)), (3, None, None));
    let types = m.require_array("tokenizer.ggml.token_type").unwrap();
    assert_eq!((types.get(1), types.get(2), types.get(usize::MAX)), (Some(Value::I32(1)), None, None));
    assert_eq!(
        m.get_f32s("tokenizer.ggml.scores").unwrap_err().to_string(),
        "metadata key \"tokenizer.ggml.scores\": expected array of f32, found string"
    );
    assert_eq!(
        m.get_f32s("tokenizer.ggml.token_type").unwrap_err().to_string(),
        "metadata key \"tokenizer.ggml.token_type\": expected array of f32, found array of i32"
    );
    assert!(matches!(m.get_strings("tokenizer.ggml.token_type"), Err(MetadataError::WrongType { .. })));
    assert_eq!(m.require_u32("tokenizer.ggml.bos_token_id"), Ok(u32::MAX));
}

/// A vocabulary of `n` tokens as real models have them, with merges, scores and types.
fn vocabulary(n: usize) -> Vec<u8> {
    let tokens: Vec<String> = (0..n).map(|i| format!("token{i}")).collect();
    let merges: Vec<String> = (0..n).map(|i| format!("tok en{i}")).collect();
    Writer::new()
        .meta("tokenizer.ggml.tokens", tokens)
        .meta("tokenizer.ggml.merges", merges)
        .meta("tokenizer.ggml.scores", vec![0.0f32; n])
        .meta("tokenizer.ggml.token_type", vec![1i32; n])
        .to_bytes()
        .unwrap()
}

fn fastest(n: usize) -> Duration {
    let dir = tempdir().unwrap();
    let path = dir.path().join("vocab.gguf");
    std::fs::write(&path, vocabulary(n)).unwrap();
    let load = || {
        let start = Instant::now();
        let gguf = Gguf::open(&path).unwrap();
        let time = start.elapsed();
        let tokens = gguf.metadata().require_strings("tokenizer.ggml.tokens").unwrap();
        assert_eq!(tokens.get(n - 1), Some(format!("token{}", n - 1).as_bytes()));
        time
    };
    (0..5).map(|_| load()).min().unwrap()
}

#[test]
fn g21_a_large_vocabulary_loads_in_milliseconds_and_linear_time() {
    let (small, large) = (fastest(15_000), fastest(150_000));
    assert!(large < Duration::from_millis(100), "150k tokens took {large:?}");
    // Ten times as many tokens; a check that walked the file for each would take a hundred times as long.
    let limit = small.max(Duration::from_micros(200)) * 40;
    assert!(large < limit, "15k tokens took {small:?}, 150k took {large:?}");
}

#[test]
fn what_is_not_a_model_file_gets_an_error_that_names_it() {
    let dir = tempdir().unwrap();
    let expect = |path: &Path, text: &str| {
        let error = Gguf::open(path).unwrap_err().to_string();
        assert!(error.starts_with(&path.display().to_string()), "{error}");
        assert!(error.contains(text), "{error}");
    };
    expect(dir.path(), "is a directory, not a GGUF file");
    assert!(matches!(Gguf::open(dir.path()), Err(Error::IsDirectory { .. })));
    let missing = dir.path().join("missing.gguf");
    assert!(matches!(Gguf::open(&missing), Err(Error::Io { .. })));
    expect(&missing, "os error 2");
    #[cfg(unix)]
    expect(Path::new("/dev/null"), "is not a regular file");
    for (name, content, text) in [
        ("empty", &b""[..], "the file is empty"),
        ("text", b"hello, this is a text file\n", "it is text that starts with \"hello, this is a\""),
        (
            "lfs",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
            "Git LFS pointer, not a model",
        ),
        ("binary", b"\x7fELF\x02\x01\x01\0\0\0", "instead of \"GGUF\""),
        ("big", b"GGUF\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "big-endian file"),
        ("old", b"GGUF\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "unsupported GGUF version 1"),
        ("short", b"GG", "the file ends too early"),
    ] {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        expect(&path, text);
    }
}

#[test]
fn names_from_the_file_are_printed_escaped() {
    let bytes = Writer::new().meta("k\x1b[2J", 1u8).meta("other", 1u8).to_bytes().unwrap();
    let gguf = Gguf::from_bytes(bytes).unwrap();
    let message = gguf.metadata().get_str("k\x1b[2J").unwrap_err().to_string();
    assert!(!message.contains('\x1b'), "{message:?}");
}

/// Three shards, each with a tensor that holds its number.
fn shard(number: u16, count: u16) -> Writer<'static> {
    Writer::new()
        .meta("general.name", format!("shard {number}"))
        .meta("split.no", number)
        .meta("split.count", count)
        .meta("split.tensors.count", i32::from(count))
        .tensor_f32(format!("t{number}"), &[1], &[f32::from(number)])
}

#[test]
fn a_split_model_opens_by_its_first_shard() {
    let dir = tempdir().unwrap();
    let paths: Vec<PathBuf> =
        (0..3).map(|i| save(dir.path(), &format!("m-{:05}-of-00003.gguf", i + 1), shard(i, 3))).collect();
    let gguf = Gguf::open(&paths[0]).unwrap();
    assert_eq!((gguf.n_shards(), gguf.n_tensors()), (3, 3));
    assert_eq!(gguf.metadata().require_str("general.name"), Ok("shard 0"));
    for i in 0..3u8 {
        assert_eq!(gguf.tensor(&format!("t{i}")).unwrap().dequantize().unwrap(), [f32::from(i)]);
    }
    let total: u64 = paths.iter().map(|p| p.metadata().unwrap().len()).sum();
    assert_eq!(gguf.file_bytes(), total);

    match Gguf::open(&paths[1]).unwrap_err() {
        Error::NotFirstShard { number: 2, count: 3, first, .. } => assert_eq!(first, paths[0]),
        e => panic!("{e}"),
    }
    std::fs::remove_file(&paths[1]).unwrap();
    let error = Gguf::open(&paths[0]).unwrap_err();
    assert!(matches!(&error, Error::MissingShard { path, number: 2, count: 3 } if *path == paths[1]));
    assert!(error.to_string().contains("m-00002-of-00003.gguf"), "{error}");
}

#[test]
fn shards_that_do_not_fit_together_are_refused() {
    let open = |second: Writer<'_>, first_name: &str| {
        let dir = tempdir().unwrap();
        let first = save(dir.path(), first_name, shard(0, 2));
        save(dir.path(), "m-00002-of-00002.gguf", second);
        Gguf::open(&first)
    };
    let name = "m-00001-of-00002.gguf";
    assert_eq!(open(shard(1, 2), name).unwrap().n_tensors(), 2);
    let problem = |result: Result<Gguf, Error>| match result.unwrap_err() {
        Error::InconsistentSplit { problem, .. } => problem,
        e => panic!("{e}"),
    };
    assert!(problem(open(shard(2, 3), name)).contains("says it is shard 3 of 3, expected 2 of 2"));
    assert!(problem(open(Writer::new(), name)).contains("is not a shard"));
    assert!(problem(open(shard(1, 2), "renamed.gguf")).contains("-00001-of-00002.gguf"));
    let extra = shard(1, 2).tensor_f32("more", &[1], &[0.0]);
    assert!(problem(open(extra, name)).contains("split.tensors.count is 2, but the shards hold 3"));
    let twice = Writer::new().meta("split.no", 1u16).meta("split.count", 2u16).tensor_f32("t0", &[1], &[0.0]);
    let error = open(twice, name).unwrap_err();
    assert!(matches!(&error, Error::Format { source: FormatError::DuplicateTensor(t), .. } if t == "t0"));
    let error = Gguf::from_bytes(shard(0, 2).to_bytes().unwrap()).unwrap_err();
    assert_eq!(error, FormatError::SplitInMemory(2));
    let wrong = Writer::new().meta("split.count", "two");
    assert!(matches!(Gguf::from_bytes(wrong.to_bytes().unwrap()), Err(FormatError::Metadata(_))));
    // A count beyond reason fails at the first shard that is not there.
    let dir = tempdir().unwrap();
    let many = Writer::new().meta("split.no", 0u32).meta("split.count", u32::MAX);
    let path = save(dir.path(), "m-00001-of-4294967295.gguf", many);
    assert!(matches!(Gguf::open(path), Err(Error::MissingShard { number: 2, count: u32::MAX, .. })));
}

#[test]
fn shared_data_outlives_the_file_and_crosses_threads() {
    let dir = tempdir().unwrap();
    let path = save(dir.path(), "m.gguf", Writer::new().tensor_f32("t", &[4], &[1.0, 2.0, 3.0, 4.0]));
    let gguf = Gguf::open(path).unwrap();
    let data = gguf.tensor("t").unwrap().share();
    let clone = gguf.clone();
    drop(gguf);
    let threads: Vec<_> = (0..4)
        .map(|i| {
            let (data, gguf) = (data.clone(), clone.clone());
            std::thread::spawn(move || {
                assert_eq!(gguf.tensor("t").unwrap().data, &*data);
                f32::from_le_bytes(data[4 * i..4 * i + 4].try_into().unwrap())
            })
        })
        .collect();
    drop(clone);
    let sum: f32 = threads.into_iter().map(|t| t.join().unwrap()).sum();
    assert_eq!(sum, 10.0);
}

/// Resident bytes of this process's mapping of `path`.
#[cfg(target_os = "linux")]
fn resident(path: &Path) -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines().skip_while(|l| !l.ends_with(path.to_str().unwrap()));
    let rss = lines.find(|l| l.starts_with("Rss:")).unwrap();
    rss.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[test]
fn pages_given_back_are_read_again() {
    let n = 1 << 20;
    let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let dir = tempdir().unwrap();
    let writer = Writer::new().tensor_f32("a", &[n as u64], &values).tensor_f32("b", &[4], &[9.0; 4]);
    let path = save(dir.path(), "m.gguf", writer);
    let gguf = Gguf::open(&path).unwrap();
    let tensor = gguf.tensor("a").unwrap();
    tensor.advise_will_need().unwrap();
    assert_eq!(tensor.dequantize().unwrap(), values);
    #[cfg(target_os = "linux")]
    assert!(resident(&path) >= 4 * n);
    tensor.advise_dont_need().unwrap();
    #[cfg(target_os = "linux")]
    assert!(resident(&path) <= 64 * 1024, "{} bytes still resident", resident(&path));
    assert_eq!(tensor.dequantize().unwrap(), values);
    assert_eq!(gguf.tensor("b").unwrap().dequantize().unwrap(), [9.0; 4]);
    // In memory of our own it does nothing.
    let owned = memory(Writer::new().tensor_f32("a", &[2], &[1.0, 2.0]));
    owned.tensor("a").unwrap().advise_dont_need().unwrap();
    assert_eq!(owned.tensor("a").unwrap().dequantize().unwrap(), [1.0, 2.0]);
}

#[test]
fn tensor_types_round_trip_and_size_rows() {
    assert_eq!(TensorType::ALL.len(), 35);
    for &ty in TensorType::ALL {
        assert_eq!(TensorType::from_id(ty.id()), Some(ty));
        assert_eq!(ty.name().to_lowercase().parse(), Ok(ty));
        assert_eq!(TensorType::removed_name(ty.id()), None);
        assert_eq!(ty.row_bytes(ty.block_size() as u64 * 3), Ok(ty.type_size() as u64 * 3));
        assert_eq!(ty.is_quantized(), ty.row_bytes(1).is_err());
    }
    assert_eq!(TensorType::Q4_K.row_bytes(512), Ok(288));
    assert_eq!(
        TensorType::Q4_K.row_bytes(300).unwrap_err().to_string(),
        "300 elements are not a whole number of Q4_K blocks of 256"
    );
    assert!(TensorType::F64.row_bytes(u64::MAX).is_err());
    assert!("Q9_Z".parse::<TensorType>().is_err());
}
