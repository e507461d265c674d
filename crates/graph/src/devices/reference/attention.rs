//! Attention over a paged KV cache.

use super::memory::KvCache;
use super::softcap;
use crate::{Attention, bounds};

/// The queries of a step and where their keys are.
pub(super) struct Batch<'a> {
    /// `[n, heads, head_dim]`.
    pub q: &'a [f32],
    /// `[n]`.
    pub positions: &'a [i32],
    /// `[n]`: rows of the block table.
    pub sequences: &'a [i32],
    /// `[sequences, blocks]`: pages.
    pub block_table: &'a [i32],
    /// Pages in a row of the block table.
    pub blocks: usize,
}

/// `[n, heads · head_dim]`.
pub(super) fn attention(
    attention: &Attention,
    batch: &Batch<'_>,
    cache: &KvCache,
) -> Result<Vec<f32>, String> {
    let Batch { positions, sequences, block_table, blocks, .. } = *batch;
    bounds::attention(attention, positions, sequences, block_table, blocks, &cache.decl)?;
    let (dim, page) = (cache.decl.head_dim, cache.decl.page);
    let heads = batch.q.len() / (positions.len() * dim);
    let group = heads / cache.decl.kv_heads;

    let mut out = Vec::with_capacity(batch.q.len());
    for (t, (&position, &sequence)) in positions.iter().zip(sequences).enumerate() {
        let table = &block_table[sequence as usize * blocks..][..blocks];
        let position = position as usize;
        let slots: Vec<usize> = (attention.first_position(position)..=position)
            .map(|p| table[p / page] as usize * page + p % page)
            .collect();
        for head in 0..heads {
            let (q, kv) = (&batch.q[(t * heads + head) * dim..][..dim], head / group);
            let scores = slots.iter().map(|&slot| {
                let dot: f64 =
                    q.iter().zip(cache.k(slot, kv)).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                let score = dot * f64::from(attention.scale);
                attention.softcap.map_or(score, |cap| softcap(score, cap))
            });
            let weights = softmax(scores.collect());
            for d in 0..dim {
                let values = slots.iter().map(|&slot| f64::from(cache.v(slot, kv)[d]));
                let sum: f64 = values.zip(&weights).map(|(v, w)| v * w).sum();
                out.push(sum as f32);
            }
        }
    }
    Ok(out)
}

/// Weights that sum to one, in proportion to the exponentials of the scores.
fn softmax(scores: Vec<f64>) -> Vec<f64> {
    // The maximum drops a NaN; the sum does not.
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.iter().map(|e| e / sum).collect()
}
