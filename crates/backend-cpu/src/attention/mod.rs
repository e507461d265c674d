//! Grouped-query attention over a paged KV cache, and the store into it.
//!
//! [`AttentionPlan`] is made once per plan, [`AttentionStep`] per step and layer: it checks the step's positions and
//! block tables and divides the work into items, which the workers of a pool share. Nothing is allocated in a step.
//! The results are bit-equal whatever the batch, the chunking, the thread count and the instruction set; `tile.rs`
//! defines the arithmetic.

mod gemm;
mod kv;
mod panel;
mod partial;
mod scratch;
mod softmax;
mod step;
#[cfg(test)]
mod tests;
mod tile;

pub use kv::{KvCache, KvStore, KvType, SlotError};
pub use step::{AttentionInputs, AttentionStep};

use crate::simd::{Isa, LANES};
use tile::CHUNK;

/// The fixed parameters of an attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionParams {
    /// Query heads; a multiple of the cache's heads.
    pub heads: usize,
    /// Multiplies q·k.
    pub scale: f32,
    /// With `Some(w)`, a token at `p` sees positions in `(p - w, p]` only.
    pub window: Option<usize>,
    /// With `Some(c)`, scores become `c · tanh(score / c)`.
    pub softcap: Option<f32>,
}

/// What a plan must be ready for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionLimits {
    /// Most tokens in a step.
    pub tokens: usize,
    /// Slots in a page of the cache.
    pub page: usize,
    /// Entries in a row of the block table: a sequence has at most `blocks · page` positions.
    pub blocks: usize,
    /// Most workers.
    pub threads: usize,
}

/// Parameters that do not fit each other, or a step that does not fit its plan or its cache.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AttentionError {
    /// The plan's parameters make no sense.
    #[error("attention: {0}")]
    Params(String),
    /// Arrays of a step do not have the lengths that belong together.
    #[error("attention: {name} has {got} elements, expected {expected}")]
    Length {
        /// The array.
        name: &'static str,
        /// Its length.
        got: usize,
        /// What it should be.
        expected: usize,
    },
    /// A token's sequence has no row in the block table.
    #[error("token {token} belongs to sequence {sequence}, outside the block table's 0..{sequences}")]
    Sequence {
        /// Index of the token in the step.
        token: usize,
        /// Its sequence.
        sequence: i32,
        /// Rows of the block table.
        sequences: usize,
    },
    /// A token's position is negative or beyond the block table.
    #[error("token {token} is at position {position}, outside 0..{limit}")]
    Position {
        /// Index of the token in the step.
        token: usize,
        /// Its position.
        position: i32,
        /// Positions that a sequence can have.
        limit: usize,
    },
    /// A page that a token needs is not one of the cache's.
    #[error("sequence {sequence} has page {page} as block {block}, outside the cache's 0..{pages}")]
    Page {
        /// The sequence.
        sequence: usize,
        /// Column of the block table.
        block: usize,
        /// What stands there.
        page: i32,
        /// Pages of the cache.
        pages: usize,
    },
}

/// Sizes derived from parameters, cache and limits.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    heads: usize,
    /// Query heads per KV head.
    group: usize,
    head_dim: usize,
    /// `head_dim` rounded up to whole vectors: the stride of sums in scratch.
    stride: usize,
    /// Most tokens in a tile, and the rows (token, head of the group) that makes.
    tile_tokens: usize,
    tile_rows: usize,
    /// Most tokens of a step whose chunks are shared between workers.
    split_tokens: usize,
    /// Most chunks of a sequence.
    chunks: usize,
}

/// An attention with everything that does not change from step to step.
#[derive(Debug, Clone)]
pub struct AttentionPlan {
    isa: Isa,
    params: AttentionParams,
    cache: KvCache,
    limits: AttentionLimits,
    sizes: Sizes,
}

/// Rows (token, head) of a tile to aim for: enough to make loading K and V cheap, few enough for the L2 cache.
const TILE_ROWS: usize = 96;

/// Above this many tokens in a step there are tiles enough to keep the workers busy without sharing chunks.
const SPLIT_TOKENS: usize = 16;

/// Most `f32`s of partial results (but at least one token's).
const SPLIT_SCRATCH: usize = 1 << 19;

impl AttentionPlan {
    /// Checks the parameters and computes sizes.
    ///
    /// # Errors
    /// [`AttentionError::Params`].
    pub fn new(
        isa: Isa,
        params: AttentionParams,
        cache: KvCache,
        limits: AttentionLimits,
    ) -> Result<Self, AttentionError> {
        let (kv_heads, head_dim) = (cache.kv_heads(), cache.head_dim());
        let AttentionParams { heads, scale, window, softcap } = params;
        let problem = |text: String| Err(AttentionError::Params(text));
        if kv_heads == 0 || head_dim == 0 || heads == 0 || !heads.is_multiple_of(kv_heads) {
            return problem(format!("{heads} query heads for {kv_heads} KV heads of {head_dim} elements"));
        }
        if !scale.is_finite() {
            return problem(format!("scale is {scale}"));
        }
        if window == Some(0) {
            return problem("window is 0".to_owned());
        }
        if let Some(cap) = softcap
            && !(cap.is_finite() && cap > 0.0)
        {
            return problem(format!("softcap is {cap}"));
        }
        let AttentionLimits { tokens, page, blocks, threads } = limits;
        if tokens == 0 || page == 0 || blocks == 0 || threads == 0 {
            return problem(format!("a limit is 0: {limits:?}"));
        }
        let Some(context) = page.checked_mul(blocks).filter(|&c| i32::try_from(c).is_ok()) else {
            return problem(format!(
                "{blocks} blocks of {page} positions are more than a position can count"
            ));
        };
        let group = heads / kv_heads;
        let tile_tokens = (TILE_ROWS / group).clamp(1, tokens);
        let stride = head_dim.next_multiple_of(LANES);
        let chunks = context.div_ceil(CHUNK);
        let partials = heads * chunks * (stride + LANES);
        let sizes = Sizes {
            heads,
            group,
            head_dim,
            stride,
            tile_tokens,
            tile_rows: tile_tokens * group,
            split_tokens: SPLIT_TOKENS.min(tokens).min((SPLIT_SCRATCH / partials).max(1)),
            chunks,
        };
        Ok(Self { isa, params, cache, limits, sizes })
    }

    /// `f32`s of scratch that each worker needs for itself.
    pub fn worker_scratch(&self) -> usize {
        scratch::len(&self.sizes)
    }

    /// `f32`s of scratch that the workers share.
    pub fn shared_scratch(&self) -> usize {
        let Sizes { heads, split_tokens, chunks, .. } = self.sizes;
        split_tokens * heads * chunks * self.partial_len()
    }

    /// `f32`s of one partial result: the sums, then the two stats in a vector of their own.
    fn partial_len(&self) -> usize {
        self.sizes.stride + LANES
    }
}
