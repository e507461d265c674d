//! The four real models against vectors made by llama.cpp: see `tests/golden/README.md` for what they hold and what counts as equal.

mod common;

use std::ops::ControlFlow;
use std::path::Path;

use common::real_model;
use minfer_engine::{Engine, EngineOptions, Feed, Outputs, Step, sampling::logprobs};
use minfer_tokenizer::{Special, TokenId};
use serde_json::Value;

/// Where ours and the reference's greedy choice may differ: the reference's own gap between the two, in nats.
const NEAR_TIE: f64 = 0.3;

/// The mean absolute difference of the reference's three best log-probabilities.
const MEAN_DIFFERENCE: f64 = 0.15;

fn golden(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

fn load(name: &str) -> Engine {
    Engine::load(real_model(name), &EngineOptions::default(), &mut |_| {}).unwrap()
}

fn ids(value: &Value) -> Vec<TokenId> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as TokenId).collect()
}

/// The logits after each of `tokens[from..]`, all fed at once.
fn logits_from(engine: &mut Engine, tokens: &[TokenId], from: usize) -> Vec<Vec<f32>> {
    let mut sequence = engine.new_sequence();
    let mut rows = Vec::new();
    let mut feeds = [Feed { sequence: &mut sequence, tokens, outputs: Outputs::From(from) }];
    engine
        .forward(&mut feeds, &mut |step| {
            if let Step::Logits { logits, .. } = step {
                rows.push(logits.to_vec());
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    rows
}

/// Forced along the reference's tokens: every choice of ours is the reference's or nearly tied with it, and log-probabilities are close.
fn follows_the_reference(name: &str) {
    let golden = golden(&format!("{name}.json"));
    let mut engine = load(name);
    let (mut difference, mut compared, mut ties) = (0.0, 0, 0);
    for case in golden["greedy"].as_array().unwrap() {
        let text = case["prompt"].as_str().unwrap();
        let prompt = engine.tokenize_prompt(text, Special::Parse);
        assert_eq!(prompt, ids(&case["prompt_ids"]), "{name}: tokens of {text:?}");
        let chosen = ids(&case["ids"]);
        let tokens = [&prompt[..], &chosen[..chosen.len() - 1]].concat();
        let rows = logits_from(&mut engine, &tokens, prompt.len() - 1);
        assert_eq!(rows.len(), chosen.len());
        for (i, (row, step)) in rows.iter().zip(case["steps"].as_array().unwrap()).enumerate() {
            let top: Vec<(TokenId, f64)> = step["top"]
                .as_array()
                .unwrap()
                .iter()
                .map(|t| (t[0].as_u64().unwrap() as TokenId, t[1].as_f64().unwrap()))
                .collect();
            for &(id, expected) in &top[..3] {
                difference += (logprobs(row, id, 0).unwrap().logprob - expected).abs();
                compared += 1;
            }
            let ours =
                (0..row.len()).fold(0, |best, id| if row[id] > row[best] { id } else { best }) as TokenId;
            if ours != chosen[i] {
                let best = top[0].1;
                let gap = top.iter().find(|t| t.0 == ours).map_or(f64::INFINITY, |t| best - t.1);
                assert!(
                    gap <= NEAR_TIE,
                    "{name}: {text:?}, step {i}: {ours} for {}, {gap} nats apart",
                    chosen[i]
                );
                ties += 1;
            }
        }
    }
    let mean = difference / f64::from(compared);
    println!("{name}: mean difference {mean:.4} over {compared} log-probabilities, {ties} near-ties");
    assert!(mean <= MEAN_DIFFERENCE, "{name}: mean difference {mean}");
}

#[test]
fn smollm2_135m_follows_the_reference() {
    follows_the_reference("smollm2-135m");
}

#[test]
fn gemma3_270m_follows_the_reference() {
    follows_the_reference("gemma3-270m");
}

#[test]
fn qwen2_5_coder_0_5b_follows_the_reference() {
    follows_the_reference("qwen2.5-coder-0.5b");
}

#[test]
fn qwen2_5_coder_1_5b_follows_the_reference() {
    follows_the_reference("qwen2.5-coder-1.5b");
}
