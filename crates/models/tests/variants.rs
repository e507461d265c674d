//! Variants of the tiny models against another engine's logits: what the plain models do not have.
//! See `tests/data/README.md`.

mod common;

use std::collections::HashMap;

use common::tiny::{DIR, Tiny};
use common::{Golden, Runner, TOLERANCE, argmax, max_difference};
use serde::Deserialize;

#[derive(Deserialize)]
struct Expected {
    logits: Vec<f32>,
    argmax: Vec<usize>,
}

/// How far a variant's logits are from those expected, and whether every choice is the same.
fn compare(variant: &str, base: &str, tiny: &Tiny) -> (f32, bool) {
    let expected: HashMap<String, Expected> =
        serde_json::from_str(include_str!("data/variants.json")).unwrap();
    let expected = &expected[variant];
    let golden = std::fs::read(format!("{DIR}/{base}.json")).unwrap();
    let golden: Golden = serde_json::from_slice(&golden).unwrap();
    let ids = &golden.prompts[3].ids;
    let logits = Runner::new(tiny.gguf()).logits(ids, ids.len());
    let choices: Vec<usize> = logits.iter().map(|row| argmax(row)).collect();
    (max_difference(logits.last().unwrap(), &expected.logits), choices == expected.argmax)
}

/// The variant matches, and the model without its change does not.
fn check(variant: &str, base: &str, change: impl Fn(Tiny) -> Tiny) {
    let tiny = Tiny::open(base);
    let (difference, same_choices) = compare(variant, base, &change(tiny.clone()));
    assert!(difference <= TOLERANCE && same_choices, "{variant}: {difference}, {same_choices}");
    let (unchanged, _) = compare(variant, base, &tiny);
    assert!(unchanged > 10.0 * TOLERANCE, "{variant}: the change moves logits by {unchanged} only");
}

#[test]
fn rope_linear_scaling() {
    check("llama-linear", "tiny-llama", |t| {
        t.set("rope.scaling.type", "linear").set("rope.scaling.factor", 4f32)
    });
    // A factor without a type, and the older key, mean the same.
    check("llama-linear", "tiny-llama", |t| t.set("rope.scaling.factor", 4f32));
    check("llama-linear", "tiny-llama", |t| t.set("rope.scale_linear", 4f32));
}

#[test]
fn rope_yarn_scaling() {
    check("llama-yarn", "tiny-llama", |t| {
        t.set("rope.scaling.type", "yarn")
            .set("rope.scaling.factor", 4f32)
            .set("rope.scaling.original_context_length", 64u32)
    });
}

#[test]
fn rope_yarn_scaling_with_attention_factor() {
    check("qwen2-yarn", "tiny-qwen2", |t| {
        t.set("rope.scaling.type", "yarn")
            .set("rope.scaling.factor", 4f32)
            .set("rope.scaling.original_context_length", 16u32)
            .set("rope.scaling.attn_factor", 0.75f32)
    });
}

#[test]
fn gemma3_scales_global_layers_only() {
    check("gemma3-linear", "tiny-gemma3", |t| {
        t.set("rope.scaling.type", "linear").set("rope.scaling.factor", 8f32)
    });
}

#[test]
fn gemma3_window_pattern_and_local_base() {
    check("gemma3-pattern", "tiny-gemma3", |t| {
        t.set("attention.sliding_window_pattern", 3u32).set("rope.freq_base_swa", 5000f32)
    });
}

#[test]
fn gemma3_without_window_is_global() {
    check("gemma3-no-window", "tiny-gemma3", |t| t.unset("attention.sliding_window"));
}

#[test]
fn gemma3_softcaps_logits() {
    check("gemma3-softcap", "tiny-gemma3", |t| t.set("final_logit_softcapping", 4f32));
}

#[test]
fn llama_with_biases() {
    check("llama-biases", "tiny-llama", |mut t| {
        for matrix in t.tensors.clone() {
            if matrix.name.starts_with("blk.") && matrix.shape.len() == 2 {
                let values: Vec<f32> =
                    (0..matrix.shape[1]).map(|i| ((i * 37 % 101) as f32 - 50.0) / 128.0).collect();
                t = t.with_f32(&matrix.name.replace(".weight", ".bias"), &matrix.shape[1..], &values);
            }
        }
        t
    });
}
