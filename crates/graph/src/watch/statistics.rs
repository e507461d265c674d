//! Values in a few numbers.

use serde::Serialize;

/// What the values of a node are like.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Statistics {
    /// The smallest finite value; 0 where there is none, like the others.
    pub min: f32,
    /// The largest finite value.
    pub max: f32,
    /// The mean of the finite values.
    pub mean: f64,
    /// The root of the mean square of the finite values.
    pub rms: f64,
    /// Values that are not numbers.
    pub nan: usize,
    /// Infinite values.
    pub infinite: usize,
}

impl Statistics {
    /// Those of `values`.
    pub fn of(values: &[f32]) -> Self {
        let finite = || values.iter().copied().filter(|v| v.is_finite());
        let count = finite().count().max(1) as f64;
        let nan = values.iter().filter(|v| v.is_nan()).count();
        let range = finite().fold(None, |r: Option<(f32, f32)>, v| {
            Some(r.map_or((v, v), |(min, max)| (min.min(v), max.max(v))))
        });
        let (min, max) = range.unwrap_or_default();
        Self {
            min,
            max,
            mean: finite().map(f64::from).sum::<f64>() / count,
            rms: (finite().map(|v| f64::from(v).powi(2)).sum::<f64>() / count).sqrt(),
            nan,
            infinite: values.iter().filter(|v| v.is_infinite()).count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Statistics;

    #[test]
    fn statistics_are_those_of_the_finite_values() {
        let s = Statistics::of(&[3.0, f32::NAN, -4.0, f32::INFINITY, f32::NEG_INFINITY]);
        let wanted = Statistics { min: -4.0, max: 3.0, mean: -0.5, rms: 12.5f64.sqrt(), nan: 1, infinite: 2 };
        assert_eq!(s, wanted);
        let none = Statistics { min: 0.0, max: 0.0, mean: 0.0, rms: 0.0, nan: 1, infinite: 0 };
        assert_eq!(Statistics::of(&[f32::NAN]), none);
    }
}
