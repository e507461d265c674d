//! Deterministic random data for this crate's tests.

/// A small generator (xorshift64).
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 24) as u32
    }

    /// Uniform in `0..n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }

    /// Uniform in −1..1.
    pub(crate) fn signed(&mut self) -> f32 {
        self.next() as f32 / (1u64 << 31) as f32 - 1.0
    }

    /// `n` values uniform in `-range..range`.
    pub(crate) fn vec(&mut self, n: usize, range: f32) -> Vec<f32> {
        (0..n).map(|_| self.signed() * range).collect()
    }
}

/// Bit-for-bit equality with a readable failure.
#[track_caller]
pub(crate) fn assert_bits(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(g.to_bits() == w.to_bits(), "{what}: element {i} is {g:e}, not {w:e}");
    }
}

/// Every element within `relative · |want| + absolute` of an f64 reference.
#[track_caller]
pub(crate) fn assert_near(got: &[f32], want: &[f64], relative: f64, absolute: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(g) - w).abs();
        assert!(
            error <= relative * w.abs() + absolute,
            "{what}: element {i} is {g:e}, not {w:e} (error {error:e})"
        );
    }
}
