//! The memory plan: values live as long as they are read.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::common::{Hooked, Hooks, write_words};
use super::random::{Sample, last_reads, samples, scattered};
use crate::devices::ReferenceDevice;
use crate::memory::plan_memory;
use crate::{
    Backend, BoundOp, DeviceError, DeviceId, Fusion, NodeId, Op, Operand, Place, Plan, PlanOptions,
    ProgramId, Reuse, Scheduler,
};

/// Fills a value's memory with NaN as soon as its last reader has run, unless another value has taken it
/// over.
struct Poisoner {
    /// By last reader: the values that end with it.
    ends: Arc<HashMap<NodeId, Vec<NodeId>>>,
    /// Where each value of this device is.
    at: HashMap<NodeId, Operand>,
    /// The value that a buffer holds.
    holds: HashMap<Place, NodeId>,
}

impl Hooks for Poisoner {
    fn run(
        &mut self,
        device: &mut ReferenceDevice,
        op: &BoundOp,
        program: ProgramId,
    ) -> Result<(), DeviceError> {
        // Values that ended with a node on another device, since this device last ran one.
        let ended: Vec<NodeId> = self
            .at
            .keys()
            .copied()
            .filter(|v| self.ends.iter().any(|(reader, values)| *reader < op.node && values.contains(v)))
            .collect();
        ended.into_iter().for_each(|v| self.end(device, v));
        device.launch(program)?;
        self.at.insert(op.node, op.result);
        self.holds.insert(op.result.place, op.node);
        let ends = Arc::clone(&self.ends);
        for &v in ends.get(&op.node).into_iter().flatten() {
            self.end(device, v);
        }
        Ok(())
    }
}

impl Poisoner {
    fn end(&mut self, device: &mut ReferenceDevice, value: NodeId) {
        if let Some(operand) = self.at.remove(&value)
            && self.holds.get(&operand.place) == Some(&value)
        {
            write_words(device, &operand, &vec![f32::NAN.to_bits(); operand.shape.len()]);
        }
    }
}

/// A scheduler whose devices poison what has ended by this plan's graph.
fn poisoning(plan: &Plan, devices: usize) -> Scheduler {
    let mut ends: HashMap<NodeId, Vec<NodeId>> = HashMap::new();
    for (value, reader) in last_reads(plan) {
        ends.entry(reader).or_default().push(value);
    }
    let ends = Arc::new(ends);
    let device = |i| {
        let hooks = Poisoner { ends: Arc::clone(&ends), at: HashMap::new(), holds: HashMap::new() };
        Hooked::boxed(&format!("d{i}"), hooks)
    };
    Scheduler::new((0..devices).map(device).collect())
}

fn plain(devices: usize) -> Scheduler {
    Scheduler::new((0..devices).map(|i| Box::new(ReferenceDevice::new(format!("d{i}"))) as _).collect())
}

/// The bits of every output on one device, with neither fusion nor reuse.
fn truth(sample: &Sample) -> Vec<Vec<u32>> {
    let options = PlanOptions { fusion: Fusion::none(), reuse: Reuse::Never, ..PlanOptions::default() };
    sample.run_on(plain(1), &options)
}

fn run_plan(sample: &Sample, mut scheduler: Scheduler, plan: Plan) -> Vec<Vec<u32>> {
    let mut plan = scheduler.bind(plan, &sample.source(), &mut |_, _| {}).unwrap();
    sample.run(&mut scheduler, &mut plan)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Also rows 2, 3, 11 and 12: inputs, aliases of many sizes, copies and staging memory all take part.
    #[test]
    fn inv01_reused_memory_gives_the_bits_of_memory_used_once(
        sample in samples(40), devices in 1u32..4, seed in any::<u64>(),
    ) {
        let truth = truth(&sample);
        let fence = scattered(devices, seed);
        for fusion in [Fusion::all(), Fusion::none()] {
            let options = PlanOptions { fusion, rules: &fence, ..PlanOptions::default() };
            let plan = plain(devices as usize).plan(sample.graph.clone(), &options).unwrap();
            check_slots(&plan);
            let scheduler = poisoning(&plan, devices as usize);
            prop_assert_eq!(&run_plan(&sample, scheduler, plan), &truth);
        }
    }

    #[test]
    fn inv11_random_mixed_graphs_run_again_and_again_on_one_plan(
        sample in samples(30), seed in any::<u64>(),
    ) {
        let truth = truth(&sample);
        let (mut scheduler, fence) = (plain(3), scattered(3, seed));
        let plan = scheduler.plan(sample.graph.clone(), &PlanOptions { rules: &fence, ..PlanOptions::default() }).unwrap();
        let mut plan = scheduler.bind(plan, &sample.source(), &mut |_, _| {}).unwrap();
        for _ in 0..3 {
            prop_assert_eq!(&sample.run(&mut scheduler, &mut plan), &truth);
        }
    }
}

/// What must hold of a plan's slots, whatever is run.
fn check_slots(plan: &Plan) {
    let (graph, memory) = (plan.graph(), plan.memory());
    for device in (0..memory.slots.len() as u32).map(DeviceId) {
        let slots: Vec<(NodeId, u32)> = graph
            .iter()
            .filter(|(_, n)| !n.op.is_alias())
            .filter_map(|(id, _)| memory.slot(graph, id, device).map(|s| (id, s.0)))
            .collect();
        for &(id, slot) in &slots {
            let copied = plan.device(id) != device && !graph.node(id).op.is_leaf();
            // Inputs and staging copies share with nobody.
            if graph.node(id).op == Op::Input || copied {
                assert_eq!(
                    slots.iter().filter(|s| s.1 == slot).count(),
                    1,
                    "slot {slot} of {}",
                    graph.node(id).label
                );
            }
            assert!(memory.slots[device.index()][slot as usize] >= graph.node(id).bytes());
            assert!(!plan.is_dead(id), "a dead node has memory");
        }
    }
    assert!(memory.live_peak <= memory.bytes() || memory.bytes() == 0);
}

/// A fixed sample on which reuse matters.
fn chain() -> Sample {
    let choices: Vec<(u8, u16, u16, u16)> =
        (0..24).map(|i| ([2, 0, 4, 13, 1, 3][i as usize % 6], i * 7 + 1, i * 3, i)).collect();
    super::random::build(&choices)
}

#[test]
fn inv01_a_planner_that_frees_too_early_is_caught() {
    // The same graphs, planned as if some late reads did not happen.
    let mut caught = 0;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for _ in 0..60 {
        let sample = samples(40).new_tree(&mut runner).unwrap().current();
        let truth = truth(&sample);
        let options = PlanOptions { fusion: Fusion::none(), ..PlanOptions::default() };
        let mut plan = plain(1).plan(sample.graph.clone(), &options).unwrap();
        let mut lying = plan.graph.clone();
        for node in lying.nodes.iter_mut().filter(|n| matches!(n.op, Op::Add | Op::Mul)) {
            // The second operand's life is not extended to here.
            node.sources[1] = node.sources[0];
        }
        plan.memory = plan_memory(&lying, &plan.placed, &plan.dead, &plan.splits, 1, Reuse::ByLiveness);
        // Inputs that only the omitted reads name would have no slot: the liar leaves them alone.
        let has_all = sample.graph.iter().all(|(id, n)| n.op != Op::Input || has_slot(&plan, id));
        if has_all && run_plan(&sample, plain(1), plan) != truth {
            caught += 1;
        }
    }
    assert!(caught > 5, "only {caught} of the broken plans gave a wrong result");
}

fn has_slot(plan: &Plan, id: NodeId) -> bool {
    let read = plan
        .graph()
        .nodes()
        .iter()
        .any(|n| n.op.runs() && n.sources.iter().any(|&s| plan.graph().root(s) == id));
    !read || plan.memory().slot(plan.graph(), id, DeviceId(0)).is_some()
}

#[test]
fn inv01_the_poison_itself_works() {
    // With deaths one node too early, a correct plan turns to NaN.
    let sample = chain();
    let truth = truth(&sample);
    let plan = plain(1)
        .plan(sample.graph.clone(), &PlanOptions { fusion: Fusion::none(), ..PlanOptions::default() })
        .unwrap();
    let mut ends: HashMap<NodeId, Vec<NodeId>> = HashMap::new();
    for (value, reader) in last_reads(&plan) {
        if reader.0 > value.0 + 1 {
            ends.entry(NodeId(reader.0 - 1)).or_default().push(value);
        }
    }
    assert!(!ends.is_empty());
    let hooks = Poisoner { ends: Arc::new(ends), at: HashMap::new(), holds: HashMap::new() };
    let got = run_plan(&sample, Scheduler::new(vec![Hooked::boxed("d0", hooks)]), plan);
    assert_ne!(got, truth);
    assert!(got.iter().flatten().any(|&x| f32::from_bits(x).is_nan()));
}

#[test]
fn inv03_an_alias_extends_its_source_s_life() {
    // a's own name is read early, its alias late; b, c are of a's size and would take its slot.
    let mut b = crate::GraphBuilder::new();
    let x = b.input("x", crate::DType::F32, [2, 64]);
    let a = b.scale("a", x, 2.0);
    let alias = b.reshape("alias", a, [4, 32]);
    let alias = b.reshape("alias of alias", alias, [8, 16]);
    let m = b.rms_norm("m", a, 1e-5);
    let n = b.rms_norm("n", m, 1e-5);
    let back = b.reshape("back", n, [8, 16]);
    let y = b.add("y", back, alias);
    b.output(y);
    let plan = plain(1).plan(b.finish().unwrap(), &PlanOptions::default()).unwrap();
    let slot = |id| plan.memory().slot(plan.graph(), id, DeviceId(0)).unwrap();
    assert_eq!(slot(alias), slot(a));
    assert_ne!(slot(m), slot(a), "m took a's memory, which its alias still needs");
    assert_eq!(slot(n), slot(m));
    // y overwrites one of its operands.
    assert!(slot(y) == slot(n) || slot(y) == slot(a));
    assert_eq!(plan.memory().live_peak, 2 * 2 * 64 * 4);
}

#[test]
fn an_operation_works_in_place_only_as_the_sole_reader_on_the_same_device() {
    let mut b = crate::GraphBuilder::new();
    let x = b.input("x", crate::DType::F32, [1, 64]);
    let a = b.scale("a", x, 2.0);
    let own = b.softcap("own", a, 5.0);
    let shared = b.scale("shared", own, 3.0);
    let first = b.softcap("first", shared, 2.0);
    let twice = b.mul("twice", first, first);
    let kept = b.scale("kept", twice, 3.0);
    let after = b.softcap("after", kept, 9.0);
    let y = b.add("y", after, shared);
    b.output(kept);
    b.output(y);
    let plan = plain(1)
        .plan(b.finish().unwrap(), &PlanOptions { fusion: Fusion::none(), ..PlanOptions::default() })
        .unwrap();
    let slot = |id| plan.memory().slot(plan.graph(), id, DeviceId(0)).unwrap();
    assert_ne!(slot(a), slot(x), "inputs are not overwritten");
    assert_eq!(slot(own), slot(a));
    assert_eq!(slot(shared), slot(own));
    assert_ne!(slot(first), slot(shared), "y still reads shared");
    assert_ne!(slot(twice), slot(first), "an operand read twice is not overwritten while it is read");
    assert_ne!(slot(after), slot(kept), "an output is not overwritten");
}

#[test]
fn random_graphs_show_what_they_are_for() {
    // A NaN in the truth would hide a poisoned read; and a graph without reuse, fusion or copies would test
    // none of them.
    let (mut finite, mut reuse, mut fused, mut copied, mut in_place) = (0, 0, 0, 0, 0);
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let fence = scattered(2, 3);
    for _ in 0..200 {
        let sample = samples(40).new_tree(&mut runner).unwrap().current();
        let is_finite = |x: &u32| f32::from_bits(*x).is_finite();
        finite += u32::from(truth(&sample).iter().flatten().all(is_finite));
        let plan = plain(1).plan(sample.graph.clone(), &PlanOptions::default()).unwrap();
        fused += u32::from(plan.dead.contains(&true));
        reuse += u32::from(plan.memory.slots[0].len() * 2 < plan.graph.nodes().len());
        let took_over = |(id, n): (NodeId, &crate::Node)| {
            let slot = |v| plan.memory.slot(&plan.graph, v, DeviceId(0));
            !plan.is_dead(id)
                && !n.op.is_alias()
                && n.sources.iter().any(|&s| slot(s).is_some() && slot(s) == slot(id))
        };
        in_place += u32::from(plan.graph.iter().any(took_over));
        let plan =
            plain(2).plan(sample.graph, &PlanOptions { rules: &fence, ..PlanOptions::default() }).unwrap();
        copied += u32::from(plan.splits.iter().any(|s| !s.copies.is_empty()));
    }
    let counts = [finite, reuse, fused, copied, in_place];
    assert!(
        counts.iter().all(|&c| c > 100) && finite > 190,
        "finite, reuse, fused, copied, in place: {counts:?}"
    );
}

/// The slots of a chain on one device, and the most that is live at once.
#[test]
fn a_value_gives_its_slot_back_after_its_last_reader_and_at_once_if_nobody_reads_it() {
    let mut b = crate::GraphBuilder::new();
    let x = b.input("x", crate::DType::F32, [1, 64]);
    let wide = b.input("wide", crate::DType::F32, [1, 256]);
    b.scale("unread", x, 2.0);
    let a = b.softcap("a", x, 1.0);
    let big = b.softcap("big", wide, 1.0);
    let c = b.add("c", a, x);
    let y = b.scale("y", big, 2.0);
    let z = b.scale("z", c, 3.0);
    b.output(y);
    b.output(z);
    let plan = plain(1).plan(b.finish().unwrap(), &PlanOptions::default()).unwrap();
    let slot = |id| plan.memory().slot(plan.graph(), id, DeviceId(0)).unwrap().0;
    // After the inputs in 0 and 1: `unread` and then `a` in 2, `big` in 3; the rest in the place of what it is made of.
    assert_eq!([a, big, c, y, z].map(slot), [2, 3, 2, 3, 2]);
    assert_eq!(plan.memory().slots, [[256, 1024, 256, 1024]]);
    assert_eq!(plan.memory().bytes(), 2560);
    // `a` or what took its place, with `big` or what took its.
    assert_eq!(plan.memory().live_peak, 256 + 1024);

    // Values that are not live at the same time are not counted together.
    let mut b = crate::GraphBuilder::new();
    let x = b.input("x", crate::DType::F32, [1, 64]);
    b.scale("first unread", x, 2.0);
    b.scale("second unread", x, 2.0);
    let y = b.scale("y", x, 2.0);
    b.output(y);
    let plan = plain(1).plan(b.finish().unwrap(), &PlanOptions::default()).unwrap();
    assert_eq!(plan.memory().live_peak, 256);
    assert_eq!(plan.memory().slots, [[256, 256]]);
}
