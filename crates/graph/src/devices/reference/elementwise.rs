//! Operations on elements and rows.

/// Numbers that convert to f64 without loss.
pub(super) trait Real: Copy + Into<f64> {}
impl<T: Copy + Into<f64>> Real for T {}

/// `f` of every element.
pub(super) fn map(x: &[f32], f: impl Fn(f64) -> f64) -> Vec<f64> {
    x.iter().map(|&x| f(x.into())).collect()
}

/// `f` of every element of `a` and its partner in `b`, which is as long or one row that repeats.
pub(super) fn zip<A: Real>(a: &[A], b: &[f32], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    a.iter().zip(b.iter().cycle()).map(|(&a, &b)| f(a.into(), b.into())).collect()
}

/// `x / sqrt(mean(x²) + eps)`, times the weight if there is one, for each row of `width`.
pub(super) fn rms_norm(x: &[f32], width: usize, eps: f32, weight: Option<&[f32]>) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(width) {
        let squares: f64 = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let root = (squares / width as f64 + f64::from(eps)).sqrt();
        out.extend(row.iter().enumerate().map(|(i, &x)| {
            let weight = weight.map_or(1.0, |w| f64::from(w[i]));
            f64::from(x) / root * weight
        }));
    }
    out
}
