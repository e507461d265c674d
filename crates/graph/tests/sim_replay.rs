//! Replay: the first two runs are direct, the third records, later ones replay, with the bits of direct runs.

mod common;
mod sim_common;

use common::model::TINY;
use common::run;
use minfer_graph::devices::{ReferenceDevice, SimOptions};
use minfer_graph::{NodeId, NodeReport, PlanOptions, Scheduler, Watch};
use sim_common::sample::{input, of_replay, there_and_back, there_and_back_of, two};
use sim_common::{Rig, rig, takes};

#[test]
fn two_runs_are_direct_the_third_records_and_later_ones_replay() {
    let (graph, x, y) = there_and_back();
    let mut rig = rig(&two());
    let mut plan = rig.bind(&graph);
    for n in 1..=6u32 {
        let got = run(&mut rig.scheduler, &mut plan, &[(x, &input(n))], y);
        assert_eq!(got, there_and_back_of(input(n)), "run {n}");
        let (recordings, replays) = if n < 3 { (0, 0) } else { (1, u64::from(n) - 2) };
        assert_eq!(of_replay(&rig.controls[0]), [u64::from(n), recordings, replays], "gpu, run {n}");
        let twice = [u64::from(n), recordings, replays].map(|c| 2 * c);
        assert_eq!(of_replay(&rig.controls[1]), twice, "cpu, run {n}");
    }
}

#[test]
fn nothing_is_recorded_where_that_is_off_or_cannot_be() {
    let (graph, x, y) = there_and_back();
    let mut off = rig(&two());
    off.scheduler.set_replay(false);
    let plain = |options: SimOptions| SimOptions { records: false, ..options };
    let mut cannot = rig(&two().map(|(name, options)| (name, plain(options))));
    for rig in [&mut off, &mut cannot] {
        let mut plan = rig.bind(&graph);
        for n in 1..=6 {
            let got = run(&mut rig.scheduler, &mut plan, &[(x, &input(n))], y);
            assert_eq!(got, there_and_back_of(input(n)));
        }
        assert_eq!(of_replay(&rig.controls[0]), [6, 0, 0]);
        assert_eq!(of_replay(&rig.controls[1]), [12, 0, 0]);
    }
    // Turned on again, the two direct runs are still to come.
    let mut plan = off.bind(&graph);
    off.scheduler.set_replay(true);
    for n in 1..=3 {
        run(&mut off.scheduler, &mut plan, &[(x, &input(n))], y);
    }
    assert_eq!(of_replay(&off.controls[0]), [9, 1, 1]);
}

/// Keeps the values of all nodes.
#[derive(Default)]
struct Values(Vec<(NodeId, Vec<f32>)>);

impl Watch for Values {
    fn ran(&mut self, report: &NodeReport<'_>) {
        self.0.push((report.node, report.f32s().unwrap()));
    }
}

#[test]
fn nothing_is_recorded_or_replayed_while_a_run_is_watched() {
    let (graph, x, y) = there_and_back();
    let mut rig = rig(&two());
    let mut plan = rig.bind(&graph);
    let mut watched = |rig: &mut Rig, n| {
        let mut values = Values::default();
        rig.scheduler.write_f32(&mut plan, x, &input(n)).unwrap();
        rig.scheduler.execute_watched(&mut plan, &mut values).unwrap();
        let ids: Vec<u32> = values.0.iter().map(|v| v.0.0).collect();
        assert_eq!(ids, [1, 2, 3], "every node, in build order");
        for ((_, made), factor) in values.0.iter().zip([2.0, 4.0, 5.0]) {
            assert_eq!(made[..], input(n).map(|x| factor * x));
        }
        let mut out = [0.0; 3];
        rig.scheduler.read_f32(&plan, y, &mut out).unwrap();
        assert_eq!(out, there_and_back_of(input(n)));
    };
    for n in 1..=4 {
        watched(&mut rig, n);
    }
    assert_eq!(of_replay(&rig.controls[0])[1..], [0, 0]);

    let mut plain = rig.bind(&graph);
    for n in 5..=8 {
        let got = run(&mut rig.scheduler, &mut plain, &[(x, &input(n))], y);
        assert_eq!(got, there_and_back_of(input(n)));
    }
    assert_eq!(of_replay(&rig.controls[0])[1..], [1, 2]);
    watched(&mut rig, 9);
    assert_eq!(of_replay(&rig.controls[0])[1..], [1, 2], "watching used the recording");
    // The recording is still there.
    assert_eq!(run(&mut rig.scheduler, &mut plain, &[(x, &input(10))], y), there_and_back_of(input(10)));
    assert_eq!(of_replay(&rig.controls[0])[1..], [1, 3]);
}

#[test]
fn inv21_replayed_steps_of_a_decoder_are_those_of_direct_ones_to_the_bit() {
    let source = TINY.source();
    let steps = |mut scheduler: Scheduler| -> Vec<Vec<u32>> {
        let (graph, ids) = TINY.graph(1, 1);
        let plan = scheduler.plan(graph, &PlanOptions::default()).unwrap();
        let mut plan = scheduler.bind(plan, &source, &mut |_, _| {}).unwrap();
        let mut step =
            |n: usize| TINY.step(&mut scheduler, &mut plan, &ids, n, &[(n as i32 * 7) % 11]).unwrap();
        (0..20).map(|n| step(n).into_iter().map(f32::to_bits).collect()).collect()
    };
    let decoder = || [("gpu", takes(&["silu_mul", "rope", "add"])), ("cpu", SimOptions::default())];
    let (mut direct, replayed) = (rig(&decoder()), rig(&decoder()));
    direct.scheduler.set_replay(false);
    let truth = steps(Scheduler::new(vec![Box::new(ReferenceDevice::default())]));
    assert!(truth.iter().flatten().all(|&bits| f32::from_bits(bits).is_finite()));
    assert_eq!(steps(direct.scheduler), truth);
    assert_eq!(steps(replayed.scheduler), truth);
    for control in replayed.controls {
        let [submits, recordings, replays] = of_replay(&control);
        assert_eq!((submits, replays), (20 * recordings, 18 * recordings));
        assert!(recordings > 2);
    }
}
