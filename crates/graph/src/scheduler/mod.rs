//! The scheduler: binds plans to devices and walks their splits.

mod bind;
mod registry;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::plan::Plan;
use crate::{
    Backend, BufferId, DeviceError, DeviceId, Graph, Node, NodeId, PlanError, PlanOptions, ProgramId,
    WeightSource,
};
use registry::Device;

/// Why a run failed. No node after the one named has run; the scheduler is ready for the next run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ExecError {
    /// An operation failed on its device.
    #[error(transparent)]
    Node(#[from] Box<NodeError>),
    /// A device failed outside a single operation.
    #[error("{what} on {device}: {error}")]
    Device {
        /// During what.
        what: String,
        /// The device's name.
        device: String,
        /// What the device said.
        error: DeviceError,
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
}

/// A plan bound to a scheduler's devices: every weight, buffer, copy and program is resolved, so that a run
/// looks nothing up.
#[derive(Debug)]
pub struct BoundPlan {
    /// Tells it from all others.
    id: u64,
    /// Whose devices it is bound to.
    scheduler: u64,
    plan: Plan,
    steps: Vec<Step>,
    inputs: Vec<BoundInput>,
    outputs: Vec<(NodeId, DeviceId, BufferId)>,
    /// The devices whose work the end of the run waits for.
    used: Vec<DeviceId>,
    /// Through which copies pass; as long as the longest.
    bounce: Vec<u8>,
    generations: Vec<u64>,
}

#[derive(Debug)]
struct Step {
    device: DeviceId,
    program: ProgramId,
    copies: Vec<BoundCopy>,
    /// The devices that must have finished before the copies.
    wait_for: Vec<DeviceId>,
    nodes: Vec<NodeId>,
}

#[derive(Debug)]
struct BoundCopy {
    from: (DeviceId, BufferId),
    to: (DeviceId, BufferId),
    bytes: usize,
}

#[derive(Debug)]
struct BoundInput {
    node: NodeId,
    readers: Vec<(DeviceId, BufferId)>,
    written_for: u64,
}

impl BoundPlan {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    fn graph(&self) -> &Graph {
        &self.plan.graph
    }
}

/// Runs plans over devices, in priority order.
#[derive(Debug)]
pub struct Scheduler {
    /// Tells it from all others.
    id: u64,
    devices: Vec<Device>,
    deadline: Duration,
    /// Counts runs; an input is valid for the run it was written for.
    run: u64,
    /// The plan whose inputs are being written. Plans share buffers, so a second one's inputs overwrite the
    /// first's.
    filling: Option<u64>,
    /// The plan whose outputs the buffers hold.
    computed: Option<u64>,
}

/// A number given out once in a process.
fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Scheduler {
    /// How long a device may take to finish what it was given, unless set otherwise.
    pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(120);

    /// A scheduler over these devices, the preferred one first.
    pub fn new(devices: Vec<Box<dyn Backend>>) -> Self {
        let devices = devices.into_iter().map(Device::new).collect();
        let deadline = Self::DEFAULT_DEADLINE;
        Self { id: unique(), devices, deadline, run: 1, filling: None, computed: None }
    }

    /// Sets how long any wait may take.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// The devices, for planning.
    pub fn backends(&self) -> Vec<&dyn Backend> {
        self.devices.iter().map(|d| &*d.backend).collect()
    }

    /// Makes a plan for these devices. Touches no memory of theirs. What reads a KV cache that exists goes
    /// where it is.
    pub fn plan(&self, graph: Graph, options: &PlanOptions<'_>) -> Result<Plan, PlanError> {
        let home = |layer| self.devices.iter().position(|d| d.has_state(layer)).map(|d| DeviceId(d as u32));
        Plan::with_homes(graph, &self.backends(), options, &home)
    }

    /// Writes an input on every device that reads it. Inputs hold for one run: once it has started, or once
    /// inputs of another plan are written, they are gone.
    pub fn write_i32(&mut self, plan: &mut BoundPlan, input: NodeId, data: &[i32]) -> Result<(), ExecError> {
        self.write(plan, input, crate::DType::I32, bytemuck::cast_slice(data), data.len())
    }

    /// Like [`Scheduler::write_i32`].
    pub fn write_f32(&mut self, plan: &mut BoundPlan, input: NodeId, data: &[f32]) -> Result<(), ExecError> {
        self.write(plan, input, crate::DType::F32, bytemuck::cast_slice(data), data.len())
    }

    fn write(
        &mut self,
        plan: &mut BoundPlan,
        input: NodeId,
        dtype: crate::DType,
        bytes: &[u8],
        len: usize,
    ) -> Result<(), ExecError> {
        self.check_fresh(plan)?;
        let node = find(&plan.plan.graph, input)?;
        let slot = plan.inputs.iter_mut().find(|i| i.node == input);
        let (Some(slot), true) = (slot, node.dtype == dtype && node.bytes() == bytes.len()) else {
            return Err(ExecError::WrongData {
                label: node.label.clone(),
                wanted: format!("{} {} {}", node.op.name(), node.dtype.name(), node.shape),
                given: format!("{len} × {}", dtype.name()),
            });
        };
        if self.filling != Some(plan.id) {
            self.filling = Some(plan.id);
            self.run += 1;
        }
        if self.computed != Some(plan.id) {
            self.computed = None;
        }
        for &(device, buffer) in &slot.readers {
            // After a run that did not end in time the device may still read what is to be overwritten.
            self.synchronize(device)?;
            let device = &mut self.devices[device.index()];
            device.backend.write(buffer, bytes).map_err(|error| device.error("writing an input", error))?;
        }
        slot.written_for = self.run;
        Ok(())
    }

    /// Fills every activation, input and staging buffer with NaN (as i32, an index that nothing has): what is
    /// read later without having been written shows. Inputs written before are gone.
    pub fn poison(&mut self) -> Result<(), ExecError> {
        self.run += 1;
        self.computed = None;
        let deadline = self.deadline;
        for device in &mut self.devices {
            device.synchronize(deadline)?;
            device.poison()?;
        }
        Ok(())
    }

    /// Runs the plan: for each split, waits for the producers of what crosses into it, copies that, and
    /// launches it; then waits for every device used. After an error the other devices are waited for too, so
    /// that the next run starts clean.
    pub fn execute(&mut self, plan: &mut BoundPlan) -> Result<(), ExecError> {
        self.check_fresh(plan)?;
        if let Some(input) = plan.inputs.iter().find(|i| i.written_for != self.run) {
            return Err(ExecError::InputNotWritten { label: plan.graph().node(input.node).label.clone() });
        }
        self.run += 1;
        self.computed = None;
        let result = self.walk(plan);
        let mut end = Ok(());
        for &device in &plan.used {
            let waited = self.synchronize(device);
            end = end.and(waited);
        }
        result.and(end)?;
        self.computed = Some(plan.id);
        Ok(())
    }

    fn walk(&mut self, plan: &mut BoundPlan) -> Result<(), ExecError> {
        let BoundPlan { steps, bounce, plan, .. } = plan;
        for step in steps {
            for &device in &step.wait_for {
                self.synchronize(device)?;
            }
            for copy in &step.copies {
                let host = &mut bounce[..copy.bytes];
                let from = &mut self.devices[copy.from.0.index()];
                from.backend.read(copy.from.1, host).map_err(|e| from.error("reading a value to copy", e))?;
                let to = &mut self.devices[copy.to.0.index()];
                to.backend.write(copy.to.1, host).map_err(|e| to.error("writing a copied value", e))?;
            }
            let device = &mut self.devices[step.device.index()];
            device.pending = true;
            device
                .backend
                .launch(step.program)
                .map_err(|error| node_error(&plan.graph, step, device, error))?;
        }
        Ok(())
    }

    /// Waits for a device if it has been given work since it was last waited for.
    fn synchronize(&mut self, device: DeviceId) -> Result<(), ExecError> {
        self.devices[device.index()].synchronize(self.deadline)
    }

    /// Reads an output of the last run, which must have been one of this plan.
    pub fn read_f32(&mut self, plan: &BoundPlan, output: NodeId, out: &mut [f32]) -> Result<(), ExecError> {
        self.check_fresh(plan)?;
        let node = find(plan.graph(), output)?;
        let found = plan.outputs.iter().find(|o| o.0 == output);
        let bytes = bytemuck::cast_slice_mut::<f32, u8>(out);
        let (Some(&(_, device, buffer)), true) =
            (found, node.dtype == crate::DType::F32 && node.bytes() == bytes.len())
        else {
            return Err(ExecError::WrongData {
                label: node.label.clone(),
                wanted: format!("{} {}", node.dtype.name(), node.shape),
                given: format!("room for {} × F32", out.len()),
            });
        };
        if self.computed != Some(plan.id) {
            return Err(ExecError::OutputNotComputed { label: node.label.clone() });
        }
        let device = &mut self.devices[device.index()];
        device.backend.read(buffer, bytes).map_err(|e| device.error("reading an output", e))
    }

    /// Frees every KV cache. Plans bound before are stale.
    pub fn release_states(&mut self) {
        for device in &mut self.devices {
            device.release_states();
        }
    }

    /// Frees the programs of a plan that is no longer needed.
    pub fn unbind(&mut self, plan: BoundPlan) -> Plan {
        for step in &plan.steps {
            self.devices[step.device.index()].backend.release_program(step.program);
        }
        plan.plan
    }

    /// Whether the plan's addresses still hold.
    pub fn is_fresh(&self, plan: &BoundPlan) -> bool {
        plan.scheduler == self.id
            && self.devices.iter().zip(&plan.generations).all(|(d, &g)| d.generation() == g)
    }

    fn check_fresh(&self, plan: &BoundPlan) -> Result<(), ExecError> {
        if self.is_fresh(plan) { Ok(()) } else { Err(ExecError::Stale) }
    }

    /// Loads what the plan needs that is not loaded yet and compiles its splits. `progress` hears of each
    /// weight loaded, with its bytes.
    pub fn bind(
        &mut self,
        plan: Plan,
        source: &Arc<dyn WeightSource>,
        progress: &mut dyn FnMut(&str, usize),
    ) -> Result<BoundPlan, PlanError> {
        bind::bind(self.id, &mut self.devices, plan, source, progress)
    }
}

/// A node by an id that may be another graph's.
fn find(graph: &Graph, id: NodeId) -> Result<&Node, ExecError> {
    graph.nodes().get(id.index()).ok_or_else(|| ExecError::WrongData {
        label: format!("node {}", id.0),
        wanted: format!("one of {} nodes", graph.nodes().len()),
        given: "the id of another graph".to_owned(),
    })
}

fn node_error(graph: &Graph, step: &Step, device: &Device, error: DeviceError) -> ExecError {
    let node = match error {
        DeviceError::Kernel { op, .. } => step.nodes.get(op).copied(),
        _ => None,
    };
    match node {
        Some(id) => ExecError::from(Box::new(NodeError {
            node: id,
            label: graph.node(id).label.clone(),
            op: graph.node(id).op.name(),
            shapes: graph.describe_sources(id),
            device: device.name.clone(),
            error,
        })),
        None => device.error("launching", error),
    }
}
