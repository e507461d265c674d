//! Faults of asynchronous devices: each is a typed error that names what failed, nothing that depends on it runs, and the
//! next run is right.

mod common;
mod sim_common;

use std::time::Duration;

use common::model::{Ids, TINY};
use common::run;
use minfer_graph::devices::{Fault, FaultKind, SimOptions, Site};
use minfer_graph::{
    BoundPlan, DType, DeviceError, DeviceId, ExecError, Fusion, Graph, GraphBuilder, NodeId, Plan, PlanError,
    PlanOptions,
};
use sim_common::{Rig, no_weights, rig, takes};

const DEADLINE: Duration = Duration::from_millis(50);

/// A decoder of which two devices each run a part.
struct Mixed {
    rig: Rig,
    plan: BoundPlan,
    ids: Ids,
    right: Vec<f32>,
}

const TOKENS: [i32; 2] = [1, 2];

impl Mixed {
    /// With a run done, and its bytes in use.
    fn new() -> (Self, Vec<u64>) {
        let mut rig = rig(&[("gpu", takes(&["silu", "rope", "add"])), ("cpu", SimOptions::default())]);
        rig.scheduler.set_deadline(DEADLINE);
        let (graph, ids) = TINY.graph(2, 1);
        let options = PlanOptions { fusion: Fusion::none(), ..PlanOptions::default() };
        let plan = rig.scheduler.plan(graph, &options).unwrap();
        assert!(plan.splits().len() > 10);
        let mut plan = rig.scheduler.bind(plan, &TINY.source(), &mut |_, _| {}).unwrap();
        let right = TINY.step(&mut rig.scheduler, &mut plan, &ids, 0, &TOKENS).unwrap();
        assert!(right.iter().all(|v| v.is_finite()));
        let bytes = rig.bytes();
        (Self { rig, plan, ids, right }, bytes)
    }

    fn step(&mut self) -> Result<Vec<f32>, ExecError> {
        TINY.step(&mut self.rig.scheduler, &mut self.plan, &self.ids, 0, &TOKENS)
    }

    /// A run with a fault on a device.
    fn fail(&mut self, device: usize, site: Site, nth: u64, kind: FaultKind) -> ExecError {
        self.rig.world.take_log();
        self.rig.controls[device].inject(Fault { site, nth, kind });
        let error = self.step().unwrap_err();
        assert!(!self.rig.controls[device].clear(), "the fault did not happen");
        if matches!(&error, ExecError::Device { what, .. } if what == "writing an input") {
            // Nothing ran, and the outputs of the last run are still there.
            return error;
        }
        let unread = self.rig.scheduler.read_f32(&self.plan, self.ids.logits, &mut [0.0; 11]).unwrap_err();
        assert_eq!(unread, ExecError::OutputNotComputed { label: "logits".to_owned() });
        error
    }

    /// How often a run reaches a site of a device.
    fn count(&mut self, device: usize, site: Site) -> u64 {
        let count = |rig: &Rig| {
            let c = rig.controls[device].counts();
            match site {
                Site::Launch => c.launches,
                Site::Copy => c.copies,
                Site::Submit => c.submits,
                Site::Allocation => c.allocations,
            }
        };
        let before = count(&self.rig);
        self.step().unwrap();
        count(&self.rig) - before
    }

    /// The nodes that a device runs, in order.
    fn nodes_of(&self, device: usize) -> Vec<NodeId> {
        let plan = self.plan.plan();
        let mine = plan.splits().iter().filter(|s| s.device.index() == device);
        mine.flat_map(|s| s.nodes.clone()).collect()
    }

    /// The split of a node, as errors name it.
    fn title(&self, split: usize) -> String {
        let plan = self.plan.plan();
        let nodes = &plan.splits()[split].nodes;
        let label = |n: NodeId| &plan.graph().node(n).label;
        match nodes[..] {
            [only] => format!("split {split}, {}", label(only)),
            _ => format!("split {split}, {} to {}", label(nodes[0]), label(nodes[nodes.len() - 1])),
        }
    }
}

/// Whether a value depends on another one.
fn depends(plan: &Plan, on: NodeId, id: NodeId) -> bool {
    let mut tainted = vec![on];
    for (node, n) in plan.graph().iter() {
        if n.sources.iter().any(|s| tainted.contains(s)) {
            tainted.push(node);
        }
    }
    tainted.contains(&id)
}

#[test]
fn inv15_an_operation_that_fails_on_its_device_is_named_and_what_depends_on_it_does_not_run() {
    // In the first round launches are direct, in the second one they are replays.
    let (mut mixed, bytes) = Mixed::new();
    for replayed in [false, true] {
        mixed.rig.scheduler.set_replay(replayed);
        for device in 0..2 {
            let nodes = mixed.nodes_of(device);
            assert_eq!(mixed.count(device, Site::Launch), nodes.len() as u64);
            for (n, &node) in nodes.iter().enumerate() {
                let error = mixed.fail(device, Site::Launch, n as u64, FaultKind::Fail);
                let ExecError::Node(error) = error else { panic!("{error}") };
                let (plan, name) = (mixed.plan.plan(), ["gpu", "cpu"][device]);
                let (label, op) = (&plan.graph().node(node).label, plan.graph().node(node).op.name());
                let shapes = plan.graph().describe_sources(node);
                assert_eq!((error.node, &error.label, error.op), (node, label, op));
                assert_eq!((&error.shapes, error.device.as_str()), (&shapes, name));
                let what = "injected failure".to_owned();
                assert_eq!(error.error, DeviceError::Kernel { node, what });
                assert_eq!(error.to_string(), format!("{op} {label} ({shapes}) on {name}: injected failure"));

                let log = mixed.rig.world.take_log();
                let on_device: Vec<NodeId> =
                    log.iter().filter(|r| &*r.device == name).map(|r| r.node).collect();
                assert_eq!(on_device, nodes[..n], "a node ran on the device after the one that failed");
                for ran in &log {
                    assert!(!depends(plan, node, ran.node), "{} ran", plan.graph().node(ran.node).label);
                }
                assert_eq!(mixed.rig.bytes(), bytes);
                assert_eq!(mixed.step().as_ref(), Ok(&mixed.right));
            }
        }
        // The second round begins with recordings made.
        mixed.rig.scheduler.set_replay(true);
        for _ in 0..4 {
            assert_eq!(mixed.step().as_ref(), Ok(&mixed.right));
        }
    }
    assert!(mixed.rig.controls.iter().all(|c| c.counts().replays > 100));
}

#[test]
fn inv15_without_the_check_of_the_wait_the_failure_would_be_a_wrong_number() {
    // A device whose failure nobody hears of.
    struct Deaf;
    impl sim_common::Around for Deaf {
        fn launch(
            &mut self,
            device: &mut minfer_graph::devices::SimDevice,
            program: minfer_graph::ProgramId,
        ) -> Result<(), DeviceError> {
            use minfer_graph::Backend;
            device.launch(program)?;
            let _ = device.synchronize(DEADLINE);
            Ok(())
        }
    }
    let (graph, [x, .., y]) = chain();
    let mut rig =
        sim_common::rig_of([("gpu", takes(&["scale"]), Deaf), ("cpu", SimOptions::default(), Deaf)]);
    let mut plan = rig.bind(&graph);
    rig.scheduler.poison().unwrap();
    rig.controls[0].inject(Fault { site: Site::Launch, nth: 0, kind: FaultKind::Fail });
    assert!(run(&mut rig.scheduler, &mut plan, &[(x, &[1.0])], y)[0].is_nan());
}

#[test]
fn inv20_every_submit_is_checked() {
    let (mut mixed, bytes) = Mixed::new();
    let order: Vec<NodeId> = mixed.plan.plan().splits().iter().flat_map(|s| s.nodes.clone()).collect();
    for replayed in [false, true] {
        mixed.rig.scheduler.set_replay(replayed);
        for device in 0..2 {
            let mut named = Vec::new();
            for n in 0..mixed.count(device, Site::Submit) {
                let error = mixed.fail(device, Site::Submit, n, FaultKind::Fail);
                // What was handed over before is finished, and nothing else has run.
                let mut ran: Vec<NodeId> = mixed.rig.world.take_log().iter().map(|r| r.node).collect();
                ran.sort_unstable();
                assert_eq!(ran, order[..ran.len()]);
                let next = order[ran.len()];
                let split = mixed.plan.plan().splits().iter().position(|s| s.nodes.contains(&next)).unwrap();
                assert_eq!(mixed.plan.plan().device(next).index(), device);
                let wanted = ExecError::Device {
                    what: "launching".to_owned(),
                    device: ["gpu", "cpu"][device].to_owned(),
                    error: DeviceError::Failed("injected failure of a submit".to_owned()),
                    dispatched: mixed.title(split),
                };
                assert_eq!(error, wanted);
                named.push(split);
                assert_eq!(mixed.rig.bytes(), bytes);
                assert_eq!(mixed.step().as_ref(), Ok(&mixed.right));
            }
            named.dedup();
            let splits = mixed.plan.plan().splits().iter().enumerate();
            let mine: Vec<usize> = splits.filter(|s| s.1.device.index() == device).map(|s| s.0).collect();
            assert_eq!(named, mine, "each split was refused");
        }
        mixed.rig.scheduler.set_replay(true);
        for _ in 0..4 {
            assert_eq!(mixed.step().as_ref(), Ok(&mixed.right));
        }
    }
}

#[test]
fn a_copy_that_fails_is_an_error_with_the_last_split() {
    let (mut mixed, bytes) = Mixed::new();
    for device in 0..2 {
        let mut seen = std::collections::BTreeMap::<String, usize>::new();
        // All but the last copy of the cpu, which reads the logits.
        let copies = mixed.count(device, Site::Copy) - u64::from(device == 1);
        for n in 0..copies {
            let error = mixed.fail(device, Site::Copy, n, FaultKind::Fail);
            let ExecError::Device { what, device: name, error, dispatched } = error else {
                panic!("{error}")
            };
            assert_eq!(name, ["gpu", "cpu"][device]);
            assert_eq!(error, DeviceError::Failed("injected failure of a copy".to_owned()));
            assert!(dispatched.starts_with("split "), "{dispatched}");
            *seen.entry(what).or_default() += 1;
            assert_eq!(mixed.rig.bytes(), bytes);
            assert_eq!(mixed.step().as_ref(), Ok(&mixed.right));
        }
        // As many of each kind as the plan has.
        let plan = mixed.plan.plan();
        let crossings = || plan.splits().iter().flat_map(|s| &s.copies);
        let (here, id) = (copies as usize, DeviceId(device as u32));
        let reads = crossings().filter(|c| c.from == id).count();
        let writes = crossings().filter(|c| c.to == id).count();
        let wanted = [
            ("reading a value to copy", reads),
            ("writing a copied value", writes),
            ("writing an input", here - reads - writes),
        ];
        assert_eq!(seen, wanted.map(|(what, n)| (what.to_owned(), n)).into());
        assert!(reads > 5 && writes > 5);
    }
}

#[test]
fn an_allocation_that_fails_refuses_the_plan_and_the_next_attempt_is_right() {
    let (mut whole, wanted) = Mixed::new();
    let allocations: Vec<u64> = whole.rig.controls.iter().map(|c| c.counts().allocations).collect();
    assert_eq!(whole.count(0, Site::Allocation), 0, "a run allocates");
    for device in 0..2 {
        for n in 0..allocations[device] {
            let (graph, ids) = TINY.graph(2, 1);
            let mut rig = rig(&[("gpu", takes(&["silu", "rope", "add"])), ("cpu", SimOptions::default())]);
            let options = PlanOptions { fusion: Fusion::none(), ..PlanOptions::default() };
            let plan = rig.scheduler.plan(graph, &options).unwrap();
            rig.controls[device].inject(Fault { site: Site::Allocation, nth: n, kind: FaultKind::Fail });
            let error = rig.scheduler.bind(plan.clone(), &TINY.source(), &mut |_, _| {}).unwrap_err();
            let PlanError::Device { device: name, error, .. } = error else { panic!("{error}") };
            assert_eq!(name, ["gpu", "cpu"][device]);
            assert!(matches!(error, DeviceError::OutOfMemory { .. }), "{error}");
            let mut plan = rig.scheduler.bind(plan, &TINY.source(), &mut |_, _| {}).unwrap();
            assert_eq!(rig.bytes(), wanted);
            let got = TINY.step(&mut rig.scheduler, &mut plan, &ids, 0, &TOKENS).unwrap();
            assert_eq!(got, whole.right);
        }
    }
}

/// y = 2·(3·2x), by turns on the gpu, the cpu, the gpu.
fn chain() -> (Graph, [NodeId; 4]) {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1, 1]);
    let g = b.scale("g", x, 2.0);
    let c = b.add("c", g, x);
    let y = b.scale("y", c, 2.0);
    b.output(y);
    (b.finish().unwrap(), [x, g, c, y])
}

#[test]
fn inv18_a_device_that_hangs_is_a_timeout_within_the_deadline() {
    let (mut mixed, bytes) = Mixed::new();
    for device in 0..2 {
        for site in [Site::Launch, Site::Submit] {
            for n in 0..mixed.count(device, site) {
                let start = mixed.rig.world.now();
                let error = mixed.fail(device, site, n, FaultKind::Hang);
                let ExecError::Device { what, device: name, error, dispatched } = error else {
                    panic!("{error}")
                };
                assert_eq!((what.as_str(), name.as_str()), ("waiting", ["gpu", "cpu"][device]));
                assert_eq!(error, DeviceError::Timeout { waited: DEADLINE });
                assert!(dispatched.starts_with("split "), "{dispatched}");
                // These devices take no time at all, but for the hang.
                assert_eq!(mixed.rig.world.now() - start, DEADLINE);
                assert_eq!(mixed.step().as_ref(), Ok(&mixed.right));
                assert_eq!(mixed.rig.bytes(), bytes);
            }
        }
    }
}

#[test]
fn inv18_a_device_slower_than_the_deadline_is_a_timeout_and_may_finish_later() {
    let (graph, [x, .., y]) = chain();
    let slow = SimOptions { launch: 7 * DEADLINE / 2, ..takes(&["scale"]) };
    let mut rig = rig(&[("gpu", slow), ("cpu", SimOptions::default())]);
    rig.scheduler.set_deadline(DEADLINE);
    let mut plan = rig.bind(&graph);
    let run = |rig: &mut Rig, plan: &mut BoundPlan| {
        let start = rig.world.now();
        let result = rig.scheduler.write_f32(plan, x, &[1.0]).and_then(|()| rig.scheduler.execute(plan));
        (result, rig.world.now() - start)
    };
    let timeout = |what: &str| {
        let (what, device, dispatched) = (what.to_owned(), "gpu".to_owned(), "split 0, g".to_owned());
        Err(ExecError::Device { what, device, error: DeviceError::Timeout { waited: DEADLINE }, dispatched })
    };
    // 3.5 deadlines are needed. The failed run costs one; then each attempt to start another one does.
    assert_eq!(run(&mut rig, &mut plan), (timeout("waiting"), DEADLINE));
    for _ in 0..2 {
        assert_eq!(run(&mut rig, &mut plan), (timeout("waiting for an earlier run"), DEADLINE));
        assert_eq!(rig.world.take_log(), []);
    }
    // It has finished; with a deadline that it can keep, the next run is right.
    rig.scheduler.set_deadline(4 * DEADLINE);
    let (result, took) = run(&mut rig, &mut plan);
    assert_eq!(result, Ok(()));
    assert_eq!(took, DEADLINE / 2 + 7 * DEADLINE);
    let mut out = [0.0];
    rig.scheduler.read_f32(&plan, y, &mut out).unwrap();
    assert_eq!(out, [6.0]);
}

#[test]
fn inv18_what_waits_for_an_earlier_run_is_bounded_too() {
    // A device that is behind, and all that first waits for it.
    let (graph, [x, ..]) = chain();
    let slow = SimOptions { launch: 100 * DEADLINE, ..takes(&["scale"]) };
    let mut rig = rig(&[("gpu", slow), ("cpu", SimOptions::default())]);
    rig.scheduler.set_deadline(DEADLINE);
    let mut plan = rig.bind(&graph);
    rig.scheduler.write_f32(&mut plan, x, &[1.0]).unwrap();
    rig.scheduler.execute(&mut plan).unwrap_err();
    let bytes = rig.bytes();
    let mut bounded = |what: &str, act: &mut dyn FnMut(&mut Rig) -> Option<String>| {
        let start = rig.world.now();
        let error = act(&mut rig);
        assert_eq!(rig.world.now() - start, DEADLINE, "{what}");
        if let Some(error) = error {
            assert!(error.contains("waiting for an earlier run: not finished after 50ms"), "{error}");
        }
    };
    let text = |e: ExecError| e.to_string().replace(" on gpu", "");
    bounded("poison", &mut |r| Some(text(r.scheduler.poison().unwrap_err())));
    bounded("write", &mut |r| Some(text(r.scheduler.write_f32(&mut plan, x, &[1.0]).unwrap_err())));
    let other = chain().0;
    bounded("bind", &mut |r| {
        let plan = r.scheduler.plan(other.clone(), &PlanOptions::default()).unwrap();
        Some(r.scheduler.bind(plan, &no_weights(), &mut |_, _| {}).unwrap_err().to_string())
    });
    assert_eq!(rig.bytes(), bytes);
}

#[test]
fn inv20_memory_that_does_not_suffice_is_refused_with_the_numbers() {
    let (graph, [x, .., y]) = chain();
    let mut roomy = rig(&[("gpu", takes(&["scale"])), ("cpu", SimOptions::default())]);
    roomy.bind(&graph);
    let needed = roomy.bytes()[0];
    let with = |memory: u64| {
        let gpu = SimOptions { memory: Some(memory), ..takes(&["scale"]) };
        rig(&[("gpu", gpu), ("cpu", SimOptions::default())])
    };
    for missing in 1..needed {
        let mut rig = with(needed - missing);
        // A device that cannot tell what is free is asked, and refuses.
        rig.controls[0].set_memory_unknown(true);
        let plan = rig.scheduler.plan(graph.clone(), &PlanOptions::default()).unwrap();
        let error = rig.scheduler.bind(plan.clone(), &no_weights(), &mut |_, _| {}).unwrap_err();
        let PlanError::Device { device, error, .. } = error else { panic!("{error}") };
        let DeviceError::OutOfMemory { wanted, free, .. } = error else { panic!("{error}") };
        let free = free.unwrap();
        assert!(device == "gpu" && wanted as u64 > free, "{wanted} wanted, {free} free");
        assert_eq!(free + rig.bytes()[0], needed - missing);
    }
    let mut exact = with(needed);
    let mut plan = exact.bind(&graph);
    assert_eq!(run(&mut exact.scheduler, &mut plan, &[(x, &[1.0])], y), [6.0]);
    assert_eq!(exact.bytes()[0], needed);
}

#[test]
fn inv20_an_operation_beyond_a_device_s_limit_goes_elsewhere_or_is_refused_by_name() {
    // A device whose kernels hold rows of at most 96 elements.
    let limited = || ("gpu", SimOptions::default().taking(|q| q.shape.width() <= 96));
    for width in [95, 96, 97, 200] {
        let mut b = GraphBuilder::new();
        let x = b.input("x", DType::F32, [1, width]);
        let y = b.scale("y", x, 2.0);
        b.output(y);
        let graph = b.finish().unwrap();
        let alone = rig(&[limited()]).scheduler.plan(graph.clone(), &PlanOptions::default());
        if width <= 96 {
            assert_eq!(alone.unwrap().device(y), DeviceId(0));
        } else {
            let wanted = format!("no device runs scale y (F32 [1×{width}]): gpu does not run it");
            assert_eq!(alone.unwrap_err().to_string(), wanted);
        }
        let mut rig = rig(&[limited(), ("cpu", SimOptions::default())]);
        let mut plan = rig.bind(&graph);
        assert_eq!(plan.plan().device(y), DeviceId(u32::from(width > 96)));
        rig.scheduler.poison().unwrap();
        let values: Vec<f32> = (0..width).map(|i| i as f32).collect();
        let got = run(&mut rig.scheduler, &mut plan, &[(x, &values)], y);
        assert_eq!(got, values.iter().map(|x| 2.0 * x).collect::<Vec<f32>>());
    }
}
