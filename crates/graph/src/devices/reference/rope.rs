//! Rotary position embedding.

use crate::{Rope, Shape, bounds};

/// Rotates `x` `[n, heads, dim]`.
pub(super) fn rope(
    rope: &Rope,
    x: &[f32],
    positions: &[i32],
    factors: Option<&[f32]>,
    shape: Shape,
) -> Result<Vec<f32>, String> {
    bounds::positions(positions)?;
    let (heads, dim) = (shape.dims()[1], shape.dims()[2]);
    let mut out = x.to_vec();
    for (token, &position) in out.chunks_exact_mut(heads * dim).zip(positions) {
        for head in token.chunks_exact_mut(dim) {
            for i in 0..rope.rotary_dim / 2 {
                let factor = factors.map_or(1.0, |f| f64::from(f[i]));
                let angle = f64::from(position) * rope.frequency(i) / factor;
                let magnitude = f64::from(rope.magnitude());
                let (cos, sin) = (angle.cos() * magnitude, angle.sin() * magnitude);
                let (first, second) = rope.pair(i);
                let (a, b) = (f64::from(head[first]), f64::from(head[second]));
                head[first] = (a * cos - b * sin) as f32;
                head[second] = (a * sin + b * cos) as f32;
            }
        }
    }
    Ok(out)
}
