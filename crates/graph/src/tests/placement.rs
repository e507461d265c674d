//! Random graphs over devices that each run a part of the operations.

use proptest::prelude::*;

use super::common::only;
use super::random::{samples, scattered};
use crate::devices::ReferenceDevice;
use crate::{Backend, Fusion, PlanOptions, Reuse, Scheduler};

/// A device that runs the operations whose name hashes to a set bit.
fn part(name: &str, mask: u64) -> Box<dyn Backend> {
    only(name, move |q| {
        let hash = q.op.name().bytes().fold(0u64, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
        mask >> (hash % 64) & 1 == 1
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(700))]

    #[test]
    fn inv11_any_placement_fusion_and_reuse_gives_the_same_bits(
        sample in samples(30), masks in any::<(u64, u64)>(), fence in any::<Option<u64>>(),
    ) {
        let one = || Scheduler::new(vec![Box::new(ReferenceDevice::default())]);
        let plainly = PlanOptions { fusion: Fusion::none(), reuse: Reuse::Never, ..PlanOptions::default() };
        let truth = sample.run_on(one(), &plainly);
        for fusion in [Fusion::all(), Fusion::none()] {
            for reuse in [Reuse::ByLiveness, Reuse::Never] {
                let devices = || Scheduler::new(vec![
                    part("a", masks.0),
                    part("b", masks.1),
                    Box::new(ReferenceDevice::new("rest")),
                ]);
                let rest_too = fence.map(|seed| scattered(3, seed));
                // A fence that may refuse a node on the partial devices, never on the one that runs
                // everything.
                let fence = [crate::Rule::new("fence", |node, stage, d| {
                    d.0 == 2 || rest_too.as_ref().is_none_or(|f| (f[0].allows)(node, stage, d))
                })];
                let options = PlanOptions { fusion, reuse, rules: &fence, ..PlanOptions::default() };
                prop_assert_eq!(&sample.run_on(devices(), &options), &truth);

                let plan = devices().plan(sample.graph.clone(), &options).unwrap();
                // Neighbouring splits are on different devices: no boundary without a device change.
                prop_assert!(plan.splits().windows(2).all(|w| w[0].device != w[1].device));
                // Every live node is in exactly one split, in build order.
                let ran: Vec<u32> = plan.splits().iter().flat_map(|s| s.nodes.iter().map(|n| n.0)).collect();
                prop_assert!(ran.windows(2).all(|w| w[0] < w[1]));
                let wanted = plan.graph().iter().filter(|(id, n)| n.op.runs() && !plan.is_dead(*id)).count();
                prop_assert_eq!(ran.len(), wanted);
                prop_assert!(plan.graph().is_acyclic());
            }
        }
    }
}
