//! The types of settings: how each is read from text and from the configuration file.

use std::fmt;
use std::path::PathBuf;

use minfer_engine::{GpuLayers, Isa, PlaceRule, Unit};
use minfer_gguf::TensorType;

/// Element type of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum KvType {
    /// Half the memory, and as good.
    F16,
    /// For comparing engines.
    F32,
}

impl KvType {
    /// As the engine calls it.
    pub fn tensor_type(self) -> TensorType {
        match self {
            Self::F16 => TensorType::F16,
            Self::F32 => TensorType::F32,
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
        })
    }
}

/// What goes to one device as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PlaceBy {
    /// Each node goes to the first device that takes it.
    Node,
    /// A device takes all of a layer or nothing of it.
    Layer,
    /// A device takes the whole model or nothing of it.
    Model,
}

impl PlaceBy {
    /// As the engine calls it.
    pub fn unit(self) -> Unit {
        match self {
            Self::Node => Unit::Node,
            Self::Layer => Unit::Layer,
            Self::Model => Unit::Model,
        }
    }
}

/// A type that a setting can have.
pub trait Value: Sized {
    /// What is accepted, in words.
    const EXPECTED: &'static str;
    /// Reads an environment variable.
    fn from_text(text: &str) -> Option<Self>;
    /// Reads a value of the configuration file.
    fn from_toml(value: &toml::Value) -> Option<Self> {
        value.as_str().and_then(Self::from_text)
    }
    /// As JSON.
    fn to_json(&self) -> serde_json::Value;
}

impl Value for usize {
    const EXPECTED: &'static str = "a whole number above 0";
    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok().filter(|&n| n > 0)
    }
    fn from_toml(value: &toml::Value) -> Option<Self> {
        value.as_integer().and_then(|n| n.try_into().ok()).filter(|&n| n > 0)
    }
    fn to_json(&self) -> serde_json::Value {
        (*self).into()
    }
}

impl Value for bool {
    const EXPECTED: &'static str = "true or false";
    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }
    fn from_toml(value: &toml::Value) -> Option<Self> {
        value.as_bool()
    }
    fn to_json(&self) -> serde_json::Value {
        (*self).into()
    }
}

impl Value for String {
    const EXPECTED: &'static str = "a text that is not empty";
    fn from_text(text: &str) -> Option<Self> {
        Some(text.to_owned()).filter(|t| !t.is_empty())
    }
    fn to_json(&self) -> serde_json::Value {
        self.as_str().into()
    }
}

impl Value for PathBuf {
    const EXPECTED: &'static str = "a path";
    fn from_text(text: &str) -> Option<Self> {
        Some(PathBuf::from(text)).filter(|_| !text.is_empty())
    }
    fn to_json(&self) -> serde_json::Value {
        self.display().to_string().into()
    }
}

impl Value for KvType {
    const EXPECTED: &'static str = "f16 or f32";
    fn from_text(text: &str) -> Option<Self> {
        clap::ValueEnum::from_str(text, false).ok()
    }
    fn to_json(&self) -> serde_json::Value {
        self.to_string().into()
    }
}

impl Value for GpuLayers {
    const EXPECTED: &'static str = "a whole number or all";
    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }
    fn from_toml(value: &toml::Value) -> Option<Self> {
        let count = value.as_integer().and_then(|n| n.try_into().ok());
        count.map(Self::Count).or_else(|| value.as_str().and_then(Self::from_text))
    }
    fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Count(count) => (*count).into(),
            Self::All => "all".into(),
        }
    }
}

impl Value for PlaceBy {
    const EXPECTED: &'static str = "node, layer or model";
    fn from_text(text: &str) -> Option<Self> {
        clap::ValueEnum::from_str(text, false).ok()
    }
    fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Node => "node",
            Self::Layer => "layer",
            Self::Model => "model",
        }
        .into()
    }
}

/// Names of devices.
impl Value for Vec<String> {
    const EXPECTED: &'static str = "names divided by commas";
    fn from_text(text: &str) -> Option<Self> {
        list(text, ',')
    }
    fn from_toml(value: &toml::Value) -> Option<Self> {
        texts(value, ',')
    }
    fn to_json(&self) -> serde_json::Value {
        self.as_slice().into()
    }
}

impl Value for Vec<PlaceRule> {
    const EXPECTED: &'static str = "rules of the form REGEX=DEVICE, divided by ;";
    fn from_text(text: &str) -> Option<Self> {
        list(text, ';')
    }
    fn from_toml(value: &toml::Value) -> Option<Self> {
        texts(value, ';')
    }
    fn to_json(&self) -> serde_json::Value {
        self.iter().map(ToString::to_string).collect()
    }
}

/// The parts of a text that are divided by a character.
fn list<T: std::str::FromStr>(text: &str, divided_by: char) -> Option<Vec<T>> {
    text.split(divided_by).filter(|_| !text.is_empty()).map(|part| part.trim().parse().ok()).collect()
}

/// The texts of an array, or the parts of one text.
fn texts<T: std::str::FromStr>(value: &toml::Value, divided_by: char) -> Option<Vec<T>> {
    match value {
        toml::Value::Array(values) => values.iter().map(|v| v.as_str()?.parse().ok()).collect(),
        value => list(value.as_str()?, divided_by),
    }
}

impl Value for Isa {
    const EXPECTED: &'static str = "scalar, avx2, avx512-vnni or neon";
    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }
    fn to_json(&self) -> serde_json::Value {
        self.name().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_and_numbers_are_strict() {
        assert_eq!(bool::from_text("true"), Some(true));
        for bad in ["1", "yes", "True", "", " true"] {
            assert_eq!(bool::from_text(bad), None, "{bad:?}");
        }
        assert_eq!(usize::from_text("8"), Some(8));
        for bad in ["0", "-1", "8k", "", "1.0"] {
            assert_eq!(usize::from_text(bad), None, "{bad:?}");
        }
        assert_eq!(bool::from_toml(&"true".into()), None);
        assert_eq!(usize::from_toml(&"8".into()), None);
    }
}
