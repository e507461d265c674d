//! Fusion: what is rewritten, what is left alone, and that results stay the same.

mod common;

use std::sync::Arc;

use common::model::{TINY, noise};
use common::{Hooked, Log, Logged, is, only, run};
use minfer_graph::devices::ReferenceDevice;
use minfer_graph::{
    Activation, DType, DeviceId, Fusion, GraphBuilder, Op, PlanOptions, Scheduler, WeightSource, WeightTable,
};

#[test]
fn inv13_what_fusion_absorbed_is_skipped_and_has_no_memory() {
    let (log, fail): (Log, _) = (Log::default(), Arc::default());
    let run = |fusion: Fusion| {
        log.lock().unwrap().clear();
        let logged = Logged { log: Arc::clone(&log), fail: Arc::clone(&fail) };
        let mut scheduler = Scheduler::new(vec![Hooked::boxed("one", logged)]);
        let (graph, ids) = TINY.graph(3, 1);
        let plan = scheduler.plan(graph, &PlanOptions { fusion, ..PlanOptions::default() }).unwrap();
        let mut plan = scheduler.bind(plan, &TINY.source(), &mut |_, _| {}).unwrap();
        let logits = TINY.step(&mut scheduler, &mut plan, &ids, 0, &[1, 2, 3]).unwrap();
        let dead: Vec<String> = (plan.plan().graph().iter())
            .filter(|&(id, _)| plan.plan().is_dead(id))
            .map(|(id, node)| {
                assert!(!log.lock().unwrap().contains(&id), "{} ran", node.label);
                assert_eq!(plan.plan().memory().slot(plan.plan().graph(), id, DeviceId(0)), None);
                node.label.clone()
            })
            .collect();
        (logits, dead, log.lock().unwrap().len())
    };
    let (unfused, none, all_nodes) = run(Fusion::none());
    assert_eq!(none, Vec::<String>::new());
    // Per layer: two norms, three biases, two residuals, one gate; and the last norm.
    let by_rule: [(&str, &[&str]); 3] = [
        ("rms_norm_mul", &["attn_norm.normed", "ffn_norm.normed"]),
        ("mat_mul_add", &["q.product", "k.product", "v.product", "attn_out.product", "ffn_down.product"]),
        ("gated_activate", &["ffn_gate.silu"]),
    ];
    for (rule, absorbed) in by_rule {
        let others = Fusion::names().filter(|n| *n != rule);
        let only_this = others.fold(Fusion::all(), |f, other| f.without(other).unwrap());
        let (fused, dead, ran) = run(only_this);
        let mut wanted: Vec<String> =
            (0..2).flat_map(|l| absorbed.iter().map(move |a| format!("blk.{l}.{a}"))).collect();
        if rule == "rms_norm_mul" {
            wanted.push("output_norm.normed".to_owned());
        }
        assert_eq!(dead, wanted, "{rule}");
        assert_eq!(ran, all_nodes - dead.len());
        // On the reference device a fused operation is its primitives, so the same fusion gives the same
        // bits.
        assert_eq!(fused, unfused, "{rule}");
    }
    let (fused, dead, ran) = run(Fusion::all());
    assert_eq!((dead.len(), ran), (17, all_nodes - 17));
    assert_eq!(fused, unfused);
}

#[test]
fn fusion_is_gated_by_what_the_device_supports() {
    let device = only("plain", |q| !is(q.op, &["mat_mul_add", "rms_norm_mul", "silu_mul"]));
    let plan = Scheduler::new(vec![device]).plan(TINY.graph(1, 1).0, &PlanOptions::default()).unwrap();
    let (graph, dead) = (plan.graph(), |id| plan.is_dead(id));
    assert!(
        graph.iter().all(|(id, n)| !dead(id) && !is(&n.op, &["mat_mul_add", "rms_norm_mul", "silu_mul"]))
    );
}

#[test]
fn fusion_leaves_alone_what_someone_else_reads() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [2, 4]);
    let w = b.weight("w", DType::F32, [4]);
    let n = b.rms_norm("n", x, 1e-6);
    let y = b.mul("y", n, w);
    // An output is a reader.
    b.output(n);
    b.output(y);
    // So is a second operation, and so is a reshape.
    let s = b.activate("s", x, Activation::Silu);
    let g = b.mul("g", s, x);
    let r = b.reshape("r", s, [4, 2]);
    let squared = b.mul("squared", s, s);
    for id in [g, r, squared] {
        b.output(id);
    }
    let scheduler = Scheduler::new(vec![Box::new(ReferenceDevice::default())]);
    let plan = scheduler.plan(b.finish().unwrap(), &PlanOptions::default()).unwrap();
    assert!(plan.graph().iter().all(|(id, _)| !plan.is_dead(id)));
}

#[test]
fn a_residual_on_the_left_or_of_one_row_joins_the_product_only_where_it_fits() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [2, 4]);
    let w = b.weight("w", DType::F32, [4, 4]);
    let row = b.input("row", DType::F32, [4]);
    let p = b.mat_mul("p", w, x);
    let left = b.add("left", x, p);
    let p = b.mat_mul("p", w, left);
    let bias = b.add("bias", p, row);
    // Twice the same product is no addend.
    let p = b.mat_mul("p", w, bias);
    let twice = b.add("twice", p, p);
    b.output(twice);
    let mut weights = WeightTable::new();
    weights.insert_f32("w", &noise(3, 16));
    let source: Arc<dyn WeightSource> = Arc::new(weights);
    let graph = b.finish().unwrap();
    let results: Vec<Vec<f32>> = [Fusion::all(), Fusion::none()]
        .into_iter()
        .map(|fusion| {
            let mut scheduler = Scheduler::new(vec![Box::new(ReferenceDevice::default())]);
            let plan =
                scheduler.plan(graph.clone(), &PlanOptions { fusion, ..PlanOptions::default() }).unwrap();
            let fused = plan.graph().nodes().iter().filter(|n| n.op == Op::MatMulAdd).count();
            assert_eq!(fused, if fusion == Fusion::all() { 2 } else { 0 });
            let mut plan = scheduler.bind(plan, &source, &mut |_, _| {}).unwrap();
            let inputs = [(x, &noise(5, 8)[..]), (row, &[1.0, 2.0, 3.0, 4.0][..])];
            run(&mut scheduler, &mut plan, &inputs, twice)
        })
        .collect();
    assert_eq!(results[0], results[1]);
}
