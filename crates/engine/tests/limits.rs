//! Where sequences end: the context, the cache, refusals, cancelling.

mod common;

use std::ops::ControlFlow;

use common::{feed, greedy, load, options, path, request, tokens};
use minfer_engine::{
    Engine, EngineError, EngineOptions, Event, Feed, FinishReason, Outputs, Request, Sequence, Step,
    sampling::SamplingParams,
};
use minfer_graph::DType;
use minfer_tokenizer::TokenId;

#[test]
fn k01_generation_stops_at_the_end_of_the_context() {
    let mut engine = load("tiny-llama", &EngineOptions { n_ctx: Some(64), ..options() });
    let mut sequence = engine.new_sequence();
    let prompt = tokens(60);
    let request = request(&prompt, Some(100));
    let done = engine.generate(&mut sequence, &request, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((done.tokens.len(), done.finish_reason), (4, FinishReason::Length));
}

#[test]
fn k02_a_prompt_longer_than_the_context_is_refused() {
    let mut engine = load("tiny-llama", &EngineOptions { n_ctx: Some(64), ..options() });
    let mut sequence = engine.new_sequence();
    let prompt = tokens(65);
    let request = request(&prompt, Some(1));
    let error = engine.generate(&mut sequence, &request, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(error.to_string(), "the prompt has 65 tokens, the context holds 64");
    // A full context can still be evaluated, and nothing can follow it.
    assert!(greedy(&mut engine, &mut sequence, &prompt[..64], Some(5)).is_empty());
}

#[test]
fn k03_no_tokens_wanted_evaluates_the_prompt_and_generates_nothing() {
    let mut engine = load("tiny-qwen3", &options());
    let mut sequence = engine.new_sequence();
    let prompt = tokens(9);
    let request = Request {
        prompt: &prompt,
        sampling: SamplingParams::greedy(),
        max_tokens: Some(0),
        stop: &[],
        ignore_eos: false,
    };
    let mut evaluated = 0;
    let done = engine
        .generate(&mut sequence, &request, &mut |event| {
            if let Event::Prompt { done, .. } = event {
                evaluated = done;
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!((done.tokens.as_slice(), done.text.as_str()), (&[][..], ""));
    assert_eq!((done.finish_reason, done.timings.prompt_n, evaluated), (FinishReason::Length, 9, 9));
    assert_eq!(sequence.tokens(), prompt);
}

#[test]
fn a_full_cache_is_an_error_and_dropping_a_sequence_makes_room() {
    let mut engine = load("tiny-llama", &EngineOptions { n_ctx: Some(64), ..options() });
    let mut first = engine.new_sequence();
    feed(&mut engine, &mut first, &tokens(64), &[64]);
    let mut second = engine.new_sequence();
    let ids = tokens(1);
    let mut feeds = [Feed { sequence: &mut second, tokens: &ids, outputs: Outputs::Last }];
    let error = engine.forward(&mut feeds, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, EngineError::KvFull { wanted: 1, slots: 64 }), "{error}");
    drop(first);
    feed(&mut engine, &mut second, &ids, &[1]);
}

#[test]
fn inv06_the_context_length_asked_for_is_the_one_given() {
    for n_ctx in [64, 256, 70] {
        let engine = load("tiny-llama", &EngineOptions { n_ctx: Some(n_ctx), ..options() });
        assert_eq!(engine.n_ctx(), n_ctx);
        assert!(engine.free_positions() >= n_ctx && engine.free_positions() < n_ctx + 64);
    }
    // 70 positions lie in two pages of 64, whose last rows are not for use.
    let mut engine = load("tiny-llama", &EngineOptions { n_ctx: Some(70), ..options() });
    let mut sequence = engine.new_sequence();
    feed(&mut engine, &mut sequence, &tokens(70), &[70]);
    let ids = tokens(1);
    let mut feeds = [Feed { sequence: &mut sequence, tokens: &ids, outputs: Outputs::Last }];
    let error = engine.forward(&mut feeds, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(error.to_string(), "the prompt has 71 tokens, the context holds 70");
}

#[test]
fn a_token_outside_the_vocabulary_is_refused_before_anything_runs() {
    let mut engine = load("tiny-llama", &options());
    let vocab = engine.info().vocab_size;
    let mut sequence = engine.new_sequence();
    let ids = [3, vocab as TokenId];
    let mut feeds = [Feed { sequence: &mut sequence, tokens: &ids, outputs: Outputs::Last }];
    let error = engine.forward(&mut feeds, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(error.to_string(), format!("token id {vocab} is outside the vocabulary of {vocab}"));
    assert!(sequence.is_empty());
}

#[test]
fn breaking_off_keeps_what_was_evaluated() {
    let mut engine = load("tiny-llama", &EngineOptions { n_batch: 8, ..options() });
    let mut sequence = engine.new_sequence();
    let ids = tokens(30);
    let mut feeds = [Feed { sequence: &mut sequence, tokens: &ids, outputs: Outputs::Last }];
    engine
        .forward(&mut feeds, &mut |step| match step {
            Step::Done { tokens: 16, .. } => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        })
        .unwrap();
    assert_eq!(sequence.tokens(), &ids[..16]);
}

#[test]
fn settings_out_of_range_are_named() {
    let refused = |options: EngineOptions| {
        let path = path("tiny-llama.gguf".to_owned());
        Engine::load(path, &options, &mut |_| {}).unwrap_err().to_string()
    };
    assert_eq!(
        refused(EngineOptions { n_ctx: Some(0), ..options() }),
        "the context length is 0, but must be at least 1"
    );
    assert_eq!(
        refused(EngineOptions { n_batch: 0, ..options() }),
        "the batch size is 0, but must be at least 1"
    );
    assert_eq!(
        refused(EngineOptions { threads: 0, ..options() }),
        "the thread count is 0, but must be at least 1"
    );
    assert_eq!(
        refused(EngineOptions { max_sequences: usize::MAX, ..options() }),
        format!("the number of sequences is {}, but must be at most 4194304 of 256 positions", usize::MAX)
    );
    assert_eq!(
        refused(EngineOptions { kv_type: DType::Q8_0, ..options() }),
        "the KV type is Q8_0, but must be f16 or f32"
    );
}

#[test]
fn k15_cancelling_one_sequence_stops_it_within_a_step_and_leaves_the_other_alone() {
    let mut engine = load("tiny-llama", &EngineOptions { n_ctx: Some(64), max_sequences: 2, ..options() });
    let prompt = tokens(20);
    let mut alone = engine.new_sequence();
    let expected = greedy(&mut engine, &mut alone, &prompt, Some(12));
    drop(alone);
    let free = engine.free_positions();

    let (mut kept, mut cancelled) = (engine.new_sequence(), engine.new_sequence());
    assert_eq!(greedy(&mut engine, &mut kept, &prompt, Some(5)), expected[..5]);
    let other = tokens(30)[4..].to_vec();
    let request = request(&other, Some(30));
    let stopped = engine.generate(&mut cancelled, &request, &mut |_| ControlFlow::Break(())).unwrap();
    assert_eq!((stopped.tokens.len(), stopped.finish_reason), (0, FinishReason::Cancelled));
    drop(cancelled);
    let longer = [&prompt[..], &expected[..5]].concat();
    assert_eq!(greedy(&mut engine, &mut kept, &longer, Some(7)), expected[5..]);
    drop(kept);
    assert_eq!(engine.free_positions(), free);
}

#[test]
fn a_step_without_room_for_all_its_sequences_gives_back_what_it_took() {
    let mut engine = load("tiny-llama", &EngineOptions { n_ctx: Some(128), ..options() });
    let (short, long) = (tokens(10), tokens(100));
    let (mut a, mut b) = (engine.new_sequence(), engine.new_sequence());
    let mut feeds = [
        Feed { sequence: &mut a, tokens: &short, outputs: Outputs::Last },
        Feed { sequence: &mut b, tokens: &long, outputs: Outputs::Last },
    ];
    let error = engine.forward(&mut feeds, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, EngineError::KvFull { wanted: 100, slots: 128 }), "{error}");
    assert!(a.is_empty() && b.is_empty());
    assert_eq!(engine.free_positions(), 128);
    feed(&mut engine, &mut b, &long, &[100]);
}

#[test]
fn a_request_that_is_refused_leaves_the_sequence_as_it_was() {
    let mut engine = load("tiny-llama", &options());
    let mut sequence = engine.new_sequence();
    let prompt = tokens(20);
    feed(&mut engine, &mut sequence, &prompt, &[20]);
    let refused = |engine: &mut Engine, sequence: &mut Sequence, prompt: &[TokenId]| {
        engine
            .generate(sequence, &request(prompt, None), &mut |_| panic!("evaluated"))
            .unwrap_err()
            .to_string()
    };
    let vocab = engine.info().vocab_size;
    assert_eq!(refused(&mut engine, &mut sequence, &[]), "the prompt has no tokens");
    assert_eq!(
        refused(&mut engine, &mut sequence, &[3, vocab as TokenId]),
        format!("token id {vocab} is outside the vocabulary of {vocab}")
    );
    let mut other = load("tiny-llama", &options());
    assert_eq!(refused(&mut other, &mut sequence, &[3]), "the sequence was made by another engine");
    assert_eq!(sequence.tokens(), prompt);
}
