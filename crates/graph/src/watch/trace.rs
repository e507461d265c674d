//! What every node of a run was like.

use serde::Serialize;

use super::profile::ns;
use super::{CopyReport, NodeReport, Statistics, Watch};

/// Values sampled of each node at most.
const SAMPLES: usize = 8;

/// One run, node by node. Serialized as it stands, it is
///
/// ```json
/// {"nodes": [{"node": 7, "label": "blk.0.attn_norm", "op": "rms_norm_mul", "layer": 0, "device": "cpu", "split": 0,
///             "submit_ns": 4120, "wait_ns": 35, "dtype": "F32", "shape": [1, 576],
///             "statistics": {"min": -1.5, "max": 2.0, "mean": 0.01, "rms": 0.4, "nan": 0, "infinite": 0},
///             "samples": [[0, 0.25], [287, -1.5], [575, null]]}],
///  "copies": [{"value": 9, "label": "blk.0.ffn_gate", "split": 1, "from": "cpu", "to": "gpu", "bytes": 6144,
///              "time_ns": 8000}]}
/// ```
///
/// `nodes` are in the order in which they ran, `copies` in that in which they were made. `node` and `value` are ids of the
/// plan's graph, `split` counts its splits, `device`, `from` and `to` are names. Times are on the host's clock:
/// `submit_ns` is handing the operation over (on a synchronous device, running it), `wait_ns` waiting for it after that.
/// `statistics` are those of the finite values, with counts of the others; `samples` are pairs of an index into the
/// flattened value and what is there, null where it is not finite; the first and the last element are among them. Both are
/// null for what has no value to read, such as a write to a KV cache.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Trace {
    /// In the order in which they ran.
    pub nodes: Vec<NodeRecord>,
    /// In the order in which they were made.
    pub copies: Vec<CopyRecord>,
}

/// A node that has run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NodeRecord {
    /// Its id.
    pub node: u32,
    /// Its name for people.
    pub label: String,
    /// The operation's name.
    pub op: &'static str,
    /// The layer it belongs to.
    pub layer: Option<u32>,
    /// The name of the device that ran it.
    pub device: String,
    /// Its split.
    pub split: usize,
    /// Handing it over, in nanoseconds; on a synchronous device, running it.
    pub submit_ns: u64,
    /// Waiting for it after that.
    pub wait_ns: u64,
    /// The value's element type.
    pub dtype: &'static str,
    /// The value's shape, outermost first.
    pub shape: Vec<usize>,
    /// What its values are like; `None` where there are none to read.
    pub statistics: Option<Statistics>,
    /// Some of its values, with their indices.
    pub samples: Option<Vec<(usize, f32)>>,
}

/// A value that was copied between devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CopyRecord {
    /// The node that made it.
    pub value: u32,
    /// That node's name for people.
    pub label: String,
    /// The split that it was copied for.
    pub split: usize,
    /// The name of the device that made it.
    pub from: String,
    /// The name of the device that reads it.
    pub to: String,
    /// Its bytes.
    pub bytes: usize,
    /// Waiting for it and copying it, in nanoseconds.
    pub time_ns: u64,
}

impl Trace {
    /// Forgets the run, for the next one.
    pub fn clear(&mut self) {
        self.nodes.clear();
        self.copies.clear();
    }
}

/// Evenly spread values with their indices, the first and the last among them.
fn samples(values: &[f32]) -> Vec<(usize, f32)> {
    let n = values.len().min(SAMPLES);
    let index = |i: usize| if n > 1 { i * (values.len() - 1) / (n - 1) } else { 0 };
    (0..n).map(|i| (index(i), values[index(i)])).collect()
}

impl Watch for Trace {
    fn ran(&mut self, report: &NodeReport<'_>) {
        let node = report.plan.graph().node(report.node);
        let values = report.f32s();
        self.nodes.push(NodeRecord {
            node: report.node.0,
            label: node.label.clone(),
            op: node.op.name(),
            layer: node.layer,
            device: report.plan.device_names()[report.device.index()].clone(),
            split: report.split,
            submit_ns: ns(report.submit),
            wait_ns: ns(report.wait),
            dtype: node.dtype.name(),
            shape: node.shape.dims().to_vec(),
            statistics: values.as_deref().map(Statistics::of),
            samples: values.as_deref().map(samples),
        });
    }

    fn copied(&mut self, report: &CopyReport<'_>) {
        let names = report.plan.device_names();
        self.copies.push(CopyRecord {
            value: report.value.0,
            label: report.plan.graph().node(report.value).label.clone(),
            split: report.split,
            from: names[report.from.index()].clone(),
            to: names[report.to.index()].clone(),
            bytes: report.bytes,
            time_ns: ns(report.time),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::samples;

    #[test]
    fn samples_are_spread_from_the_first_to_the_last() {
        let values: Vec<f32> = (0..100).map(|i| i as f32).collect();
        let indices = |n: usize| samples(&values[..n]).iter().map(|s| s.0).collect::<Vec<_>>();
        assert_eq!(indices(100), [0, 14, 28, 42, 56, 70, 84, 99]);
        assert_eq!(indices(8), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!((indices(3), indices(1), indices(0)), (vec![0, 1, 2], vec![0], vec![]));
        assert!(samples(&values).iter().all(|&(i, v)| v == i as f32));
    }
}
