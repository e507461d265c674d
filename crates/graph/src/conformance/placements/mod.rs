//! Random graphs on random placements: whatever runs where, the bits are those of one device alone.
//!
//! A case is a graph of random operations, each on a random one of three devices that take it: the device on trial and
//! two simulated ones, which are asynchronous and differ in what they take, in speed and in whether they record. The
//! simulated devices compute with kernels like those on trial, so that the result does not depend on the placement: any
//! difference is a value that was read too early, from the wrong place, or after it was overwritten. Each plan runs four
//! times at least, on other data each time, over KV caches that fill; with and without fusion, reuse of memory, replay and
//! watching, and sometimes with another plan on the same devices in between.
//!
//! ```
//! use minfer_graph::conformance::placements::{self, Options};
//! use minfer_graph::devices::ReferenceDevice;
//! let options = Options { cases: 20, ..Options::default() }.or_env();
//! let report = placements::run(&mut || Box::new(ReferenceDevice::default()), &options);
//! report.assert_passed();
//! ```

mod case;
mod sample;

use std::env;
use std::fmt;

use super::random;
use crate::devices::Counts;
use crate::{Backend, Plan};
use case::{Stop, check};

/// The variable that [`Options::or_env`] reads.
pub const SEED_VARIABLE: &str = "MINFER_PLACEMENTS_SEED";

/// Which cases to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The first case's seed; the others have those after it.
    pub first: u64,
    /// How many.
    pub cases: u64,
    /// The most random operations in a graph, each of which is some nodes.
    pub operations: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { first: 0, cases: 1000, operations: 24 }
    }
}

impl Options {
    /// The one case whose seed [`SEED_VARIABLE`] holds, if it is set. Panics if it holds something else.
    #[must_use]
    pub fn or_env(self) -> Self {
        let Some(value) = env::var_os(SEED_VARIABLE) else { return self };
        match value.to_str().and_then(|v| v.parse().ok()) {
            Some(seed) => Self { first: seed, cases: 1, ..self },
            None => panic!("{SEED_VARIABLE} is {value:?}, which is not a seed"),
        }
    }
}

/// The first case that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// The fewest operations with which it goes wrong, and with which the rest was found out.
    pub operations: usize,
    /// What was wrong, with the setting and the plan.
    pub what: String,
}

/// What the cases had in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// By combination of four switches, how many cases: bit 0 is fusion, bit 1 reuse of memory, bit 2 replay, bit 3
    /// watching.
    pub combinations: [u64; 16],
    /// Nodes that ran, in one run of each case.
    pub nodes: u64,
    /// Nodes that fusion absorbed.
    pub fused: u64,
    /// Splits.
    pub splits: u64,
    /// Values that crossed from device to device.
    pub copies: u64,
    /// Cases with a KV cache.
    pub cached: u64,
    /// Recordings made.
    pub recordings: u64,
    /// Recordings run.
    pub replays: u64,
    /// Cases whose buffers moved between two runs.
    pub moved: u64,
}

impl Coverage {
    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        let Self { combinations, nodes, fused, splits, copies, cached, recordings, replays, moved } = other;
        self.combinations.iter_mut().zip(combinations).for_each(|(sum, n)| *sum += n);
        self.nodes += nodes;
        self.fused += fused;
        self.splits += splits;
        self.copies += copies;
        self.cached += cached;
        self.recordings += recordings;
        self.replays += replays;
        self.moved += moved;
    }

    fn count(&mut self, seed: u64, plan: &Plan, counts: &Counts) {
        self.combinations[seed as usize % 16] += 1;
        let ran: usize = plan.splits().iter().map(|s| s.nodes.len()).sum();
        self.nodes += ran as u64;
        self.fused += plan.graph().iter().filter(|(id, _)| plan.is_dead(*id)).count() as u64;
        self.splits += plan.splits().len() as u64;
        self.copies += plan.splits().iter().map(|s| s.copies.len() as u64).sum::<u64>();
        self.cached += u64::from(!plan.graph().states().is_empty());
        self.recordings += counts.recordings;
        self.replays += counts.replays;
    }
}

/// The outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How many cases gave what they should.
    pub passed: u64,
    /// Cases with an operation that the device does not take.
    pub skipped: u64,
    /// What the cases that passed had in them.
    pub coverage: Coverage,
    /// The case that went wrong, which ends the run.
    pub failure: Option<Failure>,
}

impl Report {
    /// Panics with the report if a case went wrong, or if none ran.
    #[track_caller]
    pub fn assert_passed(&self) {
        assert!(self.failure.is_none() && self.passed > 0, "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, skipped, coverage, failure } = self;
        write!(f, "{passed} passed, {skipped} skipped; {coverage:?}")?;
        if let Some(Failure { seed, operations, what }) = failure {
            write!(f, "\nthe case of seed {seed} went wrong; ")?;
            write!(f, "{SEED_VARIABLE}={seed} runs it alone. With {operations} operations: {what}")?;
        }
        Ok(())
    }
}

/// Where devices come from.
pub struct Devices<'a> {
    /// Makes the device on trial.
    pub device: &'a mut dyn FnMut() -> Box<dyn Backend>,
    /// Makes devices that compute the same bits, and synchronously, for the simulated devices and for the run on one
    /// device alone.
    pub kernels: &'a mut dyn FnMut() -> Box<dyn Backend>,
}

/// Runs cases with devices that `make` makes, which must be synchronous; the first that goes wrong ends it.
pub fn run(make: &mut dyn FnMut() -> Box<dyn Backend>, options: &Options) -> Report {
    let shared = std::cell::RefCell::new(make);
    let (mut device, mut kernels) = (|| (shared.borrow_mut())(), || (shared.borrow_mut())());
    run_with(&mut Devices { device: &mut device, kernels: &mut kernels }, options)
}

/// Runs cases with a device on trial that may be asynchronous.
pub fn run_with(devices: &mut Devices<'_>, options: &Options) -> Report {
    let mut report = Report::default();
    for seed in (options.first..).take(usize::try_from(options.cases).unwrap_or(usize::MAX)) {
        let operations = 1 + random::Random::new(seed, "operations").below(options.operations.max(1));
        match check(seed, operations, devices, &mut report.coverage) {
            Ok(()) => report.passed += 1,
            Err(Stop::Skipped) => report.skipped += 1,
            Err(Stop::Failed(what)) => {
                report.failure = Some(shrink(seed, operations, what, devices));
                break;
            }
        }
    }
    report
}

/// The same case with as few of its first operations as still go wrong.
fn shrink(seed: u64, operations: usize, what: String, devices: &mut Devices<'_>) -> Failure {
    let shorter = (1..operations).find_map(|n| match check(seed, n, devices, &mut Coverage::default()) {
        Err(Stop::Failed(what)) => Some(Failure { seed, operations: n, what }),
        _ => None,
    });
    shorter.unwrap_or(Failure { seed, operations, what })
}
