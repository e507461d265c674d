//! Packing loses nothing: every row unpacks to what the reference dequantization of the file's bytes gives.

use super::*;
use half::{bf16, f16};
use minfer_gguf::quant;

/// A small deterministic generator (splitmix64).
pub(crate) struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in −1..1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Every type that can be packed, and where its blocks keep half-precision numbers.
pub(crate) const TYPES: [(TensorType, &[usize]); 15] = [
    (TensorType::Q4_0, &[0]),
    (TensorType::Q4_1, &[0, 2]),
    (TensorType::Q5_0, &[0]),
    (TensorType::Q5_1, &[0, 2]),
    (TensorType::Q8_0, &[0]),
    (TensorType::IQ4_NL, &[0]),
    (TensorType::Q2_K, &[80, 82]),
    (TensorType::Q3_K, &[108]),
    (TensorType::Q4_K, &[0, 2]),
    (TensorType::Q5_K, &[0, 2]),
    (TensorType::Q6_K, &[208]),
    (TensorType::IQ4_XS, &[0]),
    (TensorType::F32, &[]),
    (TensorType::F16, &[]),
    (TensorType::BF16, &[]),
];

/// Blocks of random bits with sensible scales: a matrix as in a file.
pub(crate) fn random_matrix(ty: TensorType, rows: usize, k: usize, rng: &mut Rng) -> Vec<u8> {
    let halves = TYPES.iter().find(|t| t.0 == ty).unwrap().1;
    let mut out = Vec::new();
    for _ in 0..rows * k / ty.block_size() {
        match ty {
            TensorType::F32 => out.extend(rng.unit().to_le_bytes()),
            TensorType::F16 => out.extend(f16::from_f32(rng.unit()).to_le_bytes()),
            TensorType::BF16 => out.extend(bf16::from_f32(rng.unit()).to_le_bytes()),
            _ => {
                let start = out.len();
                out.extend((0..ty.type_size()).map(|_| rng.next() as u8));
                for at in halves {
                    let scale = f16::from_f32(rng.unit() * 0.05).to_le_bytes();
                    out[start + at..start + at + 2].copy_from_slice(&scale);
                }
            }
        }
    }
    out
}

/// The reference values of a matrix, row by row.
pub(crate) fn reference(ty: TensorType, src: &[u8], rows: usize, k: usize) -> Vec<f32> {
    let mut out = vec![0.0; rows * k];
    quant::dequantize(ty, src, &mut out).unwrap();
    out
}

pub(crate) fn pack(ty: TensorType, src: &[u8], rows: usize, k: usize) -> (PackedLayout, Vec<u8>) {
    let layout = PackedLayout::new(ty, rows, k).unwrap();
    let mut data = vec![0xaa; layout.bytes()];
    layout.pack(src, 0..layout.groups(), &mut data).unwrap();
    (layout, data)
}

fn assert_unpacks(ty: TensorType, src: &[u8], rows: usize, k: usize) {
    let want = reference(ty, src, rows, k);
    let (layout, data) = pack(ty, src, rows, k);
    let matrix = PackedMatrix::new(layout, &data).unwrap();
    let mut got = vec![f32::NAN; k];
    for isa in Isa::available() {
        for row in 0..rows {
            matrix.unpack_row(isa, row, &mut got);
            for (i, (g, w)) in got.iter().zip(&want[row * k..]).enumerate() {
                assert!(g == w || g.is_nan() && w.is_nan(), "{ty} {isa}: row {row}, element {i}: {g} != {w}");
            }
        }
    }
}

#[test]
fn inv27_every_type_unpacks_exactly_to_the_reference() {
    let mut rng = Rng(1);
    for (ty, _) in TYPES {
        for (rows, blocks) in [(1, 1), (15, 2), (16, 3), (17, 1), (48, 2)] {
            let k = blocks * ty.block_size().max(32);
            assert_unpacks(ty, &random_matrix(ty, rows, k, &mut rng), rows, k);
        }
    }
}

#[test]
fn inv27_extreme_blocks_unpack_exactly() {
    let mut rng = Rng(2);
    for (ty, halves) in TYPES {
        let (rows, k) = (20, 2 * ty.block_size().max(32));
        for fill in [Some(0x00), Some(0xff), Some(0x0f), Some(0xf0), Some(0x55), None] {
            for scale in [0x0000, 0x8000, 0x0001, 0x83ff, 0x7bff, 0xfbff, 0x3c00] {
                let mut src = random_matrix(ty, rows, k, &mut rng);
                for block in src.chunks_exact_mut(ty.type_size()) {
                    if let Some(fill) = fill {
                        block.fill(fill);
                    }
                    for at in halves {
                        block[*at..at + 2].copy_from_slice(&u16::to_le_bytes(scale));
                    }
                }
                assert_unpacks(ty, &src, rows, k);
            }
        }
    }
}

#[test]
fn groups_pack_independently_and_padding_rows_are_zero() {
    let mut rng = Rng(3);
    for (ty, _) in TYPES {
        let (rows, k) = (37, 256);
        let src = random_matrix(ty, rows, k, &mut rng);
        let (layout, whole) = pack(ty, &src, rows, k);
        assert_eq!(layout.groups(), 3);
        let mut parts = vec![0x55; layout.bytes()];
        for (group, dst) in parts.chunks_exact_mut(layout.group_bytes()).enumerate() {
            layout.pack(&src, group..group + 1, dst).unwrap();
        }
        assert!(parts == whole, "{ty}");
        // Read the padding through a matrix that has rows there.
        let padded = PackedLayout { rows: 48, ..layout };
        let matrix = PackedMatrix::new(padded, &whole).unwrap();
        for row in rows..48 {
            let mut out = vec![1.0; k];
            matrix.unpack_row(Isa::Scalar, row, &mut out);
            assert!(out.iter().all(|x| *x == 0.0), "{ty}: row {row}");
        }
    }
}

#[test]
fn packed_size_stays_near_the_file_size() {
    for (ty, _) in TYPES {
        let (rows, k) = (4096, 4096);
        let layout = PackedLayout::new(ty, rows, k).unwrap();
        let file = rows * layout.row_bytes();
        let percent = layout.bytes() * 100 / file;
        assert!((100..=104).contains(&percent), "{ty}: {percent} %");
    }
}

#[test]
fn what_cannot_be_packed_is_refused_by_name() {
    let err = |ty, rows, k| PackedLayout::new(ty, rows, k).unwrap_err();
    assert_eq!(err(TensorType::IQ1_S, 16, 256), PackError::UnsupportedType { ty: TensorType::IQ1_S });
    assert_eq!(err(TensorType::Q8_1, 16, 256), PackError::UnsupportedType { ty: TensorType::Q8_1 });
    let e = err(TensorType::Q4_K, 16, 576);
    assert_eq!(e, PackError::PartialBlock { ty: TensorType::Q4_K, k: 576, block: 256 });
    assert_eq!(e.to_string(), "rows of 576 elements are not a whole number of Q4_K blocks of 256");
    assert_eq!(
        err(TensorType::Q8_0, 16, 33),
        PackError::PartialBlock { ty: TensorType::Q8_0, k: 33, block: 32 }
    );
    assert_eq!(err(TensorType::F32, 0, 4), PackError::Size { rows: 0, k: 4 });
    assert_eq!(err(TensorType::F32, 4, 0), PackError::Size { rows: 4, k: 0 });
    assert_eq!(err(TensorType::Q4_0, usize::MAX, 32), PackError::Size { rows: usize::MAX, k: 32 });
    let k = usize::MAX / 32 * 32;
    assert_eq!(err(TensorType::Q4_0, 1, k), PackError::Size { rows: 1, k });

    let layout = PackedLayout::new(TensorType::Q8_0, 17, 64).unwrap();
    let (src, mut dst) = (vec![0; 17 * 68], vec![0; layout.bytes()]);
    let length = |what, got, expected| Err(PackError::Length { what, got, expected });
    assert_eq!(layout.pack(&src[1..], 0..2, &mut dst), length("the source matrix", 17 * 68 - 1, 17 * 68));
    assert_eq!(
        layout.pack(&src, 0..1, &mut dst),
        length("the packed groups", layout.bytes(), layout.bytes() / 2)
    );
    assert_eq!(layout.pack(&src, 1..3, &mut dst), Err(PackError::Groups { start: 1, end: 3, groups: 2 }));
    assert_eq!(
        PackedMatrix::new(layout, &dst[1..]).err(),
        Some(PackError::Length { what: "the packed matrix", got: dst.len() - 1, expected: dst.len() })
    );
}
