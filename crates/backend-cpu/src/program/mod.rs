//! Programs: a split of the graph made into steps over resolved addresses.
//!
//! Every worker walks all steps and does its share of each, so a whole decode step wakes the threads once. Where
//! a step reads what another thread wrote, a barrier stands before it; [`hazards`] finds those places when the
//! program is made.

mod cache;
mod checks;
mod compile;
mod hazards;
mod kernel;
mod product;

pub(crate) use compile::compile;

use minfer_graph::{DeviceError, Place};

use crate::backend::Store;
use crate::memory::ZeroedBytes;
use crate::pool::{PoolError, Stop, ThreadPool, Worker};
use crate::simd::Isa;
use checks::Checks;
use kernel::Kernel;

/// A compiled split.
#[derive(Debug)]
pub(crate) struct Program {
    steps: Vec<Step>,
    checks: Checks,
    threads: usize,
    isa: Isa,
    /// Working memory that the steps share.
    shared_scratch: usize,
    /// Working memory of each thread, after the shared part.
    thread_scratch: usize,
    /// The buffers and caches whose addresses are in the steps and checks.
    places: Vec<Place>,
    /// Whether they are all there still.
    alive: bool,
}

#[derive(Debug)]
struct Step {
    /// Wait for all threads before this step.
    barrier: bool,
    kernel: Kernel,
}

/// What a kernel runs with.
pub(crate) struct Context<'a> {
    pub isa: Isa,
    pub worker: &'a Worker<'a>,
    /// Working memory that the steps of the program share.
    pub shared: *mut u8,
    /// This thread's own working memory.
    pub own: *mut u8,
}

/// A pointer that threads may share because the program's barriers order what they do with it.
#[derive(Clone, Copy)]
struct SharedPtr(*mut u8);
// SAFETY: the pointer is only used by kernels, whose accesses the program's barriers keep apart.
unsafe impl Send for SharedPtr {}
// SAFETY: as above.
unsafe impl Sync for SharedPtr {}

// SAFETY: the addresses in steps and checks point into buffers, weights and caches of the store that made the
// program; they are used only by `run`, which borrows that store, and have no thread affinity.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

impl Program {
    /// Bytes of working memory a run needs.
    pub fn scratch_bytes(&self) -> usize {
        self.shared_scratch + self.threads * self.thread_scratch
    }

    /// A buffer or cache goes; a program that has its address does not run any more.
    pub fn revoke(&mut self, place: Place) {
        self.alive &= !self.places.contains(&place);
    }

    /// Runs all steps. `_store` is the store the program was compiled against.
    pub fn run(
        &self,
        pool: &ThreadPool,
        _store: &Store,
        scratch: &mut ZeroedBytes,
    ) -> Result<(), DeviceError> {
        if !self.alive {
            return Err(DeviceError::Failed("a program uses memory that was freed".to_owned()));
        }
        assert!(scratch.len() >= self.scratch_bytes(), "working memory is sized when a program is compiled");
        let base = SharedPtr(scratch.as_ptr());
        // SAFETY: the store is borrowed and nothing the program names was taken out of it (`alive`), so the buffers are
        // alive, and nothing runs yet.
        unsafe { self.checks.run()? };
        let result = pool.run_with(self.threads, |worker| self.work(worker, base));
        result.map_err(|e| match e {
            PoolError::Panicked { worker, message } => {
                DeviceError::Failed(format!("a kernel panicked on thread {worker}: {message}"))
            }
            other => DeviceError::Failed(other.to_string()),
        })
    }

    fn work(&self, worker: &Worker<'_>, base: SharedPtr) -> Result<(), Stop> {
        let offset = self.shared_scratch + worker.index() * self.thread_scratch;
        // SAFETY: `scratch_bytes` covers a part for each of the program's threads.
        let own = unsafe { base.0.add(offset) };
        let mut context = Context { isa: self.isa, worker, shared: base.0, own };
        for step in &self.steps {
            if step.barrier {
                worker.barrier()?;
            }
            // SAFETY: `compile` resolved the addresses from the operands' shapes and placed the barriers; indices
            // in host data were checked.
            unsafe { step.kernel.run(&mut context)? };
        }
        Ok(())
    }
}
