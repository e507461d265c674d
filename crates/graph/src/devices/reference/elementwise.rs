//! Operations on elements and rows.

/// `f` of every element.
pub(super) fn map(x: &[f32], f: impl Fn(f64) -> f64) -> Vec<f32> {
    x.iter().map(|&x| f(x.into()) as f32).collect()
}

/// `a + b`, where `b` is as long as `a` or one row that repeats.
pub(super) fn add(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b.iter().cycle()).map(|(&a, &b)| (f64::from(a) + f64::from(b)) as f32).collect()
}

/// `a · b`, where `b` is as long as `a` or one row that repeats.
pub(super) fn mul(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b.iter().cycle()).map(|(&a, &b)| (f64::from(a) * f64::from(b)) as f32).collect()
}

/// `x / sqrt(mean(x²) + eps)` for each row of `width`.
pub(super) fn rms_norm(x: &[f32], width: usize, eps: f32) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(width) {
        let squares: f64 = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let root = (squares / width as f64 + f64::from(eps)).sqrt();
        out.extend(row.iter().map(|&x| (f64::from(x) / root) as f32));
    }
    out
}
