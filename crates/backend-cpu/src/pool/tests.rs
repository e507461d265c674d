//! Behaviour of the pool as its users see it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread;

use super::*;

fn pool(threads: usize) -> ThreadPool {
    ThreadPool::new(PoolConfig::new(threads)).unwrap()
}

/// A pool that sleeps at every opportunity, to drive the parking paths.
fn sleepy(threads: usize) -> ThreadPool {
    let config = PoolConfig { threads, idle_spin: Duration::ZERO, barrier_spin: Duration::ZERO };
    ThreadPool::new(config).unwrap()
}

/// Repetitions for luck to do its work. Miri, some thousand times slower, looks for other faults.
fn scaled(repetitions: usize) -> usize {
    if cfg!(miri) { repetitions.div_ceil(100) } else { repetitions }
}

#[test]
fn every_worker_runs_once_with_its_index() {
    for threads in 1..=5 {
        let pool = pool(threads);
        for active in 1..=threads {
            let hits: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            pool.run_with(active, |w| {
                assert_eq!(w.count(), active);
                hits[w.index()].fetch_add(1, Relaxed);
                Ok(())
            })
            .unwrap();
            for (index, hit) in hits.iter().enumerate() {
                assert_eq!(hit.load(Relaxed), usize::from(index < active), "worker {index} of {active}");
            }
        }
    }
}

/// Each worker writes its slot, and after a barrier reads its neighbour's with plain-ordered atomics: a barrier that
/// opens early or does not publish shows as a stale value.
fn lockstep(pool: &ThreadPool, runs: usize, rounds: u64) {
    let runs = scaled(runs);
    let count = pool.size();
    let slots: Vec<AtomicU64> = (0..count).map(|_| AtomicU64::new(0)).collect();
    for run in 0..runs {
        pool.run(|w| {
            for round in 0..rounds {
                let value = (run as u64) << 32 | round;
                slots[w.index()].store(value, Relaxed);
                w.barrier()?;
                for (other, slot) in slots.iter().enumerate() {
                    assert_eq!(slot.load(Relaxed), value, "slot {other} as seen by {}", w.index());
                }
                w.barrier()?;
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn thousands_of_small_runs_with_barriers() {
    lockstep(&pool(2), 3000, 5);
    lockstep(&pool(1), 3000, 5);
}

#[test]
fn oversubscribed_pool_makes_progress() {
    lockstep(&pool(7), 30, 5);
    lockstep(&sleepy(7), 30, 5);
}

#[test]
fn parking_paths_lose_no_wakeup() {
    lockstep(&sleepy(2), 1000, 3);
    lockstep(&sleepy(3), 300, 3);
}

#[test]
fn next_hands_out_each_number_once_and_restarts_at_a_barrier() {
    let pool = pool(3);
    let hits: Vec<AtomicUsize> = (0..100).map(|_| AtomicUsize::new(0)).collect();
    let runs = scaled(50);
    for _ in 0..runs {
        pool.run(|w| {
            for _ in 0..4 {
                loop {
                    let i = w.next();
                    if i >= hits.len() {
                        break;
                    }
                    hits[i].fetch_add(1, Relaxed);
                }
                w.barrier()?;
            }
            Ok(())
        })
        .unwrap();
    }
    assert!(hits.iter().all(|h| h.load(Relaxed) == runs * 4));
}

#[test]
fn split_covers_everything_once_on_aligned_boundaries() {
    for len in [0, 1, 15, 16, 17, 100, 4096] {
        for align in [1, 16, 32] {
            for count in 1..=7 {
                let mut end = 0;
                for index in 0..count {
                    let part = split(len, align, index, count);
                    assert_eq!(part.start, end);
                    assert!(part.end == len || part.end.is_multiple_of(align));
                    end = part.end;
                }
                assert_eq!(end, len);
            }
        }
    }
    // One row is the calling thread's.
    assert_eq!([0, 1, 2].map(|index| split(1, 1, index, 3)), [0..1, 1..1, 1..1]);
}

#[test]
fn inv28_submissions_from_eight_threads_are_serialized() {
    let pool = pool(3);
    let owner = AtomicUsize::new(0);
    thread::scope(|scope| {
        for marker in 1..=8 {
            let (pool, owner) = (&pool, &owner);
            scope.spawn(move || {
                for _ in 0..scaled(100) {
                    let mine: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
                    pool.run(|w| {
                        if w.index() == 0 {
                            assert_eq!(owner.swap(marker, Relaxed), 0, "another job is running");
                        }
                        w.barrier()?;
                        assert_eq!(owner.load(Relaxed), marker);
                        mine[w.index()].store(marker, Relaxed);
                        w.barrier()?;
                        if w.index() == 0 {
                            owner.store(0, Relaxed);
                        }
                        Ok(())
                    })
                    .unwrap();
                    assert!(mine.iter().all(|m| m.load(Relaxed) == marker));
                }
            });
        }
    });
}

#[test]
fn a_panic_is_reported_and_the_others_are_released() {
    for pool in [pool(3), sleepy(3)] {
        for culprit in 0..3 {
            let error = pool
                .run(|w| {
                    if w.index() == culprit {
                        // Not a panic!: keeps the test's output free of a backtrace.
                        std::panic::resume_unwind(Box::new(format!("marker {culprit}")));
                    }
                    w.barrier()?;
                    unreachable!("the barrier must not open")
                })
                .unwrap_err();
            match error {
                PoolError::Panicked { worker, message } => {
                    assert_eq!((worker, message), (culprit, format!("marker {culprit}")));
                }
                other => panic!("{other:?}"),
            }
            lockstep(&pool, 20, 3);
        }
    }
}

#[test]
fn abort_stops_the_job() {
    let pool = pool(2);
    let error = pool.run(|w| if w.index() == 1 { Err(w.abort()) } else { w.barrier() }).unwrap_err();
    assert!(matches!(error, PoolError::Aborted { worker: 1 }), "{error:?}");
    lockstep(&pool, 20, 3);
}

#[test]
fn inv19_leaving_before_a_barrier_is_an_error_not_a_deadlock() {
    for pool in [pool(2), sleepy(2)] {
        for deserter in 0..2 {
            let error = pool.run(|w| if w.index() == deserter { Ok(()) } else { w.barrier() }).unwrap_err();
            let waiter = 1 - deserter;
            assert!(matches!(error, PoolError::BarrierMismatch { worker } if worker == waiter), "{error:?}");
            lockstep(&pool, 20, 3);
        }
    }
}

#[test]
fn nested_runs_are_refused_on_every_worker() {
    let pool = pool(2);
    let other = self::pool(1);
    let refused = AtomicUsize::new(0);
    pool.run(|_| {
        for inner in [&pool, &other] {
            if matches!(inner.run(|_| Ok(())), Err(PoolError::Nested)) {
                refused.fetch_add(1, Relaxed);
            }
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(refused.load(Relaxed), 4);
    pool.run(|_| Ok(())).unwrap();
}

#[test]
fn impossible_thread_counts_are_refused() {
    for threads in [0, PoolConfig::MAX_THREADS + 1] {
        let error = ThreadPool::new(PoolConfig::new(threads)).unwrap_err();
        assert!(matches!(error, PoolError::ThreadCount { asked, .. } if asked == threads));
    }
    let pool = pool(2);
    for threads in [0, 3] {
        let error = pool.run_with(threads, |_| Ok(())).unwrap_err();
        assert_eq!(error.to_string(), format!("thread count {threads} is outside 1..=2"));
    }
}

#[test]
fn dropping_a_pool_joins_its_threads() {
    struct CountOnExit(Arc<AtomicUsize>);
    impl Drop for CountOnExit {
        fn drop(&mut self) {
            self.0.fetch_add(1, Relaxed);
        }
    }
    thread_local! {
        static GUARD: Cell<Option<CountOnExit>> = const { Cell::new(None) };
    }
    for make in [pool, sleepy] {
        let exits = Arc::new(AtomicUsize::new(0));
        let pool = make(4);
        pool.run(|w| {
            if w.index() > 0 {
                GUARD.set(Some(CountOnExit(exits.clone())));
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(exits.load(Relaxed), 0);
        drop(pool);
        assert_eq!(exits.load(Relaxed), 3);
    }
}
