//! Weights held in memory.

use std::collections::HashMap;

use crate::WeightSource;

/// A table of tensors by name, for tests and for models made in memory.
#[derive(Clone, Debug, Default)]
pub struct WeightTable {
    tensors: HashMap<String, Vec<u8>>,
}

impl WeightTable {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a tensor's bytes, in the block format of its type.
    pub fn insert(&mut self, name: impl Into<String>, bytes: Vec<u8>) {
        self.tensors.insert(name.into(), bytes);
    }

    /// Sets an f32 tensor.
    pub fn insert_f32(&mut self, name: impl Into<String>, values: &[f32]) {
        self.insert(name, bytemuck::cast_slice(values).to_vec());
    }

    /// Takes a tensor out.
    pub fn remove(&mut self, name: &str) -> Option<Vec<u8>> {
        self.tensors.remove(name)
    }
}

impl WeightSource for WeightTable {
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.tensors.get(name).map(Vec::as_slice)
    }
}
