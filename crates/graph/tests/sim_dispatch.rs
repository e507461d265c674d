//! Dependent launches on an asynchronous device: in order, and the same to the bit however often they are repeated.

mod common;
mod sim_common;

use common::model::{Decoder, Ids, TINY};
use common::run;
use minfer_graph::devices::{ReferenceDevice, SimDevice, SimOptions};
use minfer_graph::{
    Backend, BoundOp, BoundPlan, DType, DeviceError, GraphBuilder, NodeId, PlanOptions, ProgramId, Scheduler,
    Split,
};
use sim_common::{Around, rig, rig_of, takes};

/// Odd ratios of heads, odd head sizes, odd widths, pages that divide nothing else.
const ODD: [Decoder; 4] = [
    Decoder { heads: 3, kv_heads: 1, dim: 6, hidden: 17, vocab: 11, slots: 35, page: 5, ..TINY },
    Decoder { heads: 14, kv_heads: 2, dim: 2, hidden: 9, vocab: 11, slots: 33, page: 3, ..TINY },
    Decoder { heads: 15, kv_heads: 5, dim: 10, hidden: 33, vocab: 11, slots: 32, page: 1, ..TINY },
    Decoder { heads: 7, kv_heads: 7, dim: 4, hidden: 1, vocab: 11, slots: 28, page: 7, ..TINY },
];

/// A prompt of seven tokens and five more one by one: the bits of all logits.
fn bits(model: &Decoder, scheduler: &mut Scheduler, plans: &mut [(BoundPlan, Ids); 2]) -> Vec<u32> {
    let [(prompt, prompt_ids), (decode, decode_ids)] = plans;
    let mut out = model.step(scheduler, prompt, prompt_ids, 0, &[1, 5, 3, 10, 0, 7, 2]).unwrap();
    for n in 7..12 {
        out.extend(model.step(scheduler, decode, decode_ids, n, &[n as i32 % 11]).unwrap());
    }
    assert!(out.iter().all(|v| v.is_finite()));
    out.into_iter().map(f32::to_bits).collect()
}

fn bind(model: &Decoder, scheduler: &mut Scheduler) -> [(BoundPlan, Ids); 2] {
    [7, 1].map(|n| {
        let (graph, ids) = model.graph(n, 1);
        let plan = scheduler.plan(graph, &PlanOptions::default()).unwrap();
        (scheduler.bind(plan, &model.source(), &mut |_, _| {}).unwrap(), ids)
    })
}

#[test]
fn inv19_dependent_operations_run_in_order_and_repeat_to_the_bit() {
    for model in ODD {
        let mut reference = Scheduler::new(vec![Box::new(ReferenceDevice::default())]);
        let mut plans = bind(&model, &mut reference);
        let truth = bits(&model, &mut reference, &mut plans);

        for devices in [
            vec![("gpu", SimOptions::default())],
            vec![
                ("gpu", takes(&["rope", "silu_mul", "kv_store", "attention"])),
                ("cpu", SimOptions::default()),
            ],
        ] {
            let mut rig = rig(&devices);
            let mut plans = bind(&model, &mut rig.scheduler);
            for repeat in 0..24 {
                rig.scheduler.poison().unwrap();
                assert_eq!(bits(&model, &mut rig.scheduler, &mut plans), truth, "{model:?}, repeat {repeat}");
                let log = rig.world.take_log();
                let [prompt, decode] = plans.each_ref().map(|(plan, _)| plan.plan().splits());
                for (device, &(name, _)) in devices.iter().enumerate() {
                    let order = |splits: &[Split]| -> Vec<NodeId> {
                        let mine = splits.iter().filter(|s| s.device.index() == device);
                        mine.flat_map(|s| s.nodes.clone()).collect()
                    };
                    let mut wanted = order(prompt);
                    (0..5).for_each(|_| wanted.extend(order(decode)));
                    let ran: Vec<NodeId> =
                        log.iter().filter(|r| &*r.device == name).map(|r| r.node).collect();
                    assert_eq!(ran, wanted, "{name}");
                }
            }
        }
    }
}

/// A device that runs the operations of a program backwards.
struct Backwards;

impl Around for Backwards {
    fn compile(&mut self, device: &mut SimDevice, ops: &[BoundOp]) -> Result<ProgramId, DeviceError> {
        device.compile(&ops.iter().rev().cloned().collect::<Vec<_>>())
    }
}

#[test]
fn inv19_operations_out_of_order_are_seen_in_the_results() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1, 2]);
    let a = b.scale("a", x, 2.0);
    let y = b.scale("y", a, 5.0);
    b.output(y);
    let graph = b.finish().unwrap();
    let mut right = rig(&[("gpu", SimOptions::default())]);
    let mut plan = right.bind(&graph);
    assert_eq!(run(&mut right.scheduler, &mut plan, &[(x, &[1.0, 3.0])], y), [10.0, 30.0]);
    let mut wrong = rig_of([("gpu", SimOptions::default(), Backwards)]);
    let mut plan = wrong.bind(&graph);
    // y's memory is a's, which was written last.
    assert_eq!(run(&mut wrong.scheduler, &mut plan, &[(x, &[1.0, 3.0])], y), [2.0, 6.0]);
}
