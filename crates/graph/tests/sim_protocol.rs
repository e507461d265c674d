//! The protocol of a boundary on asynchronous devices: when a value is read, where its copy lies, whose it is.

mod common;
mod sim_common;

use std::time::Duration;

use common::run;
use minfer_graph::devices::{SimDevice, SimOptions, World};
use minfer_graph::{
    Backend, BoundOp, BufferId, DType, DeviceError, Event, Graph, GraphBuilder, KvTable, NodeId, Op, Operand,
    Place, Plan, PlanOptions, ProgramId, Shape, StateDecl, StateHandle,
};
use sim_common::hand::{Broken, Hand};
use sim_common::{Around, rig, rig_of, sim, takes};

/// The three devices of these tests: one that scales, one that multiplies, one for all the rest.
fn devices(world: &World) -> Vec<SimDevice> {
    vec![
        sim(world, "gpu", takes(&["scale"])),
        sim(world, "npu", takes(&["mul"])),
        sim(world, "cpu", SimOptions::default()),
    ]
}

fn three() -> [(&'static str, SimOptions); 3] {
    [("gpu", takes(&["scale"])), ("npu", takes(&["mul"])), ("cpu", SimOptions::default())]
}

fn plan(graph: &Graph) -> Plan {
    let devices = devices(&World::new());
    let devices: Vec<_> = devices.iter().map(|d| d as &dyn Backend).collect();
    Plan::new(graph.clone(), &devices, &PlanOptions::default()).unwrap()
}

/// y = 2x + 4·2x + (2x)², where 2x is made on one device and read there and on two others.
fn two_consumers() -> (Graph, NodeId, NodeId) {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1, 1]);
    let s = b.add("s", x, x);
    let g = b.scale("g", s, 4.0);
    let n = b.mul("n", s, s);
    let c = b.add("c", s, g);
    let y = b.add("y", c, n);
    b.output(y);
    (b.finish().unwrap(), x, y)
}

fn two_consumers_of(x: f32) -> f32 {
    10.0 * x + 4.0 * x * x
}

#[test]
fn inv09_a_value_is_read_once_its_producer_is_done() {
    let (graph, x, y) = two_consumers();
    let mut rig = rig(&three());
    let mut bound = rig.bind(&graph);
    assert_eq!(bound.plan().splits().len(), 4);
    for value in [1.0, -3.0, 0.5, 8.0, 0.25] {
        let got = run(&mut rig.scheduler, &mut bound, &[(x, &[value])], y);
        assert_eq!(got, [two_consumers_of(value)]);
    }
    // The same protocol by hand, and without the wait.
    let plan = plan(&graph);
    let hand = |broken| Hand::bind(&plan, devices(&World::new()), broken).run(3.0, y);
    assert_eq!(hand(Broken::Nothing), Ok(two_consumers_of(3.0)));
    assert!(hand(Broken::NoWait).unwrap().is_nan());
}

/// A device whose events mean nothing.
struct Hasty;

impl Around for Hasty {
    fn wait(&mut self, _: &mut SimDevice, _: Event, _: Duration) -> Result<(), DeviceError> {
        Ok(())
    }
}

#[test]
fn inv09_a_device_that_does_not_wait_is_caught() {
    let (graph, x, y) = two_consumers();
    let mut rig = rig_of(three().map(|(name, options)| (name, options, Hasty)));
    let mut bound = rig.bind(&graph);
    assert!(run(&mut rig.scheduler, &mut bound, &[(x, &[3.0])], y)[0].is_nan());
}

#[test]
fn inv09_what_was_launched_is_poison_until_waited_for() {
    // The device itself, without any protocol.
    let mut device = sim(&World::new(), "gpu", SimOptions::default());
    let [x, y] = [device.allocate(256).unwrap(), device.allocate(256).unwrap()];
    let at = |b| Operand { place: Place::Buffer(b), dtype: DType::F32, shape: Shape::new(&[1]) };
    let op = BoundOp {
        node: NodeId(1),
        label: "y".to_owned(),
        op: Op::Scale(3.0),
        sources: vec![at(x)],
        result: at(y),
        state: None,
    };
    let program = device.compile(&[op]).unwrap();
    let mut bytes = [0; 4];
    let mut read = |device: &mut SimDevice, buffer| {
        device.read(buffer, &mut bytes).unwrap();
        f32::from_le_bytes(bytes)
    };
    assert!(read(&mut device, x).is_nan(), "what nobody wrote");
    device.write(x, &2.0f32.to_le_bytes()).unwrap();
    device.launch(program).unwrap();
    assert!(read(&mut device, y).is_nan(), "what has not been waited for");
    let busy = device.write(x, &4.0f32.to_le_bytes()).unwrap_err();
    assert_eq!(busy.to_string(), format!("buffer {} was written while work in flight uses it", x.0));
    device.synchronize(Duration::from_secs(1)).unwrap();
    assert_eq!(read(&mut device, y), 6.0);
    device.release(y);
    assert!(read(&mut device, y).is_nan(), "what was freed");
}

#[test]
fn inv10_two_foreign_consumers_each_read_their_own_copy() {
    let (graph, x, y) = two_consumers();
    let mut rig = rig(&three());
    let mut bound = rig.bind(&graph);
    let crossings: Vec<_> = bound.plan().splits().iter().flat_map(|s| s.copies.clone()).collect();
    let s = crossings[0].value;
    let to: Vec<u32> = crossings.iter().filter(|c| c.value == s).map(|c| c.to.0).collect();
    assert_eq!(to, [0, 1]);
    for value in [1.0, -3.0, 0.5, 8.0] {
        // Whatever an earlier run left behind is gone: a stale copy would show.
        rig.scheduler.poison().unwrap();
        let got = run(&mut rig.scheduler, &mut bound, &[(x, &[value])], y);
        assert_eq!(got, [two_consumers_of(value)]);
    }
    // With copies remembered by value alone, the second consumer finds nothing where its copy should be.
    let plan = plan(&graph);
    let broken = Hand::bind(&plan, devices(&World::new()), Broken::StagedByValue).run(3.0, y).unwrap();
    assert!(broken.is_nan());
}

#[test]
fn inv11_a_producer_keeps_its_buffer_when_it_is_copied() {
    let (graph, _, y) = two_consumers();
    let plan = plan(&graph);
    let mut right = Hand::bind(&plan, devices(&World::new()), Broken::Nothing);
    assert_eq!([right.run(3.0, y), right.run(5.0, y)], [66.0, 150.0].map(Ok));
    let mut broken = Hand::bind(&plan, devices(&World::new()), Broken::ProducerFreed);
    let error = broken.run(3.0, y).unwrap_err().to_string();
    assert!(error.ends_with("which was freed"), "{error}");
}

/// y = 6x · 2x: 2x on the gpu becomes 6x there, while another 2x is made on the cpu and crosses.
fn crossing_late() -> (Graph, [NodeId; 4]) {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1, 1]);
    let u = b.scale("u", x, 2.0);
    let a = b.add("a", x, x);
    let w = b.scale("w", u, 3.0);
    let y = b.mul("y", w, a);
    b.output(y);
    (b.finish().unwrap(), [x, u, a, y])
}

#[test]
fn inv12_copies_have_memory_of_their_own_in_a_tight_pool() {
    let (graph, [x, u, a, y]) = crossing_late();
    let pair = |memory: [Option<u64>; 2]| {
        let gpu = SimOptions { memory: memory[0], ..takes(&["scale", "mul"]) };
        [("gpu", gpu), ("cpu", SimOptions { memory: memory[1], ..SimOptions::default() })]
    };
    let mut roomy = rig(&pair([None, None]));
    let bound = roomy.bind(&graph);
    let exact = roomy.bytes();
    // Three slots on the gpu: x, what is computed, the copy; and 4 bytes of working memory.
    assert_eq!(exact, [3 * 256 + 4, 2 * 256 + 4]);
    drop(bound);

    let mut tight = rig(&pair([Some(exact[0]), Some(exact[1])]));
    let mut bound = tight.bind(&graph);
    for value in [1.0, -3.0, 0.5, 8.0, 2.0] {
        assert_eq!(run(&mut tight.scheduler, &mut bound, &[(x, &[value])], y), [12.0 * value * value]);
    }
    assert_eq!(tight.bytes(), exact);

    // A copy in memory that the plan has done with by the time it is read: the work in flight has not.
    let world = World::new();
    let devices =
        || vec![sim(&world, "gpu", takes(&["scale", "mul"])), sim(&world, "cpu", SimOptions::default())];
    let queried = devices();
    let queried: Vec<_> = queried.iter().map(|d| d as &dyn Backend).collect();
    let plan = Plan::new(graph, &queried, &PlanOptions::default()).unwrap();
    assert_eq!(Hand::bind(&plan, devices(), Broken::Nothing).run(3.0, y), Ok(108.0));
    let error = Hand::bind(&plan, devices(), Broken::StagedInMemoryOf(a, u)).run(3.0, y).unwrap_err();
    assert!(error.to_string().ends_with("was written while work in flight uses it"), "{error}");
}

#[test]
fn inv12_no_copy_of_a_decoder_shares_memory_with_anything() {
    let (graph, _) = common::model::TINY.graph(3, 2);
    let scheduler =
        rig(&[("gpu", takes(&["silu", "rope", "add"])), ("cpu", SimOptions::default())]).scheduler;
    let plan = scheduler.plan(graph, &PlanOptions::default()).unwrap();
    let mut copies = 0;
    for copy in plan.splits().iter().flat_map(|s| &s.copies) {
        let slot = plan.memory().slot(plan.graph(), copy.value, copy.to);
        let others = plan.graph().iter().filter(|&(id, _)| {
            plan.graph().root(id) != copy.value && plan.memory().slot(plan.graph(), id, copy.to) == slot
        });
        assert_eq!(others.count(), 0, "{:?}", copy);
        copies += 1;
    }
    assert!(copies > 10, "{copies} copies");
}

/// A program that stores one row of k = v = 7 in slot 2 of a cache, with the buffers that it reads.
fn storing(device: &mut SimDevice) -> (ProgramId, StateHandle, [BufferId; 2]) {
    let decl = StateDecl { layer: 0, dtype: DType::F32, slots: 4, page: 4, kv_heads: 1, head_dim: 2 };
    let state = device.create_state(&decl).unwrap();
    let [rows, slots] = [device.allocate(256).unwrap(), device.allocate(256).unwrap()];
    let at = |place, dtype, shape: &[usize]| Operand { place, dtype, shape: Shape::new(shape) };
    let cache = at(Place::State(state), DType::F32, &[2, 4, 1, 2]);
    let row = at(Place::Buffer(rows), DType::F32, &[1, 1, 2]);
    let op = BoundOp {
        node: NodeId(4),
        label: "stored".to_owned(),
        op: Op::KvStore,
        sources: vec![cache, row, row, at(Place::Buffer(slots), DType::I32, &[1])],
        result: cache,
        state: Some(decl),
    };
    let program = device.compile(&[op]).unwrap();
    device.write(rows, bytemuck::cast_slice(&[7.0f32, 7.0])).unwrap();
    device.write(slots, &2i32.to_le_bytes()).unwrap();
    (program, state, [rows, slots])
}

#[test]
fn inv09_rows_of_a_cache_are_poison_until_their_store_has_been_waited_for() {
    let mut device = sim(&World::new(), "gpu", SimOptions::default());
    let (program, state, _) = storing(&mut device);
    let read = |device: &mut SimDevice| {
        let mut row = [0.0; 2];
        device.read_state(state, KvTable::V, 2, &mut row).unwrap();
        row
    };
    for _ in 0..2 {
        device.launch(program).unwrap();
        assert!(read(&mut device).iter().all(|v| v.is_nan()));
        device.synchronize(Duration::from_secs(1)).unwrap();
        assert_eq!(read(&mut device), [7.0, 7.0]);
    }
    device.release_state(state);
    assert!(read(&mut device).iter().all(|v| v.is_nan()));
}

#[test]
fn freeing_what_work_uses_is_an_error_whether_it_is_in_flight_or_to_come() {
    let long = Duration::from_secs(1);
    type Free = fn(&mut SimDevice, StateHandle, BufferId);
    let frees: [(Free, &str); 2] = [
        (|device, state, _| device.release_state(state), "KV cache 0"),
        (|device, _, buffer| device.release(buffer), "buffer 0"),
    ];
    for (free, what) in frees {
        let mut device = sim(&World::new(), "gpu", SimOptions::default());
        let (program, state, [buffer, _]) = storing(&mut device);
        device.begin_recording().unwrap();
        device.launch(program).unwrap();
        let recording = device.end_recording().unwrap();
        device.replay(recording).unwrap();
        free(&mut device, state, buffer);
        let failed = |text: String| Err(DeviceError::Failed(text));
        assert_eq!(
            device.synchronize(long),
            failed(format!("{what} was freed while work in flight uses it"))
        );
        let gone = failed(format!("a program uses {what}, which was freed"));
        assert_eq!(device.launch(program), gone);
        assert_eq!(device.replay(recording), gone);
        assert_eq!(device.control().counts().launches, 0);
        assert_eq!(device.synchronize(long), Ok(()));
    }
}
