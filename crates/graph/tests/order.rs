//! KV stores come before the attention that reads them, in every order that the graph allows.

mod common;

use common::model::{Ids, TINY, noise};
use minfer_graph::devices::ReferenceDevice;
use minfer_graph::{Attention, DType, Graph, GraphBuilder, NodeId, Op, PlanOptions, Scheduler};

#[test]
fn inv05_a_store_that_the_order_allows_anywhere_still_comes_before_its_attention() {
    // Appends the nodes of a decoder in many other legal orders; the store is a source of the attention in
    // all of them, and the result is the same to the bit. Caches start as NaN, so a store that came late
    // would show.
    let (graph, ids) = TINY.graph(3, 1);
    let reference = shuffled_run(&graph, &ids, None).unwrap();
    assert!(reference.iter().all(|x| x.is_finite()));
    for seed in 1..60 {
        assert_eq!(shuffled_run(&graph, &ids, Some(seed)).unwrap(), reference, "seed {seed}");
    }
}

#[test]
fn inv05_an_attention_that_does_not_read_the_stored_cache_is_refused() {
    // Without the dependency, the order of store and attention would be whatever the builder's caller did.
    let mut b = GraphBuilder::new();
    let state = b.state("kv", TINY.state(0));
    let q = b.input("q", DType::F32, [1, 4, 4]);
    let k = b.input("k", DType::F32, [1, 2, 4]);
    let i = b.input("i", DType::I32, [1]);
    let table = b.input("table", DType::I32, [1, 16]);
    b.kv_store("stored", state, k, k, i);
    let attention = Attention { scale: 1.0, window: None, softcap: None };
    let y = b.attention("y", q, state, i, i, table, attention);
    b.output(y);
    let error = b.finish().unwrap_err().to_string();
    assert_eq!(
        error,
        "the graph has 1 problem; node 6 y (attention): reads kv as it was before stored wrote to it"
    );
}

/// Runs the decoder with its nodes appended in a random legal order.
fn shuffled_run(graph: &Graph, ids: &Ids, seed: Option<u64>) -> Option<Vec<f32>> {
    let mut order: Vec<NodeId> = Vec::new();
    let mut random = noise(seed.unwrap_or(0), 4000).into_iter();
    let mut waiting: Vec<NodeId> = graph.iter().map(|(id, _)| id).collect();
    while !waiting.is_empty() {
        let ready: Vec<usize> = (0..waiting.len())
            .filter(|&i| graph.node(waiting[i]).sources.iter().all(|s| order.contains(s)))
            .collect();
        let pick = match seed {
            Some(_) => ((random.next()? + 1.0) / 2.0 * ready.len() as f32) as usize % ready.len(),
            None => 0,
        };
        order.push(waiting.remove(ready[pick]));
    }
    let mut b = GraphBuilder::new();
    let mut new: Vec<Option<NodeId>> = vec![None; graph.nodes().len()];
    for id in order {
        let node = graph.node(id);
        let sources: Vec<NodeId> = node.sources.iter().map(|s| new[s.0 as usize].unwrap()).collect();
        let label = node.label.clone();
        new[id.0 as usize] = Some(match &node.op {
            Op::Input => b.input(label, node.dtype, node.shape),
            Op::Weight(w) => b.weight(graph.weight(*w).name.clone(), node.dtype, node.shape),
            Op::State(s) => b.state(label, *graph.state(*s)),
            Op::Reshape => b.reshape(label, sources[0], node.shape),
            op => b.append(label, op.clone(), &sources),
        });
    }
    let of = |id: NodeId| new[id.0 as usize].unwrap();
    b.output(of(ids.logits));
    let ids = Ids {
        tokens: of(ids.tokens),
        positions: of(ids.positions),
        slots: of(ids.slots),
        sequences: of(ids.sequences),
        table: of(ids.table),
        wanted: of(ids.wanted),
        logits: of(ids.logits),
    };
    let shuffled = b.finish().unwrap();
    let position = |op: &str| shuffled.nodes().iter().position(|n| n.op.name() == op);
    assert!(position("kv_store") < position("attention"));
    let mut scheduler = Scheduler::new(vec![Box::new(ReferenceDevice::default())]);
    let plan = scheduler.plan(shuffled, &PlanOptions::default()).unwrap();
    let mut plan = scheduler.bind(plan, &TINY.source(), &mut |_, _| {}).unwrap();
    Some(TINY.step(&mut scheduler, &mut plan, &ids, 0, &[5, 6, 7]).unwrap())
}
