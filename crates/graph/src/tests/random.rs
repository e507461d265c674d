//! Random graphs, as proptest strategies.

use std::sync::Arc;

use proptest::prelude::*;

use super::common::model::noise;
use crate::{
    Activation, BoundPlan, DType, Graph, GraphBuilder, NodeId, Op, Plan, PlanOptions, Rule, Scheduler, Shape,
    WeightSource, WeightTable,
};

/// One random choice of an operation and its operands.
pub type Choice = (u8, u16, u16, u16);

/// A graph with the data to run it.
#[derive(Clone, Debug)]
pub struct Sample {
    pub graph: Graph,
    pub weights: WeightTable,
    /// The f32 and the i32 inputs, with their values.
    pub f32s: Vec<(NodeId, Vec<f32>)>,
    pub i32s: Vec<(NodeId, Vec<i32>)>,
}

/// Graphs of up to `nodes` operations with values of many sizes, reshapes of reshapes, values read often or
/// never.
pub fn samples(nodes: usize) -> impl Strategy<Value = Sample> {
    proptest::collection::vec(any::<Choice>(), 1..nodes).prop_map(|choices| build(&choices))
}

pub fn build(choices: &[Choice]) -> Sample {
    let mut b = GraphBuilder::new();
    let mut weights = WeightTable::new();
    let (mut f32s, mut i32s) = (Vec::new(), Vec::new());
    let mut input = |b: &mut GraphBuilder, shape: Shape, seed: u64| {
        let id = b.input(format!("x{seed}"), DType::F32, shape);
        f32s.push((id, noise(seed + 1, shape.len())));
        id
    };
    let mut values: Vec<NodeId> = Vec::new();
    let mut computed: Vec<NodeId> = Vec::new();
    for (seed, shape) in
        [Shape::new(&[3, 8]), Shape::new(&[5, 4]), Shape::new(&[1, 64])].into_iter().enumerate()
    {
        values.push(input(&mut b, shape, seed as u64));
    }
    for (i, &(kind, first, second, third)) in choices.iter().enumerate() {
        let label = format!("v{i}");
        // Mostly recent values, so that chains arise; sometimes old ones, so that lives are long.
        let recent = values.len().min(4);
        let pick = |r: u16| match r % 4 {
            0 => values[(r / 4) as usize % values.len()],
            _ => values[values.len() - 1 - (r / 4) as usize % recent],
        };
        let x = pick(first);
        let shape = b.shape(x);
        let alike: Vec<NodeId> = values.iter().copied().filter(|&v| b.shape(v) == shape).collect();
        let other = alike[second as usize % alike.len()];
        let new = match kind % 15 {
            0 => b.add(label, x, other),
            1 => b.mul(label, x, other),
            2 => b.scale(label, x, f32::from(third % 7) / 3.0 - 0.9),
            3 => b.softcap(label, x, 3.0),
            4 => b.rms_norm(label, x, 1e-5),
            5 | 6 => {
                let activation = if kind % 2 == 0 { Activation::Silu } else { Activation::Gelu };
                let gate = b.activate(format!("{label}.gate"), x, activation);
                b.mul(label, gate, other)
            }
            7 => {
                let name = format!("norm{}", shape.width());
                weights.insert_f32(name.as_str(), &noise(99, shape.width()));
                let weight = b.weight(name, DType::F32, [shape.width()]);
                let normed = b.rms_norm(format!("{label}.normed"), x, 1e-5);
                b.mul(label, normed, weight)
            }
            8..=10 if shape.rank() == 2 => {
                let rows = [1, 4, 8, 12, 64][third as usize % 5];
                let name = format!("w{rows}x{}", shape.width());
                weights.insert_f32(name.as_str(), &noise(7, rows * shape.width()));
                let weight = b.weight(name, DType::F32, [rows, shape.width()]);
                let product = b.mat_mul(format!("{label}.product"), weight, x);
                let alike: Vec<NodeId> =
                    values.iter().copied().filter(|&v| b.shape(v) == b.shape(product)).collect();
                // With an addend of its shape, if there is one.
                match alike.get(second as usize % alike.len().max(1)) {
                    Some(&addend) if kind % 2 == 0 => b.add(label, product, addend),
                    Some(&addend) => b.add(label, addend, product),
                    None => product,
                }
            }
            11 if shape.rank() == 2 => {
                // Rows in another number: a value of another size.
                let count = 1 + third as usize % 17;
                let ids = b.input(format!("ids{i}"), DType::I32, [count]);
                let id = |j: usize| ((j * 5 + second as usize) % shape.rows()) as i32;
                i32s.push((ids, (0..count).map(id).collect()));
                b.get_rows(label, x, ids)
            }
            12 => {
                let id = b.input(label, DType::F32, shape);
                f32s.push((id, noise(i as u64 + 50, shape.len())));
                id
            }
            8..=11 => b.scale(label, x, 0.5),
            _ => {
                let len = shape.len();
                let shapes = [vec![1, len], vec![len, 1], vec![len / 2, 2], vec![len], vec![2, len / 4, 2]];
                let fits: Vec<Shape> =
                    shapes.iter().map(|s| Shape::new(s)).filter(|s| s.len() == len && len > 0).collect();
                b.reshape(label, x, fits[third as usize % fits.len()])
            }
        };
        values.push(new);
        let is_computed = match kind % 15 {
            12 => false,
            0..=11 => true,
            _ => computed.contains(&x),
        };
        if is_computed {
            computed.push(new);
            if first % 11 == 0 {
                b.output(new);
            }
        }
    }
    let last = b.scale("last", values[values.len() - 1], 1.0);
    b.output(last);
    Sample { graph: b.finish().expect("only valid nodes are appended"), weights, f32s, i32s }
}

impl Sample {
    pub fn source(&self) -> Arc<dyn WeightSource> {
        Arc::new(self.weights.clone())
    }

    /// Writes the inputs.
    pub fn feed(&self, scheduler: &mut Scheduler, plan: &mut BoundPlan) {
        for (id, values) in &self.f32s {
            scheduler.write_f32(plan, *id, values).unwrap();
        }
        for (id, values) in &self.i32s {
            scheduler.write_i32(plan, *id, values).unwrap();
        }
    }

    /// Runs a bound plan and gives the bits of every output.
    pub fn run(&self, scheduler: &mut Scheduler, plan: &mut BoundPlan) -> Vec<Vec<u32>> {
        scheduler.poison().unwrap();
        self.feed(scheduler, plan);
        scheduler.execute(plan).unwrap();
        let outputs = plan.plan().graph().outputs().to_vec();
        outputs
            .into_iter()
            .map(|o| {
                let mut out = vec![0.0; self.graph.node(o).shape.len()];
                scheduler.read_f32(plan, o, &mut out).unwrap();
                out.into_iter().map(f32::to_bits).collect()
            })
            .collect()
    }

    /// Plans, binds and runs.
    pub fn run_on(&self, mut scheduler: Scheduler, options: &PlanOptions<'_>) -> Vec<Vec<u32>> {
        let plan = scheduler.plan(self.graph.clone(), options).unwrap();
        let mut plan = scheduler.bind(plan, &self.source(), &mut |_, _| {}).unwrap();
        self.run(&mut scheduler, &mut plan)
    }
}

/// A rule that puts each node on a device of its own choice, by label.
pub fn scattered(devices: u32, seed: u64) -> [Rule<'static>; 1] {
    [Rule::new("scattered", move |node, _, device| {
        let hash =
            node.label.bytes().fold(seed | 1, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        (hash >> 20) as u32 % devices == device.0
    })]
}

/// When each computed value is read for the last time, by the plan's own graph: found by walking every
/// reader, aliases followed by hand, independently of the planner.
pub fn last_reads(plan: &Plan) -> Vec<(NodeId, NodeId)> {
    let graph = plan.graph();
    let names = |mut id: NodeId| {
        while graph.node(id).op == Op::Reshape {
            id = graph.node(id).sources[0];
        }
        id
    };
    let mut out = Vec::new();
    for (value, node) in graph.iter() {
        let computed = !node.sources.is_empty() && node.op != Op::Reshape && !plan.is_dead(value);
        if !computed || graph.outputs().iter().any(|&o| names(o) == value) {
            continue;
        }
        let readers = graph.iter().filter(|&(id, n)| {
            !plan.is_dead(id) && n.op != Op::Reshape && n.sources.iter().any(|&s| names(s) == value)
        });
        out.push((value, readers.map(|(id, _)| id).next_back().unwrap_or(value)));
    }
    out
}
