//! Faults to order, and counts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where a fault happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Site {
    /// The start of an operation on the device.
    Launch,
    /// A read or a write of a buffer by the host.
    Copy,
    /// A program or a recording handed to the device.
    Submit,
    /// Memory for a buffer, a weight, a KV cache or working memory.
    Allocation,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// It fails and says so.
    Fail,
    /// The device stops. The wait that meets it times out; then the device goes on, and is done by the next wait.
    Hang,
}

/// A fault to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub site: Site,
    /// At which time from now on, counted from 0.
    pub nth: u64,
    /// What.
    pub kind: FaultKind,
}

/// How often each site was reached, faults included, and the memory in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations started.
    pub launches: u64,
    /// Host reads and writes.
    pub copies: u64,
    /// Programs and recordings handed over.
    pub submits: u64,
    /// Allocations.
    pub allocations: u64,
    /// Of the submits, those that replayed a recording.
    pub replays: u64,
    /// Recordings made.
    pub recordings: u64,
    /// Bytes in use.
    pub bytes: u64,
}

/// A hand on a simulated device that belongs to a scheduler.
#[derive(Clone, Debug, Default)]
pub struct SimControl {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    counts: Counts,
    /// The fault to come, `nth` counted down.
    fault: Option<Fault>,
    memory_unknown: bool,
}

impl SimControl {
    /// Orders a fault, in place of one that has not happened yet.
    pub fn inject(&self, fault: Fault) {
        self.lock().fault = Some(fault);
    }

    /// Takes back a fault; whether there was one that had not happened.
    pub fn clear(&self) -> bool {
        self.lock().fault.take().is_some()
    }

    /// The counts since the device was made.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Makes the query for free memory fail, or work again.
    pub fn set_memory_unknown(&self, unknown: bool) {
        self.lock().memory_unknown = unknown;
    }

    pub(super) fn memory_unknown(&self) -> bool {
        self.lock().memory_unknown
    }

    /// The site is reached; what happens there, if not what should.
    pub(super) fn reach(&self, site: Site) -> Option<FaultKind> {
        let mut shared = self.lock();
        let count = match site {
            Site::Launch => &mut shared.counts.launches,
            Site::Copy => &mut shared.counts.copies,
            Site::Submit => &mut shared.counts.submits,
            Site::Allocation => &mut shared.counts.allocations,
        };
        *count += 1;
        let fault = shared.fault.as_mut().filter(|f| f.site == site)?;
        if fault.nth > 0 {
            fault.nth -= 1;
            return None;
        }
        shared.fault.take().map(|f| f.kind)
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.lock().counts);
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
