//! The memory budget: whether a plan fits, found out before the first allocation.

use std::collections::HashSet;

use super::registry::Device;
use crate::{DeviceId, Op, Plan, PlanError, WeightUse};

/// Bytes that binding a plan will ask a device for.
#[derive(Default)]
struct Needs {
    weights: u64,
    states: u64,
    activations: u64,
}

/// Refuses a plan that asks a device for more than it says is free. A device that cannot tell is asked for it all the
/// same: not knowing is not having none.
pub(super) fn check(devices: &[Device], plan: &Plan) -> Result<(), PlanError> {
    for (i, device) in devices.iter().enumerate() {
        let Needs { weights, states, activations } = needs(device, DeviceId(i as u32), plan);
        let wanted = weights + states + activations;
        // Finding out what is free can take longer than all the rest, so it is not done for nothing.
        let free = if wanted > 0 { device.backend.info().free_memory } else { None };
        if let Some(free) = free.filter(|&free| wanted > free) {
            let device = device.name.clone();
            return Err(PlanError::OverBudget { device, free, weights, states, activations });
        }
    }
    Ok(())
}

fn needs(device: &Device, id: DeviceId, plan: &Plan) -> Needs {
    let mut needs = Needs::default();
    let (mut seen, mut layers) = (HashSet::new(), HashSet::new());
    let mine = plan.splits().iter().filter(|s| s.device == id).flat_map(|s| &s.nodes);
    for &node in mine {
        let node = plan.graph().node(node);
        for (i, &source) in node.sources.iter().enumerate() {
            match plan.graph().node(plan.graph().root(source)).op {
                Op::Weight(w) => {
                    let (decl, usage) = (plan.graph().weight(w), WeightUse::of(&node.op, i));
                    if !device.has_weight(&decl.name, usage) && seen.insert((decl.name.as_str(), usage)) {
                        needs.weights += device.backend.weight_memory(decl, usage) as u64;
                    }
                }
                Op::State(s) => {
                    let decl = plan.graph().state(s);
                    if !device.has_state(decl.layer) && layers.insert(decl.layer) {
                        needs.states += 2 * decl.half_bytes() as u64;
                    }
                }
                _ => {}
            }
        }
    }
    needs.activations = device.growth(&plan.memory().slots[id.index()]);
    needs
}
