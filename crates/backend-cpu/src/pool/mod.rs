//! A persistent thread pool for running a whole split of the graph as one job.
//!
//! [`ThreadPool::run`] executes one closure on every worker at once; the calling thread is worker 0. Inside, the
//! workers keep in step with [`Worker::barrier`] and share work with [`Worker::split`] (static) or [`Worker::next`]
//! (dynamic), so hundreds of ops cost one wake-up. Between jobs the workers spin for a moment and then sleep: an idle
//! pool uses no CPU. A run allocates nothing.

#[cfg(all(test, loom))]
mod model;
mod state;
mod sync;
#[cfg(all(test, not(loom)))]
mod tests;

use std::any::Any;
use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{OnceLock, PoisonError};
use std::time::Duration;

use self::state::{Barrier, BarrierFault, Completion, Mailbox, Padded};
use self::sync::{
    Arc, AtomicUsize, Builder, JoinHandle, Mutex, MutexGuard, Ordering, Thread, UnsafeCell, current,
    thread_local, unpark,
};

/// Why a pool could not be made or a job did not complete.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The thread count is zero or above what the pool has.
    #[error("thread count {asked} is outside 1..={available}")]
    ThreadCount {
        /// What was asked for.
        asked: usize,
        /// The most that is possible.
        available: usize,
    },
    /// The operating system refused a thread.
    #[error("cannot start worker thread {index}: {source}")]
    Spawn {
        /// Index of the worker.
        index: usize,
        /// The system's reason.
        source: io::Error,
    },
    /// A job tried to start a job. It would wait for itself.
    #[error("a pool job cannot start another pool job")]
    Nested,
    /// The closure panicked on a worker; the others were released.
    #[error("worker {worker} panicked: {message}")]
    Panicked {
        /// Index of the worker.
        worker: usize,
        /// The panic's message.
        message: String,
    },
    /// A worker called [`Worker::abort`].
    #[error("worker {worker} aborted the job")]
    Aborted {
        /// Index of the worker.
        worker: usize,
    },
    /// A worker returned while others wait for it at a barrier.
    #[error("worker {worker} waits at a barrier that another worker will never reach")]
    BarrierMismatch {
        /// Index of a worker that waited.
        worker: usize,
    },
}

/// The job is over because some worker failed; return it with `?`. [`ThreadPool::run`] reports the cause.
#[derive(Debug)]
pub struct Stop(());

/// How many threads, and how long they stay awake without work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolConfig {
    /// Workers including the calling thread, 1..=[`PoolConfig::MAX_THREADS`].
    pub threads: usize,
    /// How long a worker spins for the next job before it sleeps. Waking a sleeper costs several microseconds.
    pub idle_spin: Duration,
    /// How long a worker spins at a barrier before it yields and then sleeps.
    pub barrier_spin: Duration,
}

impl PoolConfig {
    /// Far above any machine; keeps a typo from starting a million threads.
    pub const MAX_THREADS: usize = 1024;

    /// `threads` workers that spin for 200 µs between jobs, about what sampling takes between two decode steps, and
    /// 100 µs at a barrier.
    pub fn new(threads: usize) -> Self {
        Self { threads, idle_spin: Duration::from_micros(200), barrier_spin: Duration::from_micros(100) }
    }
}

type JobFn<'a> = dyn Fn(&Worker<'_>) -> Result<(), Stop> + Sync + 'a;

/// What the submitter leaves for the workers; written only while no worker runs.
struct Job {
    function: Option<*const JobFn<'static>>,
    count: usize,
    submitter: Option<Thread>,
}

struct Shared {
    config: PoolConfig,
    job: UnsafeCell<Job>,
    mailboxes: Box<[Padded<Mailbox>]>,
    /// Handles of workers 1.., set once all of them have been started.
    threads: OnceLock<Box<[Thread]>>,
    completion: Padded<Completion>,
    barrier: Barrier,
    next: Padded<AtomicUsize>,
    failure: Mutex<Option<PoolError>>,
}

// SAFETY: `job` is written only by the thread that holds the submit lock while no worker runs (before the mailboxes
// are posted, after `completion` reached zero); workers only read it in between. All else is Sync by itself. The
// function pointer in it points to a `Sync` closure that outlives the job, since `run_with` waits for every worker.
unsafe impl Sync for Shared {}
// SAFETY: as above; nothing in it belongs to a particular thread.
unsafe impl Send for Shared {}

thread_local! {
    static INSIDE_A_JOB: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as running a job until dropped.
struct Inside;

impl Inside {
    fn enter() -> Result<Self, PoolError> {
        if INSIDE_A_JOB.with(|inside| inside.replace(true)) { Err(PoolError::Nested) } else { Ok(Self) }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE_A_JOB.with(|inside| inside.set(false));
    }
}

/// A fixed set of worker threads; see the module's description. Dropping it joins them.
pub struct ThreadPool {
    shared: Arc<Shared>,
    submit: Mutex<()>,
    handles: Vec<JoinHandle<()>>,
}

impl ThreadPool {
    /// Starts `config.threads - 1` threads.
    ///
    /// # Errors
    /// [`PoolError::ThreadCount`], [`PoolError::Spawn`].
    pub fn new(config: PoolConfig) -> Result<Self, PoolError> {
        let PoolConfig { threads, .. } = config;
        if !(1..=PoolConfig::MAX_THREADS).contains(&threads) {
            return Err(PoolError::ThreadCount { asked: threads, available: PoolConfig::MAX_THREADS });
        }
        let shared = Arc::new(Shared {
            config,
            job: UnsafeCell::new(Job { function: None, count: 1, submitter: None }),
            mailboxes: (1..threads).map(|_| Padded::default()).collect(),
            threads: OnceLock::new(),
            completion: Padded::default(),
            barrier: Barrier::default(),
            next: Padded::default(),
            failure: Mutex::new(None),
        });
        let mut pool = Self { shared, submit: Mutex::new(()), handles: Vec::with_capacity(threads - 1) };
        for index in 1..threads {
            let shared = pool.shared.clone();
            let handle = Builder::new()
                .name(format!("minfer-{index}"))
                .spawn(move || shared.work(index))
                .map_err(|source| PoolError::Spawn { index, source })?;
            pool.handles.push(handle);
        }
        let handles = pool.handles.iter().map(|h| h.thread().clone()).collect();
        // A fresh cell: setting it cannot fail.
        let _ = pool.shared.threads.set(handles);
        Ok(pool)
    }

    /// Number of workers, the calling thread included.
    pub fn size(&self) -> usize {
        self.shared.config.threads
    }

    /// Runs `f` on every worker and waits for all. See [`ThreadPool::run_with`].
    ///
    /// # Errors
    /// As [`ThreadPool::run_with`].
    pub fn run(&self, f: impl Fn(&Worker<'_>) -> Result<(), Stop> + Sync) -> Result<(), PoolError> {
        self.run_with(self.size(), f)
    }

    /// Runs `f` on workers `0..threads` (0 is the calling thread) and waits for all of them. Jobs from several threads
    /// run one after another. With one thread nothing is woken.
    ///
    /// # Errors
    /// [`PoolError::ThreadCount`] and [`PoolError::Nested`] before anything ran; otherwise the first failure of a
    /// worker. The pool stays usable.
    pub fn run_with(
        &self,
        threads: usize,
        f: impl Fn(&Worker<'_>) -> Result<(), Stop> + Sync,
    ) -> Result<(), PoolError> {
        if !(1..=self.size()).contains(&threads) {
            return Err(PoolError::ThreadCount { asked: threads, available: self.size() });
        }
        let _inside = Inside::enter()?;
        let _turn = lock(&self.submit);
        self.shared.submit(threads, &f)
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        for (mailbox, handle) in self.shared.mailboxes.iter().zip(&self.handles) {
            if mailbox.0.close() {
                unpark(handle.thread());
            }
        }
        for handle in self.handles.drain(..) {
            // Workers catch every panic of a job; there is nothing to report here.
            let _ = handle.join();
        }
    }
}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadPool").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

impl Shared {
    /// One job, by the holder of the submit lock.
    fn submit(&self, count: usize, f: &JobFn<'_>) -> Result<(), PoolError> {
        self.barrier.reset();
        self.next.0.store(0, Ordering::Relaxed);
        self.completion.0.begin(count - 1);
        let function: *const JobFn<'_> = f;
        // SAFETY: only the lifetime changes. Workers call it before they count down `completion`, and this function
        // does not return before that count is zero.
        let function = unsafe { std::mem::transmute::<*const JobFn<'_>, *const JobFn<'static>>(function) };
        let job = Job { function: Some(function), count, submitter: (count > 1).then(current) };
        // SAFETY: no worker runs now (see the impl of Sync).
        self.job.with_mut(|shared| unsafe { *shared = job });
        let threads = self.threads.get().map_or(&[][..], |t| t);
        for (mailbox, thread) in self.mailboxes.iter().zip(threads).take(count - 1) {
            if mailbox.0.post() {
                unpark(thread);
            }
        }
        self.execute(f, 0, count);
        self.completion.0.wait(self.config.barrier_spin);
        match lock(&self.failure).take() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    /// The life of worker thread `index`.
    fn work(&self, index: usize) {
        INSIDE_A_JOB.with(|inside| inside.set(true));
        while self.mailboxes[index - 1].0.wait(self.config.idle_spin) {
            // SAFETY: a job was posted to us, so the submitter does not touch it until we have finished.
            let (function, count) = self.job.with(|job| unsafe { ((*job).function, (*job).count) });
            if let Some(function) = function {
                // SAFETY: the closure outlives the job, which ends with `finish` below.
                self.execute(unsafe { &*function }, index, count);
            }
            self.completion.0.finish(|| {
                // SAFETY: asked only while the submitter sleeps, so the job is still ours to read.
                self.job.with(|job| unsafe { (*job).submitter.clone() }).unwrap_or_else(current)
            });
        }
    }

    fn execute(&self, f: &JobFn<'_>, index: usize, count: usize) {
        let worker = Worker { shared: self, index, count };
        match catch_unwind(AssertUnwindSafe(|| f(&worker))) {
            // `Stop` exists only after the failure has been recorded.
            Ok(Ok(()) | Err(Stop(()))) => self.barrier.leave(|| self.wake(count)),
            Err(payload) => {
                let message = panic_message(payload.as_ref());
                self.fail(PoolError::Panicked { worker: index, message }, count);
            }
        }
    }

    fn fail(&self, failure: PoolError, count: usize) {
        lock(&self.failure).get_or_insert(failure);
        self.barrier.poison(|| self.wake(count));
    }

    /// Unparks all participants of the current job.
    fn wake(&self, count: usize) {
        self.job.with(|job| {
            // SAFETY: called by a participant of the job, during the job.
            if let Some(submitter) = unsafe { &(*job).submitter } {
                unpark(submitter);
            }
        });
        for thread in self.threads.get().into_iter().flatten().take(count - 1) {
            unpark(thread);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(no message)".to_owned())
}

/// One worker's view of the running job.
pub struct Worker<'p> {
    shared: &'p Shared,
    index: usize,
    count: usize,
}

impl Worker<'_> {
    /// This worker, `0..count`.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Workers in this job.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Waits until every worker is here; what they wrote before is visible after. Also restarts [`Worker::next`] at 0.
    ///
    /// # Errors
    /// [`Stop`] if another worker failed, or left the job so that this barrier can never open.
    pub fn barrier(&self) -> Result<(), Stop> {
        let shared = self.shared;
        let restart = || shared.next.0.store(0, Ordering::Relaxed);
        shared
            .barrier
            .wait(self.count, shared.config.barrier_spin, restart, || shared.wake(self.count))
            .map_err(|fault| {
                if fault == BarrierFault::Deserted {
                    shared.fail(PoolError::BarrierMismatch { worker: self.index }, self.count);
                }
                Stop(())
            })
    }

    /// Ends the job with [`PoolError::Aborted`]: `return Err(worker.abort())`.
    pub fn abort(&self) -> Stop {
        self.shared.fail(PoolError::Aborted { worker: self.index }, self.count);
        Stop(())
    }

    /// The next unclaimed number since the job began or the last barrier opened: 0, 1, 2, … over all workers.
    pub fn next(&self) -> usize {
        self.shared.next.0.fetch_add(1, Ordering::Relaxed)
    }

    /// This worker's share of `0..len` when every boundary between shares must be a multiple of `align`.
    pub fn split(&self, len: usize, align: usize) -> Range<usize> {
        split(len, align, self.index, self.count)
    }
}

/// Part `index` of `0..len` cut into `count` nearly equal runs whose inner boundaries are multiples of `align`
/// (≥ 1). What is too little for all goes to the first parts: part 0 is the calling thread's, which is awake when
/// a job begins.
pub fn split(len: usize, align: usize, index: usize, count: usize) -> Range<usize> {
    let blocks = len.div_ceil(align);
    let boundary = |i: usize| ((blocks * i).div_ceil(count) * align).min(len);
    boundary(index)..boundary(index + 1)
}
