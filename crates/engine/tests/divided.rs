//! A real model with its layers divided between the CPU and a simulated GPU with the same kernels, and what happens when
//! that GPU fails.

mod common;

use common::{feed, greedy, real_model, request};
use minfer_engine::{Engine, EngineError, EngineOptions, GpuLayers, Placement, devices};
use minfer_graph::devices::{Counts, Fault, FaultKind, SimControl, SimOptions, Site, World};
use minfer_graph::{Backend, ExecError, PlanError};
use minfer_tokenizer::{Special, TokenId};

/// One thread: what is divided takes turns, so two pools of threads would wait for each other's.
fn options(gpu_layers: Option<u32>) -> EngineOptions {
    EngineOptions {
        n_ctx: Some(128),
        threads: 1,
        threads_batch: 1,
        placement: Placement { gpu_layers: gpu_layers.map(GpuLayers::Count), ..Placement::default() },
        ..EngineOptions::default()
    }
}

/// A simulated GPU before the CPU.
fn devices(options: &EngineOptions, world: &World) -> (Vec<Box<dyn Backend>>, SimControl) {
    let gpu = world.device("gpu", devices::open_cpu(options).unwrap(), SimOptions::default());
    let control = gpu.control();
    (vec![Box::new(gpu), devices::open_cpu(options).unwrap()], control)
}

fn divided(name: &str, gpu_layers: u32) -> (Engine, SimControl, World) {
    let (options, world) = (options(Some(gpu_layers)), World::new());
    let (devices, control) = devices(&options, &world);
    let engine = Engine::load_on(real_model(name), &options, devices, &mut |_| {}).unwrap();
    (engine, control, world)
}

fn prompt(engine: &Engine) -> Vec<TokenId> {
    engine.tokenize_prompt("def is_prime(n):", Special::AsText)
}

#[test]
fn any_number_of_layers_on_the_gpu_gives_the_tokens_of_the_cpu_alone() {
    let name = "qwen2.5-coder-0.5b";
    let mut alone = Engine::load(real_model(name), &options(None), &mut |_| {}).unwrap();
    let layers = alone.info().n_layer as u32;
    let prompt = prompt(&alone);
    let evaluate = |engine: &mut Engine| {
        let mut sequence = engine.new_sequence();
        let logits = feed(engine, &mut sequence, &prompt, &[prompt.len()]);
        let mut sequence = engine.new_sequence();
        (logits, greedy(engine, &mut sequence, &prompt, Some(4)))
    };
    let wanted = evaluate(&mut alone);
    drop(alone);

    let mut splits = Vec::new();
    for count in 0..=layers + 2 {
        let (mut engine, control, _) = divided(name, count);
        assert!(evaluate(&mut engine) == wanted, "--gpu-layers {count}");
        let plan = engine.plan(1).unwrap();
        splits.push(plan.splits().len());
        // What is on the gpu ran there, and was recorded and replayed.
        let on_gpu: usize = plan.splits().iter().filter(|s| s.device.0 == 0).map(|s| s.nodes.len()).sum();
        assert_eq!(on_gpu > 0, count > 0);
        assert_eq!(control.counts().replays > 0, count > 0);
    }
    let mut wanted = vec![2; layers as usize + 3];
    (wanted[0], wanted[layers as usize + 2]) = (1, 1);
    assert_eq!(splits, wanted, "one boundary between the devices, where both are used");
}

/// The sites of a run with their counts.
fn sites(counts: Counts) -> [(Site, u64); 3] {
    [(Site::Launch, counts.launches), (Site::Copy, counts.copies), (Site::Submit, counts.submits)]
}

#[test]
fn a_fault_at_any_launch_copy_or_submit_is_an_error_and_the_next_run_is_right() {
    let (mut engine, control, world) = divided("smollm2-135m", 8);
    let prompt = engine.tokenize_prompt("The sea is", Special::AsText);
    // Prefill and two steps of generation, so that plans are made, used and used again.
    let mut sequence = engine.new_sequence();
    let wanted = greedy(&mut engine, &mut sequence, &prompt, Some(3));
    for _ in 0..3 {
        // Everything is recorded by now, and no plan is missing.
        let mut sequence = engine.new_sequence();
        assert_eq!(greedy(&mut engine, &mut sequence, &prompt, Some(3)), wanted);
    }
    // Times go on, so what is compared are the nodes.
    let ran = || world.take_log().into_iter().map(|ran| ran.node).collect::<Vec<_>>();
    let (before, log) = (control.counts(), ran());
    let mut sequence = engine.new_sequence();
    greedy(&mut engine, &mut sequence, &prompt, Some(3));
    let order = ran();
    assert!(log.ends_with(&order));
    let (after, free) = (control.counts(), engine.free_positions());
    drop(sequence);
    assert!(engine.free_positions() > free);
    let free = engine.free_positions();

    for (now, earlier) in sites(after).into_iter().zip(sites(before)) {
        let (site, count) = (now.0, now.1 - earlier.1);
        assert!(count >= 3, "{site:?}: {count}");
        for nth in 0..count {
            for kind in [FaultKind::Fail, FaultKind::Hang] {
                let what = format!("{kind:?} at {site:?} {nth} of {count}");
                control.inject(Fault { site, nth, kind });
                ran();
                let mut sequence = engine.new_sequence();
                let request = request(&prompt, Some(3));
                let start = world.now();
                let result =
                    engine.generate(&mut sequence, &request, &mut |_| std::ops::ControlFlow::Continue(()));
                let error = result.expect_err(&what);
                assert!(!control.clear(), "{what} did not happen");
                check(&error, site, kind, &what);
                // A hang ends at its deadline, and is waited for once.
                let passed = world.now() - start;
                assert!(passed <= minfer_graph::Scheduler::DEFAULT_DEADLINE, "{what}: {passed:?}");
                // What ran is the beginning of what runs without a fault; after a hang the device may finish later what
                // it had been given.
                let ran = ran();
                assert!(order.starts_with(&ran), "{what}: something ran out of turn");
                if (site, kind) == (Site::Launch, FaultKind::Fail) {
                    assert_eq!(ran.len() as u64, nth, "{what}");
                }
                drop(sequence);
                assert_eq!(engine.free_positions(), free, "{what}: positions are lost");
                let mut sequence = engine.new_sequence();
                assert_eq!(greedy(&mut engine, &mut sequence, &prompt, Some(3)), wanted, "after {what}");
                assert_eq!(control.counts().bytes, after.bytes, "{what}: memory is lost");
            }
        }
    }
}

/// The error is typed, and says what and where.
#[track_caller]
fn check(error: &EngineError, site: Site, kind: FaultKind, what: &str) {
    let text = error.to_string();
    assert_eq!(error.kind(), minfer_engine::ErrorKind::Device, "{what}: {text}");
    match (error, site, kind) {
        (EngineError::Exec(ExecError::Node(error)), Site::Launch, FaultKind::Fail) => {
            assert_eq!(error.device, "gpu");
            assert!(!error.label.is_empty() && !error.shapes.is_empty() && !error.dispatched.is_empty());
            assert!(text.ends_with(" on gpu: injected failure"), "{what}: {text}");
        }
        (EngineError::Exec(ExecError::Device { device, dispatched, .. }), _, kind) => {
            assert_eq!(device, "gpu");
            let words = if kind == FaultKind::Hang { "not finished after" } else { "injected failure of a" };
            assert!(text.contains(words), "{what}: {text}");
            assert!(site == Site::Copy || dispatched.contains("blk."), "{what}: {text}");
        }
        _ => panic!("{what}: {error:?}"),
    }
}

#[test]
fn a_fault_at_any_allocation_is_an_error_and_the_next_try_is_right() {
    let name = "smollm2-135m";
    let options = options(Some(3));
    let prompt = [1, 2, 3];
    let mut total = None;
    let mut nth = 0;
    // Each allocation of a load in turn, until there are no more.
    loop {
        let world = World::new();
        let (devices, control) = devices(&options, &world);
        control.inject(Fault { site: Site::Allocation, nth, kind: FaultKind::Fail });
        match Engine::load_on(real_model(name), &options, devices, &mut |_| {}) {
            Ok(mut engine) => {
                assert!(control.clear());
                let mut sequence = engine.new_sequence();
                total = total.or(Some(greedy(&mut engine, &mut sequence, &prompt, Some(2))));
                break;
            }
            Err(EngineError::Plan(PlanError::Device { ref device, ref what, ref error })) => {
                assert_eq!(device, "gpu");
                assert!(!what.is_empty());
                let text = error.to_string();
                assert!(text.starts_with("out of memory: "), "{text}");
                assert!(!control.clear(), "the fault did not happen");
            }
            Err(error) => panic!("{error:?}"),
        }
        nth += 1;
        assert!(nth < 500);
    }
    // 2 layers with 7 matrices, 2 norms and a cache each; the output norm and matrix; buffers.
    assert!(nth > 2 * 10 + 2, "{nth}");
    let mut alone = Engine::load(real_model(name), &self::options(None), &mut |_| {}).unwrap();
    let mut sequence = alone.new_sequence();
    assert_eq!(total, Some(greedy(&mut alone, &mut sequence, &prompt, Some(2))));
}

#[test]
fn a_loaded_engine_takes_no_more_memory_on_the_device() {
    let (mut engine, control, _) = divided("smollm2-135m", 3);
    let before = control.counts();
    for n in [1, 2, 19, 127] {
        let mut sequence = engine.new_sequence();
        let prompt: Vec<TokenId> = (1..=n).collect();
        greedy(&mut engine, &mut sequence, &prompt, Some(1));
    }
    let after = control.counts();
    assert_eq!((after.allocations, after.bytes), (before.allocations, before.bytes));
}
