//! Why a run fails.

use super::registry::Device;
use crate::{DeviceError, Graph, NodeId};

/// Why a run failed. Nothing that depends on the node named has run, nor any later node on its device; what another device
/// had been given is finished. The scheduler is ready for the next run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ExecError {
    /// An operation failed on its device.
    #[error(transparent)]
    Node(#[from] Box<NodeError>),
    /// A device failed outside a single operation.
    #[error("{what} on {device}: {error}{}", dispatch_note(.dispatched))]
    Device {
        /// During what.
        what: String,
        /// The device's name.
        device: String,
        /// What the device said.
        error: DeviceError,
        /// The split that was handed to the device last, with its first and last node; empty if none was.
        dispatched: String,
    },
    /// An input has not been written since the last run.
    #[error("input {label} was not written for this run")]
    InputNotWritten {
        /// The input's label.
        label: String,
    },
    /// Host data do not fit the value.
    #[error("{label} takes {wanted}, given {given}")]
    WrongData {
        /// The value's label.
        label: String,
        /// What it is.
        wanted: String,
        /// What came.
        given: String,
    },
    /// The output asked for is not in memory: the last run was of another plan, or failed.
    #[error("output {label} was not computed by the last run")]
    OutputNotComputed {
        /// The output's label.
        label: String,
    },
    /// The plan belongs to a memory layout that has changed since, or to another scheduler; bind it again.
    #[error("the plan's buffers are not those it was bound to")]
    Stale,
}

/// An operation that failed while it ran.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{op} {label} ({shapes}) on {device}: {error}")]
pub struct NodeError {
    /// The node.
    pub node: NodeId,
    /// Its label.
    pub label: String,
    /// Its operation.
    pub op: &'static str,
    /// Its sources' types and shapes.
    pub shapes: String,
    /// The device's name.
    pub device: String,
    /// What the device said.
    pub error: DeviceError,
    /// The split that was handed to the device last, with its first and last node.
    pub dispatched: String,
}

fn dispatch_note(dispatched: &str) -> String {
    if dispatched.is_empty() { String::new() } else { format!("; last dispatched: {dispatched}") }
}

/// The error of a run of `graph` for what a device said.
pub(super) fn run_error(graph: &Graph, device: &Device, what: &str, error: DeviceError) -> ExecError {
    let node = match error {
        DeviceError::Kernel { node, .. } => graph.nodes().get(node.index()).map(|n| (node, n)),
        _ => None,
    };
    let Some((id, node)) = node else { return device.error(what, error) };
    ExecError::from(Box::new(NodeError {
        node: id,
        label: node.label.clone(),
        op: node.op.name(),
        shapes: graph.describe_sources(id),
        device: device.name.clone(),
        error,
        dispatched: device.dispatched.to_string(),
    }))
}
