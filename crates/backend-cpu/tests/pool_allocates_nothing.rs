//! A run of the pool must not touch the heap: a decode step makes one per split.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use minfer_backend_cpu::pool::{PoolConfig, ThreadPool};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_run_allocates_nothing() {
    for threads in [1, 2, 4] {
        let pool = ThreadPool::new(PoolConfig::new(threads)).unwrap();
        let claimed = AtomicUsize::new(0);
        let job = || {
            pool.run(|w| {
                for _ in 0..8 {
                    while w.next() < 10 {
                        claimed.fetch_add(1, Ordering::Relaxed);
                    }
                    w.barrier()?;
                }
                Ok(())
            })
        };
        // Lets every worker pass its first, lazily initialized steps.
        job().unwrap();
        claimed.store(0, Ordering::Relaxed);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..100 {
            job().unwrap();
        }
        let after = ALLOCATIONS.load(Ordering::Relaxed);
        assert_eq!(claimed.load(Ordering::Relaxed), 100 * 8 * 10);
        assert_eq!(after - before, 0, "{threads} threads");
        // The counter does count.
        drop(std::hint::black_box(Box::new(1)));
        assert!(ALLOCATIONS.load(Ordering::Relaxed) > after);
    }
}
