//! From a model's name to the model.

use std::ops::{Deref, DerefMut};
use std::path::PathBuf;

use minfer_engine::Engine;
use minfer_gguf::Gguf;
use minfer_hub::ModelRef;
use minfer_tokenizer::Tokenizer;

use crate::config::{Config, Origin};
use crate::exit::Failure;
use crate::progress::{Bar, Transfers, notice, say};

/// The file of a model, fetched if it is not here.
pub fn path(name: &str, config: &Config) -> Result<PathBuf, Failure> {
    match ModelRef::parse(name)? {
        // Whoever opens it says best what is wrong with it.
        ModelRef::Path(path) => Ok(path),
        model => pull(&model, config),
    }
}

/// The file of a model in the folder of models, fetched if it is not here.
pub fn pull(model: &ModelRef, config: &Config) -> Result<PathBuf, Failure> {
    let store = config.store()?;
    let named = config.shown.iter().any(|s| s.key == "models" && s.origin != Origin::Default);
    // Of a folder that somebody has named, it is a surprise.
    if named && !store.dir().exists() {
        notice(&format!(
            "the folder of models {} does not exist yet, it will be made",
            store.dir().display()
        ));
    }
    Ok(store.pull(model, &mut Transfers::default())?)
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
    remarks(&engine, config).for_each(|line| notice(&line));
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

/// What is allowed and seldom meant.
fn remarks(engine: &Engine, config: &Config) -> impl Iterator<Item = String> {
    let options = &config.engine;
    let cpus = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
    let threads = too_many_threads(options.threads.max(options.threads_batch), cpus);
    threads.into_iter().chain(too_long_a_context(engine.n_ctx(), engine.info().context_length))
}

fn too_many_threads(threads: usize, cpus: usize) -> Option<String> {
    let s = if cpus == 1 { "" } else { "s" };
    (threads > cpus).then(|| format!("{threads} threads on {cpus} CPU{s}: slower than {cpus}"))
}

fn too_long_a_context(n_ctx: usize, trained: usize) -> Option<String> {
    (n_ctx > trained).then(|| {
        format!(
            "a context of {n_ctx} tokens: the model was trained for {trained}, and may not make sense beyond"
        )
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_too_much_is_remarked_upon() {
        assert_eq!(too_many_threads(8, 2).unwrap(), "8 threads on 2 CPUs: slower than 2");
        assert_eq!(too_many_threads(2, 1).unwrap(), "2 threads on 1 CPU: slower than 1");
        assert_eq!(too_many_threads(2, 2), None);
        assert!(too_long_a_context(8193, 8192).unwrap().starts_with("a context of 8193 tokens: the model"));
        assert_eq!(too_long_a_context(8192, 8192), None);
    }
}
