//! The three state machines, each alone.

use std::time::Duration;

use loom::sync::Arc;
use loom::thread;

use super::super::state::{Barrier, BarrierFault, Completion, Mailbox};
use super::super::sync::{checked::restless, unpark};
use super::{SLEEP, SPIN, Slot, check};

/// Jobs and then the end reach a worker; what the submitter wrote before is seen, and the other way round.
fn hand_over(jobs: usize, spin: Duration) {
    let shared = Arc::new((Mailbox::default(), Completion::default(), Slot::new(), Slot::new()));
    let submitter = thread::current();
    let worker = thread::spawn({
        let shared = shared.clone();
        move || {
            let (mailbox, completion, question, answer) = &*shared;
            let mut done = 0;
            while mailbox.wait(spin) {
                done += 1;
                answer.set(question.get() + 10);
                completion.finish(|| submitter.clone());
            }
            done
        }
    });
    let (mailbox, completion, question, answer) = &*shared;
    for job in 1..=jobs {
        question.set(job);
        completion.begin(1);
        if mailbox.post() {
            unpark(worker.thread());
        }
        completion.wait(spin);
        assert_eq!(answer.get(), job + 10);
    }
    if mailbox.close() {
        unpark(worker.thread());
    }
    assert_eq!(worker.join().unwrap(), jobs);
}

#[test]
fn one_job_is_handed_over_and_back() {
    check(None, || hand_over(1, SLEEP));
    check(None, || hand_over(1, SPIN));
    restless(|| check(None, || hand_over(1, SLEEP)));
}

#[test]
fn two_jobs_are_handed_over_and_back() {
    check(4, || hand_over(2, SLEEP));
    check(3, || hand_over(2, SPIN));
}

/// The submitter sees the writes of every worker, not only of the last to finish.
fn two_finish(spin: Duration) {
    let shared = Arc::new((Completion::default(), [Slot::new(), Slot::new()]));
    shared.0.begin(2);
    let submitter = thread::current();
    for index in 0..2 {
        let (shared, submitter) = (shared.clone(), submitter.clone());
        thread::spawn(move || {
            shared.1[index].set(index + 1);
            shared.0.finish(|| submitter);
        });
    }
    shared.0.wait(spin);
    assert_eq!([shared.1[0].get(), shared.1[1].get()], [1, 2]);
}

#[test]
fn completion_of_two_workers_shows_both_writes() {
    check(None, || two_finish(SLEEP));
    check(None, || two_finish(SPIN));
    restless(|| check(3, || two_finish(SLEEP)));
}

/// Handles of the participants, for the one that has to wake the others. Complete before the last of them arrives.
type Threads = Arc<std::sync::Mutex<Vec<thread::Thread>>>;

fn wake(threads: &Threads) {
    threads.lock().unwrap().iter().for_each(unpark);
}

/// Runs `f` on `count` threads, this one being participant 0.
fn together<T: 'static>(count: usize, f: impl Fn(usize, &Threads) -> T + Clone + 'static) -> Vec<T> {
    let threads = Threads::default();
    threads.lock().unwrap().push(thread::current());
    let started: Vec<_> = (1..count)
        .map(|index| {
            let (threads, f) = (threads.clone(), f.clone());
            thread::spawn(move || f(index, &threads))
        })
        .collect();
    threads.lock().unwrap().extend(started.iter().map(|s| s.thread().clone()));
    let mut results = vec![f(0, &threads)];
    results.extend(started.into_iter().map(|s| s.join().unwrap()));
    results
}

/// Before each barrier every thread writes its slot, after it reads the others'; another barrier, and they write again.
fn rounds(count: usize, rounds: usize, spin: Duration) {
    let shared = Arc::new((Barrier::default(), [(); 3].map(|()| Slot::new()), Slot::new()));
    let results = together(count, move |index, threads| {
        let (barrier, slots, serial) = &*shared;
        let pass = |value| barrier.wait(count, spin, || serial.set(value), || wake(threads));
        for round in 1..=rounds {
            slots[index].set(round);
            pass(2 * round).unwrap();
            assert_eq!(serial.get(), 2 * round, "the serial part ran before the barrier opened");
            assert!(slots[..count].iter().all(|slot| slot.get() == round));
            if round < rounds {
                pass(2 * round + 1).unwrap();
            }
        }
    });
    assert_eq!(results.len(), count);
}

#[test]
fn barrier_of_two_shows_all_writes_round_after_round() {
    check(None, || rounds(2, 2, SLEEP));
    check(3, || rounds(2, 2, SPIN));
    restless(|| check(3, || rounds(2, 2, SLEEP)));
}

#[test]
fn barrier_of_three_shows_all_writes() {
    check(4, || rounds(3, 1, SLEEP));
    check(2, || rounds(3, 1, SPIN));
}

/// One leaves for good, the other waits: told so, whether it sleeps already or not.
#[test]
fn inv19_a_thread_that_leaves_or_fails_releases_one_that_waits() {
    for spin in [SLEEP, SPIN] {
        for fails in [false, true] {
            check(None, move || {
                let shared = Arc::new((Barrier::default(), Slot::new()));
                let results = together(2, move |index, threads| {
                    let (barrier, last_words) = &*shared;
                    if index == 1 {
                        last_words.set(7);
                        match fails {
                            true => barrier.poison(|| wake(threads)),
                            false => barrier.leave(|| wake(threads)),
                        }
                        return None;
                    }
                    let fault = barrier.wait(2, spin, || {}, || wake(threads)).unwrap_err();
                    assert_eq!(last_words.get(), 7, "what it wrote before it left is seen");
                    Some(fault)
                });
                let fault = if fails { BarrierFault::Poisoned } else { BarrierFault::Deserted };
                assert_eq!(results, [Some(fault), None]);
            });
        }
    }
}
