//! Graphs over several devices: splits, copies, placement, failures.

mod common;

use std::sync::{Arc, Mutex};

use common::model::TINY;
use common::{Hooked, Log, Logged, is, only, run};
use minfer_graph::devices::ReferenceDevice;
use minfer_graph::{
    Activation, Backend, BoundPlan, DType, DeviceId, ExecError, Fusion, Graph, GraphBuilder, NodeId,
    PlanError, PlanOptions, Rule, Scheduler, WeightSource, WeightTable,
};

fn no_weights() -> Arc<dyn WeightSource> {
    Arc::new(WeightTable::new())
}

fn bind(scheduler: &mut Scheduler, graph: Graph, source: &Arc<dyn WeightSource>) -> BoundPlan {
    let plan = scheduler.plan(graph, &PlanOptions::default()).unwrap();
    scheduler.bind(plan, source, &mut |_, _| {}).unwrap()
}

/// Two devices: the first runs only the operations named, the second everything.
fn pair(first: &'static [&'static str]) -> Scheduler {
    let gpu = only("gpu", move |q| is(q.op, first));
    Scheduler::new(vec![gpu, Box::new(ReferenceDevice::new("cpu"))])
}

#[test]
fn inv11_a_mixed_graph_runs_twice_on_one_plan() {
    // x → scale (cpu) → silu (gpu) → add with the scaled x (cpu) → silu (gpu) → add (cpu).
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1, 4]);
    let s = b.scale("s", x, 2.0);
    let g = b.activate("g", s, Activation::Silu);
    let a = b.add("a", g, s);
    let h = b.activate("h", a, Activation::Silu);
    let y = b.add("y", h, s);
    b.output(y);
    let graph = b.finish().unwrap();

    let mut scheduler = pair(&["silu"]);
    let mut plan = bind(&mut scheduler, graph.clone(), &no_weights());
    assert_eq!(plan.plan().splits().len(), 5);
    let mut single = Scheduler::new(vec![Box::new(ReferenceDevice::default())]);
    let mut alone = bind(&mut single, graph, &no_weights());
    for input in [[0.5, -1.0, 3.0, 0.0], [7.0, 8.0, -9.0, 1e-3], [0.5, -1.0, 3.0, 0.0]] {
        let got = run(&mut scheduler, &mut plan, &[(x, &input)], y);
        assert_eq!(got, run(&mut single, &mut alone, &[(x, &input)], y));
        // Written out: y = silu(silu(2x) + 2x) + 2x.
        let silu = |v: f64| v / (1.0 + (-v).exp());
        for (got, x) in got.iter().zip(input) {
            let x = 2.0 * f64::from(x);
            assert!((f64::from(*got) - (silu(silu(x) + x) + x)).abs() < 1e-5);
        }
    }
}

#[test]
fn inv10_each_device_reads_its_own_copy() {
    // s is made on the cpu, read by two other devices and by the cpu itself.
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1, 3]);
    let s = b.scale("s", x, 1.0);
    let g = b.activate("g", s, Activation::Silu);
    let n = b.softcap("n", s, 2.0);
    let c = b.add("c", s, g);
    let y = b.add("y", c, n);
    b.output(y);
    let graph = b.finish().unwrap();
    let gpus = [only("gpu0", |q| is(q.op, &["silu"])), only("gpu1", |q| is(q.op, &["softcap"]))];
    let mut devices: Vec<Box<dyn Backend>> = gpus.into_iter().collect();
    devices.push(Box::new(ReferenceDevice::new("cpu")));
    let mut scheduler = Scheduler::new(devices);
    let mut plan = bind(&mut scheduler, graph, &no_weights());
    let copied: Vec<(u32, u32)> = plan
        .plan()
        .splits()
        .iter()
        .flat_map(|s| &s.copies)
        .filter(|c| c.value == s)
        .map(|c| (c.from.0, c.to.0))
        .collect();
    assert_eq!(copied, [(2, 0), (2, 1)]);
    let x_values = [1.0, -2.0, 0.25];
    let got = run(&mut scheduler, &mut plan, &[(x, &x_values)], y);
    for (got, x) in got.iter().zip(x_values) {
        let x = f64::from(x);
        let want = x + x / (1.0 + (-x).exp()) + 2.0 * (x / 2.0).tanh();
        assert!((f64::from(*got) - want).abs() < 1e-6, "{got} instead of {want}");
    }
}

#[test]
fn a_value_that_crossed_is_not_copied_again() {
    // The second gpu split reads s, which the first one got already.
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1, 3]);
    let s = b.scale("s", x, 1.0);
    let g = b.activate("g", s, Activation::Silu);
    let c = b.add("c", g, s);
    let h = b.activate("h", c, Activation::Silu);
    let again = b.activate("again", s, Activation::Silu);
    let y = b.add("y", h, again);
    b.output(y);
    let plan = pair(&["silu"]).plan(b.finish().unwrap(), &PlanOptions::default()).unwrap();
    let copies: Vec<Vec<NodeId>> =
        plan.splits().iter().map(|s| s.copies.iter().map(|c| c.value).collect()).collect();
    assert_eq!(copies, [vec![], vec![s], vec![g], vec![c], vec![h, again]]);
    assert_eq!(plan.splits().len(), 5);
}

#[test]
fn k11_a_device_that_refuses_an_operation_gets_the_rest() {
    // Everything but the softmax of one kind runs on the gpu; the split for it is on the cpu, with the copies
    // it needs.
    let build = || TINY.graph(3, 1);
    let (graph, ids) = build();
    let gpu = only("gpu", |q| !is(q.op, &["silu", "silu_mul"]));
    let mut scheduler = Scheduler::new(vec![gpu, Box::new(ReferenceDevice::new("cpu"))]);
    let source = TINY.source();
    let mut plan = bind(&mut scheduler, graph, &source);
    let names: Vec<&str> =
        plan.plan().splits().iter().map(|s| plan.plan().device_names()[s.device.index()].as_str()).collect();
    assert_eq!(names, ["gpu", "cpu", "gpu", "cpu", "gpu"]);
    for split in plan.plan().splits() {
        for &node in &split.nodes {
            let on_cpu = is(&plan.plan().graph().node(node).op, &["silu", "silu_mul"]);
            assert_eq!(plan.plan().device(node), DeviceId(u32::from(on_cpu)));
        }
    }
    // The placement is reported.
    let text = minfer_graph::export::Document::of_plan(plan.plan()).to_text();
    assert!(
        text.contains("split 1 on cpu: 1 node; copies blk.0.ffn_gate.product from gpu (288 B)"),
        "{text}"
    );

    let mut single = Scheduler::new(vec![Box::new(ReferenceDevice::default())]);
    let mut alone = bind(&mut single, build().0, &source);
    for past in [0, 3] {
        let got = TINY.step(&mut scheduler, &mut plan, &ids, past, &[1, 2, 3]).unwrap();
        assert_eq!(got, TINY.step(&mut single, &mut alone, &ids, past, &[1, 2, 3]).unwrap());
    }
}

#[test]
fn k11_a_kv_cache_goes_where_all_that_touches_it_runs() {
    // The first device could store rows, but not attend to them.
    let source = TINY.source();
    let gpu = only("gpu", |q| !is(q.op, &["attention"]));
    let mut scheduler = Scheduler::new(vec![gpu, Box::new(ReferenceDevice::new("cpu"))]);
    let (graph, ids) = TINY.graph(2, 1);
    let mut plan = bind(&mut scheduler, graph, &source);
    for (id, node) in plan.plan().graph().iter() {
        if node.op.runs() && !plan.plan().is_dead(id) {
            let on_cpu = is(&node.op, &["kv_store", "attention"]);
            assert_eq!(plan.plan().device(id), DeviceId(u32::from(on_cpu)), "{}", node.label);
        }
    }
    let got = TINY.step(&mut scheduler, &mut plan, &ids, 0, &[4, 5]).unwrap();
    let mut single = Scheduler::new(vec![Box::new(ReferenceDevice::default())]);
    let mut alone = bind(&mut single, TINY.graph(2, 1).0, &source);
    assert_eq!(got, TINY.step(&mut single, &mut alone, &ids, 0, &[4, 5]).unwrap());

    // No device does both: an error, not a cache in two places.
    let store = only("a", |q| !is(q.op, &["attention"]));
    let attend = only("b", |q| !is(q.op, &["kv_store"]));
    let error =
        Scheduler::new(vec![store, attend]).plan(TINY.graph(2, 1).0, &PlanOptions::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no device runs every operation on layer 0's KV cache: a does not run it; b does not run it"
    );
    // No device does one of them: named.
    let store = only("a", |q| !is(q.op, &["attention"]));
    let error = Scheduler::new(vec![store]).plan(TINY.graph(2, 1).0, &PlanOptions::default()).unwrap_err();
    let PlanError::NoDevice { label, op, .. } = error else { panic!("{error}") };
    assert_eq!((label.as_str(), op), ("blk.0.attn", "attention"));
}

#[test]
fn a_kv_cache_that_exists_keeps_its_device_whatever_the_shape_prefers() {
    // The gpu attends to one token at a time only. Prefill puts the cache on the cpu, and decoding must
    // follow it there: a second cache on the gpu would be empty.
    let gpu = only("gpu", |q| !is(q.op, &["attention"]) || q.shape.rows() == 1);
    let mut scheduler = Scheduler::new(vec![gpu, Box::new(ReferenceDevice::new("cpu"))]);
    let source = TINY.source();
    let (graph, ids) = TINY.graph(3, 1);
    let mut prefill = bind(&mut scheduler, graph, &source);
    TINY.step(&mut scheduler, &mut prefill, &ids, 0, &[1, 2, 3]).unwrap();
    let (graph, ids) = TINY.graph(1, 1);
    let mut decode = bind(&mut scheduler, graph.clone(), &source);
    let got = TINY.step(&mut scheduler, &mut decode, &ids, 3, &[4]).unwrap();

    let mut single = Scheduler::new(vec![Box::new(ReferenceDevice::default())]);
    let (four, ids) = TINY.graph(4, 1);
    let mut plan = bind(&mut single, four, &source);
    assert_eq!(got, TINY.step(&mut single, &mut plan, &ids, 0, &[1, 2, 3, 4]).unwrap());

    // A plan made without knowing of the cache is refused when it is bound.
    let unaware =
        minfer_graph::Plan::new(graph.clone(), &scheduler.backends(), &PlanOptions::default()).unwrap();
    let error = scheduler.bind(unaware, &source, &mut |_, _| {}).unwrap_err();
    let wanted =
        "layer 0's KV cache is on cpu, where kv_store blk.0.kv.stored does not run; release it first";
    assert_eq!(error.to_string(), wanted);
    // A rule that keeps attention off the cpu, too.
    let fence = [Rule::new("fence", |node, _, d| !is(&node.op, &["attention"]) || d.0 == 0)];
    let error = scheduler.plan(graph, &PlanOptions { rules: &fence, ..PlanOptions::default() }).unwrap_err();
    let wanted = "layer 0's KV cache is on cpu, where attention blk.0.attn does not run; release it first";
    assert_eq!(error.to_string(), wanted);
}

#[test]
fn k12_a_hundred_values_cross_into_one_split() {
    let mut b = GraphBuilder::new();
    let inputs: Vec<NodeId> = (0..100).map(|i| b.input(format!("x{i}"), DType::F32, [1, 5])).collect();
    let made: Vec<NodeId> = inputs.iter().map(|&x| b.scale("s", x, 3.0)).collect();
    let y = made[1..].iter().fold(made[0], |sum, &s| b.add("sum", sum, s));
    b.output(y);
    let mut scheduler = pair(&["scale"]);
    let mut plan = bind(&mut scheduler, b.finish().unwrap(), &no_weights());
    assert_eq!(plan.plan().splits().len(), 2);
    assert_eq!(plan.plan().splits()[1].copies.len(), 100);
    let values: Vec<[f32; 5]> = (0..100).map(|i| [i as f32, 1.0, -1.0, 0.5, 2.0 * i as f32]).collect();
    let pairs: Vec<(NodeId, &[f32])> = inputs.iter().copied().zip(values.iter().map(|v| &v[..])).collect();
    for _ in 0..2 {
        let got = run(&mut scheduler, &mut plan, &pairs, y);
        assert_eq!(got, [3.0 * 4950.0, 300.0, -300.0, 150.0, 6.0 * 4950.0]);
    }
}

/// Two devices that share a log, with the operations of a decoder divided between them.
fn logged(log: &Log, fail: &Arc<Mutex<Option<usize>>>) -> Scheduler {
    let device = |name: &str, mine: Option<&'static [&'static str]>| {
        let logged = Logged { log: Arc::clone(log), fail: Arc::clone(fail) };
        Hooked::boxed(name, OnlySome { mine, logged })
    };
    Scheduler::new(vec![device("gpu", Some(&["silu", "rope", "add"])), device("cpu", None)])
}

struct OnlySome {
    mine: Option<&'static [&'static str]>,
    logged: Logged,
}

impl common::Hooks for OnlySome {
    fn supports(&self, query: &minfer_graph::OpQuery<'_>) -> bool {
        self.mine.is_none_or(|mine| is(query.op, mine))
    }
    fn run(
        &mut self,
        device: &mut ReferenceDevice,
        op: &minfer_graph::BoundOp,
        program: minfer_graph::ProgramId,
    ) -> Result<(), minfer_graph::DeviceError> {
        self.logged.run(device, op, program)
    }
}

#[test]
fn inv15_a_failed_node_is_named_no_later_one_runs_and_the_next_run_is_right() {
    let (log, fail): (Log, _) = (Log::default(), Arc::new(Mutex::new(None)));
    let mut scheduler = logged(&log, &fail);
    let source = TINY.source();
    let (graph, ids) = TINY.graph(2, 1);
    let plan =
        scheduler.plan(graph, &PlanOptions { fusion: Fusion::none(), ..PlanOptions::default() }).unwrap();
    assert!(plan.splits().len() > 10);
    let order: Vec<NodeId> = plan.splits().iter().flat_map(|s| s.nodes.clone()).collect();
    let titles: Vec<String> = (plan.splits().iter().enumerate())
        .flat_map(|(i, split)| {
            let label = |n: &NodeId| plan.graph().node(*n).label.clone();
            let (first, last) = (label(&split.nodes[0]), label(&split.nodes[split.nodes.len() - 1]));
            let title = match split.nodes.len() {
                1 => format!("split {i}, {first}"),
                _ => format!("split {i}, {first} to {last}"),
            };
            vec![title; split.nodes.len()]
        })
        .collect();
    assert!(titles.iter().any(|t| t.contains(" to ")) && titles.iter().any(|t| !t.contains(" to ")));
    let mut plan = scheduler.bind(plan, &source, &mut |_, _| {}).unwrap();
    let right = TINY.step(&mut scheduler, &mut plan, &ids, 0, &[1, 2]).unwrap();
    assert_eq!(*log.lock().unwrap(), order);

    for (n, &node) in order.iter().enumerate() {
        log.lock().unwrap().clear();
        *fail.lock().unwrap() = Some(n);
        let error = TINY.step(&mut scheduler, &mut plan, &ids, 0, &[1, 2]).unwrap_err();
        let ExecError::Node(error) = error else { panic!("{error}") };
        let graph = plan.plan().graph();
        assert_eq!((error.node, &error.label), (node, &graph.node(node).label));
        assert_eq!(error.dispatched, titles[n]);
        let device = &plan.plan().device_names()[plan.plan().device(node).index()];
        let (op, shapes) = (graph.node(node).op.name(), graph.describe_sources(node));
        assert_eq!(error.to_string(), format!("{op} {} ({shapes}) on {device}: injected", error.label));
        assert_eq!(*log.lock().unwrap(), order[..n], "a node ran after the failed one");
        // Nothing of the failed run can be read.
        let unread = scheduler.read_f32(&plan, ids.logits, &mut [0.0; 11]).unwrap_err();
        assert_eq!(unread, ExecError::OutputNotComputed { label: "logits".to_owned() });

        log.lock().unwrap().clear();
        *fail.lock().unwrap() = None;
        assert_eq!(TINY.step(&mut scheduler, &mut plan, &ids, 0, &[1, 2]).unwrap(), right);
    }
}

#[test]
fn a_weight_is_loaded_once_a_device_and_use() {
    // The tied embedding is looked up and multiplied with; both devices multiply with w.
    let mut b = GraphBuilder::new();
    let ids = b.input("ids", DType::I32, [2]);
    let e = b.weight("e", DType::F32, [3, 4]);
    let w = b.weight("w", DType::F32, [4, 4]);
    let x = b.get_rows("x", e, ids);
    b.set_layer(Some(0));
    let p = b.mat_mul("p", w, x);
    b.set_layer(Some(1));
    let q = b.mat_mul("q", w, p);
    let y = b.mat_mul("y", e, q);
    b.output(y);
    let mut weights = WeightTable::new();
    weights.insert_f32("e", &common::model::noise(1, 12));
    weights.insert_f32("w", &common::model::noise(2, 16));
    let source: Arc<dyn WeightSource> = Arc::new(weights);
    let mut scheduler =
        Scheduler::new(vec![Box::new(ReferenceDevice::new("a")), Box::new(ReferenceDevice::new("b"))]);
    let fence = [Rule::new("fence", |n, _, d| (n.layer == Some(1)) == (d.0 == 1))];
    let graph = b.finish().unwrap();
    for (again, wanted) in [(false, vec![("e", 48), ("w", 64), ("w", 64), ("e", 48)]), (true, vec![])] {
        let plan =
            scheduler.plan(graph.clone(), &PlanOptions { rules: &fence, ..PlanOptions::default() }).unwrap();
        let mut loaded = Vec::new();
        let mut plan =
            scheduler.bind(plan, &source, &mut |name, bytes| loaded.push((name.to_owned(), bytes))).unwrap();
        let loaded: Vec<(&str, usize)> = loaded.iter().map(|(n, b)| (n.as_str(), *b)).collect();
        assert_eq!(loaded, wanted, "{again}");
        scheduler.write_i32(&mut plan, ids, &[2, 0]).unwrap();
        scheduler.execute(&mut plan).unwrap();
    }
    // The name alone does not make it the same tensor.
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1, 8]);
    let w = b.weight("w", DType::F32, [2, 8]);
    let y = b.mat_mul("y", w, x);
    b.output(y);
    let plan = scheduler.plan(b.finish().unwrap(), &PlanOptions::default()).unwrap();
    let error = scheduler.bind(plan, &source, &mut |_, _| {}).unwrap_err();
    assert_eq!(error.to_string(), "tensor w is loaded as F32 [4×4], the graph wants F32 [2×8]");
}
