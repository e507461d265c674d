//! A step on a plan that is bound allocates nothing. In a binary of its own: it counts every allocation of
//! the process.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use common::model::{Decoder, TINY};
use minfer_graph::devices::NullDevice;
use minfer_graph::{PlanCache, PlanError, PlanOptions, Rule, Scheduler};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How many allocations happen meanwhile.
fn count(run: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    run();
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

#[test]
fn a_decode_step_on_a_cached_plan_allocates_nothing() {
    let model = Decoder { layers: 24, ..TINY };
    let source = model.source();
    let mut scheduler = Scheduler::new(vec![Box::new(NullDevice::new()), Box::new(NullDevice::new())]);
    // Every other layer on another device: splits and copies take part.
    let rules = [Rule::new("by turns", |node, _, d| node.layer.unwrap_or(0) % 2 == d.0)];
    let mut cache = PlanCache::new(4);
    let mut step = |n: usize, past: i32| {
        let make = |s: &Scheduler| {
            let (graph, ids) = model.graph(n, 1);
            let plan = s.plan(graph, &PlanOptions { rules: &rules, ..PlanOptions::default() })?;
            assert!(plan.splits().len() >= 24);
            Ok::<_, PlanError>((plan, ids))
        };
        let entry = cache.get(&mut scheduler, &source, n, make).unwrap();
        let (ids, plan) = (entry.data, &mut entry.plan);
        let (tokens, table, mut logits) = ([past; 8], [0; 16], [0.0; 11]);
        for input in [ids.tokens, ids.positions, ids.slots, ids.sequences] {
            scheduler.write_i32(plan, input, &tokens[..n]).unwrap();
        }
        scheduler.write_i32(plan, ids.table, &table).unwrap();
        scheduler.write_i32(plan, ids.wanted, &[0]).unwrap();
        scheduler.execute(plan).unwrap();
        scheduler.read_f32(plan, ids.logits, &mut logits).unwrap();
    };
    // The counter counts: making the plans allocates.
    assert!(count(|| step(1, 0)) > 100);
    assert!(count(|| step(8, 1)) > 100);
    step(1, 9);
    let steps = count(|| {
        for past in 0..100 {
            step(1, past);
            step(8, past);
        }
    });
    assert_eq!(steps, 0);
}
