//! Matrix products and row lookup.

use crate::{Shape, bounds};

/// Row `ids[i]` of the table as row `i`.
pub(super) fn get_rows(table: &[f32], width: usize, ids: &[i32]) -> Result<Vec<f32>, String> {
    bounds::row_ids(ids, table.len() / width)?;
    Ok(ids.iter().flat_map(|&id| &table[id as usize * width..][..width]).copied().collect())
}

/// `x [n, k] · weightᵀ`, with `shape` the weight's `[rows, k]`.
pub(super) fn mat_mul(weight: &[f32], x: &[f32], shape: Shape) -> Vec<f32> {
    let k = shape.width();
    let mut out = Vec::with_capacity(x.len() / k * shape.rows());
    for x in x.chunks_exact(k) {
        for w in weight.chunks_exact(k) {
            let sum: f64 = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
            out.push(sum as f32);
        }
    }
    out
}
