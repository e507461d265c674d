//! The reference device's memory: buffers of 32-bit words, decoded weights, KV caches.

use half::f16;

use crate::{
    BufferId, DType, DeviceError, KvTable, Operand, Place, StateDecl, StateHandle, WeightHandle, bounds,
};

/// A quiet NaN as f32; as i32, an index that nothing has.
const POISON: u32 = 0x7fc0_0bad;

/// All that the device holds. Handles are indices; released ones are not given out again.
#[derive(Debug, Default)]
pub(super) struct Memory {
    buffers: Vec<Vec<u32>>,
    weights: Vec<Vec<f32>>,
    states: Vec<Option<KvCache>>,
}

impl Memory {
    pub fn allocate(&mut self, bytes: usize) -> BufferId {
        self.buffers.push(vec![POISON; bytes.div_ceil(4)]);
        BufferId(self.buffers.len() as u32 - 1)
    }

    pub fn release(&mut self, buffer: BufferId) {
        self.buffers[buffer.0 as usize] = Vec::new();
    }

    pub fn add_weight(&mut self, values: Vec<f32>) -> WeightHandle {
        self.weights.push(values);
        WeightHandle(self.weights.len() as u32 - 1)
    }

    pub fn add_state(&mut self, cache: KvCache) -> StateHandle {
        self.states.push(Some(cache));
        StateHandle(self.states.len() as u32 - 1)
    }

    pub fn release_state(&mut self, state: StateHandle) {
        self.states[state.0 as usize] = None;
    }

    /// The first `len` bytes of a buffer.
    pub fn bytes_mut(&mut self, buffer: BufferId, len: usize) -> Result<&mut [u8], DeviceError> {
        let words = self.buffers.get_mut(buffer.0 as usize).map(Vec::as_mut_slice).unwrap_or_default();
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(words);
        let has = bytes.len();
        bytes
            .get_mut(..len)
            .ok_or_else(|| DeviceError::Failed(format!("buffer {} has {has} bytes, not {len}", buffer.0)))
    }

    /// The elements at a place; `None` if it does not exist.
    pub fn len(&self, place: Place) -> Option<usize> {
        match place {
            Place::Buffer(b) => self.buffers.get(b.0 as usize).map(Vec::len),
            Place::Weight(w) => self.weights.get(w.0 as usize).map(Vec::len),
            Place::State(s) => self.states.get(s.0 as usize)?.as_ref().map(|c| c.k.len() + c.v.len()),
        }
    }

    /// A copy of an f32 value, or of a decoded weight.
    pub fn f32s(&self, operand: &Operand) -> Vec<f32> {
        let len = operand.shape.len();
        match operand.place {
            Place::Buffer(b) => bytemuck::cast_slice(&self.buffers[b.0 as usize][..len]).to_vec(),
            Place::Weight(w) => self.weights[w.0 as usize][..len].to_vec(),
            Place::State(_) => unreachable!("the builder lets only kv_store and attention read a state"),
        }
    }

    /// A copy of an i32 value.
    pub fn i32s(&self, operand: &Operand) -> Vec<i32> {
        match operand.place {
            Place::Buffer(b) => {
                bytemuck::cast_slice(&self.buffers[b.0 as usize][..operand.shape.len()]).to_vec()
            }
            Place::Weight(_) | Place::State(_) => unreachable!("`supports` refuses i32 weights"),
        }
    }

    pub fn write(&mut self, result: &Operand, values: &[f32]) {
        if let Place::Buffer(b) = result.place {
            self.buffers[b.0 as usize][..values.len()].copy_from_slice(bytemuck::cast_slice(values));
        }
    }

    pub fn read_state(
        &self,
        state: StateHandle,
        table: KvTable,
        first_slot: usize,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        let cache = self.states.get(state.0 as usize).and_then(Option::as_ref);
        let rows = cache.map(|c| match table {
            KvTable::K => &c.k,
            KvTable::V => &c.v,
        });
        let width = cache.map_or(0, |c| c.decl.kv_heads * c.decl.head_dim);
        match rows.and_then(|r| r.get(first_slot * width..)?.get(..out.len())) {
            Some(from) => {
                out.copy_from_slice(from);
                Ok(())
            }
            None => Err(DeviceError::Failed(format!(
                "KV cache {} does not hold {} values from slot {first_slot} on",
                state.0,
                out.len()
            ))),
        }
    }

    pub fn state(&self, operand: &Operand) -> &KvCache {
        match operand.place {
            Place::State(s) => self.states[s.0 as usize].as_ref().expect("checked when compiled"),
            _ => unreachable!("the builder puts a state here"),
        }
    }

    pub fn state_mut(&mut self, operand: &Operand) -> &mut KvCache {
        match operand.place {
            Place::State(s) => self.states[s.0 as usize].as_mut().expect("checked when compiled"),
            _ => unreachable!("the builder puts a state here"),
        }
    }
}

/// One layer's cache; rows are `[kv_heads][head_dim]`. Values are kept in f32, rounded to the cache's type.
#[derive(Debug)]
pub(super) struct KvCache {
    pub decl: StateDecl,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl KvCache {
    pub fn new(decl: StateDecl) -> Result<Self, DeviceError> {
        if !matches!(decl.dtype, DType::F32 | DType::F16) {
            return Err(DeviceError::Unsupported(format!("a KV cache of {}", decl.dtype)));
        }
        let rows = || vec![f32::NAN; decl.slots * decl.kv_heads * decl.head_dim];
        Ok(Self { decl, k: rows(), v: rows() })
    }

    /// Writes row `t` of `k` and `v` to slot `slots[t]`.
    pub fn store(&mut self, k: &[f32], v: &[f32], slots: &[i32]) -> Result<(), String> {
        bounds::slots(slots, &self.decl)?;
        let width = self.decl.kv_heads * self.decl.head_dim;
        let half = self.decl.dtype == DType::F16;
        let round = |x: f32| if half { f16::from_f32(x).to_f32() } else { x };
        for (t, &slot) in slots.iter().enumerate() {
            for (rows, new) in [(&mut self.k, k), (&mut self.v, v)] {
                let row = &mut rows[slot as usize * width..][..width];
                row.iter_mut().zip(&new[t * width..]).for_each(|(old, &new)| *old = round(new));
            }
        }
        Ok(())
    }

    /// One head of the key in a slot.
    pub fn k(&self, slot: usize, head: usize) -> &[f32] {
        &self.k[(slot * self.decl.kv_heads + head) * self.decl.head_dim..][..self.decl.head_dim]
    }

    /// One head of the value in a slot.
    pub fn v(&self, slot: usize, head: usize) -> &[f32] {
        &self.v[(slot * self.decl.kv_heads + head) * self.decl.head_dim..][..self.decl.head_dim]
    }
}
