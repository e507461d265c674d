//! Speed of the matmul kernels on one thread.
//!
//! `cargo run --release -p minfer-backend-cpu --example bench_matmul -- [type or "all"] [rows] [k] [T,T,…] [isa] [MiB]`
//!
//! For each weight type: the time to pack, and for each number of activation rows the rate in GOP/s (a multiply and an add
//! are two), as a share of the machine's measured 8-bit dot-product peak, and in GB/s of packed weights. Each figure is the tenth percentile
//! of many runs. Weights stream from a set of matrices of 64 MiB (or as given), which does not fit the inner caches.

use minfer_backend_cpu::matmul::{Activations, Output, matmul, scratch_bytes};
use minfer_backend_cpu::pack::{PackedLayout, PackedMatrix};
use minfer_backend_cpu::quantize::{QuantizedLayout, QuantizedRows};
use minfer_backend_cpu::simd::{Isa, Simd, WithSimd};
use minfer_gguf::TensorType;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// How long each figure is measured.
const BUDGET: Duration = Duration::from_millis(400);

/// Dot products from registers only.
struct Peak(usize);

impl WithSimd for Peak {
    type Output = i32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) -> i32 {
        let (w, a) = (black_box(s.splat_i(0x0101_0101)), black_box(s.splat_i(0x0102_0304)));
        let mut sums = [s.splat_i(0); 12];
        for _ in 0..self.0 {
            for sum in &mut sums {
                *sum = s.dot4(*sum, w, a);
            }
        }
        sums.into_iter().fold(0, |x, v| x.wrapping_add(s.reduce_add_i(v)))
    }
}

/// Reads memory and does nothing with it.
struct Stream<'a>(&'a [u8]);

impl WithSimd for Stream<'_> {
    type Output = i32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) -> i32 {
        let mut sums = [s.splat_i(0); 4];
        for chunk in self.0.chunks_exact(256) {
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the chunk has four vectors.
                unsafe {
                    let p = chunk.as_ptr().add(64 * i);
                    s.prefetch(p.wrapping_add(4096));
                    *sum = s.xor_i(*sum, s.load_i(p));
                }
            }
        }
        sums.into_iter().fold(0, |x, v| x ^ s.reduce_max_i(v))
    }
}

/// The time of a run in seconds: the tenth percentile of those that fit the budget.
///
/// Not the shortest: the clock of a busy virtual machine has outliers in both directions.
fn best(mut run: impl FnMut()) -> f64 {
    let (start, mut times) = (Instant::now(), Vec::new());
    while times.len() < 5 || start.elapsed() < BUDGET {
        let t = now();
        run();
        times.push(now() - t);
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 10]
}

/// This thread's own time, so that other processes disturb less.
#[cfg(unix)]
fn now() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is valid for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

/// The time since the first call.
#[cfg(not(unix))]
fn now() -> f64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// A buffer that starts on a cache line.
fn aligned(len: usize) -> (Vec<u8>, usize) {
    let v = vec![0u8; len + 64];
    let at = v.as_ptr().align_offset(64);
    (v, at)
}

fn noise(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |i: usize, default: &str| args.get(i).cloned().unwrap_or_else(|| default.into());
    let (ty, rows, k) = (arg(0, "all"), arg(1, "1024").parse::<usize>()?, arg(2, "1024").parse::<usize>()?);
    let acts = arg(3, "1,4,8,512").split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    let working_set = arg(5, "64").parse::<usize>()? << 20;
    let isa =
        if args.len() > 4 && args[4] != "best" { args[4].parse::<Isa>()?.checked()? } else { Isa::detect() };

    const LOOPS: usize = 1 << 16;
    let peak = (LOOPS * 12 * 64 * 2) as f64
        / best(|| assert!(black_box(isa.run(Peak(black_box(LOOPS)))) != 1))
        / 1e9;
    let memory = vec![1u8; working_set.max(1 << 20)];
    let stream =
        memory.len() as f64 / best(|| assert!(black_box(isa.run(Stream(black_box(&memory)))) != 7)) / 1e9;
    println!("{isa}: peak {peak:.0} GOP/s, reading {stream:.1} GB/s; weights {rows} x {k}");
    drop(memory);

    let types = [
        TensorType::Q4_0,
        TensorType::Q4_1,
        TensorType::Q5_0,
        TensorType::Q5_1,
        TensorType::Q8_0,
        TensorType::IQ4_NL,
        TensorType::Q2_K,
        TensorType::Q3_K,
        TensorType::Q4_K,
        TensorType::Q5_K,
        TensorType::Q6_K,
        TensorType::IQ4_XS,
        TensorType::F32,
        TensorType::F16,
        TensorType::BF16,
    ];
    for ty in types.into_iter().filter(|t| ty == "all" || t.name().eq_ignore_ascii_case(&ty)) {
        let Ok(layout) = PackedLayout::new(ty, rows, k) else { continue };
        let mut seed = 1;
        // Random bits are valid blocks, and as these are, no number in them is infinite or subnormal.
        let src: Vec<u8> =
            (0..rows * layout.row_bytes()).map(|_| noise(&mut seed) as u8 & 0x3b | 0x30).collect();
        let count = working_set.div_ceil(layout.bytes()).max(1);
        let (mut data, at) = aligned(count * layout.bytes());
        let data = &mut data[at..][..count * layout.bytes()];
        for dst in data.chunks_exact_mut(layout.bytes()) {
            layout.pack(&src, 0..layout.groups(), dst)?;
        }
        let pack = best(|| layout.pack(&src, 0..layout.groups(), &mut data[..layout.bytes()]).unwrap());
        let mut line = format!("{:7} pack {:5.2} GB/s", ty.name(), src.len() as f64 / pack / 1e9);
        let matrices: Vec<_> = data
            .chunks_exact(layout.bytes())
            .map(|d| PackedMatrix::new(layout, d))
            .collect::<Result<_, _>>()?;
        let mut scratch = vec![0; scratch_bytes(&layout)];
        for &t in &acts {
            let x: Vec<f32> =
                (0..t * k).map(|_| noise(&mut seed) as f32 / (1u64 << 31) as f32 - 0.5).collect();
            let (mut q, at) = aligned(QuantizedLayout::new(t, k)?.bytes());
            let ql = QuantizedLayout::new(t, k)?;
            let q = &mut q[at..][..ql.bytes()];
            ql.quantize(isa, &x, k, q)?;
            let acts = if layout.quantized() {
                Activations::Quantized(QuantizedRows::new(ql, q)?)
            } else {
                Activations::F32 { data: &x, rows: t, k, stride: k }
            };
            let mut out = vec![0f32; t * rows];
            let mut next = 0;
            let time = best(|| {
                let w = &matrices[next % count];
                next += 1;
                let out = Output::new(&mut out, rows);
                // SAFETY: one thread.
                unsafe { matmul(isa, w, &acts, None, out, 0..layout.groups(), &mut scratch) }.unwrap();
            });
            let gops = (2 * rows * k * t) as f64 / time / 1e9;
            let gbs = layout.bytes() as f64 / time / 1e9;
            line += &format!(" | T={t}: {gops:6.1} GOP/s {:4.1} % {gbs:5.2} GB/s", gops / peak * 100.0);
        }
        println!("{line}");
    }
    for t in [1, 512] {
        let x: Vec<f32> = (0..t * k).map(|i| (i as f32).sin()).collect();
        let layout = QuantizedLayout::new(t, k)?;
        let mut out = vec![0; layout.bytes()];
        let time = best(|| layout.quantize(isa, &x, k, &mut out).unwrap());
        println!("quantize {t} x {k}: {:.2} ns per block of 32", time * 1e9 / (t * k / 32) as f64);
    }
    Ok(())
}
