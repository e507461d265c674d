//! What the graph itself costs in a step of generation: nanoseconds a node on devices that compute nothing, the time to
//! make a plan, and the number of allocations.
//!
//! `cargo run --release -p minfer-models --example overhead -- MODEL.gguf`

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use minfer_gguf::Gguf;
use minfer_graph::devices::NullDevice;
use minfer_graph::{BoundPlan, DType, PlanOptions, Rule, Scheduler, Stage, WeightSource};
use minfer_models::{BatchShape, KvConfig, Model, Ports};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Debug)]
struct Weights(Gguf);

impl WeightSource for Weights {
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.tensor(name).map(|t| t.data)
    }
}

const ROUNDS: u32 = 50;
const STEPS: u32 = 20_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: overhead MODEL.gguf")?;
    let gguf = Gguf::open(path)?;
    let model = Model::from_gguf(&gguf)?;
    let source: Arc<dyn WeightSource> = Arc::new(Weights(gguf));
    let layers = model.info().n_layer as u32;
    let half = move |stage: Stage| matches!(stage, Stage::Layer(l) if l >= layers / 2);
    let kinds: [(&str, Vec<Rule<'static>>); 3] = [
        ("one device", Vec::new()),
        ("half of the layers on another", vec![Rule::new("half", move |_, s, d| half(s) == (d.0 == 0))]),
        (
            "every layer on the other one",
            vec![Rule::new("in turns", |_, s, d| matches!(s, Stage::Layer(l) if l % 2 == 0) == (d.0 == 0))],
        ),
    ];
    for (name, rules) in kinds {
        measure(name, &rules, &model, &source)?;
    }
    Ok(())
}

fn measure(
    name: &str,
    rules: &[Rule<'_>],
    model: &Model,
    source: &Arc<dyn WeightSource>,
) -> Result<(), Box<dyn std::error::Error>> {
    let batch = BatchShape { tokens: 1, outputs: 1, sequences: 1 };
    let kv = KvConfig { dtype: DType::F16, slots: 4096, page: 64, blocks: 64 };
    let mut scheduler = Scheduler::new(vec![Box::new(NullDevice::new()), Box::new(NullDevice::new())]);
    let options = PlanOptions { rules, ..PlanOptions::default() };
    let (mut build, mut plan_time, mut bind) = (Vec::new(), Vec::new(), Vec::new());
    let mut last = None;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let (graph, ports) = model.graph(&batch, &kv)?;
        build.push(start.elapsed());
        let start = Instant::now();
        let plan = scheduler.plan(graph, &options)?;
        plan_time.push(start.elapsed());
        let start = Instant::now();
        let bound = scheduler.bind(plan, source, &mut |_, _| {})?;
        bind.push(start.elapsed());
        if let Some((old, _)) = last.replace((bound, ports)) {
            scheduler.unbind(old);
        }
    }
    let Some((mut plan, ports)) = last else { return Ok(()) };
    let nodes: u32 = plan.plan().splits().iter().map(|s| s.nodes.len() as u32).sum();
    let splits = plan.plan().splits().len();
    println!("{name}: {nodes} nodes in {splits} splits");
    println!("  build {:?}, plan {:?}, bind {:?}", median(build), median(plan_time), median(bind));
    for replay in [false, true] {
        scheduler.set_replay(replay);
        for _ in 0..3 {
            step(&mut scheduler, &mut plan, &ports)?;
        }
        let allocations = ALLOCATIONS.load(Ordering::Relaxed);
        // The inputs apart, as they are the same with any number of nodes.
        let mut walk = Duration::ZERO;
        for _ in 0..STEPS {
            walk += step(&mut scheduler, &mut plan, &ports)?;
        }
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) - allocations;
        let walk = walk / STEPS;
        let node = walk.as_nanos() as f64 / f64::from(nodes);
        let how = if replay { "replayed" } else { "direct" };
        println!("  {how}: {walk:?} a step, {node:.2} ns a node, {allocations} allocations in {STEPS} steps");
    }
    Ok(())
}

/// One step; the time of the walk.
fn step(
    scheduler: &mut Scheduler,
    plan: &mut BoundPlan,
    ports: &Ports,
) -> Result<Duration, minfer_graph::ExecError> {
    for input in [ports.tokens, ports.positions, ports.sequences, ports.slots, ports.output_rows] {
        scheduler.write_i32(plan, input, &[0])?;
    }
    scheduler.write_i32(plan, ports.block_table, &[0; 64])?;
    let start = Instant::now();
    scheduler.execute(plan)?;
    Ok(start.elapsed())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
