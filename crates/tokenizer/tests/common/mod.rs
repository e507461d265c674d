//! The models whose vocabularies the tests use.

use std::path::PathBuf;
use std::sync::LazyLock;

use minfer_gguf::Gguf;
use minfer_tokenizer::Tokenizer;

pub const MODELS: [&str; 4] = ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"];

fn model_dir() -> PathBuf {
    match std::env::var_os("MINFER_MODELS") {
        Some(dir) => dir.into(),
        None => PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".cache/minfer/models"),
    }
}

fn load(model: &str) -> Tokenizer {
    let path = model_dir().join(format!("{model}.gguf"));
    assert!(path.exists(), "{} is missing: run cargo xtask test, which fetches the models", path.display());
    let file = Gguf::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Tokenizer::from_metadata(file.metadata()).unwrap_or_else(|error| panic!("{model}: {error}"))
}

/// The tokenizer of one of [`MODELS`]; loaded once for all tests of a program.
pub fn tokenizer(model: &str) -> &'static Tokenizer {
    static TOKENIZERS: [LazyLock<Tokenizer>; 4] = [
        LazyLock::new(|| load(MODELS[0])),
        LazyLock::new(|| load(MODELS[1])),
        LazyLock::new(|| load(MODELS[2])),
        LazyLock::new(|| load(MODELS[3])),
    ];
    let index = MODELS.iter().position(|&name| name == model).expect("one of the models");
    &TOKENIZERS[index]
}
