//! A decode step must not allocate: after the first tokens, neither the engine nor the sampler does.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};

use minfer_engine::sampling::{Sampler, SamplingParams};
use minfer_engine::{Feed, Outputs};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the one `System` needs.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of 300 choices of a token, after 300 of warm-up.
fn of_sampling(params: SamplingParams) -> usize {
    let logits: Vec<f32> =
        (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32 / 400.0).collect();
    let mut sampler = Sampler::new(params, logits.len(), |_| b"").unwrap();
    let mut run = || {
        for _ in 0..300 {
            let token = sampler.sample(&logits).unwrap();
            sampler.accept(token).unwrap();
        }
    };
    run();
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    run();
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// Allocations of 50 decode steps after a prompt and one step, on all threads of the device.
fn of_decoding() -> usize {
    let mut engine = common::load("tiny-gemma3", &common::options());
    let mut sequence = engine.new_sequence();
    let tokens = common::tokens(130);
    let mut step = |tokens: &[u32]| {
        let mut feeds = [Feed { sequence: &mut sequence, tokens, outputs: Outputs::Last }];
        engine.forward(&mut feeds, &mut |_| ControlFlow::Continue(())).unwrap();
    };
    // The list of tokens has grown to 156 places and that of pages to 4 before counting begins.
    step(&tokens[..78]);
    step(&tokens[78..79]);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for token in tokens[79..129].chunks(1) {
        step(token);
    }
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// One test: others, on threads of their own, would be counted.
#[test]
fn steps_allocate_nothing_after_warm_up() {
    assert_eq!(of_decoding(), 0);
    let default = SamplingParams::default;
    assert_eq!(of_sampling(SamplingParams::greedy()), 0);
    assert_eq!(of_sampling(default()), 0);
    assert_eq!(of_sampling(SamplingParams { top_k: 0, typical_p: 0.9, ..default() }), 0);
    let all = SamplingParams {
        repeat_penalty: 1.1,
        dry_multiplier: 0.8,
        dry_penalty_last_n: 128,
        xtc_probability: 0.5,
        logit_bias: vec![(7, 1.0)],
        ..default()
    };
    assert_eq!(of_sampling(all), 0);
    // Negative control: the count sees an allocation.
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    drop(std::hint::black_box(vec![0u8; 100]));
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 1);
}
