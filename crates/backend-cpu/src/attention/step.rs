//! One attention of one step: checks, work items, and what the workers do.

use std::ops::Range;

use super::partial::{Part, merge};
use super::tile::{CHUNK, TileRun, TokenTile, Work};
use super::{AttentionError, AttentionPlan, Sizes};
use crate::pool::{Stop, Worker};
use crate::simd::{LANES, Simd, WithSimd};

/// The data of a step that says which rows a token sees.
#[derive(Debug, Clone, Copy)]
pub struct AttentionInputs<'a> {
    /// Position of each token in its sequence.
    pub positions: &'a [i32],
    /// Sequence of each token: a row of the block table.
    pub sequences: &'a [i32],
    /// `[sequences][blocks]`: the page that holds positions `block · page..` of a sequence.
    pub block_table: &'a [i32],
}

/// A checked step: every row that it will read exists.
#[derive(Debug, Clone, Copy)]
pub struct AttentionStep<'a> {
    pub(super) plan: &'a AttentionPlan,
    inputs: AttentionInputs<'a>,
    pub(super) q: *const f32,
    out: *mut f32,
    shared: *mut f32,
    /// Tokens per tile in this step.
    tile_tokens: usize,
    /// Whether the chunks of a tile are work items of their own.
    split: bool,
    items: usize,
}

impl<'a> AttentionStep<'a> {
    /// Checks a step and divides its work. Every worker that takes part makes its own equal copy.
    ///
    /// `q` and `out` are `[tokens][heads][head_dim]`; `threads` is the number of workers that will take part.
    ///
    /// # Errors
    /// [`AttentionError`] names the first token or page that does not fit.
    ///
    /// # Safety
    /// While the step is used: `q` is valid for reads and `out` for writes of all tokens; `shared` is valid for
    /// [`AttentionPlan::shared_scratch`] `f32`s; nobody writes the cache's rows that the step sees.
    pub unsafe fn new(
        plan: &'a AttentionPlan,
        inputs: AttentionInputs<'a>,
        threads: usize,
        q: *const f32,
        out: *mut f32,
        shared: *mut f32,
    ) -> Result<Self, AttentionError> {
        let n = inputs.positions.len();
        let kv_heads = plan.cache.kv_heads();
        let per_tile = n * kv_heads / (4 * threads.max(1));
        let tile_tokens = plan.sizes.tile_tokens.min(per_tile.max(1));
        let mut step = Self { plan, inputs, q, out, shared, tile_tokens, split: false, items: 0 };
        step.check()?;
        step.split = n <= plan.sizes.split_tokens;
        step.items = step.tiles().map(|tile| step.items_of(&tile)).sum();
        Ok(step)
    }

    fn check(&self) -> Result<(), AttentionError> {
        let AttentionInputs { positions, sequences, block_table } = self.inputs;
        let (n, limits) = (positions.len(), self.plan.limits);
        if sequences.len() != n {
            return Err(AttentionError::Length { name: "sequences", got: sequences.len(), expected: n });
        }
        if n > limits.tokens {
            return Err(AttentionError::Length { name: "positions", got: n, expected: limits.tokens });
        }
        if !block_table.len().is_multiple_of(limits.blocks) {
            let expected = block_table.len().next_multiple_of(limits.blocks);
            return Err(AttentionError::Length { name: "block_table", got: block_table.len(), expected });
        }
        let rows = block_table.len() / limits.blocks;
        let limit = limits.blocks * limits.page;
        for (token, (&position, &sequence)) in positions.iter().zip(sequences).enumerate() {
            if usize::try_from(sequence).map_or(true, |s| s >= rows) {
                return Err(AttentionError::Sequence { token, sequence, sequences: rows });
            }
            if usize::try_from(position).map_or(true, |p| p >= limit) {
                return Err(AttentionError::Position { token, position, limit });
            }
        }
        let pages = self.plan.cache.slots() / limits.page;
        for tile in self.tiles() {
            let sequence = sequences[tile.tokens.start] as usize;
            let blocks = tile.visible.start / limits.page..tile.visible.end.div_ceil(limits.page);
            for block in blocks {
                let page = block_table[sequence * limits.blocks + block];
                if usize::try_from(page).map_or(true, |p| p >= pages) {
                    return Err(AttentionError::Page { sequence, block, page, pages });
                }
            }
        }
        Ok(())
    }

    /// The positions that a token sees.
    #[inline(always)]
    pub(super) fn visible(&self, token: usize) -> Range<usize> {
        let end = self.inputs.positions[token] as usize + 1;
        self.plan.params.window.map_or(0, |w| end.saturating_sub(w))..end
    }

    /// The tiles from the last token to the first: the late ones see most, and should start early.
    fn tiles(&self) -> impl Iterator<Item = TokenTile> {
        let mut end = self.inputs.positions.len();
        std::iter::from_fn(move || {
            let last = end.checked_sub(1)?;
            let AttentionInputs { positions, sequences, .. } = self.inputs;
            let follows = |t: usize| sequences[t - 1] == sequences[t] && positions[t - 1] + 1 == positions[t];
            let mut visible = self.visible(last);
            let mut start = last;
            while start > 0 && end - start < self.tile_tokens && follows(start) {
                start -= 1;
                let seen = self.visible(start);
                visible = visible.start.min(seen.start)..visible.end.max(seen.end);
            }
            let tile = TokenTile { tokens: start..end, visible };
            end = start;
            Some(tile)
        })
    }

    fn items_of(&self, tile: &TokenTile) -> usize {
        self.plan.cache.kv_heads() * if self.split { tile.chunks().len() } else { 1 }
    }

    /// Work items of the step.
    pub fn items(&self) -> usize {
        self.items
    }

    /// Runs one worker's share: items as they come, and the merge if there is one. Leaves without a last barrier.
    /// All workers of the job must call it, right after a barrier (or the job's start).
    ///
    /// # Errors
    /// [`Stop`] if another worker failed.
    ///
    /// # Safety
    /// The workers' steps are equal; `scratch` is this worker's own and valid for
    /// [`AttentionPlan::worker_scratch`] `f32`s.
    pub unsafe fn run(&self, worker: &Worker<'_>, scratch: *mut f32) -> Result<(), Stop> {
        let mut tiles = self.tiles();
        let mut current = tiles.next().map(|tile| (0..self.items_of(&tile), tile));
        loop {
            let item = worker.next();
            // Item numbers only grow, so the tiles are walked once.
            while let Some((items, _)) = &current
                && items.end <= item
            {
                let first = items.end;
                current = tiles.next().map(|tile| (first..first + self.items_of(&tile), tile));
            }
            let Some((items, tile)) = &current else { break };
            // SAFETY: the pool gives each item to one worker; the scratch is ours.
            unsafe { self.run_item(tile, item - items.start, scratch) };
        }
        if self.split {
            worker.barrier()?;
            let rows = self.inputs.positions.len() * self.plan.sizes.heads;
            // SAFETY: every item is done and visible; the shares do not overlap.
            unsafe { self.merge(worker.split(rows, 1)) };
        }
        Ok(())
    }

    /// Computes item `index` of a tile.
    ///
    /// # Safety
    /// As [`AttentionStep::run`]; no other worker runs the same item.
    unsafe fn run_item(&self, tile: &TokenTile, index: usize, scratch: *mut f32) {
        let kv_heads = self.plan.cache.kv_heads();
        let work = if self.split { Work::Chunk(tile.chunks().start + index / kv_heads) } else { Work::Whole };
        let run = TileRun { step: self, tile: tile.clone(), kv_head: index % kv_heads, work, scratch };
        self.plan.isa.run(run);
    }

    /// Merges the partial results of the rows (token, head) `rows` and writes them to the output.
    ///
    /// # Safety
    /// Every item has been run, and its writes are visible; no other worker merges the same rows.
    unsafe fn merge(&self, rows: Range<usize>) {
        self.plan.isa.run(MergeRun { step: self, rows });
    }

    /// The offsets in bytes of the cache rows for a chunk's positions. Those that the tile does not see get the offset
    /// of one that it sees.
    #[inline(always)]
    pub(super) fn row_offsets(&self, tile: &TokenTile, chunk: usize, offsets: &mut [usize; CHUNK]) {
        let (page, blocks) = (self.plan.limits.page, self.plan.limits.blocks);
        let row_bytes = self.plan.cache.row_bytes();
        let sequence = self.inputs.sequences[tile.tokens.start] as usize;
        let table = &self.inputs.block_table[sequence * blocks..][..blocks];
        let start = chunk * CHUNK;
        let seen = tile.visible.start.max(start) - start..tile.visible.end.min(start + CHUNK) - start;
        let mut at = seen.start;
        while at < seen.end {
            let (block, skip) = ((start + at) / page, (start + at) % page);
            let n = (page - skip).min(seen.end - at);
            let first = table[block] as usize * page + skip;
            for (i, offset) in offsets[at..at + n].iter_mut().enumerate() {
                *offset = (first + i) * row_bytes;
            }
            at += n;
        }
        let (first, last) = (offsets[seen.start], offsets[seen.end - 1]);
        offsets[..seen.start].fill(first);
        offsets[seen.end..].fill(last);
    }

    /// The place of the partial result of a token, head and chunk.
    #[inline(always)]
    pub(super) fn partial(&self, token: usize, head: usize, chunk: usize) -> Part {
        let Sizes { heads, chunks, stride, .. } = self.plan.sizes;
        let index = (token * heads + head) * chunks + chunk;
        let acc = self.shared.wrapping_add(index * self.plan.partial_len());
        Part { stats: acc.wrapping_add(stride), acc }
    }

    /// Writes one row (token, head) of the result: the sums over the sum of weights.
    ///
    /// # Safety
    /// `total` is valid, and no one else writes this row.
    #[inline(always)]
    pub(super) unsafe fn write_output<S: Simd>(&self, s: S, token: usize, head: usize, total: Part) {
        let Sizes { heads, head_dim, .. } = self.plan.sizes;
        // SAFETY: a row of the output, as `new`'s caller vouched.
        unsafe {
            let out = self.out.add((token * heads + head) * head_dim);
            let inverse = s.splat(1.0 / *total.stats.add(1));
            for i in (0..head_dim).step_by(LANES) {
                let v = s.mul(s.load(total.acc.add(i)), inverse);
                s.store_part(out.add(i), v, LANES.min(head_dim - i));
            }
        }
    }
}

struct MergeRun<'a> {
    step: &'a AttentionStep<'a>,
    rows: Range<usize>,
}

impl WithSimd for MergeRun<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let step = self.step;
        let Sizes { heads, stride, .. } = step.plan.sizes;
        for row in self.rows {
            let (token, head) = (row / heads, row % heads);
            let seen = step.visible(token);
            let (first, last) = (seen.start / CHUNK, (seen.end - 1) / CHUNK);
            let total = step.partial(token, head, first);
            // SAFETY: every chunk that the token sees has left a partial result, and this row is ours.
            unsafe {
                for chunk in first + 1..=last {
                    merge(s, total, step.partial(token, head, chunk), stride);
                }
                step.write_output(s, token, head, total);
            }
        }
    }
}
