//! Watching a run: what each node made, and how long it took.
//!
//! [`Watch`] is the hook. [`Profile`] and [`Trace`] are two implementations: the time that operations take, summed over
//! runs, and what every node of one run was like.

mod profile;
mod statistics;
mod trace;

use std::time::Duration;

pub use profile::{CopyTime, OpTime, Profile};
pub use statistics::Statistics;
pub use trace::{CopyRecord, NodeRecord, Trace};

use crate::{DType, DeviceId, NodeId, Plan};

/// Hears of a run that [`crate::Scheduler::execute_watched`] makes.
pub trait Watch {
    /// Whether the value of a node is wanted; reading it takes time.
    fn wants(&mut self, _plan: &Plan, _node: NodeId) -> bool {
        true
    }

    /// A node has run, and its device has finished.
    fn ran(&mut self, report: &NodeReport<'_>);

    /// A value was copied to the device of a split, before the first of its nodes that reads it.
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
