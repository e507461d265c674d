//! What is refused, and that the error names it.

mod common;

use common::Runner;
use common::tiny::{NAMES, Tiny};
use minfer_gguf::{MetaValue, TensorType, ValueType};
use minfer_models::{BatchShape, KvConfig, Model, ModelError, architectures};

/// Opens the model, which must fail; the error's text.
#[track_caller]
fn refusal(tiny: &Tiny) -> String {
    match Model::from_gguf(&tiny.gguf()) {
        Ok(model) => panic!("accepted: {:?}", model.info()),
        Err(error) => error.to_string(),
    }
}

/// Each case: a value for a key, and what the error says besides the key.
#[track_caller]
fn refused_values(base: &str, cases: &[(&str, MetaValue, &[&str])]) {
    let tiny = Tiny::open(base);
    Model::from_gguf(&tiny.gguf()).unwrap();
    for (key, value, says) in cases {
        let changed = tiny.clone().set(key, value.clone());
        let error = refusal(&changed);
        let full = changed.key(key);
        for part in says.iter().chain([&full.as_str()]) {
            assert!(error.contains(part), "{key} = {value:?}: {error:?} does not say {part:?}");
        }
    }
}

fn v(value: impl Into<MetaValue>) -> MetaValue {
    value.into()
}

#[test]
fn g18_impossible_hyper_parameters() {
    refused_values(
        "tiny-llama",
        &[
            ("block_count", v(0u32), &["is 0, expected 1 to"]),
            ("block_count", v(u32::MAX), &["4294967295"]),
            ("block_count", v(65_536u32), &["65536", "at most 20"]),
            ("block_count", v(513u32), &["513", "at most 20"]),
            ("block_count", v(-1i32), &["-1"]),
            ("block_count", v("two"), &["string"]),
            ("attention.head_count", v(0u32), &["0 in layer 0"]),
            ("attention.head_count", v([6u32, 0]), &["0 in layer 1"]),
            ("attention.head_count", v([6u32, 6, 6]), &["expected 2 elements, found 3"]),
            ("attention.head_count_kv", v(0u32), &["0 in layer 0"]),
            ("attention.head_count_kv", v([3u32, 0]), &["0 in layer 1"]),
            ("attention.head_count_kv", v([0u32, 3]), &["0 in layer 0"]),
            ("attention.head_count_kv", v([3u32]), &["expected 2 elements, found 1"]),
            ("attention.head_count_kv", MetaValue::Array(ValueType::U32, vec![]), &["found 0"]),
            ("embedding_length", v(0u32), &["is 0"]),
            ("embedding_length", v(u64::MAX), &["18446744073709551615"]),
            ("feed_forward_length", v(0u32), &["0 in layer 0"]),
            ("feed_forward_length", v([128u32, 0]), &["0 in layer 1"]),
            ("context_length", v(0u32), &["is 0"]),
            ("attention.key_length", v(0u32), &["is 0"]),
            ("attention.value_length", v(8u32), &["is 8", "key length, 16"]),
            ("attention.layer_norm_rms_epsilon", v(f32::NAN), &["NaN"]),
            ("attention.layer_norm_rms_epsilon", v(f32::INFINITY), &["inf"]),
            ("attention.layer_norm_rms_epsilon", v(-1e-5f32), &["-0.00001"]),
            ("rope.freq_base", v(0f32), &["is 0"]),
            ("rope.freq_base", v(f32::NAN), &["NaN"]),
            ("rope.freq_base", v(-1f32), &["-1"]),
            ("rope.scaling.factor", v(0f32), &["is 0"]),
            ("rope.scaling.factor", v(f32::NAN), &["NaN"]),
            ("rope.scaling.type", v("longrope"), &["longrope", "yarn"]),
            ("rope.scaling.attn_factor", v(1.5f32), &["1.5"]),
            ("expert_count", v(8u32), &["is 8", "mixtures of experts"]),
            ("attention.causal", v(false), &["false", "encoders"]),
        ],
    );
    refused_values(
        "tiny-gemma3",
        &[
            ("attention.sliding_window_pattern", v(0u32), &["is 0"]),
            ("attention.sliding_window", v(-8i32), &["-8"]),
            ("final_logit_softcapping", v(f32::NAN), &["NaN"]),
            ("final_logit_softcapping", v(0f32), &["is 0"]),
            ("attn_logit_softcapping", v(-50f32), &["-50"]),
            ("rope.freq_base_swa", v(0f32), &["is 0"]),
        ],
    );
}

#[test]
fn g18_impossible_yarn() {
    let yarn = Tiny::open("tiny-llama").set("rope.scaling.type", "yarn").set("rope.scaling.factor", 4f32);
    Model::from_gguf(&yarn.gguf()).unwrap();
    for (key, value, says) in [
        ("rope.scaling.factor", v(-4f32), "-4"),
        ("rope.scaling.original_context_length", v(0u32), "is 0"),
        ("rope.scaling.yarn_beta_slow", v(32f32), "less than yarn_beta_fast, 32"),
        ("rope.scaling.yarn_beta_fast", v(f32::NAN), "NaN"),
        ("rope.scaling.yarn_ext_factor", v(0.5f32), "0.5"),
        ("rope.freq_base", v(1f32), "above 1"),
    ] {
        let error = refusal(&yarn.clone().set(key, value));
        assert!(error.contains(key) && error.contains(says), "{key}: {error}");
    }
}

#[test]
fn g18_required_keys_are_named_when_missing() {
    for name in NAMES {
        for key in [
            "general.architecture",
            "block_count",
            "embedding_length",
            "feed_forward_length",
            "context_length",
            "attention.head_count",
            "attention.layer_norm_rms_epsilon",
        ] {
            let tiny = Tiny::open(name).unset(key);
            let error = refusal(&tiny);
            assert!(error.contains(&tiny.key(key)) && error.contains("missing"), "{name}: {error}");
        }
    }
}

#[test]
fn g23_without_output_matrix_the_embeddings_are_used() {
    let mut tied = Tiny::open("tiny-qwen2");
    let embeddings = tied.tensor("token_embd.weight").data.clone();
    assert_ne!(tied.tensor("output.weight").data, embeddings);
    tied.tensor("output.weight").data = embeddings;
    let ids = [5, 77, 200, 9];
    let with_copy = Runner::new(tied.gguf()).logits(&ids, 4);

    let mut runner = Runner::new(tied.without_tensor("output.weight").gguf());
    assert!(runner.model.info().tied_embeddings);
    assert_eq!(runner.logits(&ids, 4), with_copy);
    assert!(!Runner::new(Tiny::open("tiny-qwen2").gguf()).model.info().tied_embeddings);
}

#[test]
fn g26_vocabulary_must_have_the_size_of_the_embeddings() {
    let tiny = Tiny::open("tiny-llama");
    let tokens = |n: usize| vec!["t"; n];
    assert_eq!(Model::from_gguf(&tiny.gguf()).unwrap().info().vocab_size, 266);
    let fits = tiny.clone().set("tokenizer.ggml.tokens", tokens(266));
    assert_eq!(Model::from_gguf(&fits.gguf()).unwrap().info().vocab_size, 266);
    for n in [0, 1, 265, 267] {
        let error = refusal(&tiny.clone().set("tokenizer.ggml.tokens", tokens(n)));
        let value = format!("metadata key \"tokenizer.ggml.tokens\" is {n} tokens");
        assert_eq!(error, format!("{value}, expected 266, the number of rows of token_embd.weight"));
    }
    // A file without a token list has its size from the hyper-parameter.
    let error = refusal(&tiny.set("vocab_size", 300u32));
    assert!(error.contains("llama.vocab_size\" is 300 tokens, expected 266"), "{error}");
}

#[test]
fn k13_head_oddities_work_or_are_refused() {
    refused_values(
        "tiny-llama",
        &[
            ("attention.head_count_kv", v(4u32), &["4 in layer 0", "a divisor of attention.head_count, 6"]),
            ("attention.head_count_kv", v([3u32, 12]), &["12 in layer 1"]),
            ("rope.dimension_count", v(0u32), &["is 0"]),
            ("rope.dimension_count", v(7u32), &["is 7", "even"]),
            ("rope.dimension_count", v(18u32), &["is 18", "up to the head size, 16"]),
            ("rope.dimension_count", v(u32::MAX), &["4294967295"]),
        ],
    );
    // Without a key length it is the width per head.
    let plain = Tiny::open("tiny-llama").unset("attention.key_length").unset("attention.value_length");
    assert_eq!(Model::from_gguf(&plain.gguf()).unwrap().info().head_dim, 16);
    let error = refusal(&plain.set("attention.head_count", 7u32).set("attention.head_count_kv", 7u32));
    assert!(
        error.contains("attention.head_count\" is 7, expected a divisor of embedding_length, 96"),
        "{error}"
    );

    // Heads wider than the width allows, and fewer rotating elements than a head has.
    let ids = [1, 2, 3, 4, 5];
    let mut whole = Runner::new(Tiny::open("tiny-qwen3").gguf());
    let info = whole.model.info();
    assert_ne!(info.head_dim, info.n_embd / info.n_head[0]);
    let mut partial = Runner::new(Tiny::open("tiny-qwen3").set("rope.dimension_count", 8u32).gguf());
    let (whole, partial) = (whole.logits(&ids, 5), partial.logits(&ids, 5));
    // Nothing turns at position 0.
    assert_eq!(whole[0], partial[0]);
    assert_ne!(whole[4], partial[4]);
    assert!(partial.iter().flatten().all(|l| l.is_finite()));
}

#[test]
fn k13_head_counts_may_differ_by_layer() {
    let mut tiny = Tiny::open("tiny-llama").set("attention.head_count_kv", [3u32, 1]);
    for name in ["attn_k", "attn_v"] {
        let tensor = tiny.tensor(&format!("blk.1.{name}.weight"));
        tensor.shape[1] = 16;
        tensor.data.truncate(96 * 16 * 4);
    }
    let mut runner = Runner::new(tiny.gguf());
    assert_eq!(runner.model.info().n_kv_head, [3, 1]);
    assert_eq!(runner.model.kv_layers().iter().map(|l| l.kv_heads).collect::<Vec<_>>(), [3, 1]);
    assert!(runner.logits(&[1, 2, 3], 3).iter().flatten().all(|l| l.is_finite()));
}

/// Tensors that a file may do without, with another meaning.
const OPTIONAL: [&str; 2] = ["output.weight", "rope_freqs.weight"];

#[test]
fn inv16_each_missing_tensor_is_named() {
    for name in NAMES {
        let tiny = Tiny::open(name);
        for tensor in tiny.tensors.iter().filter(|t| !OPTIONAL.contains(&t.name.as_str())) {
            match Model::from_gguf(&tiny.clone().without_tensor(&tensor.name).gguf()) {
                Err(ModelError::MissingTensor { name: missing, .. }) => assert_eq!(missing, tensor.name),
                other => panic!("{name} without {}: {other:?}", tensor.name),
            }
        }
    }
}

#[test]
fn inv16_each_tensor_of_another_shape_is_named() {
    for name in NAMES {
        let tiny = Tiny::open(name);
        for (i, tensor) in tiny.tensors.iter().enumerate() {
            let mut changed = tiny.clone();
            let last = changed.tensors[i].shape.last_mut().unwrap();
            let row = tensor.data.len() / *last as usize;
            *last += 1;
            changed.tensors[i].data.extend(vec![0; row]);
            match Model::from_gguf(&changed.gguf()) {
                Err(ModelError::TensorShape { name, found, expected }) => {
                    assert_eq!((name, found), (tensor.name.clone(), changed.tensors[i].shape.clone()));
                    assert_eq!(expected, tensor.shape);
                }
                // Here the embeddings themselves are what other sizes are taken from.
                Err(ModelError::HyperParameter { key, .. }) if tensor.name == "token_embd.weight" => {
                    assert!(key.ends_with("vocab_size"), "{key}");
                }
                other => panic!("{name}, {}: {other:?}", tensor.name),
            }
        }
    }
}

#[test]
fn inv16_each_tensor_of_an_unsupported_type_is_named() {
    for name in NAMES {
        let tiny = Tiny::open(name);
        for (i, tensor) in tiny.tensors.iter().enumerate() {
            let mut changed = tiny.clone();
            changed.tensors[i].ty = TensorType::I32;
            match Model::from_gguf(&changed.gguf()) {
                Err(ModelError::TensorType { name, ty, .. }) => {
                    assert_eq!((name, ty), (tensor.name.clone(), TensorType::I32));
                }
                other => panic!("{name}, {}: {other:?}", tensor.name),
            }
        }
    }
}

/// `name` of tiny-qwen2 in another type, all bits zero.
fn retyped(name: &str, ty: TensorType) -> Result<Model, ModelError> {
    let mut tiny = Tiny::open("tiny-qwen2");
    let tensor = tiny.tensor(name);
    tensor.ty = ty;
    let elements: u64 = tensor.shape.iter().product();
    tensor.data = vec![0; elements as usize / ty.block_size() * ty.type_size()];
    Model::from_gguf(&tiny.gguf())
}

#[test]
fn types_follow_the_use_of_a_tensor() {
    use TensorType::*;
    for ty in [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL] {
        for matrix in ["blk.0.attn_q.weight", "token_embd.weight", "output.weight"] {
            assert!(retyped(matrix, ty).is_ok(), "{matrix} in {ty}");
        }
    }
    for ty in [Q8_1, MXFP4, I8, F64] {
        let error = retyped("blk.0.attn_q.weight", ty).unwrap_err().to_string();
        assert!(error.contains("blk.0.attn_q.weight") && error.contains(ty.name()), "{error}");
    }
    for vector in ["blk.1.attn_norm.weight", "blk.1.attn_q.bias", "output_norm.weight"] {
        for ty in [F16, BF16, Q8_0] {
            let error = retyped(vector, ty).unwrap_err().to_string();
            assert!(error.contains(vector) && error.contains(&format!("type {ty}")), "{error}");
            assert!(error.ends_with("expected F32"), "{error}");
        }
    }
}

#[test]
fn a_tensor_without_a_place_is_named() {
    let tiny = Tiny::open("tiny-llama").with_f32("blk.0.attn_q_norm.weight", &[16], &[1.0; 16]);
    let error = refusal(&tiny);
    assert!(error.contains("blk.0.attn_q_norm.weight") && error.contains("llama"), "{error}");
    // A layer too few leaves the last one's tensors over.
    let error = refusal(&Tiny::open("tiny-qwen3").set("block_count", 1u32));
    assert!(error.contains("blk.1.attn_norm.weight"), "{error}");
}

#[test]
fn an_unknown_architecture_is_named_with_those_known() {
    let error = refusal(&Tiny::open("tiny-llama").set("general.architecture", "mamba\u{1b}[31m"));
    assert_eq!(
        error,
        r#"architecture "mamba\u{1b}[31m" is not supported; known are gemma3, llama, qwen2, qwen3"#
    );
    assert_eq!(architectures().collect::<Vec<_>>(), ["gemma3", "llama", "qwen2", "qwen3"]);
}

#[test]
fn impossible_batches_are_refused() {
    let model = Model::from_gguf(&Tiny::open("tiny-gemma3").gguf()).unwrap();
    let batch = BatchShape { tokens: 2, outputs: 1, sequences: 1 };
    let kv = KvConfig { dtype: TensorType::F16, slots: 32, page: 16, blocks: 2 };
    model.graph(&batch, &kv).unwrap();
    for (batch, kv, says) in [
        (BatchShape { tokens: 0, ..batch }, kv, "tokens is 0"),
        (BatchShape { outputs: 0, ..batch }, kv, "outputs is 0"),
        (BatchShape { sequences: 0, ..batch }, kv, "sequences is 0"),
        (BatchShape { tokens: usize::MAX, ..batch }, kv, "tokens is 18446744073709551615"),
        (batch, KvConfig { slots: 0, ..kv }, "slots is 0"),
        (batch, KvConfig { page: 0, ..kv }, "page is 0"),
        (batch, KvConfig { blocks: 0, ..kv }, "blocks is 0"),
        (batch, KvConfig { slots: 33, ..kv }, "blk.0.kv (state): 33 "),
        (batch, KvConfig { dtype: TensorType::Q8_0, ..kv }, "not Q8_0"),
    ] {
        let error = model.graph(&batch, &kv).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}
