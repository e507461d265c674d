//! The reference device's memory: buffers of 32-bit words, decoded weights, KV caches.

use half::f16;

use crate::{BufferId, DType, DeviceError, Operand, Place, StateDecl, StateHandle, WeightHandle, bounds};

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

/// One layer's cache; rows are `[kv_heads][head_dim]`.
#[derive(Debug)]
pub(super) struct KvCache {
    pub decl: StateDecl,
    k: Rows,
    v: Rows,
}

/// K or V in the cache's type.
#[derive(Debug)]
enum Rows {
    F32(Vec<f32>),
    F16(Vec<f16>),
}

impl Rows {
    fn len(&self) -> usize {
        match self {
            Self::F32(v) => v.len(),
            Self::F16(v) => v.len(),
        }
    }

    fn get(&self, i: usize) -> f64 {
        match self {
            Self::F32(v) => v[i].into(),
            Self::F16(v) => v[i].into(),
        }
    }

    fn put(&mut self, at: usize, values: &[f32]) {
        match self {
            Self::F32(v) => v[at..at + values.len()].copy_from_slice(values),
            Self::F16(v) => {
                for (slot, &x) in v[at..].iter_mut().zip(values) {
                    *slot = f16::from_f32(x);
                }
            }
        }
    }
}

impl KvCache {
    pub fn new(decl: StateDecl) -> Result<Self, DeviceError> {
        let len = decl.slots * decl.kv_heads * decl.head_dim;
        let rows = || match decl.dtype {
            DType::F32 => Ok(Rows::F32(vec![f32::NAN; len])),
            DType::F16 => Ok(Rows::F16(vec![f16::NAN; len])),
            other => Err(DeviceError::Unsupported(format!("a KV cache of {other}"))),
        };
        Ok(Self { decl, k: rows()?, v: rows()? })
    }

    /// Writes row `t` of `k` and `v` to slot `slots[t]`.
    pub fn store(&mut self, k: &[f32], v: &[f32], slots: &[i32]) -> Result<(), String> {
        bounds::slots(slots, &self.decl)?;
        let width = self.decl.kv_heads * self.decl.head_dim;
        for (t, &slot) in slots.iter().enumerate() {
            let (row, at) = (t * width..(t + 1) * width, slot as usize * width);
            self.k.put(at, &k[row.clone()]);
            self.v.put(at, &v[row]);
        }
        Ok(())
    }

    /// Element `d` of head `head` of the key in `slot`.
    pub fn k(&self, slot: usize, head: usize, d: usize) -> f64 {
        self.k.get((slot * self.decl.kv_heads + head) * self.decl.head_dim + d)
    }

    /// Element `d` of head `head` of the value in `slot`.
    pub fn v(&self, slot: usize, head: usize, d: usize) -> f64 {
        self.v.get((slot * self.decl.kv_heads + head) * self.decl.head_dim + d)
    }
}
