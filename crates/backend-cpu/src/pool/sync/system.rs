//! The standard library's primitives.

pub(in crate::pool) use std::hint::spin_loop;
pub(in crate::pool) use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
pub(in crate::pool) use std::sync::{Arc, Mutex, MutexGuard};
pub(in crate::pool) use std::thread::{Builder, JoinHandle, Thread, current, park, yield_now};
pub(in crate::pool) use std::thread_local;
pub(in crate::pool) use std::time::Instant;

/// The clock costs about as much as this many spins, so it is read only that often.
pub(in crate::pool) const SPINS_PER_CLOCK_READ: u32 = 32;
/// Gives an oversubscribed machine the chance to run the thread that is waited for before we sleep.
pub(in crate::pool) const YIELDS: u32 = 16;

/// [`std::cell::UnsafeCell`] with the interface of loom's: accesses have a beginning and an end.
pub(in crate::pool) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(in crate::pool) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(in crate::pool) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    #[inline(always)]
    pub(in crate::pool) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// Ends `thread`'s sleep, or its next one.
#[inline(always)]
pub(in crate::pool) fn unpark(thread: &Thread) {
    thread.unpark();
}
