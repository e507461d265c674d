//! The pool as its users see it.

use std::panic::resume_unwind;
use std::time::Duration;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use loom::thread;

use super::super::{PoolConfig, PoolError, Stop, ThreadPool, Worker};
use super::{SLEEP, SPIN, Slot, check};

fn pool(threads: usize, spin: Duration) -> ThreadPool {
    ThreadPool::new(PoolConfig { threads, idle_spin: spin, barrier_spin: spin }).unwrap()
}

/// Every worker writes its slot and, past a barrier, sees what all wrote.
fn exchange(worker: &Worker<'_>, slots: &[Slot], value: usize) -> Result<(), Stop> {
    slots[worker.index()].set(value);
    worker.barrier()?;
    assert!(slots.iter().all(|slot| slot.get() == value));
    Ok(())
}

fn slots<const N: usize>() -> [Slot; N] {
    [(); N].map(|()| Slot::new())
}

/// A job that works: everybody runs it, and the submitter sees the result.
fn works(pool: &ThreadPool, value: usize) {
    let slots = slots::<2>();
    pool.run(|w| exchange(w, &slots, value)).unwrap();
    assert!(slots.iter().all(|slot| slot.get() == value));
}

#[test]
fn an_unused_pool_ends() {
    check(None, || drop(pool(2, SLEEP)));
    check(None, || drop(pool(2, SPIN)));
    check(2, || drop(pool(3, SLEEP)));
}

#[test]
fn two_jobs_with_barriers_and_the_end() {
    for spin in [SLEEP, SPIN] {
        check(2, move || {
            let pool = pool(2, spin);
            works(&pool, 1);
            works(&pool, 2);
        });
    }
}

#[test]
fn three_workers_run_a_job_with_a_barrier() {
    check(1, || {
        let slots = slots::<3>();
        let pool = pool(3, SLEEP);
        pool.run(|w| exchange(w, &slots, 5)).unwrap();
        assert!(slots.iter().all(|slot| slot.get() == 5));
    });
}

/// A job for some of the workers leaves the others asleep, and the next one finds them.
#[test]
fn jobs_of_different_width_follow_one_another() {
    check(1, || {
        let pool = pool(3, SLEEP);
        let slots = slots::<3>();
        pool.run_with(2, |w| exchange(w, &slots[..2], 1)).unwrap();
        pool.run_with(3, |w| {
            slots[w.index()].set(2);
            Ok(())
        })
        .unwrap();
        assert!(slots.iter().all(|slot| slot.get() == 2));
    });
}

/// Each number once; from 0 again past a barrier.
#[test]
fn next_restarts_at_a_barrier() {
    check(3, || {
        let pool = pool(2, SLEEP);
        let taken = [(); 4].map(|()| AtomicUsize::new(0));
        pool.run(|w| {
            for half in taken.chunks(2) {
                while let Some(hit) = half.get(w.next()) {
                    hit.fetch_add(1, Relaxed);
                }
                w.barrier()?;
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(taken.map(|t| t.load(Relaxed)), [1; 4]);
    });
}

/// One submission is over before the other begins, whoever comes first.
#[test]
fn inv28_two_submitters_take_turns() {
    for (preemptions, spin) in [(2, SLEEP), (1, SPIN)] {
        check(preemptions, move || {
            // Unordered between the jobs but for the turn: written by both of them.
            let shared = Arc::new((pool(2, spin), slots::<2>()));
            let other = thread::spawn({
                let shared = shared.clone();
                move || shared.0.run(|w| exchange(w, &shared.1, 1)).unwrap()
            });
            shared.0.run(|w| exchange(w, &shared.1, 2)).unwrap();
            other.join().unwrap();
        });
    }
}

/// The negative control of the above: without the turn, the second job overwrites the first under its workers.
#[test]
#[should_panic(expected = "Causality violation")]
fn inv28_two_submitters_without_turns_are_noticed() {
    check(2, || {
        let shared = Arc::new((pool(2, SLEEP), slots::<2>()));
        let other = thread::spawn({
            let shared = shared.clone();
            move || drop(shared.0.shared.submit(2, &|w: &Worker<'_>| exchange(w, &shared.1, 1)))
        });
        let _ = shared.0.shared.submit(2, &|w: &Worker<'_>| exchange(w, &shared.1, 2));
        other.join().unwrap();
    });
}

#[test]
fn a_panic_on_either_worker_is_reported_and_the_pool_goes_on() {
    for culprit in 0..2 {
        check(2, move || {
            let pool = pool(2, SLEEP);
            let error = pool.run(|w| {
                if w.index() == culprit {
                    resume_unwind(Box::new("marker"));
                }
                w.barrier()?;
                unreachable!("the barrier must not open")
            });
            match error {
                Err(PoolError::Panicked { worker, message }) => {
                    assert_eq!((worker, &*message), (culprit, "marker"));
                }
                other => panic!("{other:?}"),
            }
            works(&pool, 1);
        });
    }
}

#[test]
fn inv19_leaving_before_a_barrier_is_an_error_and_the_pool_goes_on() {
    for deserter in 0..2 {
        check(2, move || {
            let pool = pool(2, SLEEP);
            let error = pool.run(|w| if w.index() == deserter { Ok(()) } else { w.barrier() }).unwrap_err();
            assert!(
                matches!(error, PoolError::BarrierMismatch { worker } if worker == 1 - deserter),
                "{error:?}"
            );
            works(&pool, 1);
        });
    }
}

/// A thread may be unparked for reasons of its own: a wait that ends early for that looks again.
#[test]
fn wakeups_that_nobody_sent_do_no_harm() {
    check(2, || {
        let pool = pool(2, SLEEP);
        let slots = slots::<2>();
        for value in 1..=2 {
            pool.run(|w| {
                thread::current().unpark();
                exchange(w, &slots, value)?;
                thread::current().unpark();
                Ok(())
            })
            .unwrap();
        }
    });
}
