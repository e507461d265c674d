//! The model in a file: its graph, planned, and a run of it where it is small.

use std::sync::Arc;

use minfer_backend_cpu::{CpuBackend, CpuConfig};
use minfer_gguf::Gguf;
use minfer_graph::devices::NullDevice;
use minfer_graph::{DType, PlanOptions, Scheduler, WeightSource};
use minfer_models::{BatchShape, KvConfig, Model};

use super::check_message;

const PAGE: usize = 16;
const BLOCKS: usize = 2;
const KV: KvConfig = KvConfig { dtype: DType::F16, slots: PAGE * BLOCKS, page: PAGE, blocks: BLOCKS };

/// Models with more elements, in weights or in one token's activations, are not run.
const MOST_TO_RUN: u64 = 1 << 16;

struct File(Gguf);

impl WeightSource for File {
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.tensor(name).map(|t| t.data)
    }
}

fn shape(tokens: usize, outputs: usize) -> BatchShape {
    BatchShape { tokens, outputs, sequences: 1 }
}

/// The model, if it is one that can be used. Such a one has a graph for every step, and a plan for every graph.
pub fn open(gguf: &Gguf) -> Option<Model> {
    let model = match Model::from_gguf(gguf) {
        Ok(model) => model,
        Err(error) => {
            check_message(error);
            return None;
        }
    };
    let scheduler = Scheduler::new(vec![Box::new(NullDevice::new())]);
    for (tokens, outputs) in [(1, 1), (3, 2)] {
        let made = model.graph(&shape(tokens, outputs), &KV);
        let (graph, ports) = made.unwrap_or_else(|e| panic!("an accepted model has no graph: {e}"));
        assert_eq!(graph.node(ports.logits).shape.dims(), [outputs, model.info().vocab_size]);
        let plan = scheduler.plan(graph, &PlanOptions::default());
        plan.unwrap_or_else(|e| panic!("an accepted model has no plan: {e}"));
    }
    Some(model)
}

/// Runs two steps on the CPU: three tokens, then one. False if the model is too big for that, or its weights hold what the
/// device refuses.
pub fn run(gguf: Gguf, model: &Model) -> bool {
    let info = model.info();
    let widest = info.n_head.iter().map(|&h| h * info.head_dim).chain([info.n_embd]).max();
    if info.parameters > MOST_TO_RUN || widest.is_none_or(|w| w as u64 > MOST_TO_RUN) {
        return false;
    }
    let config = CpuConfig { threads: 1, threads_batch: 1, isa: None };
    let device = CpuBackend::new(&config).unwrap_or_else(|e| panic!("no CPU: {e}"));
    let mut scheduler = Scheduler::new(vec![Box::new(device)]);
    let source: Arc<dyn WeightSource> = Arc::new(File(gguf));
    let last = info.vocab_size as i32 - 1;
    for (first, tokens) in [(0, vec![0, last, last / 2]), (3, vec![last])] {
        let n = tokens.len() as i32;
        let (graph, ports) = model.graph(&shape(tokens.len(), 1), &KV).expect("a graph as before");
        let plan = scheduler.plan(graph, &PlanOptions::default());
        let plan = plan.unwrap_or_else(|e| panic!("an accepted model has no plan for the CPU: {e}"));
        let mut bound = match scheduler.bind(plan, &source, &mut |_, _| {}) {
            Ok(bound) => bound,
            Err(error) => {
                check_message(error);
                return false;
            }
        };
        let positions: Vec<i32> = (first..first + n).collect();
        for (input, values) in [
            (ports.tokens, &tokens[..]),
            (ports.positions, &positions),
            (ports.sequences, &vec![0; tokens.len()]),
            (ports.slots, &positions),
            (ports.block_table, &[0, 1]),
            (ports.output_rows, &[n - 1]),
        ] {
            let written = scheduler.write_i32(&mut bound, input, values);
            written.unwrap_or_else(|e| panic!("an input is refused: {e}"));
        }
        scheduler.execute(&mut bound).unwrap_or_else(|e| panic!("an accepted model does not run: {e}"));
        let mut logits = vec![0.0; info.vocab_size];
        let read = scheduler.read_f32(&bound, ports.logits, &mut logits);
        read.unwrap_or_else(|e| panic!("no logits: {e}"));
        scheduler.unbind(bound);
    }
    true
}
