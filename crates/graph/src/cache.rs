//! Plan reuse: a small cache of bound plans by key, the latest used first.

use std::sync::Arc;

use crate::{BoundPlan, PlanError, Scheduler, WeightSource};

/// Bound plans by key. The key is everything that changes topology: token count, outputs, sequences, and a
/// configuration of the caller's own. A hit compares keys and hashes nothing.
#[derive(Debug)]
pub struct PlanCache<K, T> {
    /// Latest used first.
    entries: Vec<Entry<K, T>>,
    capacity: usize,
    builds: u64,
}

/// A bound plan with its key and the caller's own data, such as the ids of inputs and outputs.
#[derive(Debug)]
pub struct Entry<K, T> {
    key: K,
    /// The plan.
    pub plan: BoundPlan,
    /// What the caller keeps with it.
    pub data: T,
}

impl<K: PartialEq, T> PlanCache<K, T> {
    /// A cache of at most `capacity` plans; at least one.
    pub fn new(capacity: usize) -> Self {
        Self { entries: Vec::with_capacity(capacity.max(1)), capacity: capacity.max(1), builds: 0 }
    }

    /// How many plans have been made: what a test of reuse counts.
    pub fn builds(&self) -> u64 {
        self.builds
    }

    /// The plan for `key`, made by `make` if there is none. A plan whose buffers have moved is bound again.
    pub fn get<E: From<PlanError>>(
        &mut self,
        scheduler: &mut Scheduler,
        source: &Arc<dyn WeightSource>,
        key: K,
        make: impl FnOnce(&Scheduler) -> Result<(crate::Plan, T), E>,
    ) -> Result<&mut Entry<K, T>, E> {
        match self.entries.iter().position(|e| e.key == key) {
            Some(i) => {
                self.entries[..=i].rotate_right(1);
                if !scheduler.is_fresh(&self.entries[0].plan) {
                    let Entry { key, plan, data } = self.entries.remove(0);
                    let plan = scheduler.unbind(plan);
                    let plan = scheduler.bind(plan, source, &mut |_, _| {})?;
                    self.entries.insert(0, Entry { key, plan, data });
                }
            }
            None => {
                if self.entries.len() == self.capacity
                    && let Some(old) = self.entries.pop()
                {
                    scheduler.unbind(old.plan);
                }
                let (plan, data) = make(scheduler)?;
                self.builds += 1;
                let plan = scheduler.bind(plan, source, &mut |_, _| {})?;
                self.entries.insert(0, Entry { key, plan, data });
            }
        }
        Ok(&mut self.entries[0])
    }

    /// Drops every plan.
    pub fn clear(&mut self, scheduler: &mut Scheduler) {
        for entry in self.entries.drain(..) {
            scheduler.unbind(entry.plan);
        }
    }
}
