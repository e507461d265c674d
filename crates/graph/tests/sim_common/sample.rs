//! A graph that goes from one device to another and back, with what it computes.

use minfer_graph::devices::{Counts, SimControl, SimOptions};
use minfer_graph::{DType, Graph, GraphBuilder, NodeId};

use super::takes;

/// y = 2(x + x) + x over three splits, of which two are the cpu's.
pub fn there_and_back() -> (Graph, NodeId, NodeId) {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1, 3]);
    let s = b.add("s", x, x);
    let g = b.scale("g", s, 2.0);
    let y = b.add("y", g, x);
    b.output(y);
    (b.finish().unwrap(), x, y)
}

pub fn there_and_back_of(x: [f32; 3]) -> [f32; 3] {
    x.map(|x| 5.0 * x)
}

pub fn two() -> [(&'static str, SimOptions); 2] {
    [("gpu", takes(&["scale"])), ("cpu", SimOptions::default())]
}

/// Another input for every run.
pub fn input(run: u32) -> [f32; 3] {
    [run as f32, -0.5 * run as f32, 100.0 + run as f32]
}

/// What there is of replay in the counts: submits, recordings, replays.
pub fn of_replay(control: &SimControl) -> [u64; 3] {
    let Counts { submits, recordings, replays, .. } = control.counts();
    [submits, recordings, replays]
}
