//! Counts steps of work for tests, which thereby tell linear from quadratic time without a clock: each look at a
//! character, each look-up of a token or merge and each merge considered is one.

use std::cell::Cell;

thread_local!(static STEPS: Cell<u64> = const { Cell::new(0) });

pub(crate) fn count() {
    STEPS.set(STEPS.get() + 1);
}

/// How many steps `f` takes.
pub(crate) fn of(f: impl FnOnce()) -> u64 {
    let before = STEPS.get();
    f();
    STEPS.get() - before
}
