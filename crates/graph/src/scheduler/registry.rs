//! What the scheduler remembers of each device: its buffers, loaded weights and KV caches.

use std::collections::HashMap;

use super::ExecError;
use crate::{Backend, BufferId, DeviceError, PlanError, StateDecl, StateHandle, WeightHandle, WeightUse};

/// A device with what lives on it.
#[derive(Debug)]
pub(super) struct Device {
    pub backend: Box<dyn Backend>,
    pub name: String,
    /// Whether it was given work since it was last waited for.
    pub pending: bool,
    /// One buffer a slot, shared by all plans, as long as the longest plan needs.
    buffers: Vec<(BufferId, usize)>,
    weights: HashMap<(String, WeightUse), WeightHandle>,
    states: HashMap<u32, (StateHandle, StateDecl)>,
    /// Counts the changes that make bound addresses invalid.
    generation: u64,
}

impl Device {
    pub fn new(backend: Box<dyn Backend>) -> Self {
        let name = backend.info().name;
        Self {
            backend,
            name,
            pending: false,
            buffers: Vec::new(),
            weights: HashMap::new(),
            states: HashMap::new(),
            generation: 0,
        }
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Makes buffer `i` at least `sizes[i]` long. Growing one moves it.
    pub fn reserve(&mut self, sizes: &[usize]) -> Result<(), PlanError> {
        for (i, &bytes) in sizes.iter().enumerate() {
            if self.buffers.get(i).is_some_and(|b| b.1 >= bytes) {
                continue;
            }
            let made =
                self.backend.allocate(bytes).map_err(|e| self.plan_error("allocating activations", e))?;
            match self.buffers.get_mut(i) {
                Some(buffer) => {
                    let old = std::mem::replace(buffer, (made, bytes));
                    self.backend.release(old.0);
                    self.generation += 1;
                }
                None => self.buffers.push((made, bytes)),
            }
        }
        Ok(())
    }

    pub fn buffer(&self, slot: crate::SlotId) -> BufferId {
        self.buffers[slot.0 as usize].0
    }

    pub fn weight(&self, name: &str, usage: WeightUse) -> Option<WeightHandle> {
        // A lookup by borrowed pair needs an owned key with this map; binding is not a hot path.
        self.weights.get(&(name.to_owned(), usage)).copied()
    }

    pub fn add_weight(&mut self, name: &str, usage: WeightUse, handle: WeightHandle) {
        self.weights.insert((name.to_owned(), usage), handle);
    }

    /// The layer's cache, made if there is none. One of another size or type is an error, never silently kept or replaced.
    pub fn state(&mut self, decl: &StateDecl) -> Result<StateHandle, PlanError> {
        if let Some((handle, existing)) = self.states.get(&decl.layer) {
            return if existing == decl {
                Ok(*handle)
            } else {
                Err(PlanError::StateMismatch {
                    layer: decl.layer,
                    existing: describe(existing),
                    wanted: describe(decl),
                })
            };
        }
        let handle =
            self.backend.create_state(decl).map_err(|e| self.plan_error("creating a KV cache", e))?;
        self.states.insert(decl.layer, (handle, *decl));
        Ok(handle)
    }

    pub fn release_states(&mut self) {
        for (_, (handle, _)) in self.states.drain() {
            self.backend.release_state(handle);
        }
        self.generation += 1;
    }

    pub fn plan_error(&self, what: &str, error: DeviceError) -> PlanError {
        PlanError::Device { device: self.name.clone(), what: what.to_owned(), error }
    }

    pub fn error(&self, what: &str, error: DeviceError) -> ExecError {
        ExecError::Device { what: what.to_owned(), device: self.name.clone(), error }
    }
}

fn describe(d: &StateDecl) -> String {
    format!(
        "{} slots in pages of {}, {} heads of {}, {}",
        d.slots,
        d.page,
        d.kv_heads,
        d.head_dim,
        d.dtype.name()
    )
}
