//! Attention against an f64 reference, and bit for bit between batches, chunkings, thread counts and instruction sets.

use half::f16;

use super::*;
use crate::pool::{PoolConfig, ThreadPool};
use crate::testing::{Rng, assert_bits, assert_near};

/// An attention and the shape of its cache.
#[derive(Debug, Clone, Copy)]
struct Case {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    window: Option<usize>,
    softcap: Option<f32>,
    kv_type: KvType,
    page: usize,
}

const CASE: Case =
    Case { heads: 6, kv_heads: 3, head_dim: 24, window: None, softcap: None, kv_type: KvType::F16, page: 16 };

/// Queries, keys and values of one sequence, `[position][head][dim]`.
struct Sequence {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Sequence {
    fn random(case: &Case, len: usize, rng: &mut Rng) -> Self {
        let row = len * case.head_dim;
        Self {
            q: rng.vec(row * case.heads, 2.0),
            k: rng.vec(row * case.kv_heads, 2.0),
            v: rng.vec(row * case.kv_heads, 1.0),
        }
    }

    /// The result of every position, in f64.
    fn reference(&self, case: &Case) -> Vec<f64> {
        let Case { heads, kv_heads, head_dim, .. } = *case;
        let cached = |x: f32| match case.kv_type {
            KvType::F16 => f16::from_f32(x).to_f64(),
            KvType::F32 => f64::from(x),
        };
        let len = self.q.len() / (heads * head_dim);
        let mut out = Vec::new();
        for position in 0..len {
            let first = case.window.map_or(0, |w| (position + 1).saturating_sub(w));
            for head in 0..heads {
                let kv_head = head / (heads / kv_heads);
                let row = |p: usize| (p * kv_heads + kv_head) * head_dim;
                let q = &self.q[(position * heads + head) * head_dim..][..head_dim];
                let scores: Vec<f64> = (first..=position)
                    .map(|p| {
                        let k = &self.k[row(p)..][..head_dim];
                        let dot: f64 = q.iter().zip(k).map(|(&q, &k)| f64::from(q) * cached(k)).sum();
                        let score = dot * f64::from(case.scale());
                        case.softcap.map_or(score, |c| f64::from(c) * (score / f64::from(c)).tanh())
                    })
                    .collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for d in 0..head_dim {
                    let weighted = |(i, w): (usize, &f64)| w * cached(self.v[row(first + i) + d]);
                    out.push(weights.iter().enumerate().map(weighted).sum::<f64>() / sum);
                }
            }
        }
        out
    }
}

impl Case {
    fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    fn params(&self) -> AttentionParams {
        let Case { heads, window, softcap, .. } = *self;
        AttentionParams { heads, scale: self.scale(), window, softcap }
    }
}

/// A cache full of NaN, with pages handed out to sequences in random order.
struct World {
    case: Case,
    k: Vec<u8>,
    v: Vec<u8>,
    block_table: Vec<i32>,
    blocks: usize,
    slots: usize,
}

impl World {
    fn new(case: Case, lens: &[usize], rng: &mut Rng) -> Self {
        // One block more than needed: its entry is never read.
        let blocks = lens.iter().max().unwrap().div_ceil(case.page) + 1;
        let pages = lens.iter().map(|len| len.div_ceil(case.page)).sum::<usize>() + 3;
        let mut free: Vec<i32> = (0..pages as i32).collect();
        let mut block_table = vec![-1; lens.len() * blocks];
        for (row, len) in block_table.chunks_mut(blocks).zip(lens) {
            for entry in &mut row[..len.div_ceil(case.page)] {
                *entry = free.swap_remove(rng.below(free.len()));
            }
        }
        let slots = pages * case.page;
        // 0xFFFF and 0xFFFFFFFF are NaN.
        let bytes = case.kv_type.bytes(slots * case.kv_heads * case.head_dim);
        Self { case, k: vec![0xff; bytes], v: vec![0xff; bytes], block_table, blocks, slots }
    }

    fn cache(&mut self) -> KvCache {
        let Case { kv_type, kv_heads, head_dim, .. } = self.case;
        let shape = [self.slots, kv_heads, head_dim];
        // SAFETY: the vectors have this size, are aligned by the allocator, and outlive every use in a test.
        unsafe { KvCache::new(self.k.as_mut_ptr(), self.v.as_mut_ptr(), kv_type, shape) }
    }

    fn plan(&mut self, isa: Isa, tokens: usize, threads: usize) -> AttentionPlan {
        let limits = AttentionLimits { tokens, page: self.case.page, blocks: self.blocks, threads };
        AttentionPlan::new(isa, self.case.params(), self.cache(), limits).unwrap()
    }

    /// One step: stores the rows of `tokens` (sequence, position) and attends. Scratch and output start as NaN.
    fn step(&mut self, isa: Isa, pool: &ThreadPool, all: &[Sequence], tokens: &[(usize, usize)]) -> Vec<f32> {
        let Case { heads, kv_heads, head_dim, page, .. } = self.case;
        let gather = |pick: fn(&Sequence) -> &Vec<f32>, heads: usize| -> Vec<f32> {
            let width = heads * head_dim;
            tokens.iter().flat_map(|&(s, p)| pick(&all[s])[p * width..][..width].to_vec()).collect()
        };
        let (q, k, v) = (gather(|s| &s.q, heads), gather(|s| &s.k, kv_heads), gather(|s| &s.v, kv_heads));
        let positions: Vec<i32> = tokens.iter().map(|t| t.1 as i32).collect();
        let sequences: Vec<i32> = tokens.iter().map(|t| t.0 as i32).collect();
        let slot = |&(s, p): &(usize, usize)| {
            self.block_table[s * self.blocks + p / page] * page as i32 + (p % page) as i32
        };
        let slots: Vec<i32> = tokens.iter().map(slot).collect();
        let table = self.block_table.clone();
        // An empty step is a step too.
        let plan = self.plan(isa, tokens.len().max(1), pool.size());
        let mut out = vec![f32::NAN; q.len()];
        let mut shared = vec![f32::NAN; plan.shared_scratch()];
        let mut scratch = vec![vec![f32::NAN; plan.worker_scratch()]; pool.size()];
        let scratch: Vec<usize> = scratch.iter_mut().map(|s| s.as_mut_ptr() as usize).collect();
        let (out_at, shared_at) = (out.as_mut_ptr() as usize, shared.as_mut_ptr() as usize);
        pool.run(|worker| {
            let store = KvStore::new(plan.cache, &slots).unwrap();
            // SAFETY: workers store different tokens; `k` and `v` have all rows.
            unsafe { store.run(isa, worker.split(tokens.len(), 1), k.as_ptr(), v.as_ptr()) };
            worker.barrier()?;
            let inputs =
                AttentionInputs { positions: &positions, sequences: &sequences, block_table: &table };
            let (out, shared) = (out_at as *mut f32, shared_at as *mut f32);
            // SAFETY: all arrays have the step's sizes; each worker has its own scratch.
            unsafe {
                let step =
                    AttentionStep::new(&plan, inputs, worker.count(), q.as_ptr(), out, shared).unwrap();
                step.run(worker, scratch[worker.index()] as *mut f32)
            }
        })
        .unwrap();
        out
    }

    /// A whole sequence in steps of the given lengths.
    fn prefill(
        &mut self,
        isa: Isa,
        pool: &ThreadPool,
        all: &[Sequence],
        seq: usize,
        steps: &[usize],
    ) -> Vec<f32> {
        let (mut out, mut at) = (Vec::new(), 0);
        for &len in steps {
            let tokens: Vec<_> = (at..at + len).map(|p| (seq, p)).collect();
            out.extend(self.step(isa, pool, all, &tokens));
            at += len;
        }
        out
    }
}

fn pool(threads: usize) -> ThreadPool {
    ThreadPool::new(PoolConfig::new(threads)).unwrap()
}

/// Runs one sequence of `len` tokens in one step.
fn one_shot(case: Case, isa: Isa, threads: usize, len: usize, seed: u64) -> (Vec<f32>, Sequence) {
    let mut rng = Rng::new(seed);
    let all = [Sequence::random(&case, len, &mut rng)];
    let out = World::new(case, &[len], &mut rng).prefill(isa, &pool(threads), &all, 0, &[len]);
    let [sequence] = all;
    (out, sequence)
}

#[test]
fn inv26_every_head_size_matches_the_reference() {
    for head_dim in [1, 8, 24, 31, 64, 80, 96, 112, 128, 256, 300, 576] {
        for kv_type in [KvType::F16, KvType::F32] {
            let case = Case { head_dim, kv_type, ..CASE };
            let (out, sequence) = one_shot(case, Isa::detect(), 1, 70, 1);
            assert_near(&out, &sequence.reference(&case), 0.0, 3e-6, &format!("{case:?}"));
        }
    }
}

#[test]
fn k13_inv25_every_head_ratio_matches_the_reference() {
    let ratios = [(1, 1), (4, 1), (6, 3), (9, 3), (14, 2), (12, 2), (5, 5), (3, 1), (32, 8), (130, 1)];
    for (heads, kv_heads) in ratios {
        let case = Case { heads, kv_heads, ..CASE };
        let (out, sequence) = one_shot(case, Isa::detect(), 2, 45, 2);
        assert_near(&out, &sequence.reference(&case), 0.0, 3e-6, &format!("{case:?}"));
    }
}

#[test]
fn long_sequences_windows_and_softcaps_match_the_reference() {
    for window in [None, Some(1), Some(8), Some(100), Some(256), Some(511), Some(10_000)] {
        for softcap in [None, Some(1.5)] {
            let case = Case { window, softcap, heads: 3, kv_heads: 1, head_dim: 16, ..CASE };
            for len in [1, 255, 256, 257, 600] {
                let (out, sequence) = one_shot(case, Isa::detect(), 1, len, 3);
                assert_near(&out, &sequence.reference(&case), 0.0, 5e-6, &format!("{len} {case:?}"));
            }
        }
    }
}

#[test]
fn page_sizes_do_not_matter() {
    let (want, _) = one_shot(CASE, Isa::detect(), 1, 300, 4);
    for page in [1, 2, 5, 16, 32, 64, 100, 512] {
        let (out, _) = one_shot(Case { page, ..CASE }, Isa::detect(), 1, 300, 4);
        assert_bits(&out, &want, &format!("page {page}"));
    }
}

#[test]
fn attention_is_bit_equal_on_every_isa() {
    for (heads, kv_heads, head_dim) in [(6, 3, 24), (14, 2, 64), (4, 1, 80), (2, 2, 7)] {
        for softcap in [None, Some(20.0)] {
            for window in [None, Some(50)] {
                let case = Case { heads, kv_heads, head_dim, window, softcap, ..CASE };
                let (want, _) = one_shot(case, Isa::Scalar, 1, 300, 5);
                for isa in Isa::available() {
                    let (out, _) = one_shot(case, isa, 1, 300, 5);
                    assert_bits(&out, &want, &format!("{isa} {case:?}"));
                }
            }
        }
    }
}

/// A division of `len` tokens into random steps.
fn random_steps(len: usize, longest: usize, rng: &mut Rng) -> Vec<usize> {
    let mut steps = Vec::new();
    let mut left = len;
    while left > 0 {
        let step = (1 + rng.below(longest)).min(left);
        steps.push(step);
        left -= step;
    }
    steps
}

#[test]
fn inv08_k05_any_chunking_and_thread_count_gives_the_same_bits() {
    const LEN: usize = 530;
    for (window, kv_type) in [(None, KvType::F16), (Some(40), KvType::F16), (None, KvType::F32)] {
        let case = Case { window, kv_type, heads: 9, ..CASE };
        let mut rng = Rng::new(6);
        let all = [Sequence::random(&case, LEN, &mut rng)];
        let mut want: Option<Vec<f32>> = None;
        for threads in 1..=3 {
            let pool = pool(threads);
            let mut divisions = vec![vec![LEN], vec![1; LEN], vec![256, 256, 18], vec![255, 2, 273]];
            divisions.extend((0..3).map(|i| random_steps(LEN, [5, 20, 200][i], &mut rng)));
            for steps in divisions {
                // A new cache: what is not yet stored is NaN, and must not be seen.
                let mut world = World::new(case, &[LEN], &mut rng);
                let out = world.prefill(Isa::detect(), &pool, &all, 0, &steps);
                let want = want.get_or_insert_with(|| {
                    assert_near(&out, &all[0].reference(&case), 0.0, 5e-6, "one shot");
                    out.clone()
                });
                assert_bits(&out, want, &format!("{threads} threads, steps {steps:?}, {case:?}"));
            }
        }
    }
}

#[test]
fn inv08_other_sequences_in_the_batch_do_not_matter() {
    const LENS: [usize; 4] = [300, 17, 1, 520];
    let case = Case { heads: 4, kv_heads: 2, head_dim: 32, ..CASE };
    let mut rng = Rng::new(7);
    let all: Vec<_> = LENS.iter().map(|&len| Sequence::random(&case, len, &mut rng)).collect();
    let alone: Vec<Vec<f32>> = (0..LENS.len())
        .map(|s| World::new(case, &LENS, &mut rng).prefill(Isa::detect(), &pool(1), &all, s, &[LENS[s]]))
        .collect();
    for threads in 1..=3 {
        let pool = pool(threads);
        let mut world = World::new(case, &LENS, &mut rng);
        let width = case.heads * case.head_dim;
        let mut out: Vec<Vec<f32>> = LENS.iter().map(|len| vec![f32::NAN; len * width]).collect();
        let mut at = [0; LENS.len()];
        while at != LENS {
            // A random number of tokens of each sequence, in one step.
            let mut tokens = Vec::new();
            for s in 0..LENS.len() {
                let len = rng.below(30).min(LENS[s] - at[s]);
                tokens.extend((at[s]..at[s] + len).map(|p| (s, p)));
                at[s] += len;
            }
            let step = world.step(Isa::detect(), &pool, &all, &tokens);
            for (&(s, p), row) in tokens.iter().zip(step.chunks(width)) {
                out[s][p * width..][..width].copy_from_slice(row);
            }
        }
        for (s, (out, alone)) in out.iter().zip(&alone).enumerate() {
            assert_bits(out, alone, &format!("sequence {s}, {threads} threads"));
        }
    }
}

#[test]
fn inv19_odd_ratios_and_partial_tiles_repeat_bitwise_24_times() {
    let case = Case { heads: 15, kv_heads: 3, head_dim: 40, ..CASE };
    let (want, _) = one_shot(case, Isa::detect(), 3, 333, 8);
    for _ in 1..24 {
        let (out, _) = one_shot(case, Isa::detect(), 3, 333, 8);
        assert_bits(&out, &want, "repeat");
    }
}

#[test]
fn inv24_rows_that_are_not_seen_may_be_nan_and_rows_that_are_may_not() {
    let case = Case { window: Some(1), head_dim: 16, ..CASE };
    let mut rng = Rng::new(9);
    let all = [Sequence::random(&case, 20, &mut rng)];
    let mut world = World::new(case, &[20], &mut rng);
    // A window of one row over an f16 cache: each result is the row just stored, whatever the rest holds.
    let out = world.step(Isa::detect(), &pool(2), &all, &[(0, 19)]);
    let v = &all[0].v[19 * 3 * 16..];
    for (head, row) in out.chunks(16).enumerate() {
        let want: Vec<f32> = v[head / 2 * 16..][..16].iter().map(|&x| f16::from_f32(x).to_f32()).collect();
        assert_bits(row, &want, &format!("head {head}"));
    }
    // Control: with the window open the missing rows do show.
    world.case.window = None;
    let out = world.step(Isa::detect(), &pool(1), &all, &[(0, 19)]);
    assert!(out.iter().all(|x| x.is_nan()));
}

#[test]
fn inv07_a_slot_outside_the_cache_is_an_error_before_any_write() {
    let mut rng = Rng::new(10);
    let mut world = World::new(CASE, &[20], &mut rng);
    let slots = world.slots as i32;
    for bad in [-1, slots, i32::MAX, i32::MIN] {
        let error = KvStore::new(world.cache(), &[0, 3, bad, 1]).unwrap_err();
        assert_eq!(error, SlotError { token: 2, slot: bad, slots: world.slots });
    }
    assert!(world.k.iter().chain(&world.v).all(|&b| b == 0xff));
    assert!(KvStore::new(world.cache(), &[0, slots - 1]).is_ok());
}

#[test]
fn store_converts_and_writes_exactly_its_rows() {
    for kv_type in [KvType::F16, KvType::F32] {
        for head_dim in [5, 16, 24] {
            let case = Case { kv_type, head_dim, ..CASE };
            let mut rng = Rng::new(11);
            let mut want_k = World::new(case, &[40], &mut rng);
            let width = case.kv_heads * head_dim;
            let (k, v) = (rng.vec(3 * width, 100.0), rng.vec(3 * width, 100.0));
            let slots = [7, 0, 33];
            for isa in Isa::available() {
                want_k.k.fill(0xff);
                want_k.v.fill(0xff);
                let store = KvStore::new(want_k.cache(), &slots).unwrap();
                // SAFETY: three rows on both sides; the second call writes the last two.
                unsafe {
                    store.run(isa, 0..1, k.as_ptr(), v.as_ptr());
                    store.run(isa, 1..3, k.as_ptr(), v.as_ptr());
                }
                for (cache, rows) in [(&want_k.k, &k), (&want_k.v, &v)] {
                    let mut want = vec![0xff; cache.len()];
                    for (&slot, row) in slots.iter().zip(rows.chunks(width)) {
                        let bytes: Vec<u8> = match kv_type {
                            KvType::F16 => row.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
                            KvType::F32 => row.iter().flat_map(|x| x.to_le_bytes()).collect(),
                        };
                        want[slot as usize * bytes.len()..][..bytes.len()].copy_from_slice(&bytes);
                    }
                    assert_eq!(cache, &want, "{isa} {case:?}");
                }
            }
        }
    }
}

#[test]
fn inv07_a_step_outside_its_cache_is_refused() {
    let mut rng = Rng::new(12);
    let mut world = World::new(CASE, &[100, 30], &mut rng);
    let plan = world.plan(Isa::detect(), 8, 2);
    let mut table = world.block_table.clone();
    let check = |positions: &[i32], sequences: &[i32], block_table: &[i32]| {
        let inputs = AttentionInputs { positions, sequences, block_table };
        // SAFETY: the step is not run.
        let step = unsafe {
            AttentionStep::new(&plan, inputs, 1, std::ptr::null(), std::ptr::null_mut(), std::ptr::null_mut())
        };
        step.map(|s| s.items()).map_err(|e| e.to_string())
    };
    let ok = check(&[0, 99, 29], &[0, 0, 1], &table);
    assert_eq!(ok, Ok(9));
    let limit = world.blocks * CASE.page;
    for position in [-1, limit as i32, i32::MAX] {
        let error = check(&[0, position], &[0, 0], &table).unwrap_err();
        assert_eq!(error, format!("token 1 is at position {position}, outside 0..{limit}"));
    }
    for sequence in [-1, 2] {
        let error = check(&[0], &[sequence], &table).unwrap_err();
        assert_eq!(error, format!("token 0 belongs to sequence {sequence}, outside the block table's 0..2"));
    }
    let pages = world.slots / CASE.page;
    // Sequence 1 has two pages; position 32 is in a third.
    let error = check(&[32], &[1], &table).unwrap_err();
    assert_eq!(error, format!("sequence 1 has page -1 as block 2, outside the cache's 0..{pages}"));
    table[3] = pages as i32;
    assert!(check(&[47], &[0], &table).is_ok(), "block 3 is not needed yet");
    let error = check(&[48], &[0], &table).unwrap_err();
    assert_eq!(error, format!("sequence 0 has page {pages} as block 3, outside the cache's 0..{pages}"));
    assert!(check(&[0; 9], &[0; 9], &table).unwrap_err().contains("positions has 9 elements, expected 8"));
    assert!(check(&[0; 2], &[0; 3], &table).unwrap_err().contains("sequences has 3 elements, expected 2"));
    assert!(check(&[0], &[0], &table[1..]).unwrap_err().contains("block_table"));
}

#[test]
fn parameters_that_make_no_sense_are_refused() {
    let mut world = World::new(CASE, &[100], &mut Rng::new(13));
    let cache = world.cache();
    let limits = AttentionLimits { tokens: 8, page: 16, blocks: 4, threads: 1 };
    let good = CASE.params();
    let message =
        |params, limits| AttentionPlan::new(Isa::Scalar, params, cache, limits).unwrap_err().to_string();
    for heads in [0, 4, 7] {
        let text = message(AttentionParams { heads, ..good }, limits);
        assert_eq!(text, format!("attention: {heads} query heads for 3 KV heads of 24 elements"));
    }
    assert!(message(AttentionParams { scale: f32::NAN, ..good }, limits).contains("scale is NaN"));
    assert!(message(AttentionParams { window: Some(0), ..good }, limits).contains("window is 0"));
    for cap in [0.0, -1.0, f32::INFINITY] {
        assert!(message(AttentionParams { softcap: Some(cap), ..good }, limits).contains("softcap is"));
    }
    assert!(message(good, AttentionLimits { page: 0, ..limits }).contains("limit is 0"));
    let huge = AttentionLimits { page: 1 << 20, blocks: 1 << 20, ..limits };
    assert!(message(good, huge).contains("more than a position can count"));
}
