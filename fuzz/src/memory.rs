//! How much memory a piece of code holds at once, and a bound on it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, Ordering};

/// Held by all threads together, now and at most.
static LIVE_IN_ALL: AtomicIsize = AtomicIsize::new(0);
static PEAK_IN_ALL: AtomicIsize = AtomicIsize::new(0);

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// Counts the bytes that each thread holds. What one thread allocates and another frees is counted where it happens.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(change: isize) {
    let live = LIVE.get().wrapping_add(change);
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
    let live = LIVE_IN_ALL.fetch_add(change, Ordering::Relaxed) + change;
    PEAK_IN_ALL.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: every call is passed on unchanged to the system allocator; counting touches only atomics and thread-local
// integers without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: `ptr` came from one of the others with this `layout`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size as isize - layout.size() as isize);
        // SAFETY: as above; the caller's promise about `new_size` is passed on.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

/// Runs `f` and panics if it held more than `limit` bytes at once on this thread.
pub fn within<T>(limit: usize, what: &str, f: impl FnOnce() -> T) -> T {
    let start = LIVE.get();
    PEAK.set(start);
    let result = f();
    let held = PEAK.get().wrapping_sub(start);
    assert!(held <= limit as isize, "{what} held {held} bytes at once; {limit} were allowed");
    result
}

/// As [`within`], for what starts threads: it counts all threads, those of others too.
pub fn within_in_all_threads<T>(limit: usize, what: &str, f: impl FnOnce() -> T) -> T {
    let start = LIVE_IN_ALL.load(Ordering::Relaxed);
    PEAK_IN_ALL.store(start, Ordering::Relaxed);
    let result = f();
    let held = PEAK_IN_ALL.load(Ordering::Relaxed) - start;
    assert!(held <= limit as isize, "{what} held {held} bytes at once; {limit} were allowed");
    result
}
