//! Time: on the virtual clock, independent work on two devices overlaps, and a copy waits for its producer alone.

mod common;
mod sim_common;

use std::time::Duration;

use common::run;
use minfer_graph::devices::{SimDevice, SimOptions};
use minfer_graph::{Backend, DType, DeviceError, Event, Graph, GraphBuilder, NodeId, Plan, ProgramId};
use sim_common::{Around, Rig, rig, rig_of, takes};

const LAUNCH: Duration = Duration::from_micros(100);
const COPY: Duration = Duration::from_micros(50);
const SUBMIT: Duration = Duration::from_micros(1);

/// One device that scales and multiplies, one that adds; the third takes what is left.
fn timed() -> [(&'static str, SimOptions); 3] {
    let with = |options: SimOptions| SimOptions { launch: LAUNCH, copy: COPY, submit: SUBMIT, ..options };
    [
        ("gpu", with(takes(&["scale", "mul"]))),
        ("npu", with(takes(&["add"]))),
        ("cpu", with(takes(&["softcap"]))),
    ]
}

/// The order in which the two branches are built.
#[derive(Clone, Copy, Debug)]
enum Order {
    GpuFirst,
    NpuFirst,
    ByTurns,
}

const ORDERS: [Order; 3] = [Order::GpuFirst, Order::NpuFirst, Order::ByTurns];

/// A branch of `p` operations on the gpu and one of `q` on the npu, from the input or from a value made of it on the gpu,
/// joined on the gpu: y = 2^-p x' · 2^q x', where x' is x or 2x.
fn branches(p: usize, q: usize, order: Order, root: bool) -> (Graph, NodeId, NodeId) {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1, 1]);
    let from = if root { b.scale("root", x, 2.0) } else { x };
    let (mut left, mut right) = (from, from);
    let turns: Vec<bool> = match order {
        Order::GpuFirst => (0..p + q).map(|i| i < p).collect(),
        Order::NpuFirst => (0..p + q).map(|i| i >= q).collect(),
        Order::ByTurns => {
            let (mut i, mut j) = (0, 0);
            let mut turn = || {
                let gpu = j == q || (i < p && i <= j);
                if gpu {
                    i += 1
                } else {
                    j += 1
                }
                gpu
            };
            (0..p + q).map(|_| turn()).collect()
        }
    };
    for gpu in turns {
        if gpu {
            left = b.scale("left", left, 0.5);
        } else {
            right = b.add("right", right, right);
        }
    }
    let y = b.mul("y", left, right);
    b.output(y);
    (b.finish().unwrap(), x, y)
}

/// The longest way through the graph: operations one after another where one reads the other, or where a device does one
/// thing at a time; and the copies between them. No time to hand work over.
fn critical_path(plan: &Plan) -> Duration {
    let graph = plan.graph();
    let mut finish = vec![Duration::ZERO; graph.nodes().len()];
    for (id, node) in graph.iter().filter(|(_, n)| n.op.runs()) {
        let arrives = |s: &NodeId| {
            let crosses = graph.node(*s).op.runs() && plan.device(*s) != plan.device(id);
            finish[s.index()] + if crosses { 2 * COPY } else { Duration::ZERO }
        };
        finish[id.index()] = node.sources.iter().map(arrives).max().unwrap() + LAUNCH;
    }
    finish.into_iter().max().unwrap()
}

/// All operations and copies, one after another.
fn sum(plan: &Plan) -> Duration {
    let operations = plan.splits().iter().map(|s| s.nodes.len() as u32).sum::<u32>();
    let copies = plan.splits().iter().map(|s| s.copies.len() as u32).sum::<u32>();
    operations * LAUNCH + 2 * copies * COPY
}

/// The time of one run, inputs and outputs aside.
fn time(rig: &mut Rig, graph: &Graph, x: NodeId) -> (Duration, Plan) {
    let mut plan = rig.bind(graph);
    rig.scheduler.write_f32(&mut plan, x, &[3.0]).unwrap();
    let start = rig.world.now();
    rig.scheduler.execute(&mut plan).unwrap();
    (rig.world.now() - start, rig.scheduler.unbind(plan))
}

const BRANCHES: [(usize, usize); 5] = [(20, 20), (30, 8), (8, 30), (1, 24), (24, 1)];

#[test]
fn two_branches_take_as_long_as_the_critical_path() {
    for (p, q) in BRANCHES {
        for order in ORDERS {
            for root in [false, true] {
                let (graph, x, y) = branches(p, q, order, root);
                let mut rig = rig(&timed());
                let (took, plan) = time(&mut rig, &graph, x);
                let critical = critical_path(&plan);
                let most = critical.mul_f64(1.05);
                assert!(took >= critical, "{took:?} is less than {critical:?}");
                assert!(took <= most, "{p} and {q}, {order:?}, {root}: {took:?}, critical path {critical:?}");
                // And right.
                let mut plan = rig.bind(&graph);
                let from = if root { 6.0 } else { 3.0f32 };
                let wanted = from * from * 2.0f32.powi(q as i32 - p as i32);
                assert_eq!(run(&mut rig.scheduler, &mut plan, &[(x, &[3.0])], y), [wanted]);
            }
        }
    }
}

/// A device that finishes what it is given before it returns.
struct Naive;

impl Around for Naive {
    fn launch(&mut self, device: &mut SimDevice, program: ProgramId) -> Result<(), DeviceError> {
        device.launch(program)?;
        device.synchronize(Duration::from_secs(1))
    }
}

#[test]
fn a_wait_after_every_split_takes_the_sum() {
    for (p, q) in BRANCHES {
        for order in ORDERS {
            for root in [false, true] {
                let (graph, x, _) = branches(p, q, order, root);
                let mut rig = rig_of(timed().map(|(name, options)| (name, options, Naive)));
                let (took, plan) = time(&mut rig, &graph, x);
                let submits: u64 = rig.controls.iter().map(|c| c.counts().submits).sum();
                assert_eq!(took, sum(&plan) + submits as u32 * SUBMIT);
                // Which is more than the overlapping protocol takes, unless there is nothing to overlap.
                assert!(p.min(q) == 1 || took > critical_path(&plan).mul_f64(1.2));
            }
        }
    }
}

/// A device whose events stand for all its work.
struct WholeDevice;

impl Around for WholeDevice {
    fn wait(&mut self, device: &mut SimDevice, _: Event, deadline: Duration) -> Result<(), DeviceError> {
        device.synchronize(deadline)
    }
}

#[test]
fn a_copy_waits_for_what_makes_the_value_not_for_the_whole_device() {
    // a (gpu) is followed by a long l (gpu) that nobody else needs; r (npu) is long, and needs a.
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1, 1]);
    let a = b.scale("a", x, 2.0);
    let apart = b.softcap("apart", x, 1e9);
    let l = (0..40).fold(a, |l, _| b.scale("l", l, 0.5));
    let r = (0..40).fold(a, |r, _| b.add("r", r, r));
    for value in [apart, l, r] {
        b.output(value);
    }
    let graph = b.finish().unwrap();
    let mut events = rig(&timed());
    let (took, plan) = time(&mut events, &graph, x);
    assert_eq!(plan.splits().len(), 4, "a is in a split of its own");
    // a, the copy of it, 40 operations; the other 40 run meanwhile.
    let critical = critical_path(&plan);
    assert_eq!(critical, 41 * LAUNCH + 2 * COPY);
    assert!(took >= critical && took <= critical.mul_f64(1.01), "{took:?}");

    let mut whole = rig_of(timed().map(|(name, options)| (name, options, WholeDevice)));
    let (took, _) = time(&mut whole, &graph, x);
    assert!(took >= 81 * LAUNCH, "{took:?}");
    for rig in [&mut events, &mut whole] {
        let mut plan = rig.bind(&graph);
        assert_eq!(run(&mut rig.scheduler, &mut plan, &[(x, &[3.0])], l), [6.0 / 2.0f32.powi(40)]);
        assert_eq!(run(&mut rig.scheduler, &mut plan, &[(x, &[3.0])], r), [6.0 * 2.0f32.powi(40)]);
    }
}

#[test]
fn a_replayed_split_starts_its_operations_at_once() {
    // 30 operations of which in a replay only the first one takes time to start.
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1, 1]);
    let y = (0..30).fold(x, |y, _| b.scale("y", y, 0.5));
    b.output(y);
    let graph = b.finish().unwrap();
    let mut rig = rig(&timed());
    let mut plan = rig.bind(&graph);
    let times: Vec<Duration> = (0..5)
        .map(|_| {
            rig.scheduler.write_f32(&mut plan, x, &[3.0]).unwrap();
            let start = rig.world.now();
            rig.scheduler.execute(&mut plan).unwrap();
            rig.world.now() - start
        })
        .collect();
    let (direct, replayed) = (SUBMIT + 30 * LAUNCH, SUBMIT + LAUNCH);
    assert_eq!(times, [direct, direct, replayed, replayed, replayed]);
}
