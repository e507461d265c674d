//! Random graphs with the data to run them.

mod maker;

use super::super::random::Random;
use crate::{Graph, NodeId, Shape, WeightTable};
use maker::Maker;

/// The most tokens in a run.
const TOKENS: usize = 3;

/// Tokens of one sequence that a KV cache has room for, over all runs of a case.
const ROOM: usize = PAGE * BLOCKS;
const PAGE: usize = 4;
const BLOCKS: usize = 6;

/// Large buffers on each device of a roomy case.
const ROOMY: usize = 32;

/// A graph with what it reads.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub graph: Graph,
    pub weights: WeightTable,
    inputs: Vec<(NodeId, Feed)>,
    seed: u64,
    tokens: usize,
    sequences: usize,
}

/// What an input is filled with, anew for each run.
#[derive(Clone, Copy, Debug)]
enum Feed {
    /// Normal values.
    Normal,
    /// Rows of a table of so many.
    Rows(usize),
    /// The tokens' positions: each run goes on where the last one ended.
    Positions,
    /// The slots that these positions have.
    Slots,
    /// The tokens' sequences.
    Sequences,
    /// The pages of the sequences.
    Table,
}

/// An input's content.
#[derive(Clone, Debug)]
pub(super) enum Data {
    F32(Vec<f32>),
    I32(Vec<i32>),
}

impl Sample {
    /// The most runs that the KV caches have room for.
    pub const RUNS: usize = ROOM / TOKENS;

    /// The graph of a seed, of so many operations at least. One of fewer begins in the same way.
    pub fn new(seed: u64, operations: usize) -> Self {
        let mut random = Random::new(seed, "graph");
        let (tokens, sequences) = (1 + random.below(TOKENS), 1 + random.below(2));
        let mut maker = Maker::new(random, tokens, sequences.min(tokens), 3);
        for i in 0..operations {
            maker.add(i);
        }
        maker.finish(seed)
    }

    /// A short graph without KV caches, with larger values.
    pub fn disturbing(seed: u64) -> Self {
        let mut maker = Maker::new(Random::new(seed, "disturbing"), 12, 1, 0);
        for i in 0..4 {
            maker.add(i);
        }
        maker.finish(seed)
    }

    /// A graph that reads large inputs, and makes small values of them, on each of so many devices, whose number ends
    /// the label.
    pub fn roomy(devices: usize) -> Self {
        let mut maker = Maker::new(Random::new(0, "roomy"), 1, 1, 0);
        let large = (0..ROOMY).map(|i| maker.fresh(&format!("large.{i}"), Shape::new(&[16, 64])));
        let large: Vec<NodeId> = large.collect();
        let ids = maker.i32s("ids", [1], Feed::Rows(16));
        for (i, &table) in large.iter().enumerate() {
            for device in 0..devices {
                let row = maker.b.get_rows(format!("small.{i}.{device}"), table, ids);
                maker.b.output(row);
            }
        }
        let graph = maker.b.finish().expect("rows of inputs");
        Self { graph, weights: maker.weights, inputs: maker.inputs, seed: 0, tokens: 1, sequences: 1 }
    }

    /// The inputs' content in a run, counted from 0.
    pub fn data(&self, run: usize) -> impl Iterator<Item = (NodeId, Data)> + '_ {
        self.inputs.iter().map(move |&(id, feed)| {
            let len = self.graph.node(id).shape.len();
            let mut random = Random::new(self.seed ^ ((run as u64) << 48), &self.graph.node(id).label);
            let each = |f: &dyn Fn(usize) -> usize| (0..len).map(|t| f(t) as i32).collect();
            let data = match feed {
                Feed::Normal => Data::F32(random.normals(len)),
                Feed::Rows(rows) => Data::I32((0..len).map(|_| random.below(rows) as i32).collect()),
                Feed::Positions => Data::I32(each(&|t| self.position(t, run))),
                Feed::Slots => {
                    let table = self.table();
                    Data::I32(each(&|t| {
                        let p = self.position(t, run);
                        table[self.sequence(t) * BLOCKS + p / PAGE] * PAGE + p % PAGE
                    }))
                }
                Feed::Sequences => Data::I32(each(&|t| self.sequence(t))),
                Feed::Table => Data::I32(self.table().into_iter().map(|page| page as i32).collect()),
            };
            (id, data)
        })
    }

    fn sequence(&self, token: usize) -> usize {
        token % self.sequences
    }

    fn position(&self, token: usize, run: usize) -> usize {
        // Tokens go to the sequences in turn; the first ones may get one more.
        let a_run = (self.tokens - self.sequence(token)).div_ceil(self.sequences);
        run * a_run + token / self.sequences
    }

    /// `[sequences, blocks]`.
    fn table(&self) -> Vec<usize> {
        Random::new(self.seed, "pages").permutation(self.sequences * BLOCKS)
    }
}
