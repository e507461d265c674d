//! The pool under loom: every interleaving of a few threads over a few steps, with every value that a load may see
//! under the memory model. Built only with `--cfg loom`; `docs/concurrency.md` says how to run it and what it shows.
//!
//! Three things make a check fail: an assertion here, two unordered accesses to a cell, and a state in which every
//! thread sleeps (a lost wake-up).

mod machines;
mod weakened;
mod whole;

use std::time::Duration;

use super::sync::UnsafeCell;

/// Threads that pause once before they sleep.
const SPIN: Duration = Duration::from_nanos(1);
/// Threads that sleep as soon as they have nothing to do.
const SLEEP: Duration = Duration::ZERO;

/// Checks `f`, with at most `preemptions` switches away from a thread that could have gone on; `None`: any number.
fn check(preemptions: impl Into<Option<usize>>, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions.into();
    builder.check(f);
}

/// A plain value that threads pass to one another. loom notices when nothing orders a write and another access.
struct Slot(UnsafeCell<usize>);

// SAFETY: that accesses are ordered is what the checks are for; loom fails the check before it lets two overlap.
unsafe impl Sync for Slot {}

impl Slot {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    fn set(&self, value: usize) {
        // SAFETY: loom has checked that no access is concurrent.
        self.0.with_mut(|slot| unsafe { *slot = value });
    }

    fn get(&self) -> usize {
        // SAFETY: loom has checked that no write is concurrent.
        self.0.with(|slot| unsafe { *slot })
    }
}
