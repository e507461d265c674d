//! Tiny models with odd shapes, loaded and fed.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use minfer_engine::{
    Engine, EngineOptions, Feed, Outputs, Request, Sequence, Step, sampling::SamplingParams,
};
use minfer_tokenizer::TokenId;

pub fn path(file: String) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/tiny").join(file)
}

/// A real model's file; a missing one fails the test, because a skipped one would prove nothing.
pub fn real_model(name: &str) -> PathBuf {
    let dir = std::env::var_os("MINFER_MODELS").map_or_else(
        || Path::new(&std::env::var_os("HOME").unwrap()).join(".cache/minfer/models"),
        PathBuf::from,
    );
    let path = dir.join(format!("{name}.gguf"));
    assert!(
        path.is_file(),
        "{} is missing; `cargo xtask test` fetches the models and runs the tests",
        path.display()
    );
    path
}

pub fn load(name: &str, options: &EngineOptions) -> Engine {
    Engine::load(path(format!("{name}.gguf")), options, &mut |_| {}).unwrap()
}

pub fn options() -> EngineOptions {
    EngineOptions { n_ctx: Some(256), threads: 2, threads_batch: 2, ..EngineOptions::default() }
}

/// Feeds tokens in pieces of these lengths; the logits after every token.
pub fn feed(
    engine: &mut Engine,
    sequence: &mut Sequence,
    tokens: &[TokenId],
    pieces: &[usize],
) -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    let mut start = 0;
    for &len in pieces {
        let mut feeds = [Feed { sequence, tokens: &tokens[start..start + len], outputs: Outputs::From(0) }];
        engine
            .forward(&mut feeds, &mut |step| {
                if let Step::Logits { logits, .. } = step {
                    rows.push(logits.to_vec());
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        start += len;
    }
    assert_eq!(start, tokens.len());
    rows
}

pub fn tokens(n: usize) -> Vec<TokenId> {
    (0..n as TokenId).map(|i| (i * 37 + 11) % 190 + 3).collect()
}

/// The best token each time, at most `n`, whatever the model says about the end.
pub fn request(prompt: &[TokenId], n: Option<usize>) -> Request<'_> {
    Request { prompt, sampling: SamplingParams::greedy(), max_tokens: n, stop: &[], ignore_eos: true }
}

pub fn greedy(
    engine: &mut Engine,
    sequence: &mut Sequence,
    prompt: &[TokenId],
    n: Option<usize>,
) -> Vec<TokenId> {
    let request = request(prompt, n);
    engine.generate(sequence, &request, &mut |_| ControlFlow::Continue(())).unwrap().tokens
}
