//! Programs of many operations: whichever threads share the work and whichever values share memory, the bits are those
//! of one thread and of memory used once.

use std::sync::Arc;

use minfer_backend_cpu::{CpuBackend, CpuConfig};
use minfer_graph::{
    Activation, Attention, Backend, BoundOp, DType, DeviceError, Fusion, Graph, GraphBuilder, NodeId, Op,
    Operand, Place, PlanOptions, Reuse, Rope, RopePairs, Scheduler, StateDecl, WeightSource, WeightTable,
};

fn scheduler(threads: usize) -> Scheduler {
    let config = CpuConfig { threads, threads_batch: threads, isa: None };
    Scheduler::new(vec![Box::new(CpuBackend::new(&config).unwrap())])
}

/// Random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }

    fn values(&mut self, n: usize, range: f32) -> Vec<f32> {
        (0..n).map(|_| (self.below(20_001) as f32 / 10_000.0 - 1.0) * range).collect()
    }
}

/// A graph with its data, in the making.
struct Sample {
    b: GraphBuilder,
    random: Random,
    weights: WeightTable,
    f32s: Vec<(NodeId, Vec<f32>)>,
    i32s: Vec<(NodeId, Vec<i32>)>,
}

impl Sample {
    fn i32s(&mut self, label: String, shape: &[usize], values: Vec<i32>) -> NodeId {
        let id = self.b.input(label, DType::I32, shape);
        self.i32s.push((id, values));
        id
    }

    fn vector(&mut self, name: &str, len: usize) -> NodeId {
        let values = self.random.values(len, 1.0);
        self.weights.insert_f32(name, &values);
        self.b.weight(name, DType::F32, [len])
    }

    /// A matrix, quantized or not, that keeps magnitudes.
    fn matrix(&mut self, name: &str, rows: usize, k: usize) -> NodeId {
        let dtype = [DType::F32, DType::Q8_0][self.random.below(2)];
        if dtype == DType::F32 {
            let values = self.random.values(rows * k, 1.5 / (k as f32).sqrt());
            self.weights.insert_f32(name, &values);
        } else {
            let scale = half::f16::from_f32(1.5 / 127.0 / (k as f32).sqrt()).to_le_bytes();
            let mut block =
                || scale.into_iter().chain((0..32).map(|_| self.random.below(256) as u8)).collect();
            let bytes: Vec<Vec<u8>> = (0..rows * k / 32).map(|_| block()).collect();
            self.weights.insert(name, bytes.concat());
        }
        self.b.weight(name, dtype, [rows, k])
    }

    /// Stores rows of 32 in a cache of its own and attends to them.
    fn attend(&mut self, i: usize, q: NodeId, kv: NodeId) -> NodeId {
        let &[n, heads, _] = self.b.shape(kv).dims() else { panic!("three dimensions") };
        let decl = StateDecl {
            layer: i as u32,
            dtype: DType::F16,
            slots: 32,
            page: 16,
            kv_heads: heads,
            head_dim: 32,
        };
        let rows: Vec<i32> = (0..n as i32).collect();
        let state = self.b.state(format!("kv{i}"), decl);
        let slots = self.i32s(format!("slots{i}"), &[n], rows.iter().map(|r| r + 16).collect());
        let positions = self.i32s(format!("positions{i}"), &[n], rows);
        let sequences = self.i32s(format!("sequences{i}"), &[n], vec![0; n]);
        let table = self.i32s(format!("table{i}"), &[1, 1], vec![1]);
        let stored = self.b.kv_store(format!("stored{i}"), state, kv, kv, slots);
        let attention = Attention { scale: 0.2, window: None, softcap: None };
        self.b.attention(format!("v{i}"), q, stored, positions, sequences, table, attention)
    }

    /// One more value, mostly of recent ones.
    fn append(&mut self, i: usize, values: &[NodeId]) -> NodeId {
        let label = format!("v{i}");
        let x = values[values.len() - 1 - self.random.below(values.len().min(4))];
        let shape = self.b.shape(x);
        let (n, width) = (shape.dims()[0], shape.width());
        let alike: Vec<NodeId> = values.iter().copied().filter(|&v| self.b.shape(v) == shape).collect();
        let other = alike[self.random.below(alike.len())];
        match self.random.below(14) {
            0 => self.b.add(label, x, other),
            1 => self.b.softcap(label, other, 3.0),
            2 => {
                let row = self.vector(&label, width);
                self.b.mul(format!("{label}.row"), x, row)
            }
            3 => {
                let weight = self.vector(&label, width);
                let normed = self.b.rms_norm(format!("{label}.normed"), x, 1e-5);
                self.b.mul(format!("{label}.out"), normed, weight)
            }
            4 => self.b.rms_norm(label, x, 1e-5),
            5 => {
                let gate = self.b.activate(format!("{label}.gate"), x, Activation::Silu);
                let product = self.b.mul(label, gate, other);
                self.b.softcap(format!("v{i}.capped"), product, 3.0)
            }
            6..=9 if shape.rank() == 2 => {
                let rows = [32, 64, 320][self.random.below(3)];
                let weight = self.matrix(&label, rows, width);
                let product = self.b.mat_mul(format!("{label}.product"), weight, x);
                match self.random.below(3) {
                    0 => {
                        let bias = self.vector(&format!("{label}.bias"), rows);
                        self.b.add(format!("{label}.biased"), product, bias)
                    }
                    // A computed vector is broadcast, too.
                    1 if n > 1 => {
                        let first = self.i32s(format!("{label}.first"), &[1], vec![0]);
                        let row = self.b.get_rows(format!("{label}.row"), product, first);
                        let row = self.b.reshape(format!("{label}.vector"), row, [rows]);
                        let again = self.b.mat_mul(format!("{label}.again"), weight, x);
                        self.b.add(format!("{label}.sum"), again, row)
                    }
                    1 => {
                        let vector = self.b.reshape(format!("{label}.vector"), product, [rows]);
                        let again = self.b.mat_mul(format!("{label}.again"), weight, x);
                        self.b.add(format!("{label}.sum"), again, vector)
                    }
                    _ => product,
                }
            }
            10 if shape.rank() == 2 => {
                let ids = (0..n).map(|_| self.random.below(n) as i32).collect();
                let ids = self.i32s(format!("ids{i}"), &[n], ids);
                self.b.get_rows(label, x, ids)
            }
            11 if shape.rank() == 3 => {
                let positions = self.i32s(format!("at{i}"), &[n], (0..n as i32).collect());
                let rope =
                    Rope { rotary_dim: 32, pairs: RopePairs::Halves, base: 1e4, scale: 1.0, yarn: None };
                self.b.rope(label, x, positions, None, rope)
            }
            12 if shape.rank() == 3 => self.attend(i, x, other),
            _ if shape.rank() == 3 => self.b.reshape(label, x, [n, shape.len() / n]),
            _ => self.b.reshape(label, x, [n, width / 32, 32]),
        }
    }
}

struct Built {
    graph: Graph,
    source: Arc<dyn WeightSource>,
    f32s: Vec<(NodeId, Vec<f32>)>,
    i32s: Vec<(NodeId, Vec<i32>)>,
}

fn sample(seed: u64) -> Built {
    let mut random = Random(seed);
    let n = [1, 1, 2, 13][random.below(4)];
    let (mut b, mut f32s) = (GraphBuilder::new(), Vec::new());
    let mut values: Vec<NodeId> = Vec::new();
    for width in [64, 320] {
        let id = b.input(format!("x{width}"), DType::F32, [n, width]);
        f32s.push((id, random.values(n * width, 2.0)));
        values.push(id);
    }
    let mut sample = Sample { b, random, weights: WeightTable::new(), f32s, i32s: Vec::new() };
    for i in 0..40 {
        let value = sample.append(i, &values);
        values.push(value);
    }
    let Sample { mut b, weights, f32s, i32s, .. } = sample;
    let last = b.scale("last", values[values.len() - 1], 1.0);
    b.output(last);
    Built { graph: b.finish().unwrap(), source: Arc::new(weights), f32s, i32s }
}

impl Built {
    /// The last value's bits, of each of `runs` runs.
    fn run(&self, threads: usize, options: &PlanOptions<'_>, runs: usize) -> Vec<Vec<u32>> {
        let mut scheduler = scheduler(threads);
        let plan = scheduler.plan(self.graph.clone(), options).unwrap();
        let mut plan = scheduler.bind(plan, &self.source, &mut |_, _| {}).unwrap();
        let output = self.graph.outputs()[0];
        let mut run = || {
            scheduler.poison().unwrap();
            for (id, values) in &self.f32s {
                scheduler.write_f32(&mut plan, *id, values).unwrap();
            }
            for (id, values) in &self.i32s {
                scheduler.write_i32(&mut plan, *id, values).unwrap();
            }
            scheduler.execute(&mut plan).unwrap();
            let mut out = vec![0.0; self.graph.node(output).shape.len()];
            scheduler.read_f32(&plan, output, &mut out).unwrap();
            assert!(out.iter().all(|x| x.is_finite()), "a graph whose result says nothing");
            out.into_iter().map(f32::to_bits).collect()
        };
        (0..runs).map(|_| run()).collect()
    }
}

#[test]
fn inv08_threads_reuse_and_fusion_do_not_change_a_bit_of_random_graphs() {
    for seed in 0..40 {
        let sample = sample(seed);
        let plainly = PlanOptions { fusion: Fusion::none(), reuse: Reuse::Never, ..PlanOptions::default() };
        let wanted = sample.run(1, &plainly, 1).remove(0);
        for (threads, fusion) in [(1, Fusion::all()), (2, Fusion::all()), (3, Fusion::none())] {
            let options = PlanOptions { fusion, ..PlanOptions::default() };
            for got in sample.run(threads, &options, 3) {
                assert!(got == wanted, "graph {seed}, {threads} threads, {fusion:?}");
            }
        }
    }
}

/// A product whose addend was made by a product of the same activation, for which one step serves: fused, it would
/// read the addend while another thread may still write it.
#[test]
fn a_computed_row_is_no_bias() {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1, 32]);
    let [first, second] = ["first", "second"].map(|name| b.weight(name, DType::F32, [640, 32]));
    let row = b.mat_mul("row", first, x);
    let row = b.reshape("a vector", row, [640]);
    let product = b.mat_mul("product", second, x);
    let sum = b.add("sum", product, row);
    let bias = b.weight("bias", DType::F32, [640]);
    let product = b.mat_mul("to be biased", first, x);
    let biased = b.add("biased", product, bias);
    b.output(sum);
    b.output(biased);
    let plan = scheduler(2).plan(b.finish().unwrap(), &PlanOptions::default()).unwrap();
    assert_eq!(plan.graph().node(sum).op, Op::Add);
    assert_eq!(plan.graph().node(biased).op, Op::MatMulAdd, "a bias of the model joins its product");
}

/// A program has addresses in it: once a buffer is gone it is refused, also when another buffer has its number.
#[test]
fn a_program_whose_buffer_was_freed_does_not_run() {
    let mut cpu = CpuBackend::new(&CpuConfig { threads: 1, threads_batch: 1, isa: None }).unwrap();
    let operand = |buffer| Operand { place: Place::Buffer(buffer), dtype: DType::F32, shape: [1, 8].into() };
    let [x, y] = [cpu.allocate(256).unwrap(), cpu.allocate(256).unwrap()];
    let op = BoundOp {
        node: NodeId(0),
        label: "y".to_owned(),
        op: Op::Scale(2.0),
        sources: vec![operand(x)],
        result: operand(y),
        state: None,
    };
    let program = cpu.compile(std::slice::from_ref(&op)).unwrap();
    cpu.write(x, &3.0f32.to_le_bytes().repeat(8)).unwrap();
    cpu.launch(program).unwrap();
    let mut out = [0; 32];
    cpu.read(y, &mut out).unwrap();
    assert_eq!(out.as_slice(), 6.0f32.to_le_bytes().repeat(8));
    cpu.release(y);
    let error = DeviceError::Failed("a program uses memory that was freed".to_owned());
    assert_eq!(cpu.launch(program), Err(error.clone()));
    assert_eq!(cpu.allocate(256).unwrap(), y, "the number is given out again");
    assert_eq!(cpu.launch(program), Err(error));
    // One that is made now runs.
    let program = cpu.compile(&[op]).unwrap();
    cpu.launch(program).unwrap();
}
