//! The tiny models of the golden vectors, to be changed before they are opened.

use minfer_gguf::{Gguf, MetaValue, TensorType, Value, Writer};

/// A tensor of a [`Tiny`] model; all are F32 with the innermost dimension first.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub ty: TensorType,
    pub shape: Vec<u64>,
    pub data: Vec<u8>,
}

/// A model file in memory. The tokenizer is left out: only ids matter.
#[derive(Clone)]
pub struct Tiny {
    pub architecture: String,
    pub meta: Vec<(String, MetaValue)>,
    pub tensors: Vec<Tensor>,
}

/// The directory of the golden vectors of tiny models.
pub const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/tiny");

/// Their names.
pub const NAMES: [&str; 5] = ["tiny-llama", "tiny-llama31", "tiny-qwen2", "tiny-qwen3", "tiny-gemma3"];

impl Tiny {
    pub fn open(name: &str) -> Self {
        let gguf = Gguf::open(format!("{DIR}/{name}.gguf")).unwrap();
        let scalar = |(key, value): (&str, Value<'_>)| {
            let value = match value {
                Value::U32(v) => v.into(),
                Value::F32(v) => v.into(),
                Value::String(v) => MetaValue::String(v.to_vec()),
                _ => return None,
            };
            (!key.starts_with("tokenizer.")).then(|| (key.to_owned(), value))
        };
        let tensors = gguf.tensors().map(|t| Tensor {
            name: t.name.to_owned(),
            ty: t.ty,
            shape: t.shape.to_vec(),
            data: t.data.to_vec(),
        });
        Self {
            architecture: gguf.metadata().require_str("general.architecture").unwrap().to_owned(),
            meta: gguf.metadata().iter().filter_map(scalar).collect(),
            tensors: tensors.collect(),
        }
    }

    /// The full key of a hyper-parameter; keys with a known prefix are left as they are.
    pub fn key(&self, key: &str) -> String {
        if key.starts_with("general.") || key.starts_with("tokenizer.") {
            key.to_owned()
        } else {
            format!("{}.{key}", self.architecture)
        }
    }

    pub fn unset(mut self, key: &str) -> Self {
        let key = self.key(key);
        self.meta.retain(|(k, _)| *k != key);
        self
    }

    pub fn set(self, key: &str, value: impl Into<MetaValue>) -> Self {
        let mut tiny = self.unset(key);
        tiny.meta.push((tiny.key(key), value.into()));
        tiny
    }

    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|t| t.name == name).unwrap()
    }

    pub fn without_tensor(mut self, name: &str) -> Self {
        self.tensors.retain(|t| t.name != name);
        self
    }

    pub fn with_f32(mut self, name: &str, shape: &[u64], values: &[f32]) -> Self {
        let data = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let tensor = Tensor { name: name.to_owned(), ty: TensorType::F32, shape: shape.to_vec(), data };
        self.tensors.push(tensor);
        self
    }

    pub fn gguf(&self) -> Gguf {
        let mut writer = Writer::new();
        for (key, value) in &self.meta {
            writer = writer.meta(key, value.clone());
        }
        for t in &self.tensors {
            writer = writer.tensor(&t.name, t.ty, &t.shape, &t.data);
        }
        Gguf::from_bytes(writer.to_bytes().unwrap()).unwrap()
    }
}
