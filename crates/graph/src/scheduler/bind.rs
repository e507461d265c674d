//! Binding: from a plan, which is pure, to handles, buffers and programs of the devices.

use std::sync::Arc;

use super::budget;
use super::parts::{Part, parts};
use super::registry::Device;
use super::{BoundCopy, BoundInput, BoundPlan, Replay, Step};
use crate::graph::dtype_bytes;
use crate::plan::Plan;
use crate::split::{Split, input_readers};
use crate::{
    BoundOp, BufferId, DeviceId, Event, NodeId, Op, Operand, Place, PlanError, WeightDecl, WeightSource,
    WeightUse,
};

pub(super) fn bind(
    scheduler: u64,
    devices: &mut [Device],
    plan: Plan,
    source: &Arc<dyn WeightSource>,
    progress: &mut dyn FnMut(&str, usize),
) -> Result<BoundPlan, PlanError> {
    check_weights(&plan, source)?;
    check_states(devices, &plan)?;
    budget::check(devices, &plan)?;
    for (device, sizes) in devices.iter_mut().zip(&plan.memory.slots) {
        device.reserve(sizes)?;
    }
    let mut steps: Vec<Step> = Vec::with_capacity(plan.splits.len());
    // By value: the step that makes it.
    let mut made_by: Vec<usize> = vec![0; plan.graph.nodes().len()];
    for (i, part) in parts(&plan).into_iter().enumerate() {
        match bind_part(devices, &plan, &part, &made_by, source, progress) {
            Ok(step) => steps.push(step),
            Err(error) => {
                for step in steps {
                    let device = step.device.index();
                    step.release(&mut *devices[device].backend);
                }
                return Err(error);
            }
        }
        for node in &plan.splits[part.split].nodes[part.nodes] {
            made_by[node.index()] = i;
        }
        for copy in &part.copies {
            steps[made_by[copy.value.index()]].is_copied = true;
        }
    }
    let inputs = plan
        .graph
        .inputs()
        .map(|node| BoundInput {
            node,
            readers: input_readers(&plan.graph, &plan.placed, &plan.dead, node)
                .into_iter()
                .map(|d| (d, buffer(devices, &plan, node, d)))
                .collect(),
            written_for: 0,
        })
        .collect();
    let outputs = plan
        .graph
        .outputs()
        .iter()
        .map(|&o| {
            let home = plan.placed[plan.graph.root(o).index()];
            (o, home, buffer(devices, &plan, o, home))
        })
        .collect();
    let mut used: Vec<DeviceId> = steps.iter().map(|s| s.device).collect();
    used.sort_unstable();
    used.dedup();
    let bounce = steps.iter().flat_map(|s| &s.copies).map(|c| c.bytes).max().unwrap_or(0);
    let generations = devices.iter().map(Device::generation).collect();
    let id = super::unique();
    let events = vec![Event::default(); steps.len()];
    Ok(BoundPlan {
        id,
        scheduler,
        steps,
        events,
        inputs,
        outputs,
        used,
        bounce: vec![0; bounce],
        generations,
        plan,
    })
}

/// Every tensor that the graph declares is there, whether or not it is loaded already.
fn check_weights(plan: &Plan, source: &Arc<dyn WeightSource>) -> Result<(), PlanError> {
    for WeightDecl { name, dtype, shape } in plan.graph.weights() {
        let bytes = source.bytes(name).ok_or_else(|| PlanError::MissingWeight { name: name.clone() })?;
        let (found, wanted) = (bytes.len(), dtype_bytes(*dtype, shape));
        if found != wanted {
            return Err(PlanError::WeightSize { name: name.clone(), found, wanted });
        }
    }
    Ok(())
}

/// The KV caches that exist are those that the graph declares, and no layer gets a second one on another
/// device, where the rows stored so far would be missing.
fn check_states(devices: &[Device], plan: &Plan) -> Result<(), PlanError> {
    for (id, node) in plan.graph.iter() {
        let Some(state) = node.sources.iter().find_map(|&s| plan.graph.state_of(s)) else { continue };
        let (layer, home) = (plan.graph.state(state).layer, plan.device(id).index());
        devices[home].check_state(plan.graph.state(state))?;
        if let Some(other) = (0..devices.len()).find(|&d| d != home && devices[d].has_state(layer)) {
            return Err(PlanError::StateElsewhere {
                layer,
                device: devices[other].name.clone(),
                label: node.label.clone(),
                op: node.op.name(),
            });
        }
    }
    Ok(())
}

fn bind_part(
    devices: &mut [Device],
    plan: &Plan,
    part: &Part,
    made_by: &[usize],
    source: &Arc<dyn WeightSource>,
    progress: &mut dyn FnMut(&str, usize),
) -> Result<Step, PlanError> {
    let split = &plan.splits[part.split];
    let copies: Vec<BoundCopy> = part
        .copies
        .iter()
        .map(|c| BoundCopy {
            value: c.value,
            made_by: made_by[c.value.index()],
            from: (c.from, buffer(devices, plan, c.value, c.from)),
            to: (c.to, buffer(devices, plan, c.value, c.to)),
            bytes: plan.graph.node(c.value).bytes(),
        })
        .collect();
    let device = &mut devices[split.device.index()];
    let ops = split.nodes[part.nodes.clone()]
        .iter()
        .map(|&id| bind_op(device, plan, id, source, progress))
        .collect::<Result<Vec<BoundOp>, PlanError>>()?;
    let program = device.backend.compile(&ops).map_err(|e| device.plan_error("compiling a split", e))?;
    Ok(Step {
        split: part.split,
        device: split.device,
        program,
        ops,
        copies,
        is_copied: false,
        replay: Replay::Direct(0),
        singles: Vec::new(),
        title: title(plan, part.split, split).into(),
    })
}

/// A split's number with its first and last node, as errors name it.
fn title(plan: &Plan, index: usize, split: &Split) -> String {
    let label = |n: &NodeId| plan.graph.node(*n).label.as_str();
    match (split.nodes.first().map(label), split.nodes.last().map(label)) {
        (Some(first), Some(last)) if split.nodes.len() > 1 => format!("split {index}, {first} to {last}"),
        (Some(only), _) => format!("split {index}, {only}"),
        _ => format!("split {index}"),
    }
}

fn bind_op(
    device: &mut Device,
    plan: &Plan,
    id: NodeId,
    source: &Arc<dyn WeightSource>,
    progress: &mut dyn FnMut(&str, usize),
) -> Result<BoundOp, PlanError> {
    let graph = &plan.graph;
    let node = graph.node(id);
    let mut sources = Vec::with_capacity(node.sources.len());
    let mut state = None;
    for (i, &s) in node.sources.iter().enumerate() {
        let root = graph.root(s);
        let place = match graph.node(root).op {
            Op::Weight(w) => {
                let usage = WeightUse::of(&node.op, i);
                Place::Weight(device.weight(graph.weight(w), usage, source, progress)?)
            }
            Op::State(st) => {
                let decl = graph.state(st);
                state = Some(*decl);
                Place::State(device.state(decl)?)
            }
            _ => Place::Buffer(device.buffer(slot(plan, s, plan.placed[id.index()]))),
        };
        sources.push(Operand { place, dtype: graph.node(s).dtype, shape: graph.node(s).shape });
    }
    let place = if node.op.is_alias() {
        sources[0].place
    } else {
        Place::Buffer(device.buffer(slot(plan, id, plan.placed[id.index()])))
    };
    let result = Operand { place, dtype: node.dtype, shape: node.shape };
    Ok(BoundOp { node: id, label: node.label.clone(), op: node.op.clone(), sources, result, state })
}

fn slot(plan: &Plan, value: NodeId, device: DeviceId) -> crate::SlotId {
    // The memory plan gives a slot to every value on every device that reads it; one without is a fault of
    // the planner.
    plan.memory.slot(&plan.graph, value, device).unwrap_or_else(|| {
        let node = plan.graph.node(value);
        panic!("no memory was planned for {} on device {}", node.label, device.0)
    })
}

fn buffer(devices: &[Device], plan: &Plan, value: NodeId, device: DeviceId) -> BufferId {
    devices[device.index()].buffer(slot(plan, value, device))
}
