//! Steps over the KV cache.

use std::ops::Range;

use super::Context;
use super::checks::Ids;
use crate::attention::{AttentionError, AttentionInputs, AttentionPlan, AttentionStep, KvCache, KvStore};
use crate::pool::Stop;
use crate::simd::Isa;

/// Writes one row a token.
#[derive(Debug)]
pub(super) struct Store {
    pub cache: KvCache,
    pub slots: Ids,
    pub k: *const f32,
    pub v: *const f32,
}

impl Store {
    /// # Safety
    /// As [`super::kernel::Kernel::run`].
    pub unsafe fn run(&self, isa: Isa, tokens: Range<usize>) {
        // SAFETY: the addresses are live, by the caller.
        unsafe {
            KvStore::new(self.cache, self.slots.slice())
                .expect("slots are checked before the program starts")
                .run(isa, tokens, self.k, self.v);
        }
    }
}

/// Attention of each token over its sequence's rows.
#[derive(Debug)]
pub(super) struct Attend {
    pub plan: AttentionPlan,
    pub positions: Ids,
    pub sequences: Ids,
    pub block_table: Ids,
    pub threads: usize,
    pub q: *const f32,
    pub out: *mut f32,
    /// Where its part of the shared working memory starts.
    pub shared: usize,
}

impl Attend {
    /// # Safety
    /// The buffers are alive and nothing writes to them; `shared` is the shared working memory.
    unsafe fn step(&self, shared: *mut u8) -> Result<AttentionStep<'_>, AttentionError> {
        // SAFETY: by the caller, and `compile` reserved what the plan needs.
        unsafe {
            let inputs = AttentionInputs {
                positions: self.positions.slice(),
                sequences: self.sequences.slice(),
                block_table: self.block_table.slice(),
            };
            let shared = shared.add(self.shared).cast();
            AttentionStep::new(&self.plan, inputs, self.threads, self.q, self.out, shared)
        }
    }

    /// # Safety
    /// As [`super::kernel::Kernel::run`]; all workers come from a barrier or the start.
    pub unsafe fn run(&self, context: &mut Context<'_>) -> Result<(), Stop> {
        // SAFETY: by the caller; `compile` reserved each thread's working memory.
        unsafe {
            self.step(context.shared)
                .expect("positions and pages are checked before the program starts")
                .run(context.worker, context.own.cast())
        }
    }
}
