//! The scheduler: binds plans to devices and walks their splits.

mod bind;
mod budget;
mod error;
mod parts;
mod registry;
mod replay;
#[cfg(test)]
mod tests;
mod walk;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::plan::Plan;
use crate::{
    Backend, BoundOp, BufferId, DeviceId, Event, Graph, KvTable, Node, NodeId, PlanError, PlanOptions,
    ProgramId, Watch, WeightSource,
};
pub use error::{ExecError, NodeError};
use registry::Device;
use replay::Replay;

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
    /// By step: the end of its work, where a later step copies from it.
    events: Vec<Event>,
    inputs: Vec<BoundInput>,
    outputs: Vec<(NodeId, DeviceId, BufferId)>,
    /// The devices whose work the end of the run waits for.
    used: Vec<DeviceId>,
    /// Through which copies pass; as long as the longest.
    bounce: Vec<u8>,
    generations: Vec<u64>,
}

/// A part of a split, bound.
#[derive(Debug)]
struct Step {
    /// Index of the split.
    split: usize,
    device: DeviceId,
    program: ProgramId,
    ops: Vec<BoundOp>,
    copies: Vec<BoundCopy>,
    /// Whether a later step copies what this one makes.
    is_copied: bool,
    replay: Replay,
    /// A program for each operation, made when the plan is first watched.
    singles: Vec<ProgramId>,
    /// For errors: which split it is, its first and last node.
    title: Arc<str>,
}

#[derive(Debug)]
struct BoundCopy {
    value: NodeId,
    from: (DeviceId, BufferId),
    to: (DeviceId, BufferId),
    bytes: usize,
    /// The step that makes the value.
    made_by: usize,
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
    /// Whether devices that can record do.
    replay: bool,
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
        let mut devices: Vec<Device> = devices.into_iter().map(Device::new).collect();
        let deadline = Self::DEFAULT_DEADLINE;
        devices.iter_mut().for_each(|d| d.backend.set_deadline(deadline));
        Self { id: unique(), devices, deadline, replay: true, run: 1, filling: None, computed: None }
    }

    /// Sets how long any wait may take.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
        self.devices.iter_mut().for_each(|d| d.backend.set_deadline(deadline));
    }

    /// Sets whether devices that can record a split and replay it do so, which they do unless told otherwise.
    pub fn set_replay(&mut self, replay: bool) {
        self.replay = replay;
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
            let device = &mut self.devices[device.index()];
            // After a run that did not end in time the device may still read what is to be overwritten.
            device.settle(self.deadline)?;
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
            device.settle(deadline)?;
            device.poison()?;
        }
        Ok(())
    }

    /// Runs the plan: hands over the splits in order, each up to the first node that reads a value which has to cross, waits
    /// for what makes the value, copies it, and goes on; then waits for every device used. After an error the other devices
    /// are waited for too, so that the next run starts clean.
    pub fn execute(&mut self, plan: &mut BoundPlan) -> Result<(), ExecError> {
        self.execute_with(plan, None)
    }

    /// Like [`Scheduler::execute`], node by node: `watch` hears of each one, with its value, after the device has
    /// finished it. Nothing is replayed meanwhile. The results are the same to the bit.
    pub fn execute_watched(&mut self, plan: &mut BoundPlan, watch: &mut dyn Watch) -> Result<(), ExecError> {
        self.execute_with(plan, Some(watch))
    }

    fn execute_with(&mut self, plan: &mut BoundPlan, watch: Option<&mut dyn Watch>) -> Result<(), ExecError> {
        self.check_fresh(plan)?;
        if let Some(input) = plan.inputs.iter().find(|i| i.written_for != self.run) {
            return Err(ExecError::InputNotWritten { label: plan.graph().node(input.node).label.clone() });
        }
        self.run += 1;
        self.computed = None;
        self.walk(plan, watch)?;
        self.computed = Some(plan.id);
        Ok(())
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

    /// Reads rows of a layer's KV cache from a slot on, as f32; `out` is a whole number of rows `[kv_heads][head_dim]`.
    /// Rows that nothing was stored in hold anything.
    pub fn read_kv(
        &mut self,
        layer: u32,
        table: KvTable,
        first_slot: usize,
        out: &mut [f32],
    ) -> Result<(), ExecError> {
        let wrong = |wanted: String, given: String| {
            Err(ExecError::WrongData { label: format!("layer {layer}'s KV cache"), wanted, given })
        };
        let found = self.devices.iter_mut().find_map(|d| d.find_state(layer).map(|state| (d, state)));
        let Some((device, (state, decl))) = found else {
            return wrong("one that a plan has made".to_owned(), "none".to_owned());
        };
        let row = decl.kv_heads * decl.head_dim;
        let end = first_slot.saturating_add(out.len() / row);
        if !out.len().is_multiple_of(row) || end > decl.slots {
            let wanted = format!("whole rows of {row} within {} slots", decl.slots);
            return wrong(wanted, format!("room for {} × F32 from slot {first_slot} on", out.len()));
        }
        device.settle(self.deadline)?;
        device
            .backend
            .read_state(state, table, first_slot, out)
            .map_err(|e| device.error("reading a KV cache", e))
    }

    /// Frees every KV cache. Plans bound before are stale. What a device still uses that does not finish in time is not
    /// freed.
    pub fn release_states(&mut self) {
        for device in &mut self.devices {
            device.release_states(self.deadline);
        }
    }

    /// Frees the programs of a plan that is no longer needed. What a device still uses that does not finish in time is
    /// not freed.
    pub fn unbind(&mut self, plan: BoundPlan) -> Plan {
        // The programs of a plan that another scheduler has bound are that one's.
        if plan.scheduler == self.id {
            let idle: Vec<bool> = self.devices.iter_mut().map(|d| d.settle(self.deadline).is_ok()).collect();
            for step in plan.steps.into_iter().filter(|s| idle[s.device.index()]) {
                let device = step.device.index();
                step.release(&mut *self.devices[device].backend);
            }
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
        let names = self.devices.iter().map(|d| &d.name);
        if !names.eq(plan.device_names()) {
            let devices = self.devices.iter().map(|d| d.name.clone()).collect::<Vec<_>>().join(", ");
            return Err(PlanError::OtherDevices { planned: plan.device_names().join(", "), devices });
        }
        for device in &mut self.devices {
            // Buffers that grow are freed, which work that an earlier run has left behind may still use.
            if let Err(ExecError::Device { error, what, .. }) = device.settle(self.deadline) {
                return Err(device.plan_error(&what, error));
            }
        }
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
