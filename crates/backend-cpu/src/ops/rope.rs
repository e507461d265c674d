//! Rotary position embedding.
//!
//! The sines and cosines of a token are computed once into a table row and serve every head of every layer that
//! rotates alike. The row has the form the rotation wants: `out[i] = x[i] · C[i] + x[partner(i)] · S[i]`, with `C` the
//! first `rotary_dim` values and `S`, signs included, the next.

use std::f64::consts::TAU;

use minfer_graph::Rope as RopeParams;
use minfer_graph::RopePairs;

use crate::simd::{Isa, LANES, Simd, WithSimd};

/// Rotation parameters that make no sense.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RopeError {
    /// Only an even number of elements can be paired.
    #[error("rope rotary_dim {0} is not a positive even number")]
    RotaryDim(usize),
    /// There is one factor per pair.
    #[error("rope has {got} frequency factors for {pairs} pairs")]
    FactorCount {
        /// Pairs of elements.
        pairs: usize,
        /// Factors given.
        got: usize,
    },
    /// A frequency must be a finite number.
    #[error("rope {name} is {value}, which is not a positive finite number")]
    Value {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: f32,
    },
}

/// Frequencies ready for use, made once per plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    pairs: RopePairs,
    /// Full turns per position, per pair. In f64, so that a position of 100,000 loses nothing.
    turns: Box<[f64]>,
    magnitude: f32,
}

impl Rope {
    /// Computes the frequencies; `factors`, one per pair, divide them.
    ///
    /// # Errors
    /// [`RopeError`] names the parameter.
    pub fn new(params: &RopeParams, factors: Option<&[f32]>) -> Result<Self, RopeError> {
        let RopeParams { rotary_dim, pairs, base, scale, yarn } = *params;
        if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) {
            return Err(RopeError::RotaryDim(rotary_dim));
        }
        let half = rotary_dim / 2;
        positive("base", base)?;
        positive("scale", scale)?;
        if let Some(factors) = factors {
            if factors.len() != half {
                return Err(RopeError::FactorCount { pairs: half, got: factors.len() });
            }
            factors.iter().try_for_each(|&f| positive("frequency factor", f))?;
        }
        if let Some(yarn) = yarn {
            positive("beta_fast", yarn.beta_fast)?;
            positive("beta_slow", yarn.beta_slow)?;
            positive("magnitude", yarn.magnitude)?;
            positive("original_context", yarn.original_context as f32)?;
        }
        let turns = (0..half)
            .map(|i| {
                let factor = factors.map_or(1.0, |f| f64::from(f[i]));
                params.frequency(i) / factor / TAU
            })
            .collect();
        Ok(Self { pairs, turns, magnitude: params.magnitude() })
    }

    /// Leading elements of a head that rotate.
    pub fn rotary_dim(&self) -> usize {
        2 * self.turns.len()
    }

    /// Values in the table row of one token.
    pub fn row_len(&self) -> usize {
        4 * self.turns.len()
    }

    /// Writes the table rows of `positions`, one after another.
    ///
    /// # Panics
    /// If `table` does not have [`Rope::row_len`] values per position.
    pub fn fill(&self, isa: Isa, positions: &[i32], table: &mut [f32]) {
        assert_eq!(table.len(), positions.len() * self.row_len(), "length of the rope table");
        isa.run(FillRun { rope: self, positions, table });
    }
}

fn positive(name: &'static str, value: f32) -> Result<(), RopeError> {
    if value.is_finite() && value > 0.0 { Ok(()) } else { Err(RopeError::Value { name, value }) }
}

struct FillRun<'a> {
    rope: &'a Rope,
    positions: &'a [i32],
    table: &'a mut [f32],
}

impl WithSimd for FillRun<'_> {
    type Output = ();

    /// Ordinary f64 code, which rounds alike everywhere; compiled per instruction set for the compiler to vectorize.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Rope { pairs, turns, magnitude } = self.rope;
        let half = turns.len();
        for (&position, row) in self.positions.iter().zip(self.table.chunks_exact_mut(4 * half)) {
            let (cos, sin) = row.split_at_mut(2 * half);
            let position = f64::from(position);
            match pairs {
                RopePairs::Halves => {
                    let (c0, c1) = cos.split_at_mut(half);
                    let (s0, s1) = sin.split_at_mut(half);
                    for i in 0..half {
                        let (c, s) = cos_sin(position * turns[i]);
                        let (c, s) = (c * magnitude, s * magnitude);
                        (c0[i], c1[i], s0[i], s1[i]) = (c, c, -s, s);
                    }
                }
                RopePairs::Adjacent => {
                    for i in 0..half {
                        let (c, s) = cos_sin(position * turns[i]);
                        let (c, s) = (c * magnitude, s * magnitude);
                        (cos[2 * i], cos[2 * i + 1]) = (c, c);
                        (sin[2 * i], sin[2 * i + 1]) = (-s, s);
                    }
                }
            }
        }
    }
}

/// Cosine and sine of an angle given in turns, to within an f32 rounding. The system's functions would differ from
/// one machine to the next.
#[inline(always)]
fn cos_sin(turns: f64) -> (f32, f32) {
    // Adding and subtracting 1.5 · 2^52 rounds to an integer.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let r = turns - ((turns + ROUND) - ROUND);
    let magnitude = r.abs();
    let to_sine = (0.25 - (magnitude - 0.25).abs()).copysign(r);
    (quarter_sine(0.25 - magnitude) as f32, quarter_sine(to_sine) as f32)
}

/// `sin(2π t)` for `|t| ≤ 1/4`: the Taylor series to the 15th power, off by less than 1e-11.
#[inline(always)]
fn quarter_sine(t: f64) -> f64 {
    let x = t * TAU;
    let x2 = x * x;
    let mut p = -1.0 / 1_307_674_368_000.0;
    for c in
        [1.0 / 6_227_020_800.0, -1.0 / 39_916_800.0, 1.0 / 362_880.0, -1.0 / 5_040.0, 1.0 / 120.0, -1.0 / 6.0]
    {
        p = p * x2 + c;
    }
    x + x * x2 * p
}

/// Rotates `x` `[tokens][heads][head_dim]` into `out` of the same shape; elements past the rotary dimensions are kept.
/// `table` has the rows of [`Rope::fill`] for these tokens.
///
/// # Safety
/// `rotary_dim ≤ head_dim`; `x` is valid for `tokens · heads · head_dim` reads and `out` for as many writes; `out` is
/// `x` or does not overlap it; `table` is valid for `tokens · row_len` reads.
pub unsafe fn rope(
    isa: Isa,
    rope: &Rope,
    out: *mut f32,
    x: *const f32,
    table: *const f32,
    [tokens, heads, head_dim]: [usize; 3],
) {
    assert!(rope.rotary_dim() <= head_dim, "a head of {head_dim} rotates {}", rope.rotary_dim());
    isa.run(RopeRun { rope, out, x, table, tokens, heads, head_dim });
}

struct RopeRun<'a> {
    rope: &'a Rope,
    out: *mut f32,
    x: *const f32,
    table: *const f32,
    tokens: usize,
    heads: usize,
    head_dim: usize,
}

impl WithSimd for RopeRun<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let rotary = self.rope.rotary_dim();
        for token in 0..self.tokens {
            // SAFETY: the token's row and its heads, within what `rope` was given.
            unsafe {
                let cos = self.table.add(token * 2 * rotary);
                let sin = cos.add(rotary);
                for head in 0..self.heads {
                    let at = (token * self.heads + head) * self.head_dim;
                    let (out, x) = (self.out.add(at), self.x.add(at));
                    match self.rope.pairs {
                        RopePairs::Halves => halves(s, out, x, cos, sin, rotary / 2),
                        RopePairs::Adjacent => adjacent(s, out, x, cos, sin, rotary),
                    }
                    if !std::ptr::eq(out, x) {
                        let kept = self.head_dim - rotary;
                        std::ptr::copy_nonoverlapping(x.add(rotary), out.add(rotary), kept);
                    }
                }
            }
        }
    }
}

/// # Safety
/// All pointers are valid for `2 · half` elements.
#[inline(always)]
unsafe fn halves<S: Simd>(s: S, out: *mut f32, x: *const f32, cos: *const f32, sin: *const f32, half: usize) {
    let mut i = 0;
    while i < half {
        let n = LANES.min(half - i);
        let j = i + half;
        // SAFETY: `n` elements from `i` and from `j` are within `2 · half`; both are read before either is written.
        unsafe {
            if n == LANES {
                let (a, b) = (s.load(x.add(i)), s.load(x.add(j)));
                let first = s.fma(a, s.load(cos.add(i)), s.mul(b, s.load(sin.add(i))));
                let second = s.fma(b, s.load(cos.add(j)), s.mul(a, s.load(sin.add(j))));
                s.store(out.add(i), first);
                s.store(out.add(j), second);
            } else {
                let (a, b) = (s.load_part(x.add(i), n), s.load_part(x.add(j), n));
                let first = s.fma(a, s.load_part(cos.add(i), n), s.mul(b, s.load_part(sin.add(i), n)));
                let second = s.fma(b, s.load_part(cos.add(j), n), s.mul(a, s.load_part(sin.add(j), n)));
                s.store_part(out.add(i), first, n);
                s.store_part(out.add(j), second, n);
            }
        }
        i += n;
    }
}

/// # Safety
/// All pointers are valid for `rotary` elements.
#[inline(always)]
unsafe fn adjacent<S: Simd>(
    s: S,
    out: *mut f32,
    x: *const f32,
    cos: *const f32,
    sin: *const f32,
    rotary: usize,
) {
    let mut i = 0;
    while i < rotary {
        let n = LANES.min(rotary - i);
        // SAFETY: `n` elements from `i` are within `rotary`.
        unsafe {
            if n == LANES {
                let v = s.load(x.add(i));
                let other = s.mul(s.swap_adjacent(v), s.load(sin.add(i)));
                s.store(out.add(i), s.fma(v, s.load(cos.add(i)), other));
            } else {
                let v = s.load_part(x.add(i), n);
                let other = s.mul(s.swap_adjacent(v), s.load_part(sin.add(i), n));
                s.store_part(out.add(i), s.fma(v, s.load_part(cos.add(i), n), other), n);
            }
        }
        i += n;
    }
}
