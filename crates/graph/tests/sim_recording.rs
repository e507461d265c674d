//! Recordings: what must not happen while one is made, and when it no longer holds.

mod common;
mod sim_common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use common::model::{Decoder, TINY};
use common::run;
use minfer_graph::devices::{SimDevice, SimOptions, World};
use minfer_graph::{
    Backend, BoundOp, BoundPlan, DType, DeviceError, ExecError, Graph, GraphBuilder, KvTable, NodeId, Op,
    Operand, Place, PlanError, PlanOptions, ProgramId, Scheduler, Shape, StateDecl, WeightRequest,
    WeightTable, WeightUse,
};
use sim_common::sample::{input, of_replay, there_and_back, there_and_back_of, two};
use sim_common::{Around, rig, rig_of, sim};

/// `result = factor · source` as a device gets it.
fn scaling(factor: f32, source: Place, result: Place, elements: usize) -> BoundOp {
    let at = |place| Operand { place, dtype: DType::F32, shape: Shape::new(&[elements]) };
    BoundOp {
        node: NodeId(1),
        label: "scaled".to_owned(),
        op: Op::Scale(factor),
        sources: vec![at(source)],
        result: at(result),
        state: None,
    }
}

#[test]
fn inv21_a_device_refuses_what_must_not_happen_inside_a_recording() {
    let long = Duration::from_secs(1);
    let mut device = sim(&World::new(), "gpu", SimOptions::default());
    let [x, y] = [device.allocate(16).unwrap(), device.allocate(16).unwrap()];
    let op = scaling(3.0, Place::Buffer(x), Place::Buffer(y), 4);
    let program = device.compile(std::slice::from_ref(&op)).unwrap();
    let decl = StateDecl { layer: 0, dtype: DType::F32, slots: 4, page: 4, kv_heads: 1, head_dim: 2 };
    let mut weights = WeightTable::new();
    weights.insert_f32("w", &[1.0]);
    let weight = WeightRequest {
        name: "w",
        dtype: DType::F32,
        shape: Shape::new(&[1]),
        usage: WeightUse::Vector,
        source: Arc::new(weights),
    };
    let state = device.create_state(&decl).unwrap();
    device.write(x, &[0; 16]).unwrap();
    device.launch(program).unwrap();
    let event = device.mark();

    device.begin_recording().unwrap();
    let refused = [
        ("a wait", device.wait(event, long)),
        ("a wait", device.synchronize(long)),
        ("a copy", device.write(x, &[0; 16])),
        ("a copy", device.read(y, &mut [0; 16])),
        ("a copy", device.read_state(state, KvTable::K, 0, &mut [0.0; 2])),
        ("an allocation", device.allocate(16).map(drop)),
        ("an allocation", device.create_state(&decl).map(drop)),
        ("an allocation", device.load_weight(&weight).map(drop)),
        ("compiling", device.compile(&[op]).map(drop)),
        ("a recording", device.begin_recording()),
    ];
    for (what, result) in refused {
        assert_eq!(result, Err(DeviceError::Failed(format!("{what} while a recording is made"))));
    }
    device.launch(program).unwrap();
    let recording = device.end_recording().unwrap();
    // Recording ran nothing; replaying does.
    device.synchronize(long).unwrap();
    assert_eq!(device.control().counts().launches, 1);
    device.write(x, bytemuck::cast_slice(&[1.0f32, 2.0, 3.0, 4.0])).unwrap();
    device.replay(recording).unwrap();
    device.synchronize(long).unwrap();
    let mut out = [0.0f32; 4];
    device.read(y, bytemuck::cast_slice_mut(&mut out)).unwrap();
    assert_eq!(out, [3.0, 6.0, 9.0, 12.0]);
}

/// A wrapper that somebody put around a device to find a fault, with a wait of its own.
struct Debugging {
    on: Arc<AtomicBool>,
}

impl Around for Debugging {
    fn launch(&mut self, device: &mut SimDevice, program: ProgramId) -> Result<(), DeviceError> {
        device.launch(program)?;
        if self.on.load(Ordering::Relaxed) { device.synchronize(Duration::from_secs(1)) } else { Ok(()) }
    }
}

#[test]
fn inv21_a_wait_hidden_in_a_launch_is_an_error_when_it_is_recorded() {
    let (graph, x, y) = there_and_back();
    let on = Arc::new(AtomicBool::new(true));
    let mut rig = rig_of(two().map(|(name, options)| (name, options, Debugging { on: Arc::clone(&on) })));
    let mut plan = rig.bind(&graph);
    for n in 1..=2 {
        let got = run(&mut rig.scheduler, &mut plan, &[(x, &input(n))], y);
        assert_eq!(got, there_and_back_of(input(n)));
    }
    for n in 3..=4 {
        rig.scheduler.write_f32(&mut plan, x, &input(n)).unwrap();
        let error = rig.scheduler.execute(&mut plan).unwrap_err();
        let wanted = "launching on cpu: a wait while a recording is made; last dispatched: split 0, s";
        assert_eq!(error.to_string(), wanted);
        let unread = rig.scheduler.read_f32(&plan, y, &mut [0.0; 3]).unwrap_err();
        assert_eq!(unread, ExecError::OutputNotComputed { label: "y".to_owned() });
    }
    on.store(false, Ordering::Relaxed);
    for n in 5..=7 {
        let got = run(&mut rig.scheduler, &mut plan, &[(x, &input(n))], y);
        assert_eq!(got, there_and_back_of(input(n)));
    }
    // Both direct runs were done: the next one records.
    assert_eq!(of_replay(&rig.controls[0])[1..], [1, 3]);
}

/// Two long tables of which few rows are read: long inputs, short results.
fn lookups() -> (Graph, [NodeId; 4]) {
    let mut b = GraphBuilder::new();
    let tables = [b.input("t0", DType::F32, [64, 4]), b.input("t1", DType::F32, [64, 4])];
    let ids = b.input("ids", DType::I32, [2]);
    let rows = tables.map(|t| b.get_rows("rows", t, ids));
    let y = b.add("y", rows[0], rows[1]);
    b.output(y);
    (b.finish().unwrap(), [tables[0], tables[1], ids, y])
}

/// y = 3x, `n` elements long.
fn tripled(n: usize) -> (Graph, NodeId, NodeId) {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1, n]);
    let y = b.scale("y", x, 3.0);
    b.output(y);
    (b.finish().unwrap(), x, y)
}

/// Runs the lookups of rows 1 and 63.
fn look_up(scheduler: &mut Scheduler, plan: &mut BoundPlan, ids: &[NodeId; 4], n: u32) -> Vec<f32> {
    let table = |t: usize| (0..256).map(|i| (i + 1000 * t + n as usize) as f32).collect::<Vec<f32>>();
    scheduler.write_i32(plan, ids[2], &[1, 63]).unwrap();
    run(scheduler, plan, &[(ids[0], &table(0)), (ids[1], &table(1))], ids[3])
}

fn looked_up(n: u32) -> Vec<f32> {
    [4, 5, 6, 7, 252, 253, 254, 255].map(|i| (2 * i + 1000 + 2 * n) as f32).to_vec()
}

#[test]
fn inv22_a_recording_is_made_anew_when_working_memory_has_moved() {
    let (graph, ids) = lookups();
    let mut rig = rig(&[("gpu", SimOptions::default())]);
    let mut plan = rig.bind(&graph);
    for n in 1..=4 {
        assert_eq!(look_up(&mut rig.scheduler, &mut plan, &ids, n), looked_up(n));
    }
    assert_eq!(of_replay(&rig.controls[0]), [4, 1, 2]);
    // Results of another plan are longer: the device's working memory moves, the buffers stay where they are.
    let (large, x, y) = tripled(200);
    let mut large = rig.bind(&large);
    assert!(rig.scheduler.is_fresh(&plan));
    for (n, replay) in (5..=9).zip([[5, 1, 2], [6, 1, 2], [7, 2, 3], [8, 2, 4], [9, 2, 5]]) {
        assert_eq!(look_up(&mut rig.scheduler, &mut plan, &ids, n), looked_up(n));
        assert_eq!(of_replay(&rig.controls[0]), replay, "run {n}");
    }
    let values: Vec<f32> = (0..200).map(|i| i as f32).collect();
    let tripled: Vec<f32> = values.iter().map(|x| 3.0 * x).collect();
    assert_eq!(run(&mut rig.scheduler, &mut large, &[(x, &values)], y), tripled);
}

/// A device that hides that its addresses have changed.
struct Unmoved;

impl Around for Unmoved {
    fn address_generation(&self, _: &SimDevice) -> u64 {
        0
    }
}

#[test]
fn inv22_a_recording_that_no_longer_holds_is_seen_in_its_results() {
    let (graph, ids) = lookups();
    let mut rig = rig_of([("gpu", SimOptions::default(), Unmoved)]);
    let mut plan = rig.bind(&graph);
    for n in 1..=4 {
        assert_eq!(look_up(&mut rig.scheduler, &mut plan, &ids, n), looked_up(n));
    }
    rig.bind(&tripled(200).0);
    assert!(look_up(&mut rig.scheduler, &mut plan, &ids, 5).iter().all(|v| v.is_nan()));

    // By hand: the same recording before and after its device's working memory has grown.
    let long = Duration::from_secs(1);
    let mut device = sim(&World::new(), "gpu", SimOptions::default());
    let [x, y] = [device.allocate(1024).unwrap(), device.allocate(1024).unwrap()].map(Place::Buffer);
    let (Place::Buffer(from), Place::Buffer(to)) = (x, y) else { panic!() };
    let program = device.compile(&[scaling(3.0, x, y, 2)]).unwrap();
    device.begin_recording().unwrap();
    device.launch(program).unwrap();
    let recording = device.end_recording().unwrap();
    let replayed = |device: &mut SimDevice| {
        device.write(from, bytemuck::cast_slice(&[1.0f32, 2.0])).unwrap();
        device.replay(recording).unwrap();
        device.synchronize(long).unwrap();
        let mut out = [0.0f32; 2];
        device.read(to, bytemuck::cast_slice_mut(&mut out)).unwrap();
        out
    };
    assert_eq!(replayed(&mut device), [3.0, 6.0]);
    let before = device.address_generation();
    device.compile(&[scaling(3.0, x, y, 1)]).unwrap();
    assert_eq!((device.address_generation(), replayed(&mut device)), (before, [3.0, 6.0]));
    device.compile(&[scaling(3.0, x, y, 256)]).unwrap();
    assert_ne!(device.address_generation(), before);
    assert!(replayed(&mut device).iter().all(|v| v.is_nan()));
}

#[test]
fn inv22_a_plan_whose_buffers_have_moved_is_bound_and_recorded_again() {
    let (graph, x, y) = there_and_back();
    let mut rig = rig(&two());
    let mut plan = rig.bind(&graph);
    for n in 1..=4 {
        run(&mut rig.scheduler, &mut plan, &[(x, &input(n))], y);
    }
    rig.bind(&tripled(4000).0);
    rig.scheduler.poison().unwrap();
    assert_eq!(rig.scheduler.write_f32(&mut plan, x, &input(5)), Err(ExecError::Stale));
    assert_eq!(rig.scheduler.execute(&mut plan), Err(ExecError::Stale));
    let recorded = rig.controls[1].counts().recordings;
    let plan = rig.scheduler.unbind(plan);
    let mut plan = rig.scheduler.bind(plan, &sim_common::no_weights(), &mut |_, _| {}).unwrap();
    for n in 5..=8 {
        let got = run(&mut rig.scheduler, &mut plan, &[(x, &input(n))], y);
        assert_eq!(got, there_and_back_of(input(n)));
    }
    assert_eq!(rig.controls[1].counts().recordings, recorded + 2);
}

/// A device that begins to record when the others do, and goes on when all have done what they do meanwhile.
struct Meets(Arc<Barrier>);

impl Around for Meets {
    fn begin_recording(&mut self, device: &mut SimDevice) -> Result<(), DeviceError> {
        self.0.wait();
        let begun = device.begin_recording();
        self.0.wait();
        self.0.wait();
        begun
    }
}

/// What an engine's last output was.
type Ran = Result<Vec<f32>, ExecError>;

/// Two engines record at once; meanwhile a third loads a model. What each of them says.
fn two_record_while_a_third_loads(global: bool) -> (Vec<Ran>, Result<u64, PlanError>) {
    let world = World::new();
    world.set_global_capture(global);
    let meeting = Arc::new(Barrier::new(3));
    let engine = |seed: u32| {
        let device = sim(&world, "gpu", SimOptions::default());
        let around = Meets(Arc::clone(&meeting));
        let mut scheduler = Scheduler::new(vec![Box::new(sim_common::Wrapped { device, around })]);
        let (graph, x, y) = tripled(2);
        let mut plan = sim_common::bind(&mut scheduler, &graph);
        move || {
            let mut out = vec![0.0; 2];
            for n in 1..=5 {
                scheduler.write_f32(&mut plan, x, &[seed as f32, n as f32])?;
                scheduler.execute(&mut plan)?;
                scheduler.read_f32(&plan, y, &mut out)?;
            }
            Ok(out)
        }
    };
    let engines = [engine(1), engine(2)];
    let third = sim(&world, "gpu", SimOptions::default());
    let control = third.control();
    let model = Decoder { layers: 3, ..TINY };
    let mut loader = Scheduler::new(vec![Box::new(third)]);
    let plan = loader.plan(model.graph(1, 1).0, &PlanOptions::default()).unwrap();
    let source = model.source();
    std::thread::scope(|scope| {
        let engines = engines.map(|engine| scope.spawn(engine));
        meeting.wait();
        meeting.wait();
        let loaded = loader.bind(plan, &source, &mut |_, _| {}).map(|_| control.counts().bytes);
        meeting.wait();
        (engines.into_iter().map(|e| e.join().unwrap()).collect(), loaded)
    })
}

#[test]
fn inv23_two_engines_record_while_a_third_loads_weights() {
    for _ in 0..10 {
        let (engines, loaded) = two_record_while_a_third_loads(false);
        assert_eq!(engines, [Ok(vec![3.0, 15.0]), Ok(vec![6.0, 15.0])]);
        assert!(loaded.unwrap() > 0);
    }
    // With recordings that concern all devices, the third cannot load, nor the second record.
    let (engines, loaded) = two_record_while_a_third_loads(true);
    let error = loaded.unwrap_err().to_string();
    assert!(error.ends_with("an allocation while a recording is made"), "{error}");
    let (right, wrong): (Vec<_>, Vec<_>) = engines.into_iter().partition(Result::is_ok);
    assert_eq!((right.len(), wrong.len()), (1, 1));
    let error = wrong[0].as_ref().unwrap_err().to_string();
    assert!(error.starts_with("launching on gpu: a recording while a recording is made"), "{error}");
}
