//! From scores to weights.

use std::ops::Range;

use super::scratch::Scratch;
use super::tile::CHUNK;
use crate::ops::Softcap;
use crate::simd::{LANES, Simd, WithSimd};

/// Turns the scores of a chunk into weights `exp(score - m)` for each row that sees any of it, records `m` and the
/// weights' sum, and clears the row of `acc`.
pub(super) struct Softmax<'a> {
    pub(super) scratch: &'a Scratch,
    pub(super) rows: usize,
    pub(super) stride: usize,
    pub(super) softcap: Option<f32>,
}

impl Softmax<'_> {
    /// # Safety
    /// The scratch has this many rows of this stride, and the scores that they see have been computed.
    #[inline(always)]
    pub(super) unsafe fn run<S: Simd>(self, s: S) {
        // A function of its own, with all the registers.
        s.vectorize(self);
    }
}

impl WithSimd for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        for row in 0..self.rows {
            // SAFETY: the row's 256 scores and its result, as the caller of `run` vouched.
            unsafe {
                let visible = self.scratch.visible(row);
                if visible.is_empty() {
                    continue;
                }
                let scores = self.scratch.scores.add(row * CHUNK);
                let part = self.scratch.part(row, self.stride);
                let (max, sum) = softmax(s, scores, visible, self.softcap);
                *part.stats = max;
                *part.stats.add(1) = sum;
                std::ptr::write_bytes(part.acc, 0, self.stride);
            }
        }
    }
}

/// The maximum of a row's visible scores, and the sum of the weights that replace them.
///
/// # Safety
/// `scores` is valid for a chunk; `visible` is a non-empty range of it.
#[inline(always)]
unsafe fn softmax<S: Simd>(
    s: S,
    scores: *mut f32,
    visible: Range<usize>,
    softcap: Option<f32>,
) -> (f32, f32) {
    let blocks = (visible.start / LANES * LANES..visible.end).step_by(LANES);
    // SAFETY: each block begins within the chunk, whose length is a multiple of a block's.
    unsafe {
        if let Some(cap) = softcap {
            let softcap = Softcap::new(s, cap);
            for at in blocks.clone() {
                s.store(scores.add(at), softcap.apply(s, s.load(scores.add(at))));
            }
        }
        let lowest = s.splat(f32::NEG_INFINITY);
        let mut max = lowest;
        for at in blocks.clone() {
            max = s.max(mask(s, &visible, at, s.load(scores.add(at)), lowest), max);
        }
        let max = s.reduce_max(max);
        let shift = s.splat(max);
        let mut sum = s.splat(0.0);
        for at in blocks {
            let weight = s.exp(s.sub(s.load(scores.add(at)), shift));
            let weight = mask(s, &visible, at, weight, s.splat(0.0));
            s.store(scores.add(at), weight);
            sum = s.add(sum, weight);
        }
        (max, s.reduce_add(sum))
    }
}

/// Replaces the lanes of the block at `at` that are outside `visible`.
#[inline(always)]
fn mask<S: Simd>(s: S, visible: &Range<usize>, at: usize, v: S::F, outside: S::F) -> S::F {
    if visible.start <= at && at + LANES <= visible.end {
        return v;
    }
    const INDEX: [f32; LANES] = {
        let mut index = [0.0; LANES];
        let mut i = 0;
        while i < LANES {
            index[i] = i as f32;
            i += 1;
        }
        index
    };
    // SAFETY: 16 elements.
    let index = s.add(unsafe { s.load(INDEX.as_ptr()) }, s.splat(at as f32));
    let v = s.select_lt(index, s.splat(visible.end as f32), v, outside);
    s.select_lt(index, s.splat(visible.start as f32), outside, v)
}
