//! Runs models on the reference device.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod tiny;

use std::sync::Arc;

use minfer_gguf::Gguf;
use minfer_graph::devices::ReferenceDevice;
use minfer_graph::{BoundPlan, DType, Fusion, PlanOptions, Scheduler, WeightSource};
use minfer_models::{BatchShape, KvConfig, Model, Ports};
use serde::Deserialize;

/// Golden vectors of a tiny model: see `tests/golden/README.md`.
#[derive(Deserialize)]
pub struct Golden {
    pub prompts: Vec<Prompt>,
}

/// A prompt with what another engine computed for it.
#[derive(Deserialize)]
pub struct Prompt {
    pub ids: Vec<i32>,
    /// Of the last position.
    pub logits: Vec<f32>,
    /// Of every position.
    pub argmax: Vec<usize>,
}

/// The largest difference of a logit that is accepted.
pub const TOLERANCE: f32 = 0.01;

struct File(Gguf);

impl WeightSource for File {
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.tensor(name).map(|t| t.data)
    }
}

/// A token of a step: which sequence, where in it, what.
#[derive(Clone, Copy, Debug)]
pub struct Token {
    pub sequence: usize,
    pub position: usize,
    pub id: i32,
}

/// One model with its KV cache.
pub struct Runner {
    pub model: Model,
    pub fusion: Fusion,
    source: Arc<dyn WeightSource>,
    scheduler: Scheduler,
    kv: KvConfig,
}

const PAGE: usize = 8;
const BLOCKS: usize = 8;
const SEQUENCES: usize = 2;

impl Runner {
    pub fn new(gguf: Gguf) -> Self {
        let model = Model::from_gguf(&gguf).unwrap();
        Self {
            model,
            fusion: Fusion::all(),
            source: Arc::new(File(gguf)),
            scheduler: Scheduler::new(vec![Box::new(ReferenceDevice::default())]),
            kv: KvConfig { dtype: DType::F32, slots: SEQUENCES * BLOCKS * PAGE, page: PAGE, blocks: BLOCKS },
        }
    }

    /// The pages of a sequence: not in order, and interleaved with those of the others.
    fn page(sequence: usize, block: usize) -> usize {
        (BLOCKS - 1 - block) * SEQUENCES + sequence
    }

    /// Plans and binds a step of so many tokens and outputs.
    pub fn bind(&mut self, tokens: usize, outputs: usize) -> (BoundPlan, Ports) {
        let batch = BatchShape { tokens, outputs, sequences: SEQUENCES };
        let (graph, ports) = self.model.graph(&batch, &self.kv).unwrap();
        let options = PlanOptions { fusion: self.fusion, ..PlanOptions::default() };
        let plan = self.scheduler.plan(graph, &options).unwrap();
        (self.scheduler.bind(plan, &self.source, &mut |_, _| {}).unwrap(), ports)
    }

    /// Runs a step on a plan of its shape; a row of logits for each of `rows`.
    pub fn run(
        &mut self,
        (plan, ports): &mut (BoundPlan, Ports),
        tokens: &[Token],
        rows: &[usize],
    ) -> Vec<Vec<f32>> {
        self.write_inputs(plan, ports, tokens, rows);
        self.scheduler.execute(plan).unwrap();
        let n_vocab = self.model.info().vocab_size;
        let mut logits = vec![0.0; rows.len() * n_vocab];
        self.scheduler.read_f32(plan, ports.logits, &mut logits).unwrap();
        logits.chunks(n_vocab).map(<[f32]>::to_vec).collect()
    }

    /// Runs one step on a plan of its own.
    pub fn step(&mut self, tokens: &[Token], rows: &[usize]) -> Vec<Vec<f32>> {
        let mut plan = self.bind(tokens.len(), rows.len());
        let logits = self.run(&mut plan, tokens, rows);
        self.scheduler.unbind(plan.0);
        logits
    }

    fn write_inputs(&mut self, plan: &mut BoundPlan, ports: &Ports, tokens: &[Token], rows: &[usize]) {
        let of = |f: &dyn Fn(&Token) -> usize| tokens.iter().map(|t| f(t) as i32).collect::<Vec<_>>();
        let slot = |t: &Token| Self::page(t.sequence, t.position / PAGE) * PAGE + t.position % PAGE;
        let table = (0..SEQUENCES).flat_map(|s| (0..BLOCKS).map(move |b| Self::page(s, b) as i32));
        let inputs = [
            (ports.tokens, of(&|t| t.id as usize)),
            (ports.positions, of(&|t| t.position)),
            (ports.sequences, of(&|t| t.sequence)),
            (ports.slots, of(&slot)),
            (ports.block_table, table.collect()),
            (ports.output_rows, rows.iter().map(|&r| r as i32).collect()),
        ];
        for (port, data) in inputs {
            self.scheduler.write_i32(plan, port, &data).unwrap();
        }
    }

    /// Feeds a prompt to sequence 0 in chunks of at most `chunk` tokens; the logits of every position.
    pub fn logits(&mut self, ids: &[i32], chunk: usize) -> Vec<Vec<f32>> {
        let mut logits = Vec::new();
        for (c, ids) in ids.chunks(chunk).enumerate() {
            let token = |(i, &id)| Token { sequence: 0, position: c * chunk + i, id };
            let tokens: Vec<Token> = ids.iter().enumerate().map(token).collect();
            let rows: Vec<usize> = (0..tokens.len()).collect();
            logits.extend(self.step(&tokens, &rows));
        }
        logits
    }
}

pub fn argmax(row: &[f32]) -> usize {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap()
}

pub fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}
