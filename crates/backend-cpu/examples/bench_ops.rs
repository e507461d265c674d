//! Times the thread pool, the row-wise operations and attention: `cargo run --release -p minfer-backend-cpu --example
//! bench_ops [FILTER]`. Each figure is the best of many runs.

use std::hint::black_box;
use std::time::{Duration, Instant};

use memmap2::MmapMut;
use minfer_backend_cpu::Isa;
use minfer_backend_cpu::attention::{
    AttentionInputs, AttentionLimits, AttentionParams, AttentionPlan, AttentionStep, KvCache, KvStore, KvType,
};
use minfer_backend_cpu::ops::{self, Binary, RmsNorm, Rope, Unary};
use minfer_backend_cpu::pool::{PoolConfig, ThreadPool};
use minfer_graph::{Rope as RopeParams, RopePairs};

/// The best time of one call, over about `budget`.
fn best(budget: Duration, mut f: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while start.elapsed() < budget {
        let at = Instant::now();
        f();
        best = best.min(at.elapsed().as_secs_f64());
    }
    best
}

const BUDGET: Duration = Duration::from_millis(400);

fn random(n: usize) -> Vec<f32> {
    let mut x = 0x9e37_79b9_u32;
    (0..n)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            x as f32 / 2f32.powi(31) - 1.0
        })
        .collect()
}

fn pools() {
    for threads in [1, 2] {
        let pool = ThreadPool::new(PoolConfig::new(threads)).unwrap();
        const BARRIERS: usize = 1000;
        let time = best(BUDGET, || {
            pool.run(|w| {
                for _ in 0..BARRIERS {
                    w.barrier()?;
                }
                Ok(())
            })
            .unwrap();
        });
        println!("pool, {threads} threads: barrier {:8.1} ns", time / BARRIERS as f64 * 1e9);
        let time = best(BUDGET, || pool.run(|_| Ok(())).unwrap());
        println!("pool, {threads} threads: empty run, awake {:8.2} µs", time * 1e6);
        let mut times: Vec<f64> = (0..100)
            .map(|_| {
                std::thread::sleep(Duration::from_millis(2));
                let at = Instant::now();
                pool.run(|_| Ok(())).unwrap();
                at.elapsed().as_secs_f64()
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!("pool, {threads} threads: empty run, asleep {:8.2} µs (median)", times[50] * 1e6);
    }
}

fn rows(isa: Isa) {
    let (n, width) = (64, 1536);
    let (x, y) = (random(n * width), random(n * width));
    let mut out = vec![0.0; n * width];
    let mut show = |name: &str, f: &mut dyn FnMut(*mut f32)| {
        let time = best(BUDGET / 4, || f(black_box(out.as_mut_ptr())));
        println!("{isa}: {name:<9} {:6.3} ns/element", time / (n * width) as f64 * 1e9);
    };
    let (xp, yp) = (x.as_ptr(), y.as_ptr());
    let norm = RmsNorm { rows: n, width, eps: 1e-6 };
    // SAFETY: every array has `n · width` elements.
    show("rms_norm", &mut |o| unsafe { ops::rms_norm(isa, norm, o, xp, Some(yp)) });
    // SAFETY: every array has `n · width` elements.
    show("add", &mut |o| unsafe { ops::binary(isa, Binary::Add, o, xp, yp, n * width) });
    // SAFETY: every array has `n · width` elements.
    show("silu_mul", &mut |o| unsafe { ops::binary(isa, Binary::SiluMul, o, xp, yp, n * width) });
    // SAFETY: every array has `n · width` elements.
    show("gelu_mul", &mut |o| unsafe { ops::binary(isa, Binary::GeluMul, o, xp, yp, n * width) });
    // SAFETY: every array has `n · width` elements.
    show("softcap", &mut |o| unsafe { ops::unary(isa, Unary::Softcap(30.0), o, xp, n * width) });
    for pairs in [RopePairs::Halves, RopePairs::Adjacent] {
        let params = RopeParams { rotary_dim: 128, pairs, base: 1e6, scale: 1.0, yarn: None };
        let rope = Rope::new(&params, None).unwrap();
        let positions: Vec<i32> = (0..n as i32).collect();
        let mut table = vec![0.0; n * rope.row_len()];
        let time = best(BUDGET / 4, || rope.fill(isa, black_box(&positions), &mut table));
        println!("{isa}: rope table {:6.3} ns/pair ({pairs:?})", time / (n * 64) as f64 * 1e9);
        // SAFETY: every array has `n · width` elements.
        show("rope", &mut |o| unsafe { ops::rope(isa, &rope, o, xp, table.as_ptr(), [n, width / 128, 128]) });
    }
}

struct Shape {
    name: &'static str,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

const SHAPES: [Shape; 5] = [
    Shape { name: "smollm2-135m", heads: 9, kv_heads: 3, head_dim: 64 },
    Shape { name: "gemma3-270m", heads: 4, kv_heads: 1, head_dim: 256 },
    Shape { name: "qwen2.5-0.5b", heads: 14, kv_heads: 2, head_dim: 64 },
    Shape { name: "qwen2.5-1.5b", heads: 12, kv_heads: 2, head_dim: 128 },
    Shape { name: "llama-mha", heads: 8, kv_heads: 8, head_dim: 128 },
];

/// `tokens` tokens at the end of a sequence of `depth + tokens`.
#[derive(Clone, Copy)]
struct Attend {
    isa: Isa,
    threads: usize,
    kv_type: KvType,
    shape: &'static Shape,
    depth: usize,
    tokens: usize,
    /// Whether the KV cache may stay in the CPU's caches from one run to the next.
    hot: bool,
}

fn attention(case: Attend, filter: &str) {
    let Attend { isa, threads, kv_type, shape, depth, tokens, hot } = case;
    let Shape { name, heads, kv_heads, head_dim } = *shape;
    let heat = if hot { "hot" } else { "cold" };
    let label = format!("attention {isa} {threads}t {name} {kv_type:?} depth {depth} tokens {tokens} {heat}");
    if !label.contains(filter) {
        return;
    }
    let (page, len) = (64, depth + tokens);
    let blocks = len.div_ceil(page);
    let slots = blocks * page;
    let bytes = kv_type.bytes(slots * kv_heads * head_dim);
    // Cold: several layers' caches in turn.
    let layers = if hot { 1 } else { (64usize << 20).div_ceil(2 * bytes).clamp(1, 24) };
    let mut memory = MmapMut::map_anon(2 * layers * bytes).unwrap();
    #[cfg(target_os = "linux")]
    memory.advise(memmap2::Advice::HugePage).unwrap();
    let plans: Vec<AttentionPlan> = memory
        .chunks_mut(2 * bytes)
        .map(|kv| {
            let (k, v) = kv.split_at_mut(bytes);
            // SAFETY: both parts have the size of the cache and live as long as `memory`.
            let cache =
                unsafe { KvCache::new(k.as_mut_ptr(), v.as_mut_ptr(), kv_type, [slots, kv_heads, head_dim]) };
            let rows = random(slots * kv_heads * head_dim);
            let all: Vec<i32> = (0..slots as i32).collect();
            // SAFETY: `rows` has a row for every slot.
            unsafe { KvStore::new(cache, &all).unwrap().run(isa, 0..slots, rows.as_ptr(), rows.as_ptr()) };
            let params = AttentionParams { heads, scale: 0.125, window: None, softcap: None };
            let limits = AttentionLimits { tokens, page, blocks, threads };
            AttentionPlan::new(isa, params, cache, limits).unwrap()
        })
        .collect();
    let q = random(tokens * heads * head_dim);
    let out = vec![0f32; q.len()];
    let scratch: Vec<Vec<f32>> = (0..threads).map(|_| vec![0.0; plans[0].worker_scratch()]).collect();
    let shared = vec![0f32; plans[0].shared_scratch()];
    let positions: Vec<i32> = (depth as i32..len as i32).collect();
    let sequences = vec![0; tokens];
    let table: Vec<i32> = (0..blocks as i32).collect();
    let pool = ThreadPool::new(PoolConfig::new(threads)).unwrap();
    let mut turn = 0;
    let time = best(BUDGET, || {
        let plan = &plans[turn % layers];
        turn += 1;
        pool.run(|worker| {
            let inputs =
                AttentionInputs { positions: &positions, sequences: &sequences, block_table: &table };
            let (out, shared) = (out.as_ptr().cast_mut(), shared.as_ptr().cast_mut());
            let scratch = scratch[worker.index()].as_ptr().cast_mut();
            // SAFETY: all arrays have the step's sizes, and nothing else uses them during the run.
            unsafe {
                AttentionStep::new(plan, inputs, worker.count(), q.as_ptr(), out, shared)
                    .unwrap()
                    .run(worker, scratch)
            }
        })
        .unwrap();
    });
    let seen: usize = (depth + 1..=len).sum();
    let flops = 4.0 * (seen * heads * head_dim) as f64;
    let read = (2 * kv_type.bytes(len * kv_heads * head_dim)) as f64;
    println!(
        "{label:<70} {:9.1} µs {:7.1} GFLOP/s {:6.1} GB/s",
        time * 1e6,
        flops / time / 1e9,
        read / time / 1e9,
    );
}

/// The rate of independent fused multiply-adds from registers: the machine's peak.
fn peak() {
    use minfer_backend_cpu::simd::{Simd, WithSimd};
    struct Fmas(usize);
    impl WithSimd for Fmas {
        type Output = f32;
        #[inline(always)]
        fn with_simd<S: Simd>(self, s: S) -> f32 {
            let x = s.splat(black_box(1.0));
            let mut acc = [s.splat(0.0); 12];
            for _ in 0..self.0 {
                for acc in &mut acc {
                    *acc = s.fma(x, *acc, x);
                }
            }
            acc.into_iter().map(|v| s.reduce_add(v)).sum()
        }
    }
    let isa = Isa::detect();
    let time = best(BUDGET, || _ = black_box(isa.run(Fmas(10_000))));
    println!("{isa}: peak {:7.1} GFLOP/s", 2.0 * 16.0 * 12.0 * 10_000.0 / time / 1e9);
}

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let wants = |name: &str| name.contains(&filter);
    let best_isa = Isa::detect();
    if wants("pool") {
        pools();
    }
    if wants("rows") {
        Isa::available().filter(|&isa| isa != Isa::Scalar).for_each(rows);
    }
    if wants("peak") {
        peak();
    }
    let depth = Attend {
        isa: best_isa,
        threads: 1,
        kv_type: KvType::F16,
        shape: &SHAPES[2],
        depth: 4096,
        tokens: 1,
        hot: false,
    };
    let prefill = Attend { depth: 0, tokens: 512, ..depth };
    let cases = SHAPES
        .iter()
        .flat_map(|shape| [Attend { shape, ..prefill }, Attend { shape, ..depth }])
        .flat_map(|case| [case, Attend { threads: 2, ..case }])
        .chain([
            Attend { kv_type: KvType::F32, ..prefill },
            Attend { kv_type: KvType::F32, ..depth },
            Attend { depth: 1023, hot: true, ..depth },
            Attend { depth: 127, ..depth },
            Attend { depth: 127, threads: 2, ..depth },
            Attend { isa: Isa::Avx2, ..prefill },
            Attend { isa: Isa::Avx2, ..depth },
        ]);
    for case in cases.filter(|case| case.isa.is_available()) {
        attention(case, &filter);
    }
}
