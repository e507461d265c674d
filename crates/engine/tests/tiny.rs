//! The engine on tiny models with odd shapes: the CPU against llama.cpp's logits, and that how tokens are fed
//! changes nothing.

mod common;

use std::ops::ControlFlow;

use common::{feed, greedy, load, options, path, tokens};
use minfer_engine::{Engine, EngineOptions, Feed, Outputs, Sequence, Step};
use minfer_graph::DType;
use minfer_tokenizer::TokenId;

const TINY: [&str; 5] = ["tiny-llama", "tiny-llama31", "tiny-qwen2", "tiny-qwen3", "tiny-gemma3"];

fn argmax(row: &[f32]) -> usize {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best })
}

#[test]
fn the_cpu_gives_the_reference_logits() {
    for name in TINY {
        let text = std::fs::read_to_string(path(format!("{name}.json"))).unwrap();
        let golden: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mut engine = load(name, &EngineOptions { kv_type: DType::F32, ..options() });
        for prompt in golden["prompts"].as_array().unwrap() {
            let ids: Vec<TokenId> =
                prompt["ids"].as_array().unwrap().iter().map(|i| i.as_u64().unwrap() as TokenId).collect();
            let mut sequence = engine.new_sequence();
            let rows = feed(&mut engine, &mut sequence, &ids, &[ids.len()]);
            let wanted: Vec<usize> =
                prompt["argmax"].as_array().unwrap().iter().map(|i| i.as_u64().unwrap() as usize).collect();
            assert_eq!(rows.iter().map(|r| argmax(r)).collect::<Vec<_>>(), wanted, "{name}");
            let last = rows.last().unwrap();
            for (i, logit) in prompt["logits"].as_array().unwrap().iter().enumerate() {
                let difference = (f64::from(last[i]) - logit.as_f64().unwrap()).abs();
                assert!(difference <= 0.01, "{name}: logit {i} is off by {difference}");
            }
        }
    }
}

#[test]
fn inv08_one_shot_chunked_and_token_by_token_give_the_same_bits() {
    for name in TINY {
        let mut engine = load(name, &options());
        let ids = tokens(97);
        let mut one = engine.new_sequence();
        let expected = feed(&mut engine, &mut one, &ids, &[97]);
        drop(one);
        for pieces in [vec![1; 97], vec![64, 33], vec![5, 1, 90, 1], vec![16, 17, 64]] {
            let mut sequence = engine.new_sequence();
            assert!(feed(&mut engine, &mut sequence, &ids, &pieces) == expected, "{name}, pieces {pieces:?}");
        }
    }
}

#[test]
fn the_thread_count_changes_no_bit() {
    for name in TINY {
        let ids = tokens(40);
        let run = |threads| {
            let mut engine = load(name, &EngineOptions { threads, threads_batch: threads, ..options() });
            let mut sequence = engine.new_sequence();
            feed(&mut engine, &mut sequence, &ids, &[33, 1, 1, 5])
        };
        let expected = run(1);
        for threads in [2, 3, 5] {
            assert!(run(threads) == expected, "{name}, {threads} threads");
        }
    }
}

#[test]
fn k05_prompts_around_the_batch_size_equal_token_by_token() {
    let options = EngineOptions { n_batch: 16, ..options() };
    let mut engine = load("tiny-qwen2", &options);
    for n in [15, 16, 17, 33] {
        let ids = tokens(n);
        let mut whole = engine.new_sequence();
        let expected = feed(&mut engine, &mut whole, &ids, &vec![1; n]);
        let mut sequence = engine.new_sequence();
        drop(whole);
        assert!(feed(&mut engine, &mut sequence, &ids, &[n]) == expected, "{n} tokens");
    }
}

#[test]
fn k07_the_same_prompt_twice_evaluates_its_last_token_again() {
    let mut engine = load("tiny-gemma3", &options());
    let mut sequence = engine.new_sequence();
    let prompt = tokens(20);
    let first = greedy(&mut engine, &mut sequence, &prompt, Some(6));
    assert_eq!(greedy(&mut engine, &mut sequence, &prompt, Some(6)), first);
    assert_eq!(sequence.keep_prefix_of(&prompt), 19);
}

#[test]
fn k08_conversations_that_take_turns_on_one_sequence_equal_cold_runs() {
    let mut engine = load("tiny-llama31", &options());
    let (a, b) = (tokens(30), tokens(50)[10..45].to_vec());
    let longer = [&a[..], &[7, 8, 9]].concat();
    let cold = |engine: &mut Engine, prompt: &[TokenId]| {
        let mut sequence = engine.new_sequence();
        greedy(engine, &mut sequence, prompt, Some(8))
    };
    let expected: Vec<_> = [&a, &b, &longer].into_iter().map(|p| cold(&mut engine, p)).collect();
    let mut sequence = engine.new_sequence();
    for (prompt, expected) in [&a, &b, &longer].into_iter().zip(&expected) {
        assert_eq!(&greedy(&mut engine, &mut sequence, prompt, Some(8)), expected);
    }
}

#[test]
fn k09_batches_of_changing_shape_give_what_each_gives_alone() {
    let mut engine = load("tiny-qwen2", &options());
    let ids = tokens(34);
    let mut alone = engine.new_sequence();
    let expected = feed(&mut engine, &mut alone, &ids, &[34]);
    drop(alone);
    let mut sequence = engine.new_sequence();
    assert!(feed(&mut engine, &mut sequence, &ids, &[7, 1, 9, 7, 1, 9]) == expected);
    let made = engine.plans_made();
    let mut again = engine.new_sequence();
    assert!(feed(&mut engine, &mut again, &ids, &[7, 1, 9, 7, 1, 9]) == expected);
    assert_eq!(engine.plans_made(), made, "shapes seen before need no new plan");
}

#[test]
fn inv14_another_shape_makes_another_plan() {
    let mut engine = load("tiny-qwen2", &options());
    let ids = tokens(12);
    let mut plans = Vec::new();
    for (len, outputs) in [(5, Outputs::Last), (6, Outputs::Last), (6, Outputs::From(0)), (6, Outputs::Last)]
    {
        let mut sequence = engine.new_sequence();
        let mut feeds = [Feed { sequence: &mut sequence, tokens: &ids[..len], outputs }];
        engine.forward(&mut feeds, &mut |_| ControlFlow::Continue(())).unwrap();
        plans.push(engine.plans_made());
    }
    assert_eq!(plans, [1, 2, 3, 3]);
}

#[test]
fn inv32_only_requested_rows_come_back_and_they_are_those_of_a_full_run() {
    let mut engine = load("tiny-llama", &options());
    let ids = tokens(23);
    let mut all = engine.new_sequence();
    let expected = feed(&mut engine, &mut all, &ids, &[23]);
    for first in [0, 11, 22] {
        let mut sequence = engine.new_sequence();
        let mut rows = Vec::new();
        let mut feeds = [Feed { sequence: &mut sequence, tokens: &ids, outputs: Outputs::From(first) }];
        engine
            .forward(&mut feeds, &mut |step| {
                if let Step::Logits { index, logits, .. } = step {
                    rows.push((index, logits.to_vec()));
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(rows.iter().map(|r| r.0).collect::<Vec<_>>(), (first..23).collect::<Vec<_>>());
        assert!(rows.iter().all(|(i, row)| *row == expected[*i]));
    }
}

#[test]
fn several_sequences_in_one_batch_equal_each_alone() {
    let mut engine = load("tiny-gemma3", &EngineOptions { max_sequences: 3, ..options() });
    let prompts = [tokens(40), tokens(17)[3..].to_vec(), tokens(29)];
    let alone: Vec<Vec<f32>> = prompts
        .iter()
        .map(|p| {
            let mut sequence = engine.new_sequence();
            feed(&mut engine, &mut sequence, p, &[p.len()]).pop().unwrap()
        })
        .collect();
    let mut sequences: Vec<Sequence> = prompts.iter().map(|_| engine.new_sequence()).collect();
    // All but the last token of each, one after another, then the last tokens together.
    for (sequence, prompt) in sequences.iter_mut().zip(&prompts) {
        feed(&mut engine, sequence, &prompt[..prompt.len() - 1], &[prompt.len() - 1]);
    }
    let mut feeds: Vec<Feed<'_>> = sequences
        .iter_mut()
        .zip(&prompts)
        .map(|(sequence, p)| Feed { sequence, tokens: &p[p.len() - 1..], outputs: Outputs::Last })
        .collect();
    let mut together = vec![Vec::new(); 3];
    engine
        .forward(&mut feeds, &mut |step| {
            if let Step::Logits { feed, logits, .. } = step {
                together[feed] = logits.to_vec();
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(together == alone);
}
