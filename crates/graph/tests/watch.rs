//! Watching runs over several simulated devices: what a trace and a profile say is what happened.

mod common;

use std::sync::Arc;

use common::is;
use common::model::{Ids, TINY, noise};
use minfer_graph::devices::{ReferenceDevice, SimOptions, World};
use minfer_graph::export::Document;
use minfer_graph::watch::Profile;
use minfer_graph::{
    Backend, BoundPlan, DType, ExecError, GraphBuilder, KvTable, NodeReport, Op, OpQuery, PlanOptions,
    Scheduler, StateDecl, Statistics, Trace, Watch, WeightTable,
};

/// Two simulated devices, of which the first takes some operations only.
fn pair(first: impl Fn(&OpQuery<'_>) -> bool + Send + Sync + 'static) -> Scheduler {
    let world = World::new();
    let device = |name, options| -> Box<dyn Backend> {
        Box::new(world.device(name, Box::new(ReferenceDevice::default()), options))
    };
    let gpu = device("gpu", SimOptions::default().taking(first));
    Scheduler::new(vec![gpu, device("npu", SimOptions::default())])
}

/// A step of three tokens, with the products on one device and the rest on the other.
fn decoder() -> (Scheduler, BoundPlan, Ids) {
    let mut scheduler = pair(|q| is(q.op, &["mat_mul", "mat_mul_add"]));
    let (graph, ids) = TINY.graph(3, 1);
    let plan = scheduler.plan(graph, &PlanOptions::default()).unwrap();
    let plan = scheduler.bind(plan, &TINY.source(), &mut |_, _| {}).unwrap();
    (scheduler, plan, ids)
}

/// A run of the decoder under a watch; the logits.
fn watched(scheduler: &mut Scheduler, plan: &mut BoundPlan, ids: &Ids, watch: &mut dyn Watch) -> Vec<f32> {
    // The slots of the pages are those of `Decoder::step`, from the last page on.
    let slots: Vec<i32> = (0..3).map(|p| (TINY.slots - TINY.page) as i32 + p).collect();
    let blocks: Vec<i32> = (0..TINY.blocks() as i32).rev().collect();
    for (input, data) in [
        (ids.tokens, &[3, 1, 4][..]),
        (ids.positions, &[0, 1, 2]),
        (ids.slots, &slots),
        (ids.sequences, &[0, 0, 0]),
        (ids.table, &blocks),
        (ids.wanted, &[2]),
    ] {
        scheduler.write_i32(plan, input, data).unwrap();
    }
    scheduler.execute_watched(plan, watch).unwrap();
    let mut logits = vec![0.0; TINY.vocab];
    scheduler.read_f32(plan, ids.logits, &mut logits).unwrap();
    logits
}

#[test]
fn a_trace_has_every_node_and_copy_of_the_run_with_the_values_they_had() {
    let (mut scheduler, mut plan, ids) = decoder();
    let expected = TINY.step(&mut scheduler, &mut plan, &ids, 0, &[3, 1, 4]).unwrap();
    let mut trace = Trace::default();
    let logits = watched(&mut scheduler, &mut plan, &ids, &mut trace);
    assert_eq!(logits, expected, "watching changes no bit");

    let p = plan.plan();
    let ran: Vec<(usize, u32)> = trace.nodes.iter().map(|n| (n.split, n.node)).collect();
    let planned: Vec<(usize, u32)> =
        p.splits().iter().enumerate().flat_map(|(i, s)| s.nodes.iter().map(move |n| (i, n.0))).collect();
    assert_eq!(ran, planned);
    assert!(p.splits().len() > 10, "{} splits", p.splits().len());
    for record in &trace.nodes {
        let node = p.graph().node(minfer_graph::NodeId(record.node));
        let product = node.op.name().starts_with("mat_mul");
        assert_eq!(record.device, if product { "gpu" } else { "npu" }, "{}", record.label);
        assert_eq!((record.label.as_str(), record.op), (node.label.as_str(), node.op.name()));
        assert_eq!((record.layer, &record.shape[..]), (node.layer, node.shape.dims()));
        // What an asynchronous device has not finished would be NaN.
        let is_store = node.op == Op::KvStore;
        assert_eq!(record.statistics.map(|s| s.nan), (!is_store).then_some(0), "{}", record.label);
        assert_eq!(record.samples.is_none(), is_store);
    }

    let copied: Vec<(usize, u32, usize)> = trace.copies.iter().map(|c| (c.split, c.value, c.bytes)).collect();
    let planned: Vec<(usize, u32, usize)> = (p.splits().iter().enumerate())
        .flat_map(|(i, s)| s.copies.iter().map(move |c| (i, c.value)))
        .map(|(i, value)| (i, value.0, p.graph().node(value).bytes()))
        .collect();
    assert_eq!(copied, planned);
    assert!(trace.copies.iter().all(|c| [c.from.as_str(), &c.to] == ["gpu", "npu"] || [c.from.as_str(), &c.to] == ["npu", "gpu"]));

    let last = trace.nodes.last().unwrap();
    assert_eq!((last.node, last.statistics), (ids.logits.0, Some(Statistics::of(&logits))));
    let samples = last.samples.as_ref().unwrap();
    assert_eq!(samples.len(), 8);
    assert!(samples.iter().all(|&(i, v)| v == logits[i]) && samples[7].0 == TINY.vocab - 1);

    trace.clear();
    assert_eq!(trace, Trace::default());
}

#[test]
fn the_json_of_a_trace_is_the_documented_one() {
    let mut scheduler = pair(|q| is(q.op, &["scale"]));
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1, 3]);
    let s = b.scale("s", x, 2.0);
    let y = b.softcap("y", s, 1e30);
    b.output(y);
    let plan = scheduler.plan(b.finish().unwrap(), &PlanOptions::default()).unwrap();
    let mut plan = scheduler.bind(plan, &(Arc::new(WeightTable::new()) as _), &mut |_, _| {}).unwrap();
    let mut trace = Trace::default();
    scheduler.write_f32(&mut plan, x, &[1.0, f32::INFINITY, -3.0]).unwrap();
    scheduler.execute_watched(&mut plan, &mut trace).unwrap();
    let mut json = serde_json::to_value(&trace).unwrap();
    // Times are the host's: whole numbers, whatever they are.
    let mut timeless = |pointer: &str| {
        let time = json.pointer_mut(pointer).unwrap().take();
        assert!(time.is_u64(), "{pointer} is {time}");
    };
    for node in 0..2 {
        timeless(&format!("/nodes/{node}/submit_ns"));
        timeless(&format!("/nodes/{node}/wait_ns"));
    }
    timeless("/copies/0/time_ns");
    let first = serde_json::json!({
        "node": 1, "label": "s", "op": "scale", "layer": null, "device": "gpu", "split": 0, "submit_ns": null,
        "wait_ns": null, "dtype": "F32", "shape": [1, 3],
        "statistics": {"min": -6.0, "max": 2.0, "mean": -2.0, "rms": 20f64.sqrt(), "nan": 0, "infinite": 1},
        "samples": [[0, 2.0], [1, null], [2, -6.0]],
    });
    assert_eq!(json["nodes"][0], first);
    assert_eq!(json["nodes"].as_array().unwrap().len(), 2);
    let copies = serde_json::json!([{
        "value": 1, "label": "s", "split": 1, "from": "gpu", "to": "npu", "bytes": 12, "time_ns": null,
    }]);
    assert_eq!(json["copies"], copies);
}

#[test]
fn a_profile_counts_what_the_census_says_for_each_run() {
    let (mut scheduler, mut plan, ids) = decoder();
    let mut profile = Profile::default();
    for runs in 1..4u64 {
        watched(&mut scheduler, &mut plan, &ids, &mut profile);
        profile.end_run();
        let document = Document::of_plan(plan.plan());
        let mut expected: Vec<(&str, &str, u64)> = Vec::new();
        for row in document.census() {
            for (device, nodes) in document.devices.iter().zip(row.nodes) {
                if nodes > 0 {
                    expected.push((row.op, &device.name, nodes as u64 * runs));
                }
            }
        }
        let found: Vec<(&str, &str, u64)> =
            profile.operations.iter().map(|o| (o.op, o.device.as_str(), o.launches)).collect();
        assert_eq!(found, expected);
        let copies: u64 = profile.copies.iter().map(|c| c.copies).sum();
        let bytes: u64 = profile.copies.iter().map(|c| c.bytes).sum();
        let totals = document.totals;
        assert_eq!((copies, bytes), (totals.copies as u64 * runs, totals.copy_bytes as u64 * runs));
        assert_eq!((profile.runs, profile.copies.len()), (runs, 2));
    }
    let text = profile.to_text();
    assert!(text.starts_with("operations of 3 runs,") && text.contains("copy"), "{text}");
    let json = serde_json::to_value(&profile).unwrap();
    assert_eq!((&json["runs"], &json["operations"][0]["op"]), (&3.into(), &"get_rows".into()));
}

/// Refuses every value, and fails if it gets one.
struct Blind(usize);

impl Watch for Blind {
    fn wants(&mut self, _plan: &minfer_graph::Plan, _node: minfer_graph::NodeId) -> bool {
        false
    }
    fn ran(&mut self, report: &NodeReport<'_>) {
        assert!(report.value.is_none() && report.f32s().is_none());
        self.0 += 1;
    }
}

#[test]
fn a_value_that_is_not_wanted_is_not_read() {
    let (mut scheduler, mut plan, ids) = decoder();
    let mut blind = Blind(0);
    watched(&mut scheduler, &mut plan, &ids, &mut blind);
    assert_eq!(blind.0, Document::of_plan(plan.plan()).totals.running);
}

#[test]
fn the_rows_of_a_kv_cache_are_those_that_were_stored() {
    for dtype in [DType::F32, DType::F16] {
        let decl = StateDecl { layer: 5, dtype, slots: 16, page: 4, kv_heads: 2, head_dim: 3 };
        let mut b = GraphBuilder::new();
        let k = b.input("k", DType::F32, [2, 2, 3]);
        let v = b.input("v", DType::F32, [2, 2, 3]);
        let slots = b.input("slots", DType::I32, [2]);
        let state = b.state("kv", decl);
        b.kv_store("stored", state, k, v, slots);
        let y = b.scale("y", k, 2.0);
        b.output(y);
        let mut scheduler = pair(|_| true);
        let mut one = [0.0; 6];
        let none = scheduler.read_kv(5, KvTable::K, 0, &mut one).unwrap_err().to_string();
        assert_eq!(none, "layer 5's KV cache takes one that a plan has made, given none");
        let plan = scheduler.plan(b.finish().unwrap(), &PlanOptions::default()).unwrap();
        let source = Arc::new(WeightTable::new()) as _;
        let mut plan = scheduler.bind(plan, &source, &mut |_, _| {}).unwrap();
        let (keys, values) = (noise(1, 12), noise(2, 12));
        scheduler.write_f32(&mut plan, k, &keys).unwrap();
        scheduler.write_f32(&mut plan, v, &values).unwrap();
        scheduler.write_i32(&mut plan, slots, &[15, 14]).unwrap();
        scheduler.execute(&mut plan).unwrap();

        let rounded = |v: &f32| if dtype == DType::F16 { half::f16::from_f32(*v).to_f32() } else { *v };
        for (table, stored) in [(KvTable::K, &keys), (KvTable::V, &values)] {
            // The second token's row comes first.
            let expected: Vec<f32> = stored[6..].iter().chain(&stored[..6]).map(rounded).collect();
            let mut rows = [0.0; 12];
            scheduler.read_kv(5, table, 14, &mut rows).unwrap();
            assert_eq!(rows[..], expected);
            scheduler.read_kv(5, table, 15, &mut one).unwrap();
            assert_eq!(one[..], expected[6..]);
        }
        let mut refuse = |layer, first, len: usize| {
            let error = scheduler.read_kv(layer, KvTable::V, first, &mut vec![0.0; len]).unwrap_err();
            assert!(matches!(error, ExecError::WrongData { .. }), "{error}");
            error.to_string()
        };
        assert!(refuse(4, 0, 6).starts_with("layer 4's KV cache"));
        refuse(5, 15, 12);
        refuse(5, usize::MAX, 6);
        let wanted =
            "layer 5's KV cache takes whole rows of 6 within 16 slots, given room for 7 × F32 from slot 0 on";
        assert_eq!(refuse(5, 0, 7), wanted);
    }
}
