//! Completes a prompt greedily: `complete MODEL.gguf "The capital of France is"`.

use std::io::Write;
use std::ops::ControlFlow;

use minfer_engine::{Engine, EngineOptions, Event, Request, sampling::SamplingParams};
use minfer_tokenizer::Special;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(model), Some(text)) = (arguments.next(), arguments.next()) else {
        return Err("usage: complete MODEL.gguf PROMPT".into());
    };
    let mut engine = Engine::load(model, &EngineOptions::default(), &mut |_| {})?;
    let prompt = engine.tokenize_prompt(&text, Special::Parse);
    let request = Request {
        prompt: &prompt,
        sampling: SamplingParams::greedy(),
        max_tokens: Some(48),
        stop: &[],
        ignore_eos: false,
    };
    let mut sequence = engine.new_sequence();
    let done = engine.generate(&mut sequence, &request, &mut |event| {
        if let Event::Text(text) = event {
            print!("{text}");
            let _ = std::io::stdout().flush();
        }
        ControlFlow::Continue(())
    })?;
    let t = done.timings;
    eprintln!(
        "\nload {:?}, prompt {} in {:?}, {} tokens in {:?}",
        engine.load_time(),
        t.prompt_n,
        t.prompt,
        t.predicted_n,
        t.predicted
    );
    Ok(())
}
