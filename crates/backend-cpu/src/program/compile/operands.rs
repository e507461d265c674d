//! From operands to addresses: weights, buffers and KV caches of the store.

use minfer_graph::{BoundOp, DType, DeviceError, Operand, Place, WeightHandle};

use super::super::checks::Ids;
use super::super::hazards::{Access, Region, Share};
use super::{Compiler, misused};
use crate::attention::{KvCache, KvType};
use crate::backend::Cache;
use crate::weights::Weight;

impl Compiler<'_> {
    pub fn weight(&self, handle: WeightHandle) -> Result<&Weight, DeviceError> {
        self.store
            .weights
            .get(handle.0)
            .ok_or_else(|| DeviceError::Failed(format!("weight {} is not loaded", handle.0)))
    }

    /// The first byte of an operand in a buffer.
    pub fn start(&self, operand: &Operand) -> Result<*mut u8, DeviceError> {
        let Place::Buffer(id) = operand.place else {
            return Err(DeviceError::Failed("an operand of this kind must be in a buffer".to_owned()));
        };
        match self.store.buffers.get(id.0) {
            Some(memory) if memory.len() >= operand.bytes() => Ok(memory.as_ptr()),
            _ => Err(DeviceError::Failed(format!("buffer {} does not hold {} bytes", id.0, operand.bytes()))),
        }
    }

    /// An f32 value in a buffer, or an f32 vector of the model.
    pub fn f32s(&self, operand: &Operand) -> Result<*const f32, DeviceError> {
        if let Place::Weight(handle) = operand.place {
            return match self.weight(handle)? {
                Weight::Vector(v) if v.len() == operand.shape.len() => Ok(v.as_ptr()),
                _ => Err(DeviceError::Failed(format!("weight {} is not an f32 vector", handle.0))),
            };
        }
        if operand.dtype != DType::F32 {
            return Err(DeviceError::Unsupported(format!("{} where f32 is wanted", operand.dtype.name())));
        }
        Ok(self.start(operand)?.cast_const().cast())
    }

    pub fn ids(&self, operand: &Operand) -> Result<Ids, DeviceError> {
        if operand.dtype != DType::I32 {
            return Err(DeviceError::Unsupported(format!("{} where i32 is wanted", operand.dtype.name())));
        }
        Ok(Ids { start: self.start(operand)?.cast_const().cast(), len: operand.shape.len() })
    }

    pub fn out(&self, op: &BoundOp) -> Result<*mut f32, DeviceError> {
        Ok(self.start(&op.result)?.cast())
    }

    /// The reading of an f32 value. A weight may be one: nothing writes it.
    pub fn read(&self, operand: &Operand, share: Share) -> Result<Access, DeviceError> {
        let region = Region::new(self.f32s(operand)?.addr(), operand.bytes());
        Ok(Access { region, writes: false, share })
    }

    pub fn write(&self, op: &BoundOp, share: Share) -> Result<Access, DeviceError> {
        let region = Region::new(self.start(&op.result)?.addr(), op.result.bytes());
        Ok(Access { region, writes: true, share })
    }

    /// The cache of a state, and the memory of its K and V.
    pub fn cache(&self, op: &BoundOp, operand: &Operand) -> Result<(KvCache, [Region; 2]), DeviceError> {
        let (Place::State(handle), Some(decl)) = (operand.place, &op.state) else {
            return Err(misused(op, "a KV cache"));
        };
        let Cache { k, v, .. } = self
            .store
            .states
            .get(handle.0)
            .ok_or_else(|| DeviceError::Failed(format!("KV cache {} does not exist", handle.0)))?;
        let kv_type = match decl.dtype {
            DType::F16 => KvType::F16,
            DType::F32 => KvType::F32,
            other => return Err(DeviceError::Unsupported(format!("a KV cache of type {}", other.name()))),
        };
        if k.len() < decl.half_bytes() || v.len() < decl.half_bytes() {
            return Err(DeviceError::Failed(format!(
                "KV cache {} is smaller than its declaration",
                handle.0
            )));
        }
        // SAFETY: both parts were just found long enough; they are page-aligned and live until the state is
        // released, which revokes every program that names it.
        let cache = unsafe {
            KvCache::new(k.as_ptr(), v.as_ptr(), kv_type, [decl.slots, decl.kv_heads, decl.head_dim])
        };
        Ok((cache, [k, v].map(|part| Region::new(part.as_ptr().addr(), part.len()))))
    }
}
