//! Plans are reused, and what changes topology is in the key.

mod common;

use std::sync::Arc;

use common::model::{Decoder, TINY};
use minfer_graph::devices::ReferenceDevice;
use minfer_graph::{
    DType, ExecError, Fusion, PlanCache, PlanError, PlanOptions, Rule, Scheduler, WeightSource,
};

fn scheduler() -> Scheduler {
    Scheduler::new(vec![Box::new(ReferenceDevice::default())])
}

/// The logits of each step of a token stream, over a fresh scheduler, with a plan per step or one for all.
fn decode(model: &Decoder, tokens: &[i32], rebuild: bool) -> Vec<Vec<f32>> {
    let (mut scheduler, source) = (scheduler(), model.source());
    let make = |scheduler: &mut Scheduler| {
        let (graph, ids) = model.graph(1, 1);
        let plan = scheduler.plan(graph, &PlanOptions::default()).unwrap();
        (scheduler.bind(plan, &source, &mut |_, _| {}).unwrap(), ids)
    };
    let (mut plan, mut ids) = make(&mut scheduler);
    let mut out = Vec::new();
    for (past, &token) in tokens.iter().enumerate() {
        if rebuild {
            scheduler.unbind(plan);
            (plan, ids) = make(&mut scheduler);
        }
        out.push(model.step(&mut scheduler, &mut plan, &ids, past, &[token]).unwrap());
    }
    out
}

#[test]
fn inv04_one_graph_for_a_thousand_steps_equals_a_graph_a_step() {
    let model = Decoder { layers: 1, slots: 1000, page: 10, ..TINY };
    let tokens: Vec<i32> = (0..1000).map(|i| i * i % 11).collect();
    let (reused, rebuilt) = (decode(&model, &tokens, false), decode(&model, &tokens, true));
    assert_eq!(reused, rebuilt);
    assert!(reused.iter().flatten().all(|x| x.is_finite()));
    // The past is data that matters: the same token gives other logits at another position.
    let twice = (0..1000).find(|&i| i > 0 && tokens[i] == tokens[0]).unwrap();
    assert_ne!(reused[0], reused[twice]);
    // The graph of a step depends on nothing but its parameters.
    assert_eq!(model.graph(1, 1), model.graph(1, 1));
    assert_ne!(model.graph(2, 1).0, model.graph(1, 1).0);
}

/// The parts of a key that an engine would have.
#[derive(Clone, PartialEq, Debug)]
struct Key {
    model: Decoder,
    tokens: usize,
    outputs: usize,
    fusion: Fusion,
    fenced_off: Option<u32>,
}

fn get(cache: &mut PlanCache<Key, ()>, scheduler: &mut Scheduler, key: &Key) -> Result<(), PlanError> {
    let source = key.model.source();
    cache
        .get(scheduler, &source, key.clone(), |scheduler| {
            let fence = [Rule::new("fence", |_, _, d| Some(d.0) != key.fenced_off)];
            let options = PlanOptions { fusion: key.fusion, rules: &fence, ..PlanOptions::default() };
            Ok((scheduler.plan(key.model.graph(key.tokens, key.outputs).0, &options)?, ()))
        })
        .map(|_| ())
}

#[test]
fn inv14_whatever_changes_topology_makes_a_new_plan() {
    let two =
        || Scheduler::new(vec![Box::new(ReferenceDevice::new("a")), Box::new(ReferenceDevice::new("b"))]);
    let first = Key { model: TINY, tokens: 4, outputs: 4, fusion: Fusion::all(), fenced_off: None };
    let changes: [(&str, Key); 7] = [
        ("tokens", Key { tokens: 5, ..first.clone() }),
        ("outputs", Key { outputs: 1, ..first.clone() }),
        ("layers", Key { model: Decoder { layers: 1, ..TINY }, ..first.clone() }),
        ("KV type", Key { model: Decoder { kv: DType::F16, ..TINY }, ..first.clone() }),
        ("fusion", Key { fusion: Fusion::none(), ..first.clone() }),
        ("one rule", Key { fusion: Fusion::all().without("mat_mul_add").unwrap(), ..first.clone() }),
        ("device", Key { fenced_off: Some(0), ..first.clone() }),
    ];
    for (what, changed) in changes {
        let (mut scheduler, mut cache) = (two(), PlanCache::new(4));
        get(&mut cache, &mut scheduler, &first).unwrap();
        get(&mut cache, &mut scheduler, &first).unwrap();
        assert_eq!(cache.builds(), 1, "{what}: the same key was built twice");
        if matches!(what, "KV type" | "device") {
            // The cache that exists is not silently another one's; the caller has to let go of it.
            let refused = get(&mut cache, &mut scheduler, &changed);
            assert!(
                matches!(refused, Err(PlanError::StateMismatch { .. } | PlanError::StateElsewhere { .. })),
                "{what}: {refused:?}"
            );
            scheduler.release_states();
        }
        let before = cache.builds();
        get(&mut cache, &mut scheduler, &changed).unwrap();
        assert_eq!(cache.builds(), before + 1, "{what} did not lead to a new plan");
    }
}

#[test]
fn the_least_recently_used_plan_goes_first() {
    let (mut scheduler, mut cache) = (scheduler(), PlanCache::new(2));
    let key = |tokens| Key { model: TINY, tokens, outputs: 1, fusion: Fusion::all(), fenced_off: None };
    for (tokens, builds) in [(1, 1), (2, 2), (1, 2), (3, 3), (1, 3), (2, 4), (1, 4), (3, 5)] {
        get(&mut cache, &mut scheduler, &key(tokens)).unwrap();
        assert_eq!(cache.builds(), builds, "at {tokens} tokens");
    }
}

#[test]
fn k09_alternating_prefill_and_decode_graphs_keep_their_own_plans() {
    // 7 tokens, one, then 9: each shape twice, over one cache of plans, as in a server that serves two kinds
    // of steps.
    let steps: [&[i32]; 6] = [
        &[1, 2, 3, 4, 5, 6, 7],
        &[8],
        &[9, 10, 0, 1, 2, 3, 4, 5, 6],
        &[3; 7],
        &[2],
        &[10, 9, 8, 7, 6, 5, 4, 3, 2],
    ];
    let (mut scheduler, source) = (scheduler(), TINY.source());
    let mut cache = PlanCache::new(3);
    let (mut past, mut logits) = (0, Vec::new());
    for tokens in steps {
        let make = |s: &Scheduler| {
            let (graph, ids) = TINY.graph(tokens.len(), 1);
            Ok::<_, PlanError>((s.plan(graph, &PlanOptions::default())?, ids))
        };
        let entry = cache.get(&mut scheduler, &source, tokens.len(), make).unwrap();
        let ids = entry.data;
        logits.push(TINY.step(&mut scheduler, &mut entry.plan, &ids, past, tokens).unwrap());
        past += tokens.len();
    }
    assert_eq!(cache.builds(), 3);

    // What a fresh scheduler with a plan for each token gives.
    let all: Vec<i32> = steps.concat();
    let one_by_one = decode(&TINY, &all, true);
    let mut end = 0;
    for (step, got) in steps.iter().zip(&logits) {
        end += step.len();
        assert_eq!(got, &one_by_one[end - 1], "after {end} tokens");
    }
}

#[test]
fn inv06_another_cache_size_is_refused_until_the_old_cache_is_released() {
    let (mut scheduler, source) = (scheduler(), TINY.source());
    let bind = |scheduler: &mut Scheduler, slots: usize| {
        let (graph, ids) = Decoder { slots, ..TINY }.graph(2, 1);
        let plan = scheduler.plan(graph, &PlanOptions::default())?;
        Ok::<_, PlanError>((scheduler.bind(plan, &source, &mut |_, _| {})?, ids))
    };
    let (mut plan, ids) = bind(&mut scheduler, 64).unwrap();
    let before = TINY.step(&mut scheduler, &mut plan, &ids, 0, &[1, 2]).unwrap();
    for other in [128, 32] {
        let error = bind(&mut scheduler, other).unwrap_err();
        let wanted = format!(
            "layer 0's KV cache is 64 slots in pages of 4, 2 heads of 4, F32, the graph wants {other} slots in pages of 4, 2 heads of 4, F32; release it first"
        );
        assert_eq!(error.to_string(), wanted);
        // The refusal left the live cache alone.
        assert_eq!(TINY.step(&mut scheduler, &mut plan, &ids, 0, &[1, 2]).unwrap(), before);
    }
    for slots in [128, 32] {
        scheduler.release_states();
        let stale = TINY.step(&mut scheduler, &mut plan, &ids, 0, &[1, 2]);
        assert_eq!(stale.unwrap_err(), ExecError::Stale);
        let model = Decoder { slots, ..TINY };
        let (mut plan, ids) = bind(&mut scheduler, slots).unwrap();
        assert_eq!(model.step(&mut scheduler, &mut plan, &ids, 0, &[1, 2]).unwrap(), before);
        // The size asked for is the size there is: the last slot works, the one after it does not.
        let last = slots - 2;
        assert!(model.step(&mut scheduler, &mut plan, &ids, last, &[1, 2]).is_ok());
        scheduler.write_i32(&mut plan, ids.slots, &[0, slots as i32]).unwrap();
        for (input, values) in [
            (ids.tokens, vec![1, 2]),
            (ids.positions, vec![0, 1]),
            (ids.sequences, vec![0, 0]),
            (ids.wanted, vec![1]),
        ] {
            scheduler.write_i32(&mut plan, input, &values).unwrap();
        }
        scheduler.write_i32(&mut plan, ids.table, &vec![0; slots / 4]).unwrap();
        let error = scheduler.execute(&mut plan).unwrap_err().to_string();
        assert!(
            error.contains(&format!("slot {slots} (token 1) is outside a KV cache of {slots} slots")),
            "{error}"
        );
    }
}

#[test]
fn inv16_a_missing_tensor_refuses_the_plan_whichever_it_is() {
    let names: Vec<String> = TINY.graph(1, 1).0.weights().iter().map(|w| w.name.clone()).collect();
    assert_eq!(names.len(), 2 + 2 * 12);
    for fusion in [Fusion::all(), Fusion::none()] {
        for name in &names {
            let (mut scheduler, mut weights) = (scheduler(), TINY.weights());
            weights.remove(name);
            let source: Arc<dyn WeightSource> = Arc::new(weights);
            let options = PlanOptions { fusion, ..PlanOptions::default() };
            let plan = scheduler.plan(TINY.graph(1, 1).0, &options).unwrap();
            let error = scheduler.bind(plan, &source, &mut |_, _| {}).unwrap_err();
            assert_eq!(error, PlanError::MissingWeight { name: name.clone() });
        }
    }
    // One of another size, too.
    let mut weights = TINY.weights();
    weights.insert_f32("output_norm", &[1.0; 15]);
    let source: Arc<dyn WeightSource> = Arc::new(weights);
    let mut scheduler = scheduler();
    let plan = scheduler.plan(TINY.graph(1, 1).0, &PlanOptions::default()).unwrap();
    let error = scheduler.bind(plan, &source, &mut |_, _| {}).unwrap_err();
    assert_eq!(error.to_string(), "tensor output_norm has 60 bytes, its type and shape need 64");
}
