//! A loaded model, ready to evaluate sequences.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use minfer_gguf::Gguf;
use minfer_graph::{Backend, DeviceInfo, Plan, Profile, Watch};
use minfer_models::{BatchShape, KvConfig, Model, ModelInfo};
use minfer_tokenizer::{Special, TokenId, Tokenizer};

use crate::chat::ChatTemplate;
use crate::pages::PagePool;
use crate::runner::{Feed, Flow, Runner, Step};
use crate::sequence::Sequence;
use crate::weights::GgufWeights;
use crate::{EngineError, EngineOptions, devices};

/// Positions in a page of the KV cache.
const PAGE: usize = 64;

/// Rows of the KV cache at most: positions and rows are i32 on every device.
const MAX_SLOTS: usize = 1 << 30;

/// A model with its tokenizer, its devices and its KV cache.
pub struct Engine {
    path: PathBuf,
    gguf: Gguf,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    runner: Runner,
    pool: Arc<PagePool>,
    load_time: Duration,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("path", &self.path)
            .field("n_ctx", &self.n_ctx())
            .finish_non_exhaustive()
    }
}

/// How far loading has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes of weights loaded.
    pub done: u64,
    /// Bytes of the model file.
    pub total: u64,
}

impl Engine {
    /// Opens a model file, checks it, and loads its weights onto the devices.
    pub fn load(
        path: impl AsRef<Path>,
        options: &EngineOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, EngineError> {
        // Devices take the settings as they are.
        options.check()?;
        Self::load_on(path, options, devices::open_all(options)?, progress)
    }

    /// Like [`Engine::load`], on devices of the caller's own, the preferred one first. Those that the options name are not
    /// looked at.
    pub fn load_on(
        path: impl AsRef<Path>,
        options: &EngineOptions,
        devices: Vec<Box<dyn Backend>>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Self, EngineError> {
        let started = Instant::now();
        options.check()?;
        let path = path.as_ref().to_owned();
        let gguf = Gguf::open(&path)?;
        let model =
            Model::from_gguf(&gguf).map_err(|source| EngineError::Model { path: path.clone(), source })?;
        let n_ctx = context_length(model.info(), options.n_ctx)?;
        let kv = kv_config(n_ctx, options)?;
        let source = Arc::new(GgufWeights(gguf.clone()));
        let mut runner = Runner::new(model, devices, source, kv, n_ctx, options)?;

        // The vocabulary's tables take as long to build as the weights of a small model to load.
        let tokenizer = std::thread::scope(|scope| {
            let tokenizer = scope.spawn(|| Tokenizer::from_metadata(gguf.metadata()));
            let total = gguf.file_bytes();
            let mut done = 0;
            let loaded = runner.load(&mut |_, bytes| {
                done += bytes as u64;
                progress(LoadProgress { done: done.min(total), total });
            });
            let tokenizer = tokenizer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            loaded.map(|()| tokenizer)
        })?
        .map_err(|source| EngineError::Tokenizer { path: path.clone(), source })?;
        let source = gguf
            .metadata()
            .get_str("tokenizer.chat_template")
            .map_err(|source| EngineError::Metadata { path: path.clone(), source })?;
        let template =
            source.map(|s| ChatTemplate::new(s, crate::chat::special_tokens(&tokenizer))).transpose()?;
        let pool = PagePool::new(kv.slots / kv.page, kv.page);
        Ok(Self { path, gguf, tokenizer, template, runner, pool, load_time: started.elapsed() })
    }

    /// The model file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The model file's contents.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// Hyper-parameters.
    pub fn info(&self) -> &ModelInfo {
        self.runner.model().info()
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The model's chat template; base models have none.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// Positions a sequence may have.
    pub fn n_ctx(&self) -> usize {
        self.runner.n_ctx()
    }

    /// How long loading took.
    pub fn load_time(&self) -> Duration {
        self.load_time
    }

    /// The devices in use.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        self.runner.scheduler().backends().iter().map(|b| b.info()).collect()
    }

    /// How many plans have been made so far: steps of a shape seen before make none.
    pub fn plans_made(&self) -> u64 {
        self.runner.plans_made()
    }

    /// The plan of a step of `tokens` tokens of one sequence.
    pub fn plan(&self, tokens: usize) -> Result<Plan, EngineError> {
        self.runner.plan(&BatchShape { tokens, outputs: 1, sequences: 1 })
    }

    /// Where the time of the steps went, if [`crate::Watching::op_profile`] asks for it.
    pub fn profile(&self) -> Option<&Profile> {
        self.runner.watcher().and_then(|w| w.profile())
    }

    /// Sends the text of [`crate::Watching::graph_trace`] somewhere else than to standard error: a text of several lines for
    /// each plan.
    pub fn set_graph_trace_sink(&mut self, sink: impl FnMut(&str) + Send + 'static) {
        if let Some(watcher) = self.runner.watcher_mut() {
            watcher.set_sink(Box::new(sink));
        }
    }

    /// Has a hook told of every node of the steps to come, and of every copy between devices, after the device has finished
    /// it. Steps take longer, and give the same results. `None` takes it away.
    pub fn set_watch(&mut self, watch: Option<Box<dyn Watch + Send>>) {
        self.runner.set_watch(watch);
    }

    /// Bytes of the KV cache when it is full.
    pub fn kv_bytes(&self) -> usize {
        let kv = self.runner.kv();
        let per_slot: usize =
            self.runner.model().kv_layers().iter().map(|l| 2 * l.kv_heads * l.head_dim).sum();
        per_slot * kv.slots * kv.dtype.type_size()
    }

    /// Positions of the KV cache that no sequence owns.
    pub fn free_positions(&self) -> usize {
        self.pool.available() * PAGE
    }

    /// A sequence without tokens.
    pub fn new_sequence(&self) -> Sequence {
        Sequence::new(&self.pool)
    }

    /// The ids of `text`, after BOS if the model asks for one and the text does not already start with it.
    pub fn tokenize_prompt(&self, text: &str, special: Special) -> Vec<TokenId> {
        let mut ids = self.tokenizer.encode(text, special);
        self.add_bos(&mut ids);
        ids
    }

    /// Puts BOS first if the model asks for one and it is not there already.
    pub fn add_bos(&self, ids: &mut Vec<TokenId>) {
        if let Some(bos) = self.tokenizer.bos()
            && self.tokenizer.add_bos()
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
    }

    /// Evaluates tokens of one or more sequences; see [`Step`] for what comes back.
    pub fn forward(
        &mut self,
        feeds: &mut [Feed<'_>],
        on_step: &mut dyn FnMut(Step<'_>) -> Flow,
    ) -> Result<(), EngineError> {
        for feed in feeds.iter() {
            self.check_owner(feed.sequence)?;
        }
        self.runner.forward(feeds, on_step)
    }

    /// Refuses a prompt that [`Engine::generate`] cannot evaluate, before anything of the sequence is changed.
    pub(crate) fn check(&self, sequence: &Sequence, prompt: &[TokenId]) -> Result<(), EngineError> {
        self.check_owner(sequence)?;
        self.runner.check(0, prompt)
    }

    /// The last row of logits that [`Engine::forward`] gave.
    pub(crate) fn last_logits(&self) -> &[f32] {
        self.runner.last_logits()
    }

    fn check_owner(&self, sequence: &Sequence) -> Result<(), EngineError> {
        if sequence.pages.belongs_to(&self.pool) { Ok(()) } else { Err(EngineError::ForeignSequence) }
    }
}

fn context_length(info: &ModelInfo, asked: Option<usize>) -> Result<usize, EngineError> {
    match asked {
        None => Ok(info.context_length.min(EngineOptions::DEFAULT_CONTEXT)),
        Some(n) if n > MAX_SLOTS => Err(EngineError::Setting {
            name: "the context length",
            value: n.to_string(),
            expected: format!("at most {MAX_SLOTS}"),
        }),
        Some(n) => Ok(n),
    }
}

fn kv_config(n_ctx: usize, options: &EngineOptions) -> Result<KvConfig, EngineError> {
    let blocks = n_ctx.div_ceil(PAGE);
    let sequences = options.max_sequences;
    let most = MAX_SLOTS / (blocks * PAGE);
    if sequences > most {
        return Err(EngineError::Setting {
            name: "the number of sequences",
            value: sequences.to_string(),
            expected: format!("at most {most} of {n_ctx} positions"),
        });
    }
    Ok(KvConfig { dtype: options.kv_type, slots: blocks * PAGE * sequences, page: PAGE, blocks })
}
