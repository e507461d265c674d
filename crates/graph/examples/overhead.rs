//! What the graph itself costs: nanoseconds a node and step on a device that computes nothing, and the time
//! to make a plan.
//!
//! `cargo run --release -p minfer-graph --example overhead`

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;

use common::model::{Decoder, TINY};
use minfer_graph::devices::NullDevice;
use minfer_graph::{PlanOptions, Rule, Scheduler};

fn main() {
    let model = Decoder { layers: 24, ..TINY };
    let source = model.source();
    println!("24 layers, one token a step");
    for devices in [1, 2] {
        let mut scheduler = Scheduler::new((0..devices).map(|_| Box::new(NullDevice::new()) as _).collect());
        let rules = [Rule::new("by turns", |node, _, d| node.layer.unwrap_or(0) % devices == d.0)];
        let options = PlanOptions { rules: &rules, ..PlanOptions::default() };

        let rounds = 20;
        let (mut build_us, mut plan_us, mut bind_us) = (0, 0, 0);
        let mut last = None;
        for _ in 0..rounds {
            let start = Instant::now();
            let (graph, ids) = model.graph(1, 1);
            build_us += start.elapsed().as_micros();
            let start = Instant::now();
            let plan = scheduler.plan(graph, &options).expect("the null device takes everything");
            plan_us += start.elapsed().as_micros();
            let start = Instant::now();
            let bound = scheduler.bind(plan, &source, &mut |_, _| {}).expect("every weight is there");
            bind_us += start.elapsed().as_micros();
            if let Some((old, _)) = last.replace((bound, ids)) {
                scheduler.unbind(old);
            }
        }
        let (mut plan, ids) = last.expect("at least one round");
        let nodes: usize = plan.plan().splits().iter().map(|s| s.nodes.len()).sum();
        let splits = plan.plan().splits().len();
        println!(
            "{devices} device(s): {nodes} nodes in {splits} splits; build {} µs, plan {} µs, bind {} µs",
            build_us / rounds,
            plan_us / rounds,
            bind_us / rounds
        );

        let steps = 20_000;
        let start = Instant::now();
        for step in 0..steps {
            model.step(&mut scheduler, &mut plan, &ids, step % 8, &[1]).expect("nothing can fail");
        }
        let per_step = start.elapsed().as_nanos() / steps as u128;
        println!("  step {per_step} ns, {:.2} ns a node", per_step as f64 / nodes as f64);
    }
}
