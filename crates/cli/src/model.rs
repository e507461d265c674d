//! From a model's name to the model.

use std::ops::{Deref, DerefMut};
use std::path::PathBuf;

use minfer_engine::Engine;
use minfer_gguf::Gguf;
use minfer_hub::ModelRef;
use minfer_tokenizer::Tokenizer;

use crate::config::Config;
use crate::exit::Failure;
use crate::progress::{Bar, Transfers, say};

/// The file of a model, fetched if it is not here.
pub fn path(name: &str, config: &Config) -> Result<PathBuf, Failure> {
    match ModelRef::parse(name)? {
        // Whoever opens it says best what is wrong with it.
        ModelRef::Path(path) => Ok(path),
        model => Ok(config.store()?.pull(&model, &mut Transfers::default())?),
    }
}

/// A loaded model. When the command is done with it, well or not, it says where the time went, if that is asked for.
pub struct Loaded(Engine);

impl Deref for Loaded {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.0
    }
}

impl DerefMut for Loaded {
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.0
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if let Some(profile) = self.0.profile().filter(|p| p.runs > 0) {
            say(profile.to_text().trim_end());
        }
    }
}

/// Loads the configured model.
pub fn load(config: &Config) -> Result<Loaded, Failure> {
    let path = path(&config.model, config)?;
    let mut bar = Bar::bytes("loading");
    let engine = Engine::load(path, &config.engine, &mut |p| bar.set(p.done, p.total))?;
    drop(bar);
    if config.verbose {
        let info = engine.info();
        let devices = engine.devices();
        let devices: Vec<_> = devices.iter().map(|d| format!("{}: {}", d.name, d.description)).collect();
        say(format_args!(
            "model    {} ({}, {} parameters)",
            engine.path().display(),
            info.architecture,
            info.parameters
        ));
        say(format_args!("devices  {}", devices.join("; ")));
        say(format_args!(
            "context  {} tokens, KV cache {} of {}",
            engine.n_ctx(),
            crate::output::human_bytes(engine.kv_bytes() as u64),
            config.engine.kv_type
        ));
        say(format_args!("loaded   in {:.0} ms", engine.load_time().as_secs_f64() * 1e3));
    }
    Ok(Loaded(engine))
}

/// Opens a model's file without loading weights.
pub fn open(name: &str, config: &Config) -> Result<Gguf, Failure> {
    Ok(Gguf::open(path(name, config)?).map_err(minfer_engine::EngineError::from)?)
}

/// The configured model's tokenizer, without loading weights.
pub fn tokenizer(config: &Config) -> Result<Tokenizer, Failure> {
    let path = path(&config.model, config)?;
    let gguf = Gguf::open(&path).map_err(minfer_engine::EngineError::from)?;
    let tokenizer = Tokenizer::from_metadata(gguf.metadata());
    Ok(tokenizer.map_err(|source| minfer_engine::EngineError::Tokenizer { path, source })?)
}
