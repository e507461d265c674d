//! Block formats against vectors of an independent implementation (`data/make_vectors.py`).

use std::path::PathBuf;

use minfer_gguf::TensorType::{self, *};
use minfer_gguf::quant::blocks::{self, BlockQ4_K, BlockQ6_K};
use minfer_gguf::quant::{DECODABLE, QuantError, dequantize, quantize};

const ENCODED: [TensorType; 11] = [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K];

fn data(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Blocks and the values they decode to.
fn vectors(ty: TensorType) -> (Vec<u8>, Vec<f32>) {
    let file = data(&format!("{ty}.dec"));
    let per_block = ty.type_size() + 4 * ty.block_size();
    assert_eq!(file.len() % per_block, 0, "{ty}");
    let (bytes, values) = file.split_at(file.len() / per_block * ty.type_size());
    (bytes.to_vec(), floats(values))
}

fn decode(ty: TensorType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; bytes.len() / ty.type_size() * ty.block_size()];
    dequantize(ty, bytes, &mut out).unwrap();
    out
}

#[test]
fn inv27_every_type_decodes_as_the_oracle_does() {
    for ty in DECODABLE {
        let (bytes, expected) = vectors(ty);
        let blocks = bytes.len() / ty.type_size();
        assert!(blocks >= 17, "{ty}: {blocks} blocks");
        let found = decode(ty, &bytes);
        for (i, (f, e)) in found.iter().zip(&expected).enumerate() {
            let at = format!("{ty}: block {}, element {}", i / ty.block_size(), i % ty.block_size());
            assert_eq!(f.to_bits(), e.to_bits(), "{at}: {f} for {e}");
        }
    }
}

/// The vectors would not catch a bit that no block makes matter.
#[test]
fn inv27_every_bit_of_a_block_matters_in_the_vectors() {
    for ty in DECODABLE {
        let (bytes, expected) = vectors(ty);
        let size = ty.type_size();
        let block_values = |i: usize| bits(&expected[i * ty.block_size()..(i + 1) * ty.block_size()]);
        for bit in 0..size * 8 {
            let matters = bytes.chunks_exact(size).enumerate().any(|(i, block)| {
                let mut block = block.to_vec();
                block[bit / 8] ^= 1 << (bit % 8);
                bits(&decode(ty, &block)) != block_values(i)
            });
            assert!(matters, "{ty}: bit {bit}");
        }
    }
}

/// Negative control: the mistakes that engines have made are caught by these vectors.
#[test]
fn inv27_known_unpacking_mistakes_differ_from_the_oracle() {
    let (bytes, expected) = vectors(Q4_K);
    let wrong: Vec<f32> = blocks::view::<BlockQ4_K>(&bytes)
        .unwrap()
        .iter()
        .flat_map(|b| {
            // Scales read as plain bytes: right for no sub-block with packed upper bits.
            let q = b.quants();
            (0..256).map(move |e| {
                let s = e / 32;
                let min = if s < 4 { b.scales[s + 4] & 63 } else { b.scales[s + 4] >> 4 };
                b.d.to_f32() * f32::from(b.scales[s] & 63) * f32::from(q[e])
                    - b.dmin.to_f32() * f32::from(min)
            })
        })
        .collect();
    let differing = wrong.chunks(32).zip(expected.chunks(32)).filter(|(w, e)| bits(w) != bits(e)).count();
    assert!(differing * 3 >= wrong.len() / 32, "{differing} sub-blocks differ");

    let (bytes, expected) = vectors(Q6_K);
    let wrong: Vec<f32> = blocks::view::<BlockQ6_K>(&bytes)
        .unwrap()
        .iter()
        .flat_map(|b| {
            // A scale for 32 elements instead of 16.
            let q = b.quants();
            (0..256).map(move |e| b.d.to_f32() * f32::from(b.scales[e / 32]) * f32::from(q[e] as i8 - 32))
        })
        .collect();
    assert_ne!(bits(&wrong), bits(&expected));
}

#[test]
fn small_types_encode_as_the_oracle_does() {
    let values = floats(&data("inputs.f32"));
    for ty in [F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0] {
        let expected = data(&format!("{ty}.enc"));
        let found = quantize(ty, &values).unwrap();
        assert_eq!(found.len(), expected.len(), "{ty}");
        let pairs = found.chunks(ty.type_size()).zip(expected.chunks(ty.type_size()));
        for (i, (f, e)) in pairs.enumerate() {
            assert_eq!(f, e, "{ty}: block {i}");
        }
    }
}

/// Normally distributed numbers, the same in every run.
fn normal(n: usize, scale: f32, mean: f32) -> Vec<f32> {
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut uniform = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    // The sum of twelve uniform numbers has variance 1.
    (0..n).map(|_| mean + scale * ((0..12).map(|_| uniform()).sum::<f32>() - 6.0)).collect()
}

fn squared_error(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum()
}

/// The error of rounding each run of `len` values to `levels` even steps with exact f32 scales: between the run's
/// extremes, or around zero if `symmetric`.
fn uniform_error(x: &[f32], len: usize, levels: u32, symmetric: bool) -> f64 {
    let mut error = 0.0;
    for run in x.chunks(len) {
        let (low, high) = run.iter().fold((0.0f32, 0.0f32), |(l, h), &x| (l.min(x), h.max(x)));
        let (low, high) = if symmetric { (-low.abs().max(high), low.abs().max(high)) } else { (low, high) };
        let step = (high - low) / (levels - 1) as f32;
        for x in run {
            error += f64::from(low + step * ((x - low) / step).round() - x).powi(2);
        }
    }
    error
}

/// Six-bit scales cost something, the search for them gains something: together no worse than plain rounding
/// with exact scales.
#[test]
fn super_blocks_encode_about_as_well_as_exact_uniform_steps() {
    for (ty, len, levels, symmetric, bound) in
        [(Q4_K, 32, 16, false, 0.95), (Q5_K, 32, 32, false, 1.0), (Q6_K, 16, 64, true, 1.0)]
    {
        for (scale, mean) in [(1.0, 0.0), (0.02, 0.0), (100.0, 0.0), (1.0, -1.0), (0.3, 0.2)] {
            let x = normal(64 * 256, scale, mean);
            let back = decode(ty, &quantize(ty, &x).unwrap());
            let ratio = squared_error(&x, &back) / uniform_error(&x, len, levels, symmetric);
            assert!(ratio < bound, "{ty}, scale {scale}, mean {mean}: {ratio} of the uniform error");
            // No better than is possible either: a ratio near zero would mean that nothing was quantized.
            assert!(ratio > 0.3, "{ty}, scale {scale}, mean {mean}: {ratio} of the uniform error");
        }
    }
}

/// Every element within what its sub-block's step allows, whatever the neighbours' scales are.
#[test]
fn super_blocks_bound_each_elements_error() {
    let mut x = normal(16 * 256, 1.0, 0.0);
    for (i, run) in x.chunks_mut(32).enumerate() {
        let scale = [1.0, 0.3, 4.0, 2.0][i % 4];
        run.iter_mut().for_each(|v| *v *= scale);
    }
    for (ty, len, levels) in [(Q4_K, 32, 16.0), (Q5_K, 32, 32.0), (Q6_K, 16, 64.0)] {
        let back = decode(ty, &quantize(ty, &x).unwrap());
        let range = |x: &[f32]| 2.0 * x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        for (x, back) in x.chunks(256).zip(back.chunks(256)) {
            let of_block = range(x);
            for (s, (x, back)) in x.chunks(len).zip(back.chunks(len)).enumerate() {
                // A step of this sub-block (the fit may clip its extremes by half of one), and what the 6-bit
                // scale and min can be off by, which the block's largest sub-block decides.
                let bound = range(x) / (levels - 1.0) + of_block / 63.0;
                for (x, b) in x.iter().zip(back) {
                    assert!((x - b).abs() <= bound, "{ty}: sub-block {s}: {b} for {x}, bound {bound}");
                }
            }
        }
    }
}

#[test]
fn zero_and_constant_super_blocks_come_back() {
    for ty in [Q4_K, Q5_K, Q6_K] {
        let zero = vec![0.0; 256];
        assert_eq!(decode(ty, &quantize(ty, &zero).unwrap()), zero, "{ty}");
        for constant in [1.0f32, -1.0, 0.1, -250.0] {
            let x = vec![constant; 256];
            for v in decode(ty, &quantize(ty, &x).unwrap()) {
                assert!((v - constant).abs() <= constant.abs() * 1e-3, "{ty}: {v} for {constant}");
            }
        }
    }
}

#[test]
fn packing_inverts_unpacking() {
    let (bytes, _) = vectors(Q4_K);
    for b in blocks::view::<BlockQ4_K>(&bytes).unwrap() {
        let (scales, mins) = blocks::unpack_scales_mins(&b.scales);
        assert_eq!(blocks::pack_scales_mins(&scales, &mins), b.scales);
        let mut qs = [0; 128];
        blocks::pack_nibbles(&b.quants(), 32, &mut qs);
        assert_eq!(qs, b.qs);
    }
    let (bytes, _) = vectors(Q6_K);
    for b in blocks::view::<BlockQ6_K>(&bytes).unwrap() {
        let q = b.quants();
        let (mut ql, mut qh) = ([0; 128], [0; 64]);
        blocks::pack_nibbles(&q, 64, &mut ql);
        blocks::pack_2bit(&q, 4, &mut qh);
        assert_eq!((ql, qh), (b.ql, b.qh));
    }
    let (bytes, _) = vectors(Q5_K);
    for b in blocks::view::<blocks::BlockQ5_K>(&bytes).unwrap() {
        let mut qh = [0; 32];
        blocks::pack_bit(&b.quants(), 4, &mut qh);
        assert_eq!(qh, b.qh);
    }
}

#[test]
fn a_value_that_a_type_cannot_hold_is_an_error_not_a_guess() {
    for ty in ENCODED {
        let mut x = vec![1.0; 256];
        x[77] = f32::NAN;
        let result = quantize(ty, &x);
        if ty.is_quantized() {
            assert!(matches!(result, Err(QuantError::NotFinite { index: 77, .. })), "{ty}");
        } else {
            assert!(decode(ty, &result.unwrap())[77].is_nan(), "{ty}");
        }
        x[77] = 3e38;
        let result = quantize(ty, &x);
        match ty {
            F32 | BF16 => assert!((decode(ty, &result.unwrap())[77] - 3e38).abs() < 2e36, "{ty}"),
            _ => assert!(matches!(result, Err(QuantError::Overflow { .. })), "{ty}: {result:?}"),
        }
        // Too small for a half-precision scale: zero, not NaN.
        let tiny = decode(ty, &quantize(ty, &[1e-42; 256]).unwrap());
        assert!(tiny.iter().all(|v| v.abs() <= 1e-42), "{ty}: {:?}", &tiny[..4]);
    }
}

#[test]
fn wrong_lengths_and_types_are_errors() {
    let mut out = [0.0; 32];
    assert!(matches!(
        dequantize(Q4_0, &[0; 17], &mut out),
        Err(QuantError::Length { expected: 18, found: 17, .. })
    ));
    assert!(matches!(dequantize(Q4_K, &[0; 18], &mut out), Err(QuantError::PartialBlock(_))));
    assert!(matches!(quantize(Q8_0, &[0.0; 31]), Err(QuantError::PartialBlock(_))));
    let error = dequantize(IQ2_XXS, &[0; 66], &mut [0.0; 256]).unwrap_err();
    assert_eq!(error.to_string(), "tensor type IQ2_XXS cannot be dequantized");
    assert!(matches!(quantize(IQ4_XS, &[0.0; 256]), Err(QuantError::Unsupported { ty: IQ4_XS, .. })));
}

#[test]
fn the_list_of_decodable_types_is_what_can_be_decoded() {
    for &ty in TensorType::ALL {
        let decoded = dequantize(ty, &vec![0; ty.type_size()], &mut vec![0.0; ty.block_size()]);
        assert_eq!(decoded.is_ok(), DECODABLE.contains(&ty), "{ty}");
    }
}
