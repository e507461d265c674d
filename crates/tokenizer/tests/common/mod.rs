//! The models whose vocabularies the tests use.

use std::path::PathBuf;

use minfer_gguf::Gguf;
use minfer_tokenizer::Tokenizer;

pub const MODELS: [&str; 4] = ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"];

fn model_dir() -> PathBuf {
    match std::env::var_os("MINFER_MODELS") {
        Some(dir) => dir.into(),
        None => PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".cache/minfer/models"),
    }
}

pub fn open(model: &str) -> Gguf {
    let path = model_dir().join(format!("{model}.gguf"));
    assert!(path.exists(), "{} is missing: run cargo xtask test, which fetches the models", path.display());
    Gguf::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn tokenizer(model: &str) -> Tokenizer {
    Tokenizer::from_metadata(open(model).metadata()).unwrap_or_else(|error| panic!("{model}: {error}"))
}
