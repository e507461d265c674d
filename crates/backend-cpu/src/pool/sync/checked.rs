//! loom's primitives, with a way to weaken one ordering: the checks of [`crate::pool::model`] must notice.

pub(in crate::pool) use loom::cell::UnsafeCell;
pub(in crate::pool) use loom::hint::spin_loop;
pub(in crate::pool) use loom::sync::atomic::Ordering;
pub(in crate::pool) use loom::sync::{Arc, Mutex, MutexGuard};
pub(in crate::pool) use loom::thread::{Builder, JoinHandle, Thread, current, yield_now};

use std::cell::Cell;
use std::panic::Location;
use std::sync::LazyLock;
use std::time::Duration;

/// [`loom::thread_local`] with the standard library's form.
macro_rules! checked_thread_local {
    (static $name:ident: $type:ty = const { $init:expr };) => {
        loom::thread_local! { static $name: $type = $init; }
    };
}
pub(in crate::pool) use checked_thread_local as thread_local;

/// A pool that may spin does so once before it sleeps: more would be the same states again.
pub(in crate::pool) const SPINS_PER_CLOCK_READ: u32 = 1;
/// Yielding is spinning to the checker.
pub(in crate::pool) const YIELDS: u32 = 0;

/// A clock on which every wait has been long enough.
#[derive(Clone, Copy)]
pub(in crate::pool) struct Instant;

impl Instant {
    pub(in crate::pool) fn now() -> Self {
        Self
    }

    pub(in crate::pool) fn elapsed(&self) -> Duration {
        Duration::MAX
    }
}

std::thread_local! {
    /// Whether the check that this thread runs has [`restless`] threads. loom's threads all live on one of the system's.
    static RESTLESS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `check` with threads whose every sleep ends at once and for no reason, as it may. Needed since loom lets an
/// unpark publish what came before it even to a thread that does not sleep, so that a weak ordering is not seen.
#[cfg(test)]
pub(in crate::pool) fn restless(check: impl FnOnce()) {
    RESTLESS.set(true);
    check();
    RESTLESS.set(false);
}

pub(in crate::pool) fn park() {
    if RESTLESS.get() { yield_now() } else { loom::thread::park() }
}

pub(in crate::pool) fn unpark(thread: &Thread) {
    if !RESTLESS.get() {
        thread.unpark();
    }
}

/// Which half of an ordering is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum Half {
    Acquire,
    Release,
}

/// One ordering made weaker than the code says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::pool) struct Weakening {
    /// Line of `state.rs`, from 1.
    pub line: u32,
    /// Which of the orderings on that line, from 0.
    pub slot: u32,
    pub half: Half,
}

impl Weakening {
    /// The environment variable that sets it for a process.
    pub(in crate::pool) const VARIABLE: &str = "MINFER_LOOM_WEAKEN";

    fn of_this_process() -> Option<Self> {
        let value = std::env::var(Self::VARIABLE).ok()?;
        let mut parts = value.split(' ');
        let weakening = (|| {
            let (line, slot) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
            let half = match parts.next()? {
                "acquire" => Half::Acquire,
                "release" => Half::Release,
                _ => return None,
            };
            Some(Self { line, slot, half })
        })();
        Some(weakening.unwrap_or_else(|| panic!("{} is {value:?}", Self::VARIABLE)))
    }
}

impl std::fmt::Display for Weakening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let half = if self.half == Half::Acquire { "acquire" } else { "release" };
        write!(f, "{} {} {half}", self.line, self.slot)
    }
}

static WEAKENING: LazyLock<Option<Weakening>> = LazyLock::new(Weakening::of_this_process);

/// `order`, unless it is the one that this process weakens.
fn asked(order: Ordering, slot: u32, location: &Location<'_>) -> Ordering {
    let Some(weakening) = &*WEAKENING else { return order };
    let here = weakening.line == location.line() && weakening.slot == slot;
    if !here || !location.file().ends_with("state.rs") {
        return order;
    }
    match (order, weakening.half) {
        (Ordering::AcqRel, Half::Acquire) => Ordering::Release,
        (Ordering::AcqRel, Half::Release) => Ordering::Acquire,
        (Ordering::Acquire, Half::Acquire) | (Ordering::Release, Half::Release) => Ordering::Relaxed,
        _ => panic!("{weakening} asks for a half that {order:?} does not have"),
    }
}

macro_rules! atomic {
    ($name:ident, $int:ty) => {
        #[derive(Default)]
        pub(in crate::pool) struct $name(loom::sync::atomic::$name);

        #[allow(dead_code, reason = "one interface for every width")]
        impl $name {
            #[track_caller]
            pub(in crate::pool) fn load(&self, order: Ordering) -> $int {
                self.0.load(asked(order, 0, Location::caller()))
            }

            #[track_caller]
            pub(in crate::pool) fn store(&self, value: $int, order: Ordering) {
                self.0.store(value, asked(order, 0, Location::caller()));
            }

            #[track_caller]
            pub(in crate::pool) fn swap(&self, value: $int, order: Ordering) -> $int {
                self.0.swap(value, asked(order, 0, Location::caller()))
            }

            #[track_caller]
            pub(in crate::pool) fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                self.0.fetch_add(value, asked(order, 0, Location::caller()))
            }

            #[track_caller]
            pub(in crate::pool) fn fetch_sub(&self, value: $int, order: Ordering) -> $int {
                self.0.fetch_sub(value, asked(order, 0, Location::caller()))
            }

            #[track_caller]
            pub(in crate::pool) fn fetch_or(&self, value: $int, order: Ordering) -> $int {
                self.0.fetch_or(value, asked(order, 0, Location::caller()))
            }

            #[track_caller]
            pub(in crate::pool) fn compare_exchange(
                &self,
                current: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                let at = Location::caller();
                self.0.compare_exchange(current, new, asked(success, 0, at), asked(failure, 1, at))
            }

            /// loom's never fails without a reason; a caller that retries sees no state more if it did.
            #[track_caller]
            pub(in crate::pool) fn compare_exchange_weak(
                &self,
                current: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                let at = Location::caller();
                self.0.compare_exchange(current, new, asked(success, 0, at), asked(failure, 1, at))
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicUsize, usize);
