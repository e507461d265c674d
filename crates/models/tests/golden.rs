//! The five tiny models against logits of another engine: see `tests/golden/README.md`.

mod common;

use common::tiny::DIR;
use common::{Golden, Runner, TOLERANCE, Token, argmax, max_difference};
use minfer_gguf::Gguf;
use minfer_graph::Fusion;

fn load(name: &str) -> (Runner, Golden) {
    let gguf = Gguf::open(format!("{DIR}/{name}.gguf")).unwrap();
    let json = std::fs::read(format!("{DIR}/{name}.json")).unwrap();
    let golden: Golden = serde_json::from_slice(&json).unwrap();
    assert!(golden.prompts.iter().any(|p| p.ids.len() == 64), "a prompt longer than the sliding window");
    (Runner::new(gguf), golden)
}

/// Every way of feeding a prompt gives the reference's logits, and the same ones.
fn check(name: &str) {
    let (mut runner, golden) = load(name);
    for prompt in &golden.prompts {
        let whole = runner.logits(&prompt.ids, prompt.ids.len());
        for chunk in [prompt.ids.len(), 5, 1] {
            let logits = runner.logits(&prompt.ids, chunk);
            let what = format!("{name}, {} tokens in chunks of {chunk}", prompt.ids.len());
            let last = max_difference(logits.last().unwrap(), &prompt.logits);
            assert!(last <= TOLERANCE, "{what}: logits differ by {last}");
            let choices: Vec<usize> = logits.iter().map(|row| argmax(row)).collect();
            assert_eq!(choices, prompt.argmax, "{what}");
            for (p, (a, b)) in logits.iter().zip(&whole).enumerate() {
                assert_eq!(a, b, "{what}: position {p} depends on the chunking");
            }
        }
    }
}

#[test]
fn tiny_llama_matches() {
    check("tiny-llama");
}

#[test]
fn tiny_llama31_with_frequency_factors_matches() {
    check("tiny-llama31");
}

#[test]
fn tiny_qwen2_matches() {
    check("tiny-qwen2");
}

#[test]
fn tiny_qwen3_matches() {
    check("tiny-qwen3");
}

#[test]
fn tiny_gemma3_matches() {
    check("tiny-gemma3");
}

/// The reference is not so lenient that any model passes: another prompt's logits are far off.
#[test]
fn other_prompts_do_not_match() {
    let (mut runner, golden) = load("tiny-qwen2");
    let mut ids = golden.prompts[1].ids.clone();
    ids[0] = (ids[0] + 1) % 256;
    let logits = runner.logits(&ids, ids.len());
    let difference = max_difference(logits.last().unwrap(), &golden.prompts[1].logits);
    assert!(
        difference > 10.0 * TOLERANCE,
        "a changed first token moves the last logits by {difference} only"
    );
}

#[test]
fn only_the_rows_asked_for_come_out_in_the_order_asked() {
    for name in ["tiny-llama", "tiny-gemma3"] {
        let (mut runner, golden) = load(name);
        let ids = &golden.prompts[2].ids;
        let all = runner.logits(ids, ids.len());
        let token = |(position, &id)| Token { sequence: 0, position, id };
        let tokens: Vec<Token> = ids.iter().enumerate().map(token).collect();
        let rows = [16, 3, 3];
        let some = runner.step(&tokens, &rows);
        assert_eq!(some, rows.map(|r| all[r].clone()), "{name}");
    }
}

#[test]
fn sequences_in_one_batch_do_not_see_each_other() {
    for name in ["tiny-llama31", "tiny-qwen3", "tiny-gemma3"] {
        let (mut runner, golden) = load(name);
        let (a, b) = (&golden.prompts[1], &golden.prompts[2]);
        // Interleaved: token i of one, token i of the other.
        let mut tokens = Vec::new();
        for position in 0..b.ids.len() {
            for (sequence, prompt) in [a, b].into_iter().enumerate() {
                let id = prompt.ids.get(position);
                tokens.extend(id.map(|&id| Token { sequence, position, id }));
            }
        }
        for (sequence, prompt) in [a, b].into_iter().enumerate() {
            let last = tokens.iter().rposition(|t| t.sequence == sequence).unwrap();
            let logits = runner.step(&tokens, &[last]);
            let difference = max_difference(&logits[0], &prompt.logits);
            assert!(difference <= TOLERANCE, "{name}, sequence {sequence}: {difference}");
        }
    }
}

#[test]
fn fusion_changes_no_model() {
    for name in ["tiny-llama", "tiny-llama31", "tiny-qwen2", "tiny-qwen3", "tiny-gemma3"] {
        let (mut runner, golden) = load(name);
        let ids = &golden.prompts[2].ids;
        let fused = runner.logits(ids, ids.len());
        runner.fusion = Fusion::none();
        let plain = runner.logits(ids, ids.len());
        for (a, b) in fused.iter().zip(&plain) {
            assert!(max_difference(a, b) < 1e-4, "{name}: {}", max_difference(a, b));
        }
    }
}

/// A thousand decode steps on one plan equal those of plans made anew for each step.
#[test]
fn inv04_one_plan_serves_every_position() {
    let (mut runner, golden) = load("tiny-gemma3");
    let ids = &golden.prompts[3].ids;
    let rebuilt = runner.logits(ids, 1);
    let mut plan = runner.bind(1, 1);
    for step in 0..1000 {
        let position = step % ids.len();
        let token = Token { sequence: 0, position, id: ids[position] };
        let logits = runner.run(&mut plan, &[token], &[0]);
        assert_eq!(logits[0], rebuilt[position], "step {step}");
    }
}
