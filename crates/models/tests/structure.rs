//! What the graphs look like.

mod common;

use common::tiny::{NAMES, Tiny};
use minfer_gguf::TensorType;
use minfer_graph::devices::ReferenceDevice;
use minfer_graph::{Graph, Node, Op, PlanOptions, RopePairs, Scheduler};
use minfer_models::{BatchShape, KvConfig, KvShape, Model, Ports};

const KV: KvConfig = KvConfig { dtype: TensorType::F16, slots: 64, page: 16, blocks: 4 };

fn model(name: &str) -> Model {
    Model::from_gguf(&Tiny::open(name).gguf()).unwrap()
}

fn graph(model: &Model, tokens: usize, outputs: usize) -> (Graph, Ports) {
    model.graph(&BatchShape { tokens, outputs, sequences: 3 }, &KV).unwrap()
}

fn labelled<'g>(graph: &'g Graph, label: &str) -> &'g Node {
    graph.nodes().iter().find(|n| n.label == label).unwrap_or_else(|| panic!("no node {label}"))
}

/// Positions, cache rows and pages are inputs: nothing that changes from step to step is part of the
/// structure, so one graph serves every step of its shape.
#[test]
fn inv04_structure_depends_on_the_batch_shape_only() {
    for name in NAMES {
        let model = model(name);
        let (graph, ports) = graph(&model, 4, 2);
        let (again, ports_again) = self::graph(&self::model(name), 4, 2);
        assert_eq!(graph, again, "{name}");
        assert_eq!(ports, ports_again);
        assert!(graph.is_acyclic());

        let inputs = [
            (ports.tokens, "tokens", vec![4]),
            (ports.positions, "positions", vec![4]),
            (ports.sequences, "sequences", vec![4]),
            (ports.slots, "slots", vec![4]),
            (ports.block_table, "block_table", vec![3, 4]),
            (ports.output_rows, "output_rows", vec![2]),
        ];
        assert_eq!(graph.inputs().count(), inputs.len());
        for (id, label, dims) in inputs {
            let node = graph.node(id);
            assert_eq!((&node.op, node.dtype, &*node.label), (&Op::Input, TensorType::I32, label));
            assert_eq!(node.shape.dims(), dims);
        }
        // Negative control: another shape gives another graph.
        assert_ne!(graph, self::graph(&model, 5, 2).0);
        assert_ne!(graph, self::graph(&model, 4, 1).0);
    }
}

#[test]
fn only_wanted_rows_pass_the_last_feed_forward_and_the_output() {
    for name in NAMES {
        let model = model(name);
        let info = model.info();
        let (graph, ports) = graph(&model, 9, 2);
        assert_eq!(graph.outputs(), [ports.logits]);
        assert_eq!(graph.node(ports.logits).shape.dims(), [2, info.vocab_size]);
        assert_eq!(labelled(&graph, "output").shape.dims(), [2, info.vocab_size]);
        for (layer, rows) in [(0, 9), (info.n_layer - 1, 2)] {
            let matrices = ["attn_output", "ffn_gate", "ffn_up", "ffn_down"];
            for matrix in matrices {
                assert_eq!(labelled(&graph, &format!("blk.{layer}.{matrix}")).shape.rows(), rows, "{name}");
            }
            assert_eq!(labelled(&graph, &format!("blk.{layer}.attn_k")).shape.rows(), 9, "{name}");
        }
    }
}

#[test]
fn nodes_belong_to_their_layers() {
    for name in NAMES {
        let model = model(name);
        let (graph, _) = graph(&model, 2, 1);
        for node in graph.nodes() {
            let layer = node.label.strip_prefix("blk.").map(|rest| rest.split('.').next().unwrap());
            let expected = layer.map(|l| l.parse::<u32>().unwrap());
            if !matches!(node.op, Op::Weight(_)) || expected.is_some() {
                assert_eq!(node.layer, expected, "{name}, {}", node.label);
            }
        }
        assert_eq!(graph.states().len(), model.info().n_layer);
        for (i, (state, kv)) in graph.states().iter().zip(model.kv_layers()).enumerate() {
            assert_eq!((state.layer, state.dtype), (i as u32, KV.dtype));
            assert_eq!((state.slots, state.page), (KV.slots, KV.page));
            assert_eq!(KvShape { kv_heads: state.kv_heads, head_dim: state.head_dim }, kv);
        }
    }
}

/// The graphs are written so that every fusion applies: what is left to run, by operation, in a layer that is
/// not the last.
#[test]
fn layers_fuse_to_few_operations() {
    let common = [("attention", 1), ("kv_store", 1), ("rope", 2)];
    for (name, expected) in [
        ("tiny-llama", &[("mat_mul", 5), ("mat_mul_add", 2), ("rms_norm_mul", 2), ("silu_mul", 1)][..]),
        ("tiny-qwen2", &[("mat_mul", 2), ("mat_mul_add", 5), ("rms_norm_mul", 2), ("silu_mul", 1)]),
        ("tiny-qwen3", &[("mat_mul", 5), ("mat_mul_add", 2), ("rms_norm_mul", 4), ("silu_mul", 1)]),
        ("tiny-gemma3", &[("mat_mul", 7), ("add", 2), ("rms_norm_mul", 6), ("gelu_mul", 1)]),
    ] {
        let (graph, _) = graph(&model(name), 2, 2);
        let scheduler = Scheduler::new(vec![Box::new(ReferenceDevice::default())]);
        let plan = scheduler.plan(graph, &PlanOptions::default()).unwrap();
        let mut counts = std::collections::BTreeMap::new();
        for (id, node) in plan.graph().iter() {
            if node.layer == Some(0) && node.op.runs() && !plan.is_dead(id) {
                *counts.entry(node.op.name()).or_insert(0) += 1;
            }
        }
        let expected: std::collections::BTreeMap<_, _> = common.iter().chain(expected).copied().collect();
        assert_eq!(counts, expected, "{name}");
    }
}

#[test]
fn rotary_pairs_and_windows_follow_the_architecture() {
    for (name, pairs) in [
        ("tiny-llama", RopePairs::Adjacent),
        ("tiny-llama31", RopePairs::Adjacent),
        ("tiny-qwen2", RopePairs::Halves),
        ("tiny-qwen3", RopePairs::Halves),
        ("tiny-gemma3", RopePairs::Halves),
    ] {
        let (graph, _) = graph(&model(name), 1, 1);
        for node in graph.nodes() {
            if let Op::Rope(rope) = &node.op {
                assert_eq!(rope.pairs, pairs, "{name}");
                assert_eq!(node.sources.len() == 3, name == "tiny-llama31", "{name}");
            }
        }
    }
    let (graph, _) = graph(&model("tiny-gemma3"), 1, 1);
    for layer in 0..7 {
        let local = layer != 5;
        let Op::Attention(attention) = labelled(&graph, &format!("blk.{layer}.attn")).op else { panic!() };
        assert_eq!(attention.window, local.then_some(8));
        let Op::Rope(rope) = labelled(&graph, &format!("blk.{layer}.q_rope")).op else { panic!() };
        assert_eq!(rope.base, if local { 10_000.0 } else { 1_000_000.0 });
    }
}

/// The 27B model is known by its 62 layers; its scale is that of the width per head.
#[test]
fn gemma3_attention_scale() {
    let scale = |tiny: &Tiny| {
        let (graph, _) = graph(&Model::from_gguf(&tiny.gguf()).unwrap(), 1, 1);
        match labelled(&graph, "blk.0.attn").op {
            Op::Attention(attention) => attention.scale,
            _ => unreachable!(),
        }
    };
    let tiny = Tiny::open("tiny-gemma3");
    assert_eq!(scale(&tiny), 1.0 / 32f32.sqrt());
    let mut deep = tiny.clone().set("block_count", 62u32);
    for layer in 7..62 {
        for tensor in tiny.tensors.iter().filter(|t| t.name.starts_with("blk.0.")) {
            let name = tensor.name.replace("blk.0.", &format!("blk.{layer}."));
            deep.tensors.push(common::tiny::Tensor { name, ..tensor.clone() });
        }
    }
    assert_eq!(scale(&deep), 1.0 / 16f32.sqrt());
}

#[test]
fn info_tells_what_the_file_says() {
    let model = model("tiny-gemma3");
    let info = model.info();
    assert_eq!((&*info.architecture, info.name.as_deref()), ("gemma3", Some("tiny-gemma3")));
    assert_eq!((info.n_layer, info.n_embd, info.head_dim), (7, 64, 32));
    assert_eq!((&info.n_head, &info.n_kv_head, &info.n_ff), (&vec![4; 7], &vec![1; 7], &vec![96; 7]));
    assert_eq!((info.vocab_size, info.context_length), (276, 256));
    assert_eq!((info.sliding_window, info.tied_embeddings), (Some(8), true));
    // Embeddings, last norm, and in each layer: q and output, k and v, three of the feed-forward, norms.
    let layer = 2 * 64 * 128 + 2 * 64 * 32 + 3 * 64 * 96 + 4 * 64 + 2 * 32;
    assert_eq!(info.parameters, 276 * 64 + 64 + 7 * layer);
    assert_eq!(self::model("tiny-llama").info().sliding_window, None);
}
