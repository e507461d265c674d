//! Every placement of every small graph: one input and up to five operations, over three devices.
//!
//! The values expected are computed here, operation by operation, without a graph, a plan or a scheduler.

use std::sync::Arc;
use std::time::Duration;

use minfer_graph::devices::{ReferenceDevice, SimOptions, World};
use minfer_graph::{
    Activation, Backend, DType, DeviceId, Graph, GraphBuilder, NodeId, PlanOptions, Rule, Scheduler,
    WeightSource, WeightTable,
};

/// An operation over one or two earlier values; value 0 is the input.
type Operation = (usize, Option<usize>);

/// What the operation at a place computes of one value: so different from place to place that values of one run differ,
/// and, with a product after an activation, with a pattern that fuses.
fn unary(place: usize, a: f32) -> f32 {
    match place % 2 {
        0 => (f64::from(a) / (1.0 + (-f64::from(a)).exp())) as f32,
        _ => (f64::from(a) * f64::from(factor(place))) as f32,
    }
}

/// What it computes of two.
fn binary(place: usize, a: f32, b: f32) -> f32 {
    if place.is_multiple_of(2) { a + b } else { a * b }
}

fn factor(place: usize) -> f32 {
    1.25 - place as f32 / 2.0
}

/// All values of a run.
fn values(operations: &[Operation], x: f32) -> Vec<f32> {
    let mut values = vec![x];
    for (place, &(a, b)) in operations.iter().enumerate() {
        let value = match b {
            None => unary(place, values[a]),
            Some(b) => binary(place, values[a], values[b]),
        };
        values.push(value);
    }
    values
}

/// The graph, with every value that nobody reads an output. Node `i` is value `i`.
fn graph(operations: &[Operation]) -> Graph {
    let mut b = GraphBuilder::new();
    let mut ids = vec![b.input("0", DType::F32, [1])];
    for (place, &(first, second)) in operations.iter().enumerate() {
        let (label, a) = ((place + 1).to_string(), ids[first]);
        let id = match second.map(|s| ids[s]) {
            None if place % 2 == 0 => b.activate(label, a, Activation::Silu),
            None => b.scale(label, a, factor(place)),
            Some(second) if place % 2 == 0 => b.add(label, a, second),
            Some(second) => b.mul(label, a, second),
        };
        ids.push(id);
    }
    let is_read = |v: usize| operations.iter().any(|&(a, b)| a == v || b == Some(v));
    for v in (1..ids.len()).filter(|&v| !is_read(v)) {
        b.output(ids[v]);
    }
    b.finish().unwrap()
}

/// Every list of so many operations that begins like this.
fn each_graph(operations: &mut Vec<Operation>, count: usize, f: &mut dyn FnMut(&[Operation])) {
    if operations.len() == count {
        return f(operations);
    }
    let values = operations.len() + 1;
    for a in 0..values {
        // The later value comes first, where an activation fuses with the product.
        for b in std::iter::once(None).chain((0..=a).map(Some)) {
            operations.push((a, b));
            each_graph(operations, count, f);
            operations.pop();
        }
    }
}

/// Every placement of so many operations over three devices.
fn placements(count: usize) -> Vec<Vec<u32>> {
    let digits = |n: u32| (0..count as u32).map(|i| n / 3u32.pow(i) % 3).collect();
    (0..3u32.pow(count as u32)).map(digits).collect()
}

/// A synchronous device and two different simulated ones.
fn devices() -> Scheduler {
    let world = World::new();
    let sim = |name: &str, options: SimOptions| -> Box<dyn Backend> {
        Box::new(world.device(name, Box::new(ReferenceDevice::default()), options))
    };
    let time = Duration::from_micros(5);
    let slow = SimOptions { submit: time, launch: time, copy: time, ..SimOptions::default() };
    let plain = SimOptions { records: false, ..SimOptions::default() };
    Scheduler::new(vec![Box::new(ReferenceDevice::default()), sim("slow", slow), sim("plain", plain)])
}

/// Runs every placement of a graph, twice on each plan.
fn check(operations: &[Operation], placements: &[Vec<u32>], input: &mut Inputs) -> u64 {
    let graph = graph(operations);
    let source: Arc<dyn WeightSource> = Arc::new(WeightTable::new());
    let mut scheduler = devices();
    for placement in placements {
        let rule = Rule::new("the placement", |node, _, device: DeviceId| {
            let value: usize = node.label.parse().unwrap();
            placement[value - 1] == device.0
        });
        let plan =
            scheduler.plan(graph.clone(), &PlanOptions { rules: &[rule], ..PlanOptions::default() }).unwrap();
        let mut plan = scheduler.bind(plan, &source, &mut |_, _| {}).unwrap();
        for _ in 0..2 {
            let x = input.next();
            let expected = values(operations, x);
            scheduler.write_f32(&mut plan, NodeId(0), &[x]).unwrap();
            scheduler.execute(&mut plan).unwrap();
            for &output in graph.outputs() {
                let mut got = [0.0];
                scheduler.read_f32(&plan, output, &mut got).unwrap();
                let wanted = expected[output.index()];
                assert!(
                    wanted.is_finite() && got[0].to_bits() == wanted.to_bits(),
                    "{operations:?} on {placement:?} with {x}: value {} is {} instead of {wanted}",
                    output.0,
                    got[0]
                );
            }
        }
        scheduler.unbind(plan);
    }
    placements.len() as u64
}

/// Inputs that do not come again for long, so that an old value shows.
struct Inputs(u32);

impl Inputs {
    fn next(&mut self) -> f32 {
        self.0 = (self.0 + 1) % 1_000_003;
        0.5 + self.0 as f32 / 1_000_003.0
    }
}

/// All placements of every so manieth graph of so many operations that begins with one of these; how many graphs, and
/// how many placements in all.
fn check_all(count: usize, first: &[Operation], every: u64) -> (u64, u64) {
    let placements = placements(count);
    let (mut graphs, mut cases, mut inputs) = (0, 0, Inputs(0));
    for &first in first {
        each_graph(&mut vec![first], count, &mut |operations| {
            if graphs % every == 0 {
                cases += check(operations, &placements, &mut inputs);
            }
            graphs += 1;
        });
    }
    (graphs, cases)
}

const UNARY: Operation = (0, None);
const BINARY: Operation = (0, Some(0));

/// Of the largest graphs all in release builds, which are what counts; some where they would take minutes.
const EVERY: u64 = if cfg!(debug_assertions) { 50 } else { 1 };

#[test]
fn all_placements_of_all_graphs_of_up_to_five_nodes() {
    let all = (1..=4).map(|count| check_all(count, &[UNARY, BINARY], 1)).collect::<Vec<_>>();
    // With v values there are v unary and v (v + 1) / 2 binary operations: 2, 5, 9, 14.
    assert_eq!(all, [(2, 2 * 3), (10, 10 * 9), (90, 90 * 27), (1260, 1260 * 81)]);
}

#[test]
fn all_placements_of_graphs_of_six_nodes_that_begin_with_a_unary_operation() {
    assert_eq!(check_all(5, &[UNARY], EVERY), (12_600, 12_600 / EVERY * 243));
}

#[test]
fn all_placements_of_graphs_of_six_nodes_that_begin_with_a_binary_operation() {
    assert_eq!(check_all(5, &[BINARY], EVERY), (12_600, 12_600 / EVERY * 243));
}
