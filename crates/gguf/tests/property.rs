//! No input panics, and whatever is accepted can be read in full.

use minfer_gguf::quant::{dequantize, quantize};
use minfer_gguf::{Gguf, TensorType, Value, Writer};
use proptest::collection::vec;
use proptest::prelude::*;

fn sample() -> Vec<u8> {
    Writer::new()
        .meta("general.architecture", "llama")
        .meta("tokens", ["a", "", "ccc"])
        .meta("scores", [0.5f32, -1.0])
        .meta("flags", [true, false])
        .meta("n", 3u64)
        .tensor_f32("norm", &[3], &[1.0, 2.0, 3.0])
        .tensor("w", TensorType::Q8_0, &[32, 2], vec![1u8; 68])
        .to_bytes()
        .unwrap()
}

/// Reads everything that a file offers.
fn walk(bytes: &[u8]) -> bool {
    let Ok(gguf) = Gguf::parse(bytes) else { return false };
    for (key, value) in gguf.metadata().iter() {
        if let Value::Array(array) = value {
            assert_eq!(array.iter().count(), array.len());
            if let Some(strings) = array.strings() {
                assert!(strings.iter().map(<[u8]>::len).sum::<usize>() <= bytes.len());
            }
        }
        let _ = (value.to_string(), gguf.metadata().get_u32(key), gguf.metadata().get_str(key));
        let _ = (gguf.metadata().get_f32s(key), gguf.metadata().get_per_layer::<i32>(key, 2));
    }
    for t in gguf.tensors() {
        assert_eq!(t.data.len() as u64, t.row_bytes() as u64 * t.n_rows());
        assert!(t.data.len() <= bytes.len());
        assert!(t.row(t.n_rows()).is_none() && t.row(t.n_rows() - 1).is_some());
        let _ = t.dequantize();
    }
    true
}

#[test]
fn the_unchanged_sample_is_accepted() {
    assert!(walk(&sample()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..512)) {
        walk(&bytes);
    }

    #[test]
    fn random_bytes_after_a_valid_header_never_panic(
        (tensors, entries) in (0u64..4, 0u64..4), bytes in vec(prop_oneof![Just(0u8), 0u8..16, any::<u8>()], 0..512),
    ) {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend(tensors.to_le_bytes());
        file.extend(entries.to_le_bytes());
        file.extend(bytes);
        walk(&file);
    }

    #[test]
    fn mutated_files_never_panic(
        edits in vec((any::<prop::sample::Index>(), prop_oneof![any::<u8>(), Just(0), Just(1), Just(255)]), 1..8),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = sample();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        walk(&bytes);
    }

    #[test]
    fn written_values_are_read_back(
        ints in vec(any::<i64>(), 0..20), texts in vec(".*", 0..20), x in any::<f64>(), data in vec(any::<u8>(), 1..100),
    ) {
        let bytes = Writer::new()
            .meta("ints", ints.clone())
            .meta("texts", texts.clone())
            .meta("x", x)
            .tensor("t", TensorType::I8, &[data.len() as u64], data.clone())
            .to_bytes()
            .unwrap();
        let gguf = Gguf::from_bytes(bytes).unwrap();
        let read: Vec<i128> =
            gguf.metadata().require_array("ints").unwrap().iter().map(|v| v.as_integer().unwrap()).collect();
        prop_assert_eq!(read, ints.into_iter().map(i128::from).collect::<Vec<_>>());
        let read: Vec<&str> =
            gguf.metadata().require_strings("texts").unwrap().iter_str().map(Result::unwrap).collect();
        prop_assert_eq!(read, texts);
        prop_assert_eq!(gguf.metadata().require_as::<f64>("x").unwrap().to_bits(), x.to_bits());
        prop_assert_eq!(gguf.tensor("t").unwrap().data, data);
    }

    #[test]
    fn any_bytes_decode_and_any_numbers_encode_without_panic(
        ty in prop::sample::select(TensorType::ALL), bytes in vec(any::<u8>(), 292), bits in vec(any::<u32>(), 256),
    ) {
        let mut out = vec![0.0; ty.block_size()];
        let _ = dequantize(ty, &bytes[..ty.type_size()], &mut out);
        let x: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        let finite: Vec<f32> = x.iter().map(|v| if v.is_finite() { v.abs().min(60000.0).copysign(*v) } else { 0.0 }).collect();
        let _ = quantize(ty, &x);
        if let Ok(encoded) = quantize(ty, &finite) {
            let mut back = vec![0.0; 256];
            dequantize(ty, &encoded, &mut back).unwrap();
            prop_assert!(back.iter().all(|v| v.is_finite()), "{ty}: {back:?}");
        }
    }
}
