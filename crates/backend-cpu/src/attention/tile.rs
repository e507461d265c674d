//! Attention of a few query tokens to one chunk of the cache, for the query heads of one KV head.
//!
//! The arithmetic is defined per query row and absolute position, nothing else:
//!
//! - A position's score is one chain of fused multiply-adds over the head's elements (the query is scaled first).
//! - A chunk (256 positions, aligned) has a maximum `m`, a sum `l` of `exp(score - m)` over 16 lanes by position, and
//!   `acc`, for each element one chain over the positions in ascending order.
//! - Chunks are merged in ascending order ([`merge`]).
//!
//! So the result is the same however tokens are batched, chunked, tiled or shared between threads. Positions outside
//! a row's own range are never multiplied, not even by zero: what lies there may be NaN.

use std::ops::Range;

use super::gemm::{A_STRIDE, Gemm, tile_rows};
use super::panel::{LoadRows, LoadTransposed, PANEL, Rows};
use super::partial::merge;
use super::scratch::Scratch;
use super::softmax::Softmax;
use super::{AttentionStep, Sizes};
use crate::simd::{LANES, Simd, WithSimd};

/// Positions in a chunk. Part of the definition of the result: changing it changes roundings.
pub(super) const CHUNK: usize = A_STRIDE;

/// Tokens at consecutive positions of one sequence that are computed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenTile {
    pub(super) tokens: Range<usize>,
    /// Positions that any of the tokens sees.
    pub(super) visible: Range<usize>,
}

impl TokenTile {
    pub(super) fn chunks(&self) -> Range<usize> {
        self.visible.start / CHUNK..self.visible.end.div_ceil(CHUNK)
    }
}

/// What a work item computes.
pub(super) enum Work {
    /// All chunks, merged and written to the output.
    Whole,
    /// One chunk, written as a partial result.
    Chunk(usize),
}

/// One work item: a tile, a KV head, and all chunks or one.
pub(super) struct TileRun<'a> {
    pub(super) step: &'a AttentionStep<'a>,
    pub(super) tile: TokenTile,
    pub(super) kv_head: usize,
    pub(super) work: Work,
    pub(super) scratch: *mut f32,
}

impl WithSimd for TileRun<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        // SAFETY: the worker's scratch, as the caller of `AttentionStep::run_item` vouched.
        let scratch = unsafe { Scratch::new(self.scratch, &self.step.plan.sizes) };
        // SAFETY: the step was checked, so every position the tile sees has a row in the cache.
        unsafe {
            self.load_queries(s, &scratch);
            match self.work {
                Work::Chunk(chunk) => {
                    self.chunk(s, &scratch, chunk);
                    self.write_partials(s, &scratch, chunk);
                }
                Work::Whole => {
                    for chunk in self.tile.chunks() {
                        self.chunk(s, &scratch, chunk);
                        self.merge_chunk(s, &scratch, chunk);
                    }
                    self.write_output(s, &scratch);
                }
            }
        }
    }
}

impl TileRun<'_> {
    fn sizes(&self) -> &Sizes {
        &self.step.plan.sizes
    }

    fn rows(&self) -> usize {
        self.tile.tokens.len() * self.sizes().group
    }

    /// The token and the query head of a row.
    #[inline(always)]
    fn token_and_head(&self, row: usize) -> (usize, usize) {
        let group = self.sizes().group;
        (self.tile.tokens.start + row / group, self.kv_head * group + row % group)
    }

    /// Notes what each row sees of a chunk; an empty range if nothing.
    #[inline(always)]
    unsafe fn note_visible(&self, scratch: &Scratch, chunk: usize) {
        let (start, group) = (chunk * CHUNK, self.sizes().group);
        for (i, token) in self.tile.tokens.clone().enumerate() {
            let seen = self.step.visible(token);
            let end = seen.end.clamp(start, start + CHUNK);
            let range = seen.start.clamp(start, end) - start..end - start;
            for row in i * group..(i + 1) * group {
                // SAFETY: a row of the tile.
                unsafe { scratch.set_visible(row, range.clone()) };
            }
        }
    }

    /// Copies the tile's queries, scaled, to `[head_dim / 256][row][256]`.
    #[inline(always)]
    unsafe fn load_queries<S: Simd>(&self, s: S, scratch: &Scratch) {
        let Sizes { heads, head_dim, .. } = *self.sizes();
        let scale = s.splat(self.step.plan.params.scale);
        let rows = self.rows();
        for row in 0..rows {
            let (token, head) = self.token_and_head(row);
            for d in (0..head_dim).step_by(LANES) {
                let n = LANES.min(head_dim - d);
                // SAFETY: `n` elements of a query head, and of the row's place in the scratch.
                unsafe {
                    let x = self.step.q.add((token * heads + head) * head_dim + d);
                    let out = scratch.q.add((d / A_STRIDE * rows + row) * A_STRIDE + d % A_STRIDE);
                    if n == LANES {
                        s.store(out, s.mul(s.load(x), scale));
                    } else {
                        s.store_part(out, s.mul(s.load_part(x, n), scale), n);
                    }
                }
            }
        }
    }

    /// Fills `stats` and `acc` for one chunk; rows that see none of it are left alone.
    #[inline(always)]
    unsafe fn chunk<S: Simd>(&self, s: S, scratch: &Scratch, chunk: usize) {
        let start = chunk * CHUNK;
        let seen =
            self.tile.visible.start.max(start) - start..self.tile.visible.end.min(start + CHUNK) - start;
        let mut offsets = [0; CHUNK];
        self.step.row_offsets(&self.tile, chunk, &mut offsets);
        let cache = &self.step.plan.cache;
        let (k, v) = cache.head(self.kv_head);
        let (kv_type, dim) = (cache.kv_type(), cache.head_dim());
        let k = Rows { kv_type, base: k, offsets: &offsets, dim };
        let v = Rows { base: v, ..k };
        let panels = || (seen.start / PANEL * PANEL..seen.end).step_by(PANEL);
        // SAFETY: everything below stays within the scratch and the cache's checked rows.
        unsafe {
            self.note_visible(scratch, chunk);
            for panel in panels() {
                self.score_panel(s, scratch, k, v, panel, seen.end);
            }
            Softmax {
                scratch,
                rows: self.rows(),
                stride: self.sizes().stride,
                softcap: self.step.plan.params.softcap,
            }
            .run(s);
            for panel in panels() {
                self.sum_panel(s, scratch, v, panel, seen.end);
            }
        }
    }

    /// Scores of all rows for the positions of one panel, up to `end`. Some are of positions that a row, or even the
    /// tile, does not see; `softmax` drops them.
    #[inline(always)]
    unsafe fn score_panel<S: Simd>(
        &self,
        s: S,
        scratch: &Scratch,
        k: Rows<'_>,
        v: Rows<'_>,
        panel: usize,
        end: usize,
    ) {
        let used = (end - panel).min(PANEL).next_multiple_of(LANES);
        let next = (panel + used).min(end)..(panel + used + PANEL).min(end);
        // SAFETY: the rows are checked; the panel has room for `PANEL · dim`; the product's operands are different
        // parts of the scratch.
        unsafe {
            let rows = Rows { offsets: &k.offsets[panel..panel + used], ..k };
            LoadTransposed { rows, out: scratch.panel }.run(s);
            // While the products run: the V rows of these positions, and the next K rows.
            Rows { offsets: &v.offsets[panel..end.min(panel + used)], ..v }.prefetch(s);
            Rows { offsets: &k.offsets[next], ..k }.prefetch(s);
            for tile in register_tiles::<S>(self.rows()) {
                let end = tile.clone().map(|row| scratch.visible(row).end).max().unwrap_or(0);
                let columns = used.min(end.saturating_sub(panel).next_multiple_of(LANES));
                for d in (0..k.dim).step_by(A_STRIDE) {
                    Gemm {
                        rows: tile.len(),
                        k: A_STRIDE.min(k.dim - d),
                        columns,
                        a: scratch.q.add((d / A_STRIDE * self.rows() + tile.start) * A_STRIDE),
                        b: scratch.panel.add(d * PANEL),
                        b_stride: PANEL,
                        c: scratch.scores.add(tile.start * CHUNK + panel),
                        c_stride: CHUNK,
                        accumulate: d > 0,
                    }
                    .run(s);
                }
            }
        }
    }

    /// Adds the weighted V rows of one panel, up to `end`, to `acc`.
    #[inline(always)]
    unsafe fn sum_panel<S: Simd>(&self, s: S, scratch: &Scratch, v: Rows<'_>, panel: usize, end: usize) {
        let stride = self.sizes().stride;
        // SAFETY: the rows are checked; the panel has room for `PANEL · stride`.
        unsafe {
            let rows = Rows { offsets: &v.offsets[panel..end.min(panel + PANEL)], ..v };
            LoadRows { rows, stride, out: scratch.panel }.run(s);
        }
        // SAFETY: the rows of the tile.
        let visible = |row: usize| unsafe { scratch.visible(row) };
        for tile in register_tiles::<S>(self.rows()) {
            let common =
                tile.clone().map(visible).fold(0..CHUNK, |a, b| a.start.max(b.start)..a.end.min(b.end));
            if common.is_empty() {
                for row in tile {
                    // SAFETY: one row of the tile, within what it sees.
                    unsafe { self.sum_rows(s, scratch, row..row + 1, panel, visible(row)) };
                }
                continue;
            }
            // In ascending order for each row: what only some rows see, what all see, what only some see.
            // SAFETY: rows of the tile, within what each of them sees.
            unsafe {
                for row in tile.clone() {
                    self.sum_rows(s, scratch, row..row + 1, panel, visible(row).start..common.start);
                }
                self.sum_rows(s, scratch, tile.clone(), panel, common.clone());
                for row in tile {
                    self.sum_rows(s, scratch, row..row + 1, panel, common.end..visible(row).end);
                }
            }
        }
    }

    /// Adds the weighted V rows of the chunk's positions `seen`, cut to the panel, for rows that all see them.
    #[inline(always)]
    unsafe fn sum_rows<S: Simd>(
        &self,
        s: S,
        scratch: &Scratch,
        rows: Range<usize>,
        panel: usize,
        seen: Range<usize>,
    ) {
        let stride = self.sizes().stride;
        let (from, to) = (seen.start.max(panel), seen.end.min(panel + PANEL));
        if from >= to {
            return;
        }
        // SAFETY: weights, panel and sums are different parts of the scratch, large enough for these sizes.
        unsafe {
            Gemm {
                rows: rows.len(),
                k: to - from,
                columns: stride,
                a: scratch.scores.add(rows.start * CHUNK + from),
                b: scratch.panel.add((from - panel) * stride),
                b_stride: stride,
                c: scratch.acc.add(rows.start * stride),
                c_stride: stride,
                accumulate: true,
            }
            .run(s);
        }
    }

    /// Merges the chunk into the totals.
    #[inline(always)]
    unsafe fn merge_chunk<S: Simd>(&self, s: S, scratch: &Scratch, chunk: usize) {
        let stride = self.sizes().stride;
        for row in 0..self.rows() {
            let seen = self.step.visible(self.token_and_head(row).0);
            // SAFETY: the rows of the scratch.
            unsafe {
                let (part, total) = (scratch.part(row, stride), scratch.total(row, stride));
                if seen.start / CHUNK == chunk {
                    total.copy_from(part, stride);
                } else if !scratch.visible(row).is_empty() {
                    merge(s, total, part, stride);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn write_output<S: Simd>(&self, s: S, scratch: &Scratch) {
        let stride = self.sizes().stride;
        for row in 0..self.rows() {
            let (token, head) = self.token_and_head(row);
            // SAFETY: the rows of the scratch.
            unsafe { self.step.write_output(s, token, head, scratch.total(row, stride)) };
        }
    }

    #[inline(always)]
    unsafe fn write_partials<S: Simd>(&self, _: S, scratch: &Scratch, chunk: usize) {
        let stride = self.sizes().stride;
        for row in 0..self.rows() {
            let (token, head) = self.token_and_head(row);
            // SAFETY: a row of the scratch, and the partial that belongs to this token, head and chunk alone.
            unsafe {
                if scratch.visible(row).is_empty() {
                    continue;
                }
                self.step.partial(token, head, chunk).copy_from(scratch.part(row, stride), stride);
            }
        }
    }
}

/// `rows` cut into nearly equal runs that fit the registers.
#[inline(always)]
fn register_tiles<S: Simd>(rows: usize) -> impl Iterator<Item = Range<usize>> {
    let tiles = rows.div_ceil(tile_rows(S::ISA));
    (0..tiles).map(move |i| rows * i / tiles..rows * (i + 1) / tiles)
}
