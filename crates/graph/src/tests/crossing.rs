//! Boundaries: as many as the device changes; every value crosses to a device at most once in a run, and what crosses is
//! what is read.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::random::{samples, scattered};
use crate::devices::{ReferenceDevice, SimControl, SimOptions, World};
use crate::{Backend, CopyReport, DeviceId, NodeId, NodeReport, Op, Plan, PlanOptions, Scheduler, Watch};

const DEVICES: usize = 3;

/// The nodes that run, in build order.
fn running(plan: &Plan) -> Vec<NodeId> {
    let runs = |op: &Op| !matches!(op, Op::Input | Op::Weight(_) | Op::State(_) | Op::Reshape);
    plan.graph().iter().filter(|(id, n)| runs(&n.op) && !plan.is_dead(*id)).map(|(id, _)| id).collect()
}

/// What is read on a device other than the one that makes it: (value, from, to), once each.
fn needed(plan: &Plan) -> BTreeMap<(NodeId, DeviceId, DeviceId), usize> {
    let names = |mut id: NodeId| {
        while plan.graph().node(id).op == Op::Reshape {
            id = plan.graph().node(id).sources[0];
        }
        id
    };
    let running = running(plan);
    let reads =
        running.iter().flat_map(|&id| plan.graph().node(id).sources.iter().map(move |&s| (names(s), id)));
    let foreign =
        reads.filter(|(value, id)| running.contains(value) && plan.device(*value) != plan.device(*id));
    foreign.map(|(value, id)| ((value, plan.device(value), plan.device(id)), 1)).collect()
}

/// Counts the copies of a run by what they copy, and the nodes by device in the order in which they ran.
#[derive(Default)]
struct Copies {
    copied: BTreeMap<(NodeId, DeviceId, DeviceId), usize>,
    ran: Vec<(NodeId, DeviceId)>,
}

impl Watch for Copies {
    fn wants(&mut self, _: &Plan, _: NodeId) -> bool {
        false
    }
    fn ran(&mut self, report: &NodeReport<'_>) {
        assert!(report.plan.splits()[report.split].nodes.contains(&report.node));
        self.ran.push((report.node, report.device));
    }
    fn copied(&mut self, report: &CopyReport<'_>) {
        assert_eq!(report.plan.splits()[report.split].device, report.to);
        *self.copied.entry((report.value, report.from, report.to)).or_default() += 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn boundaries_are_device_changes_and_values_cross_once(sample in samples(40), seed in any::<u64>()) {
        let world = World::new();
        let devices: Vec<_> = (0..DEVICES)
            .map(|i| world.device(&format!("sim{i}"), Box::new(ReferenceDevice::default()), SimOptions::default()))
            .collect();
        let controls: Vec<SimControl> = devices.iter().map(|d| d.control()).collect();
        let boxed = devices.into_iter().map(|d| Box::new(d) as Box<dyn Backend>).collect();
        let mut scheduler = Scheduler::new(boxed);
        let rules = scattered(DEVICES as u32, seed);
        let options = PlanOptions { rules: &rules, ..PlanOptions::default() };
        let plan = scheduler.plan(sample.graph.clone(), &options).unwrap();

        let order = running(&plan);
        let changes = order.windows(2).filter(|w| plan.device(w[0]) != plan.device(w[1])).count();
        prop_assert_eq!(plan.splits().len(), changes + 1);

        let needed = needed(&plan);
        let mut bound = scheduler.bind(plan, &sample.source(), &mut |_, _| {}).unwrap();
        let counts = |c: &SimControl| (c.counts().copies, c.counts().submits);
        for n in 0..4 {
            sample.feed(&mut scheduler, &mut bound);
            let before: Vec<_> = controls.iter().map(counts).collect();
            world.take_log();
            if n == 0 {
                let mut copies = Copies::default();
                scheduler.execute_watched(&mut bound, &mut copies).unwrap();
                prop_assert_eq!(&copies.copied, &needed);
                let ran: Vec<_> = order.iter().map(|&id| (id, bound.plan().device(id))).collect();
                prop_assert_eq!(copies.ran, ran);
            } else {
                scheduler.execute(&mut bound).unwrap();
            }
            let mut submits = 0;
            for (i, (control, before)) in controls.iter().zip(before).enumerate() {
                // A copy is a read here and a write there.
                let mine = needed.keys().filter(|(_, from, to)| from.index() == i || to.index() == i).count();
                prop_assert_eq!(counts(control).0 - before.0, mine as u64);
                submits += counts(control).1 - before.1;
            }
            // Every node ran once; what is handed over at once is cut only where something crosses.
            let mut ran: Vec<NodeId> = world.take_log().into_iter().map(|r| r.node).collect();
            ran.sort_unstable();
            prop_assert_eq!(&ran, &order);
            if n > 0 {
                prop_assert!(submits as usize > changes);
                prop_assert!(submits as usize <= changes + 1 + 2 * needed.len());
            }
        }
    }
}
