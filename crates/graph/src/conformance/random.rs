//! Reproducible test data.

use half::{bf16, f16};

use crate::DType;

/// SplitMix64.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    /// A generator of its own for a seed and a name.
    pub fn new(seed: u64, name: &str) -> Self {
        // FNV-1a, so that a case's data do not depend on the cases before it.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325 ^ seed, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self(hash)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.bits() % limit as u64) as usize
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 24) as f32
    }

    /// About normal, mean 0, deviation 1, at most 3.5.
    pub fn normal(&mut self) -> f32 {
        // Four uniform numbers of 16 bits have the variance 4/12.
        let (bits, half) = (self.bits(), f32::from(u16::MAX) / 2.0);
        let sum: f32 = (0..4).map(|i| (bits >> (16 * i)) as u16).map(|u| f32::from(u) - half).sum();
        sum / (2.0 * half) * 3f32.sqrt()
    }

    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }

    /// `0..n` in random order.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }

    /// `n` elements of a type: normal floats, or blocks with every bit random but for the scales, which stay
    /// moderate.
    pub fn weights(&mut self, dtype: DType, n: usize) -> Vec<u8> {
        match dtype {
            DType::F32 => (0..n).flat_map(|_| self.normal().to_le_bytes()).collect(),
            DType::F16 => (0..n).flat_map(|_| f16::from_f32(self.normal()).to_le_bytes()).collect(),
            DType::BF16 => (0..n).flat_map(|_| bf16::from_f32(self.normal()).to_le_bytes()).collect(),
            _ => {
                let blocks = n / dtype.block_size();
                let mut bytes: Vec<u8> = (0..blocks * dtype.type_size()).map(|_| self.bits() as u8).collect();
                for block in bytes.chunks_exact_mut(dtype.type_size()) {
                    for &at in scale_offsets(dtype) {
                        let scale = f16::from_f32((self.unit() + 0.5) / 64.0);
                        block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
                    }
                }
                bytes
            }
        }
    }
}

/// Where a block's f16 scales and minima are.
fn scale_offsets(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::Q6_K => &[208],
        _ => &[0],
    }
}
