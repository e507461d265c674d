//! What users ask of placement, the reasons that are given, and the memory budget.

mod common;

use std::sync::Arc;

use common::is;
use common::model::TINY;
use minfer_graph::devices::{ReferenceDevice, SimControl, SimOptions, World};
use minfer_graph::{
    Backend, DType, DeviceId, GraphBuilder, OpQuery, Plan, PlanError, PlanOptions, Rule, Scheduler, Stage,
    Unit, WeightSource,
};

/// A simulated GPU that takes some operations, before a CPU that takes all.
fn pair(
    memory: Option<u64>,
    takes: impl Fn(&OpQuery<'_>) -> bool + Send + Sync + 'static,
) -> (Scheduler, SimControl) {
    let options = SimOptions { memory, ..SimOptions::default() }.taking(takes);
    let gpu = World::new().device("gpu", Box::new(ReferenceDevice::default()), options);
    let control = gpu.control();
    let devices: Vec<Box<dyn Backend>> = vec![Box::new(gpu), Box::new(ReferenceDevice::new("cpu"))];
    (Scheduler::new(devices), control)
}

/// The device of a node with its reason.
fn placed(plan: &Plan, label: &str) -> (u32, String) {
    let (id, _) = plan.graph().iter().find(|(_, n)| n.label == label).expect("the graph has the node");
    (plan.device(id).0, plan.describe_why(id))
}

#[test]
fn each_node_says_why_it_is_where_it_is() {
    let (scheduler, _) = pair(None, |q| !is(q.op, &["silu", "silu_mul", "get_rows"]));
    let rules = [
        Rule::new("--gpu-layers 2", |_, stage, d| d.0 == 1 || stage >= Stage::Layer(1)),
        Rule::new("--place ffn_down=cpu", |n, _, d| d.0 == 1 || !n.label.contains("ffn_down")),
    ];
    let options = PlanOptions { rules: &rules, ..PlanOptions::default() };
    let plan = scheduler.plan(TINY.graph(1, 1).0, &options).unwrap();
    for (label, device, why) in [
        ("embedded", 1, "--gpu-layers 2 keeps it off gpu"),
        ("blk.0.attn_norm.out", 1, "--gpu-layers 2 keeps it off gpu"),
        ("blk.0.attn", 1, "its layer's KV cache is there"),
        ("blk.1.attn_norm.out", 0, "first device"),
        ("blk.1.attn", 0, "its layer's KV cache is there"),
        ("blk.1.ffn_down.product", 1, "--place ffn_down=cpu keeps it off gpu"),
        ("logits", 0, "first device"),
    ] {
        assert_eq!(placed(&plan, label), (device, why.to_owned()), "{label}");
    }
    let act = plan.graph().iter().find(|(_, n)| n.op.name() == "silu" && n.layer == Some(1)).unwrap();
    assert_eq!(plan.describe_why(act.0), "gpu does not run it");
    let reshaped = plan.graph().iter().find(|(_, n)| n.op.name() == "reshape" && n.layer == Some(1)).unwrap();
    assert_eq!(plan.describe_why(reshaped.0), "its source is there");
}

#[test]
fn a_layer_or_the_model_goes_to_one_device_or_another_as_a_whole() {
    // The gpu lacks one operation, of every layer.
    let (scheduler, _) = pair(None, |q| !is(q.op, &["silu"]));
    let plan = |unit| scheduler.plan(TINY.graph(1, 1).0, &PlanOptions { unit, ..PlanOptions::default() });
    let devices = |plan: &Plan| -> Vec<u32> { plan.splits().iter().map(|s| s.device.0).collect() };
    let by_layer = plan(Unit::Layer).unwrap();
    // The embedding and the output, which have no such operation, are on the gpu.
    assert_eq!(devices(&by_layer), [0, 1, 0]);
    let (id, _) = by_layer.graph().iter().find(|(_, n)| n.label == "blk.0.attn_norm.out").unwrap();
    let why = by_layer.describe_why(id);
    assert!(why.starts_with("gpu does not take all of layer 0, such as "), "{why}");
    assert_eq!(devices(&plan(Unit::Model).unwrap()), [1]);
    assert_eq!(devices(&plan(Unit::Node).unwrap()), [0, 1, 0, 1, 0]);

    // Where no device takes all of a piece, that is an error that says what each one lacks.
    let (scheduler, _) = pair(None, |q| !is(q.op, &["silu"]));
    let rules = [Rule::new("--place norm=gpu", |n, _, d| d.0 == 0 || !n.label.contains("norm"))];
    let options = PlanOptions { rules: &rules, unit: Unit::Layer, ..PlanOptions::default() };
    let error = scheduler.plan(TINY.graph(1, 1).0, &options).unwrap_err().to_string();
    assert!(error.starts_with("no device takes all of layer 0: gpu does not take all of layer 0"), "{error}");
    assert!(error.contains("; cpu does not take all of layer 0, such as blk.0."), "{error}");
}

#[test]
fn a_node_that_no_device_takes_is_named_with_what_it_reads_and_what_each_device_says() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [2, 4]);
    let y = b.add("y", x, x);
    b.output(y);
    let (scheduler, _) = pair(None, |q| !is(q.op, &["add"]));
    let rules = [Rule::new("--place y=gpu", |n, _, d| d.0 == 0 || n.label != "y")];
    let options = PlanOptions { rules: &rules, ..PlanOptions::default() };
    assert_eq!(format!("{:?}", rules[0]), "Rule(\"--place y=gpu\")");
    let error = scheduler.plan(b.finish().unwrap(), &options).unwrap_err();
    let wanted =
        "no device runs add y (F32 [2×4], F32 [2×4]): gpu does not run it; --place y=gpu keeps it off cpu";
    assert_eq!(error.to_string(), wanted);
}

#[test]
fn stages_are_before_in_and_after_the_layers() {
    let (scheduler, _) = pair(None, |_| true);
    let rules = [Rule::new("output", |_, stage, d| (d.0 == 0) == (stage == Stage::Output))];
    let options = PlanOptions { rules: &rules, ..PlanOptions::default() };
    let plan = scheduler.plan(TINY.graph(2, 1).0, &options).unwrap();
    let on_gpu: Vec<&str> = plan
        .splits()
        .iter()
        .filter(|s| s.device == DeviceId(0))
        .flat_map(|s| s.nodes.iter().map(|&n| plan.graph().node(n).label.as_str()))
        .collect();
    assert_eq!(on_gpu.last(), Some(&"logits"));
    assert!(on_gpu.iter().all(|l| !l.starts_with("blk.") && *l != "embedded"), "{on_gpu:?}");
    assert_eq!(plan.splits().len(), 2);
}

#[test]
fn inv34_memory_is_budgeted_before_it_is_taken_and_not_knowing_is_not_having_none() {
    let source: Arc<dyn WeightSource> = TINY.source();
    let bind = |scheduler: &mut Scheduler| {
        let plan = scheduler.plan(TINY.graph(2, 1).0, &PlanOptions::default()).unwrap();
        scheduler.bind(plan, &source, &mut |_, _| {})
    };
    let (mut roomy, control) = pair(None, |_| true);
    bind(&mut roomy).unwrap();
    let taken = control.counts();
    assert!(taken.allocations > 10);

    // A device that is too small is asked for nothing.
    let (mut small, control) = pair(Some(5000), |_| true);
    let error = bind(&mut small).unwrap_err();
    let PlanError::OverBudget { ref device, free, weights, states, activations } = error else {
        panic!("{error}")
    };
    assert_eq!((device.as_str(), free), ("gpu", 5000));
    // All but the working memory of the kernels, which only they know: a few rows.
    let wanted = weights + states + activations;
    assert!(wanted <= taken.bytes && taken.bytes - wanted < 512, "{wanted} of {}", taken.bytes);
    assert_eq!(control.counts().allocations, 0);
    let message = error.to_string();
    assert!(
        message.contains(&format!("5000 bytes free and would need {wanted} (weights {weights}, ")),
        "{message}"
    );

    // The budget is exact: with a byte more or less it is the device that refuses its working memory, or the budget.
    let (mut scheduler, _) = pair(Some(wanted), |_| true);
    let error = bind(&mut scheduler).unwrap_err();
    assert!(
        matches!(error, PlanError::Device { .. }) && error.to_string().contains("working memory"),
        "{error}"
    );
    let (mut scheduler, _) = pair(Some(wanted - 1), |_| true);
    assert!(matches!(bind(&mut scheduler).unwrap_err(), PlanError::OverBudget { .. }));

    // Where the query fails, the device is asked, and says itself that there is not enough.
    let (mut blind, control) = pair(Some(5000), |_| true);
    control.set_memory_unknown(true);
    let error = bind(&mut blind).unwrap_err();
    assert!(
        matches!(error, PlanError::Device { .. }) && error.to_string().contains("out of memory"),
        "{error}"
    );
    assert!(control.counts().allocations > 0);
    let (mut blind, control) = pair(Some(taken.bytes), |_| true);
    control.set_memory_unknown(true);
    bind(&mut blind).unwrap();
    assert_eq!(control.counts().bytes, taken.bytes);

    // A longer step wants longer buffers, each of which is there before the one that it replaces goes.
    let (mut full, _) = pair(Some(taken.bytes), |_| true);
    bind(&mut full).unwrap();
    let slots = |n| {
        let plan = roomy.plan(TINY.graph(n, 1).0, &PlanOptions::default()).unwrap();
        plan.memory().slots[0].clone()
    };
    let (short, long) = (slots(2), slots(30));
    let (mut now, mut most): (usize, usize) = (short.iter().sum(), 0);
    for (i, bytes) in long.iter().enumerate().filter(|&(i, bytes)| short.get(i).is_none_or(|s| s < bytes)) {
        most = most.max(now + bytes);
        now = now + bytes - short.get(i).unwrap_or(&0);
    }
    let grown = most - short.iter().sum::<usize>();
    assert!(grown > 0 && grown < long.iter().sum());
    let plan = full.plan(TINY.graph(30, 1).0, &PlanOptions::default()).unwrap();
    let error = full.bind(plan, &source, &mut |_, _| {}).unwrap_err();
    let PlanError::OverBudget { free: 0, weights: 0, states: 0, activations, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(activations, grown as u64);

    // What is there already is not counted again.
    let (mut exact, control) = pair(Some(taken.bytes), |_| true);
    bind(&mut exact).unwrap();
    assert_eq!(control.counts().bytes, taken.bytes);
    bind(&mut exact).unwrap();
    assert_eq!(control.counts().bytes, taken.bytes);
}
