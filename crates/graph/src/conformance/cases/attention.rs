//! KV stores and attention over paged caches.
//!
//! Every case fills the whole cache with NaN first, so that a row outside a token's own window that is read
//! shows.

use super::super::case::{Case, Expect, Net, SameRow, Step};
use super::super::tolerance::{ATTENTION, Tolerance};
use super::{Options, Visit, case};
use crate::{Attention, DType, StateDecl};

/// Head counts of queries and of keys; some ratios are not powers of two.
const HEADS: [(usize, usize); 7] = [(1, 1), (4, 4), (8, 2), (6, 3), (9, 3), (14, 2), (5, 1)];
const HEAD_DIMS: [usize; 6] = [24, 64, 80, 96, 128, 256];

/// What shapes a case.
#[derive(Clone, Copy)]
pub(super) struct Spec {
    pub dtype: DType,
    pub heads: usize,
    pub kv_heads: usize,
    pub dim: usize,
    pub page: usize,
    pub window: Option<usize>,
    pub softcap: Option<f32>,
}

impl Spec {
    pub const fn small(dtype: DType) -> Self {
        Self { dtype, heads: 6, kv_heads: 3, dim: 64, page: 16, window: None, softcap: None }
    }

    fn attention(&self) -> Attention {
        let scale = 1.0 / (self.dim as f32).sqrt();
        Attention { scale, window: self.window, softcap: self.softcap }
    }

    fn name(&self) -> String {
        let Self { dtype, heads, kv_heads, dim, page, window, softcap } = self;
        let window = window.map_or(String::new(), |w| format!(" window {w}"));
        let softcap = softcap.map_or(String::new(), |c| format!(" softcap {c}"));
        format!("{dtype} {heads}/{kv_heads}×{dim} page {page}{window}{softcap}")
    }
}

/// The rows of one sequence, by position.
#[derive(Clone)]
struct Rows {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

/// Sequences in a cache, their pages scattered.
pub(super) struct Paged {
    spec: Spec,
    state: StateDecl,
    /// `[sequences, blocks]`; blocks beyond a sequence's end name no page.
    pub table: Vec<i32>,
    pub blocks: usize,
    sequences: Vec<Rows>,
}

impl Paged {
    pub fn new(net: &mut Net, spec: Spec, lengths: &[usize]) -> Self {
        let Spec { dtype, heads, kv_heads, dim, page, .. } = spec;
        let blocks_of = |len: &usize| len.div_ceil(page);
        let pages = lengths.iter().map(blocks_of).sum::<usize>() + 1;
        let blocks = lengths.iter().map(blocks_of).max().unwrap_or(0) + 1;
        let mut free = net.random.permutation(pages);
        let mut table = Vec::new();
        for len in lengths {
            for b in 0..blocks {
                let none = if b % 2 == 0 { -1 } else { i32::MAX };
                let page = (b < blocks_of(len)).then(|| free.pop()).flatten();
                table.push(page.map_or(none, |p| p as i32));
            }
        }
        let mut row = |len: &usize, heads: usize| net.random.normals(len * heads * dim);
        let sequences = lengths
            .iter()
            .map(|len| Rows { q: row(len, heads), k: row(len, kv_heads), v: row(len, kv_heads) })
            .collect();
        let state = StateDecl { layer: 0, dtype, slots: pages * page, page, kv_heads, head_dim: dim };
        Self { spec, state, table, blocks, sequences }
    }

    /// One run over the `(sequence, position)` pairs of a batch.
    pub fn step(&self, batch: &[(usize, usize)], store: Store) -> Step {
        self.step_at(batch, self.slots(batch), batch, store)
    }

    /// The slots of `(sequence, position)` pairs.
    fn slots(&self, batch: &[(usize, usize)]) -> Vec<i32> {
        let page = self.state.page;
        batch
            .iter()
            .map(|&(s, p)| self.table[s * self.blocks + p / page] * page as i32 + (p % page) as i32)
            .collect()
    }

    /// Stores a batch at the slots given, then asks for the attention of other pairs.
    pub fn step_at(
        &self,
        stored: &[(usize, usize)],
        slots: Vec<i32>,
        asked: &[(usize, usize)],
        store: Store,
    ) -> Step {
        let Spec { heads, kv_heads, dim, .. } = self.spec;
        let mut net = Net::new(0, "");
        let rows = |batch: &[(usize, usize)], of: fn(&Rows) -> &Vec<f32>, heads: usize| -> Vec<f32> {
            let width = heads * dim;
            batch.iter().flat_map(|&(s, p)| &of(&self.sequences[s])[p * width..][..width]).copied().collect()
        };
        let mut state = net.b.state("kv", self.state);
        if store == Store::AfterPoison {
            let all = self.state.slots;
            let nan = net.f32("nan", [all, kv_heads, dim], vec![f32::NAN; all * kv_heads * dim]);
            let every = net.i32("every slot", [all], (0..all as i32).collect());
            state = net.b.kv_store("poisoned", state, nan, nan, every);
        }
        if store != Store::Nothing {
            let shape = [stored.len(), kv_heads, dim];
            let k = net.f32("k", shape, rows(stored, |r| &r.k, kv_heads));
            let v = net.f32("v", shape, rows(stored, |r| &r.v, kv_heads));
            let slots = net.i32("slots", [stored.len()], slots);
            state = net.b.kv_store("stored", state, k, v, slots);
        }
        let n = asked.len();
        let q = net.f32("q", [n, heads, dim], rows(asked, |r| &r.q, heads));
        let positions = net.i32("positions", [n], asked.iter().map(|b| b.1 as i32).collect());
        let sequences = net.i32("sequences", [n], asked.iter().map(|b| b.0 as i32).collect());
        let table_shape = [self.table.len() / self.blocks, self.blocks];
        let table = net.i32("block_table", table_shape, self.table.clone());
        let y = net.b.attention("y", q, state, positions, sequences, table, self.spec.attention());
        net.step(y, Expect::Result(ATTENTION)).1
    }

    /// Makes a sequence hold the rows of another.
    fn copy_rows(&mut self, from: usize, to: usize) {
        self.sequences[to] = self.sequences[from].clone();
    }
}

/// What a step writes before it reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Store {
    /// NaN to every slot of the cache, then the batch's rows.
    AfterPoison,
    /// The batch's rows.
    Batch,
    /// Nothing.
    Nothing,
}

pub(super) fn each(options: &Options, visit: &mut Visit<'_>) {
    for dtype in [DType::F32, DType::F16] {
        let small = Spec::small(dtype);
        let mut specs: Vec<Spec> = Vec::new();
        specs.extend(HEADS.map(|(heads, kv_heads)| Spec { heads, kv_heads, ..small }));
        specs.extend(HEAD_DIMS.map(|dim| Spec { heads: 4, kv_heads: 2, dim, ..small }));
        specs.extend([1, 2, 7, 16, 17, 1000].map(|w| Spec { window: Some(w), ..small }));
        specs.extend([1, 4, 32].map(|page| Spec { page, ..small }));
        specs.extend([0.5, 50.0].map(|cap| Spec { softcap: Some(cap), ..small }));
        specs.push(Spec { window: Some(5), softcap: Some(30.0), page: 4, heads: 14, kv_heads: 2, ..small });
        for spec in specs {
            case(options, visit, format!("attention ragged batch {}", spec.name()), |net| ragged(net, spec));
            case(options, visit, format!("attention chunked {}", spec.name()), |net| chunked(net, spec));
            if spec.dim == 64 {
                case(options, visit, format!("attention long {}", spec.name()), |net| long(net, spec));
            }
        }
        case(options, visit, format!("kv_store {dtype} row"), |net| single_row(net, dtype));
    }
}

/// Sequences of several lengths, their tokens interleaved in one batch.
fn ragged(mut net: Net, spec: Spec) -> Case {
    let lengths = [5, 1, 19, 34];
    let paged = Paged::new(&mut net, spec, &lengths);
    let mut batch: Vec<(usize, usize)> =
        lengths.iter().enumerate().flat_map(|(s, &len)| (0..len).map(move |p| (s, p))).collect();
    let order = net.random.permutation(batch.len());
    batch = order.into_iter().map(|i| batch[i]).collect();
    Case { steps: vec![paged.step(&batch, Store::AfterPoison)], ..Case::default() }
}

/// A sequence at once; then its twin in chunks, token by token, and beside another sequence: the same bits.
fn chunked(mut net: Net, spec: Spec) -> Case {
    let len = 37;
    let mut paged = Paged::new(&mut net, spec, &[len, len, 9]);
    paged.copy_rows(0, 1);
    let whole: Vec<(usize, usize)> = (0..len).map(|p| (0, p)).collect();
    let mut steps = vec![paged.step(&whole, Store::AfterPoison)];
    for chunk in [0..17, 17..18, 18..19, 19..33, 33..len] {
        let mut batch: Vec<(usize, usize)> = chunk.map(|p| (1, p)).collect();
        let same = batch.iter().enumerate().map(|(row, &(_, p))| SameRow { row, step: 0, of: p }).collect();
        if batch.len() == len - 33 {
            batch.extend((0..9).map(|p| (2, p)));
        }
        let mut step = paged.step(&batch, Store::Batch);
        step.same_rows = same;
        steps.push(step);
    }
    Case { steps, ..Case::default() }
}

/// Decoding after a long context, where a device may share the rows among workers; again the bits of the
/// prefill.
fn long(mut net: Net, spec: Spec) -> Case {
    let len = 301;
    let spec = Spec { heads: spec.kv_heads * 2, ..spec };
    let mut paged = Paged::new(&mut net, spec, &[len, len]);
    paged.copy_rows(0, 1);
    let rows = |s: usize, from: usize| (from..len).map(move |p| (s, p)).collect::<Vec<_>>();
    let first = rows(0, 0);
    let (head, tail) = first.split_at(len - 3);
    let mut decode = paged.step(&rows(1, len - 1), Store::Batch);
    decode.same_rows = vec![SameRow { row: 0, step: 1, of: 2 }];
    let twin: Vec<(usize, usize)> = (0..len - 1).map(|p| (1, p)).collect();
    // Attention is asked for a few rows only: in plain f64 code it is slow.
    let store = |batch: &[(usize, usize)], store| {
        paged.step_at(batch, paged.slots(batch), &batch[batch.len() - 1..], store)
    };
    Case {
        steps: vec![
            store(head, Store::AfterPoison),
            paged.step(tail, Store::Batch),
            store(&twin, Store::Batch),
            decode,
        ],
        ..Case::default()
    }
}

/// A token that sees itself alone gives its own value row back: what was stored, rounded to the cache's type.
fn single_row(mut net: Net, dtype: DType) -> Case {
    let spec = Spec { window: Some(1), ..Spec::small(dtype) };
    let paged = Paged::new(&mut net, spec, &[3, 20]);
    let mut step = paged.step(&[(1, 19), (0, 0), (1, 3)], Store::AfterPoison);
    step.expect = Expect::Result(Tolerance::Within { abs: 0.0, rel: 1.2e-7 });
    Case { steps: vec![step], ..Case::default() }
}
