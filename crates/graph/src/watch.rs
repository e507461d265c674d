//! Watching a run: what each node made, and how long it took.

use std::time::Duration;

use crate::{DType, DeviceId, NodeId, Plan};

/// Hears of a run that [`crate::Scheduler::execute_watched`] makes.
pub trait Watch {
    /// Whether the value of a node is wanted; reading it takes time.
    fn wants(&mut self, _plan: &Plan, _node: NodeId) -> bool {
        true
    }

    /// A node has run, and its device has finished.
    fn ran(&mut self, report: &NodeReport<'_>);

    /// A value was copied to the device of a split, before the split.
    fn copied(&mut self, _report: &CopyReport<'_>) {}
}

/// A node that has run.
#[derive(Debug)]
pub struct NodeReport<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Its split, an index into [`Plan::splits`].
    pub split: usize,
    /// The node.
    pub node: NodeId,
    /// Where it ran.
    pub device: DeviceId,
    /// How long handing it over took; on a synchronous device, how long it ran.
    pub submit: Duration,
    /// How long it was waited for after that.
    pub wait: Duration,
    /// Its value, if it was wanted. Absent for a write to a KV cache.
    pub value: Option<&'a [u8]>,
}

impl NodeReport<'_> {
    /// The value as f32, if it is one of these.
    pub fn f32s(&self) -> Option<Vec<f32>> {
        if self.plan.graph().node(self.node).dtype != DType::F32 {
            return None;
        }
        let word = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        Some(self.value?.chunks_exact(4).map(word).collect())
    }
}

/// A value that was copied from device to device.
#[derive(Debug)]
pub struct CopyReport<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The split that reads it.
    pub split: usize,
    /// The value.
    pub value: NodeId,
    /// The device that made it.
    pub from: DeviceId,
    /// The split's device.
    pub to: DeviceId,
    /// Its length.
    pub bytes: usize,
    /// How long waiting for it and copying it took.
    pub time: Duration,
}

/// What the values of a node are like.
#[derive(Clone, Copy, Debug, PartialEq)]
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
