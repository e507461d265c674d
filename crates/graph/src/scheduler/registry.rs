//! What the scheduler remembers of each device: its buffers, loaded weights and KV caches.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::ExecError;
use crate::{
    Backend, BufferId, DeviceError, Event, PlanError, StateDecl, StateHandle, WeightDecl, WeightHandle,
    WeightRequest, WeightSource, WeightUse,
};

/// A device with what lives on it.
#[derive(Debug)]
pub(super) struct Device {
    pub backend: Box<dyn Backend>,
    pub name: String,
    /// Whether it was given work since it was last waited for.
    pub pending: bool,
    /// Whether the last wait for it took too long.
    pub overdue: bool,
    /// Whether it can record launches.
    pub records: bool,
    /// The title of the split that it was given last.
    pub dispatched: Arc<str>,
    /// One buffer a slot, shared by all plans, as long as the longest plan needs.
    buffers: Vec<(BufferId, usize)>,
    weights: HashMap<(String, WeightUse), (WeightHandle, WeightDecl)>,
    states: HashMap<u32, (StateHandle, StateDecl)>,
    /// Counts the changes that make bound addresses invalid.
    generation: u64,
}

impl Device {
    pub fn new(backend: Box<dyn Backend>) -> Self {
        Self {
            name: backend.name(),
            pending: false,
            overdue: false,
            records: backend.can_record(),
            dispatched: Arc::default(),
            backend,
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

    /// Bytes that [`Device::reserve`] takes at most at any time: each buffer is freed once its successor is there.
    pub fn growth(&self, sizes: &[usize]) -> u64 {
        let (mut taken, mut most) = (0, 0);
        for (i, &bytes) in sizes.iter().enumerate() {
            let has = self.buffers.get(i).map_or(0, |b| b.1);
            if bytes > has {
                most = most.max(taken + bytes);
                taken += bytes - has;
            }
        }
        most as u64
    }

    /// Whether a weight is loaded for a use.
    pub fn has_weight(&self, name: &str, usage: WeightUse) -> bool {
        self.weights.contains_key(&(name.to_owned(), usage))
    }

    /// Waits for the device if it was given work since it was last waited for. An operation that failed on it is done
    /// with once it has been reported.
    pub fn synchronize(&mut self, deadline: Duration) -> Result<(), DeviceError> {
        if self.pending {
            let result = self.backend.synchronize(deadline);
            let result = self.noted(result);
            self.pending = !matches!(result, Ok(()) | Err(DeviceError::Kernel { .. }));
            return result;
        }
        Ok(())
    }

    /// Waits for the work before an event.
    pub fn wait(&mut self, event: Event, deadline: Duration) -> Result<(), DeviceError> {
        let result = self.backend.wait(event, deadline);
        self.noted(result)
    }

    /// Waits for what an earlier run, which failed, may have left on the device. What it failed of is past, as long as
    /// the device says nothing worse when it is asked again.
    pub fn settle(&mut self, deadline: Duration) -> Result<(), ExecError> {
        let mut result = self.synchronize(deadline);
        if !matches!(result, Ok(()) | Err(DeviceError::Timeout { .. })) {
            result = self.synchronize(deadline);
        }
        match result {
            Ok(()) | Err(DeviceError::Kernel { .. }) => Ok(()),
            Err(error) => Err(self.error("waiting for an earlier run", error)),
        }
    }

    /// Notes whether a call has taken too long, and hands on how it ended.
    pub fn noted<T>(&mut self, result: Result<T, DeviceError>) -> Result<T, DeviceError> {
        self.overdue = matches!(result, Err(DeviceError::Timeout { .. }));
        result
    }

    /// Fills the buffers with NaN.
    pub fn poison(&mut self) -> Result<(), ExecError> {
        for &(buffer, bytes) in &self.buffers {
            let nan = f32::NAN.to_le_bytes();
            let poison: Vec<u8> = nan.iter().copied().cycle().take(bytes).collect();
            self.backend.write(buffer, &poison).map_err(|e| self.error("poisoning a buffer", e))?;
        }
        Ok(())
    }

    pub fn buffer(&self, slot: crate::SlotId) -> BufferId {
        self.buffers[slot.0 as usize].0
    }

    /// The weight for one use, loaded if it is not yet; `loaded` hears of its bytes.
    pub fn weight(
        &mut self,
        decl: &WeightDecl,
        usage: WeightUse,
        source: &Arc<dyn WeightSource>,
        loaded: &mut dyn FnMut(&str, usize),
    ) -> Result<WeightHandle, PlanError> {
        // A lookup by borrowed pair needs an owned key with this map; binding is not a hot path.
        let key = (decl.name.clone(), usage);
        if let Some((handle, existing)) = self.weights.get(&key) {
            let show = |d: &WeightDecl| format!("{} {}", d.dtype.name(), d.shape);
            return if existing == decl {
                Ok(*handle)
            } else {
                let (existing, wanted) = (show(existing), show(decl));
                Err(PlanError::WeightMismatch { name: decl.name.clone(), existing, wanted })
            };
        }
        let WeightDecl { ref name, dtype, shape } = *decl;
        let request = WeightRequest { name, dtype, shape, usage, source: Arc::clone(source) };
        let handle = (self.backend.load_weight(&request))
            .map_err(|e| self.plan_error(&format!("loading {name}"), e))?;
        loaded(name, crate::graph::dtype_bytes(dtype, &shape));
        self.weights.insert(key, (handle, decl.clone()));
        Ok(handle)
    }

    /// Whether this device has a KV cache for the layer.
    pub fn has_state(&self, layer: u32) -> bool {
        self.states.contains_key(&layer)
    }

    /// The layer's cache, if this device has it.
    pub fn find_state(&self, layer: u32) -> Option<(StateHandle, StateDecl)> {
        self.states.get(&layer).copied()
    }

    /// A layer's cache of another size or type is an error, never silently kept or replaced.
    pub fn check_state(&self, decl: &StateDecl) -> Result<(), PlanError> {
        match self.states.get(&decl.layer) {
            Some((_, existing)) if existing != decl => Err(PlanError::StateMismatch {
                layer: decl.layer,
                existing: describe(existing),
                wanted: describe(decl),
            }),
            _ => Ok(()),
        }
    }

    /// The layer's cache, made if there is none; see [`Device::check_state`].
    pub fn state(&mut self, decl: &StateDecl) -> Result<StateHandle, PlanError> {
        if let Some((handle, _)) = self.states.get(&decl.layer) {
            return Ok(*handle);
        }
        let handle =
            self.backend.create_state(decl).map_err(|e| self.plan_error("creating a KV cache", e))?;
        self.states.insert(decl.layer, (handle, *decl));
        Ok(handle)
    }

    pub fn release_states(&mut self, deadline: Duration) {
        let idle = self.settle(deadline).is_ok();
        for (_, (handle, _)) in self.states.drain() {
            if idle {
                self.backend.release_state(handle);
            }
        }
        self.generation += 1;
    }

    pub fn plan_error(&self, what: &str, error: DeviceError) -> PlanError {
        PlanError::Device { device: self.name.clone(), what: what.to_owned(), error }
    }

    pub fn error(&self, what: &str, error: DeviceError) -> ExecError {
        let (what, device) = (what.to_owned(), self.name.clone());
        ExecError::Device { what, device, error, dispatched: self.dispatched.to_string() }
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
