//! The lock-free part of the pool: three small state machines over single atomic words.
//!
//! Each word carries its "somebody sleeps" bit, so a waker learns from the very operation that publishes the event
//! whether it has to unpark anyone. There is no second variable to race with, hence no lost wake-up.

use std::time::Duration;

use super::sync::{
    AtomicU32, Instant, Ordering, SPINS_PER_CLOCK_READ, Thread, YIELDS, park, spin_loop, unpark, yield_now,
};

/// A value on its own pair of cache lines (adjacent lines are prefetched together on x86).
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Padded<T>(pub(super) T);

/// Bounded busy waiting: spins for `budget`, then yields a few times, then says that it is time to sleep.
struct Backoff {
    budget: Duration,
    spins: u32,
    yields: u32,
    start: Option<Instant>,
    spun_out: bool,
}

impl Backoff {
    fn new(budget: Duration) -> Self {
        Self { budget, spins: 0, yields: 0, start: None, spun_out: budget.is_zero() }
    }

    /// Waits a moment. False: the budget is used up, the caller should park.
    fn pause(&mut self) -> bool {
        if !self.spun_out {
            spin_loop();
            self.spins += 1;
            if self.spins.is_multiple_of(SPINS_PER_CLOCK_READ) {
                let start = *self.start.get_or_insert_with(Instant::now);
                self.spun_out = start.elapsed() >= self.budget;
            }
            return true;
        }
        if self.yields == YIELDS {
            return false;
        }
        self.yields += 1;
        yield_now();
        true
    }
}

/// How a job reaches one worker. The owner waits; one submitter at a time posts.
#[derive(Default)]
pub(super) struct Mailbox {
    state: AtomicU32,
}

const EMPTY: u32 = 0;
const POSTED: u32 = 1;
const SLEEPING: u32 = 2;
const CLOSED: u32 = 3;

impl Mailbox {
    /// Publishes a job. True: the owner sleeps and must be unparked.
    #[must_use]
    pub(super) fn post(&self) -> bool {
        self.state.swap(POSTED, Ordering::AcqRel) == SLEEPING
    }

    /// Tells the owner to leave for good. True: it sleeps and must be unparked.
    #[must_use]
    pub(super) fn close(&self) -> bool {
        self.state.swap(CLOSED, Ordering::AcqRel) == SLEEPING
    }

    /// Owner only: waits for a job and takes it. False: closed.
    pub(super) fn wait(&self, spin: Duration) -> bool {
        let mut backoff = Backoff::new(spin);
        loop {
            match self.state.load(Ordering::Acquire) {
                POSTED => {
                    // The submitter posts again only after this job has completed, so a plain store is enough.
                    self.state.store(EMPTY, Ordering::Relaxed);
                    return true;
                }
                CLOSED => return false,
                SLEEPING => park(),
                _ => {
                    if !backoff.pause() {
                        let _ =
                            self.state.compare_exchange(EMPTY, SLEEPING, Ordering::AcqRel, Ordering::Acquire);
                    }
                }
            }
        }
    }
}

/// Counts the workers that still run a job; the submitter waits for zero.
#[derive(Default)]
pub(super) struct Completion {
    /// Workers left, plus [`Completion::WAITING`] once the submitter sleeps.
    word: AtomicU32,
}

impl Completion {
    const WAITING: u32 = 1 << 31;

    /// Before a job is posted to `workers` workers.
    pub(super) fn begin(&self, workers: usize) {
        self.word.store(workers as u32, Ordering::Relaxed);
    }

    /// One worker is done. `submitter` is asked for the handle only if that thread sleeps.
    pub(super) fn finish(&self, submitter: impl FnOnce() -> Thread) {
        if self.word.fetch_sub(1, Ordering::AcqRel) == Self::WAITING | 1 {
            // The submitter returns, and may replace the handle, once it sees zero: take the handle first.
            let thread = submitter();
            self.word.store(0, Ordering::Release);
            unpark(&thread);
        }
    }

    /// Submitter only: returns when every worker has finished; their writes are then visible.
    pub(super) fn wait(&self, spin: Duration) {
        let mut backoff = Backoff::new(spin);
        while self.word.load(Ordering::Acquire) != 0 {
            if backoff.pause() {
                continue;
            }
            if self.word.fetch_or(Self::WAITING, Ordering::AcqRel) == 0 {
                self.word.store(0, Ordering::Relaxed);
                return;
            }
            while self.word.load(Ordering::Acquire) != 0 {
                park();
            }
        }
    }
}

/// Why a barrier did not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BarrierFault {
    /// Another worker failed.
    Poisoned,
    /// Another worker has left the job and will never arrive.
    Deserted,
}

/// A sense-reversing barrier whose sense is a generation number.
///
/// The generation, the sleep bit, the poison and the "someone left" mark share one word: a waiter that sees the old
/// generation together with a mark knows for certain that the barrier cannot open any more.
#[derive(Default)]
pub(super) struct Barrier {
    arrived: Padded<AtomicU32>,
    word: Padded<AtomicU32>,
}

impl Barrier {
    const SLEEPERS: u32 = 1;
    const POISON: u32 = 2;
    const LEFT: u32 = 4;
    const GENERATION: u32 = 8;

    /// Before a job starts; nobody may be inside.
    pub(super) fn reset(&self) {
        self.arrived.0.store(0, Ordering::Relaxed);
        self.word.0.store(0, Ordering::Relaxed);
    }

    /// Arrives and waits for all `count` participants. The last one to arrive calls `serial` while the others wait;
    /// `wake_all` unparks every participant.
    pub(super) fn wait(
        &self,
        count: usize,
        spin: Duration,
        serial: impl FnOnce(),
        wake_all: impl Fn(),
    ) -> Result<(), BarrierFault> {
        let seen = self.word.0.load(Ordering::Acquire);
        Self::check(seen)?;
        if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == count as u32 {
            self.arrived.0.store(0, Ordering::Relaxed);
            serial();
            return self.open(wake_all);
        }
        let generation = seen / Self::GENERATION;
        let mut backoff = Backoff::new(spin);
        loop {
            let word = self.word.0.load(Ordering::Acquire);
            if word / Self::GENERATION != generation {
                return Ok(());
            }
            Self::check(word)?;
            if backoff.pause() {
                continue;
            }
            let asleep = word | Self::SLEEPERS;
            if word == asleep
                || self.word.0.compare_exchange(word, asleep, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                park();
            }
        }
    }

    fn open(&self, wake_all: impl Fn()) -> Result<(), BarrierFault> {
        let mut word = self.word.0.load(Ordering::Relaxed);
        loop {
            Self::check(word)?;
            let next = (word & !Self::SLEEPERS).wrapping_add(Self::GENERATION);
            match self.word.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        if word & Self::SLEEPERS != 0 {
            wake_all();
        }
        Ok(())
    }

    fn check(word: u32) -> Result<(), BarrierFault> {
        match word {
            w if w & Self::POISON != 0 => Err(BarrierFault::Poisoned),
            w if w & Self::LEFT != 0 => Err(BarrierFault::Deserted),
            _ => Ok(()),
        }
    }

    /// Releases everybody, now and later, with [`BarrierFault::Poisoned`].
    pub(super) fn poison(&self, wake_all: impl Fn()) {
        self.mark(Self::POISON, wake_all);
    }

    /// A participant leaves the job; a barrier that still waits for it is a fault.
    pub(super) fn leave(&self, wake_all: impl Fn()) {
        self.mark(Self::LEFT, wake_all);
    }

    fn mark(&self, bit: u32, wake_all: impl Fn()) {
        if self.word.0.fetch_or(bit, Ordering::AcqRel) & Self::SLEEPERS != 0 {
            wake_all();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const NO_SPIN: Duration = Duration::ZERO;

    #[test]
    fn mailbox_tells_when_the_owner_sleeps() {
        let mailbox = Mailbox::default();
        assert!(!mailbox.post(), "nobody sleeps yet");
        assert!(mailbox.wait(NO_SPIN));
        mailbox.state.store(SLEEPING, Ordering::Relaxed);
        assert!(mailbox.post());
        assert!(mailbox.wait(NO_SPIN));
        assert!(!mailbox.close());
        assert!(!mailbox.wait(NO_SPIN));
    }

    #[test]
    fn barrier_of_one_opens_and_runs_the_serial_part_once() {
        let barrier = Barrier::default();
        let runs = std::cell::Cell::new(0);
        for expected in 1..=3 {
            barrier.wait(1, NO_SPIN, || runs.set(runs.get() + 1), || {}).unwrap();
            assert_eq!(runs.get(), expected);
        }
    }

    #[test]
    fn barrier_marks_are_faults_until_reset() {
        let barrier = Barrier::default();
        barrier.leave(|| {});
        assert_eq!(barrier.wait(2, NO_SPIN, || {}, || {}), Err(BarrierFault::Deserted));
        barrier.poison(|| {});
        assert_eq!(barrier.wait(2, NO_SPIN, || {}, || {}), Err(BarrierFault::Poisoned));
        barrier.reset();
        assert_eq!(barrier.wait(1, NO_SPIN, || {}, || {}), Ok(()));
    }

    #[test]
    fn marks_wake_a_sleeper() {
        let barrier = std::sync::Arc::new(Barrier::default());
        let (send, receive) = std::sync::mpsc::channel();
        let waiter = {
            let barrier = barrier.clone();
            std::thread::spawn(move || {
                send.send(std::thread::current()).unwrap();
                barrier.wait(2, NO_SPIN, || {}, || {})
            })
        };
        let handle = receive.recv().unwrap();
        while barrier.word.0.load(Ordering::Acquire) & Barrier::SLEEPERS == 0 {
            yield_now();
        }
        barrier.leave(|| handle.unpark());
        assert_eq!(waiter.join().unwrap(), Err(BarrierFault::Deserted));
    }
}
