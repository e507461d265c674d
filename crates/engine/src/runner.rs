//! Runs batches of tokens through the model's graph: plans by shape, the inputs of a step, and its logits.

use std::sync::Arc;

use minfer_graph::{
    Backend, Fusion, Plan, PlanCache, PlanOptions, Rule, Scheduler, Unit, Watch, WeightSource,
};
use minfer_models::{BatchShape, KvConfig, Model, Ports};
use minfer_tokenizer::TokenId;

use crate::sequence::Sequence;
use crate::watching::{StepView, Watcher};
use crate::{EngineError, EngineOptions};

/// Plans kept at once: one for each recent batch shape.
const PLANS: usize = 8;

/// Logit rows of one step at most: it bounds the memory that they take.
const MAX_OUTPUTS: usize = 64;

/// Which tokens' logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outputs {
    /// The last token's.
    Last,
    /// Those of the tokens from this index of the fed tokens on.
    From(usize),
}

/// Tokens to evaluate after those that a sequence has.
#[derive(Debug)]
pub struct Feed<'a> {
    /// The sequence.
    pub sequence: &'a mut Sequence,
    /// Its next tokens; at least one.
    pub tokens: &'a [TokenId],
    /// Which of them logits are wanted for.
    pub outputs: Outputs,
}

/// What a forward pass tells its caller.
#[derive(Debug)]
pub enum Step<'a> {
    /// The logits of token `index` of feed `feed`.
    Logits {
        /// Index of the feed.
        feed: usize,
        /// Index of the token in the feed.
        index: usize,
        /// One value per vocabulary entry.
        logits: &'a [f32],
    },
    /// So many of the tokens have been evaluated.
    Done {
        /// Tokens evaluated.
        tokens: usize,
        /// Tokens in all.
        total: usize,
    },
}

/// Whether to carry on after a step.
pub type Flow = std::ops::ControlFlow<()>;

/// All that changes the topology of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PlanKey {
    batch: BatchShape,
    kv: KvConfig,
    fusion: Fusion,
}

pub(crate) struct Runner {
    model: Model,
    scheduler: Scheduler,
    source: Arc<dyn WeightSource>,
    /// With each plan its ports and its number.
    plans: PlanCache<PlanKey, (Ports, u64)>,
    kv: KvConfig,
    n_ctx: usize,
    fusion: Fusion,
    rules: Vec<Rule<'static>>,
    unit: Unit,
    n_batch: usize,
    step: StepInputs,
    logits: Vec<f32>,
    /// `None` if nothing is watched.
    watcher: Option<Box<Watcher>>,
}

/// One step's inputs, kept between steps so that a decode step allocates nothing.
#[derive(Default)]
struct StepInputs {
    tokens: Vec<i32>,
    positions: Vec<i32>,
    sequences: Vec<i32>,
    slots: Vec<i32>,
    block_table: Vec<i32>,
    output_rows: Vec<i32>,
    /// Feed and token index of each output row.
    wanted: Vec<(usize, usize)>,
    /// What the step takes of each feed; one row of the block table each.
    spans: Vec<Span>,
}

/// Tokens `start..start + len` of a feed.
struct Span {
    feed: usize,
    start: usize,
    len: usize,
}

impl StepInputs {
    fn clear(&mut self) {
        let Self { tokens, positions, sequences, slots, block_table, output_rows, wanted, spans } = self;
        for v in [tokens, positions, sequences, slots, block_table, output_rows] {
            v.clear();
        }
        wanted.clear();
        spans.clear();
    }
}

impl Runner {
    pub fn new(
        model: Model,
        devices: Vec<Box<dyn Backend>>,
        source: Arc<dyn WeightSource>,
        kv: KvConfig,
        n_ctx: usize,
        options: &EngineOptions,
    ) -> Result<Self, EngineError> {
        let names: Vec<String> = devices.iter().map(|d| d.name()).collect();
        let rules = options.placement.rules(&names, model.info().n_layer as u32)?;
        let watcher = Watcher::open(&options.watching, model.kv_layers()[0])?;
        Ok(Self {
            model,
            scheduler: Scheduler::new(devices),
            source,
            plans: PlanCache::new(PLANS),
            kv,
            n_ctx,
            fusion: options.fusion,
            rules,
            unit: options.placement.unit,
            n_batch: options.n_batch.min(n_ctx),
            step: StepInputs::default(),
            logits: Vec::new(),
            watcher,
        })
    }

    pub fn model(&self) -> &Model {
        &self.model
    }

    pub fn watcher(&self) -> Option<&Watcher> {
        self.watcher.as_deref()
    }

    pub fn watcher_mut(&mut self) -> Option<&mut Watcher> {
        self.watcher.as_deref_mut()
    }

    pub fn set_watch(&mut self, watch: Option<Box<dyn Watch + Send>>) {
        let watcher = self.watcher.get_or_insert_with(|| Box::new(Watcher::idle()));
        watcher.set_hook(watch);
    }

    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    pub fn kv(&self) -> &KvConfig {
        &self.kv
    }

    /// Positions a sequence may have; the cache may have room for some more, to fill its last page.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// The plan of a step.
    pub fn plan(&self, batch: &BatchShape) -> Result<Plan, EngineError> {
        let (graph, _) = self.graph(batch)?;
        let options = PlanOptions {
            fusion: self.fusion,
            rules: &self.rules,
            unit: self.unit,
            ..PlanOptions::default()
        };
        Ok(self.scheduler.plan(graph, &options)?)
    }

    /// How many plans have been made.
    pub fn plans_made(&self) -> u64 {
        self.plans.builds()
    }

    /// Loads all weights and reserves the memory of the largest step. `progress` hears of each tensor's bytes.
    pub fn load(&mut self, progress: &mut dyn FnMut(&str, usize)) -> Result<(), EngineError> {
        let outputs = MAX_OUTPUTS.min(self.n_batch);
        for batch in [
            BatchShape { tokens: self.n_batch, outputs, sequences: 1 },
            BatchShape { tokens: 1, outputs: 1, sequences: 1 },
        ] {
            let plan = self.plan(&batch)?;
            let bound = self.scheduler.bind(plan, &self.source, progress)?;
            self.scheduler.unbind(bound);
        }
        Ok(())
    }

    pub fn graph(&self, batch: &BatchShape) -> Result<(minfer_graph::Graph, Ports), EngineError> {
        Ok(self.model.graph(batch, &self.kv)?)
    }

    /// Evaluates all feeds, in steps of at most the batch size. On an error, and when `on_step` breaks off, the sequences hold
    /// the tokens of the steps that were completed.
    pub fn forward(
        &mut self,
        feeds: &mut [Feed<'_>],
        on_step: &mut dyn FnMut(Step<'_>) -> Flow,
    ) -> Result<(), EngineError> {
        for feed in feeds.iter() {
            self.check(feed.sequence.len(), feed.tokens)?;
        }
        let result = self.steps(feeds, on_step);
        if result.is_err() {
            // The step that failed may have taken pages for tokens that were not evaluated.
            for Feed { sequence, .. } in feeds {
                sequence.truncate(sequence.len());
            }
        }
        result
    }

    fn steps(
        &mut self,
        feeds: &mut [Feed<'_>],
        on_step: &mut dyn FnMut(Step<'_>) -> Flow,
    ) -> Result<(), EngineError> {
        let total = feeds.iter().map(|f| f.tokens.len()).sum();
        let mut done = 0;
        let (mut feed, mut index) = (0, 0);
        while feed < feeds.len() {
            (feed, index) = self.fill(feeds, feed, index)?;
            self.run()?;
            let mut flow = Flow::Continue(());
            let vocab = self.model.info().vocab_size;
            // Rows are evaluated even if nobody asked for one; then `wanted` is empty.
            for (row, &(feed, index)) in self.step.wanted.iter().enumerate() {
                let logits = &self.logits[row * vocab..][..vocab];
                flow = on_step(Step::Logits { feed, index, logits });
                if flow.is_break() {
                    break;
                }
            }
            done += self.step.tokens.len();
            self.commit(feeds);
            if flow.is_break() || on_step(Step::Done { tokens: done, total }).is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The last row of logits of the last step.
    pub fn last_logits(&self) -> &[f32] {
        &self.logits[self.logits.len().saturating_sub(self.model.info().vocab_size)..]
    }

    /// Refuses tokens that cannot be evaluated after `start` others.
    pub fn check(&self, start: usize, tokens: &[TokenId]) -> Result<(), EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        let vocab_size = self.model.info().vocab_size;
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(EngineError::TokenId { id, vocab_size });
        }
        let (n_prompt, n_ctx) = (start + tokens.len(), self.n_ctx);
        if n_prompt > n_ctx {
            return Err(EngineError::PromptTooLong { n_prompt, n_ctx });
        }
        Ok(())
    }

    /// Fills the inputs of the next step, from token `index` of feed `feed` on; returns where the step after it starts.
    fn fill(
        &mut self,
        feeds: &mut [Feed<'_>],
        mut feed: usize,
        mut index: usize,
    ) -> Result<(usize, usize), EngineError> {
        let step = &mut self.step;
        step.clear();
        while feed < feeds.len() && step.tokens.len() < self.n_batch {
            let Feed { sequence, tokens, outputs } = &mut feeds[feed];
            let first_output = match outputs {
                Outputs::Last => tokens.len() - 1,
                Outputs::From(i) => *i,
            };
            // Tokens of this feed in earlier steps are part of the sequence by now.
            let start = sequence.len();
            let mut n = (tokens.len() - index).min(self.n_batch - step.tokens.len());
            let room = MAX_OUTPUTS - step.wanted.len();
            let outputs_in = |n: usize| (index + n).saturating_sub(first_output.max(index));
            if outputs_in(n) > room {
                n = first_output.max(index) - index + room;
            }
            if n == 0 {
                break;
            }
            sequence.pages.grow_to(start + n)?;
            let row = step.spans.len() as i32;
            for i in 0..n {
                if index + i >= first_output {
                    step.output_rows.push(step.tokens.len() as i32);
                    step.wanted.push((feed, index + i));
                }
                step.tokens.push(tokens[index + i] as i32);
                step.positions.push((start + i) as i32);
                step.sequences.push(row);
                step.slots.push(sequence.pages.slot(start + i));
            }
            let table = sequence.pages.table();
            step.block_table.extend(table.iter().map(|&p| p as i32));
            step.spans.push(Span { feed, start: index, len: n });
            step.block_table.resize(step.spans.len() * self.kv.blocks, 0);
            index += n;
            if index == tokens.len() {
                (feed, index) = (feed + 1, 0);
            } else {
                break;
            }
        }
        if step.output_rows.is_empty() {
            step.output_rows.push(step.tokens.len() as i32 - 1);
        }
        Ok((feed, index))
    }

    fn run(&mut self) -> Result<(), EngineError> {
        let step = &self.step;
        let batch = BatchShape {
            tokens: step.tokens.len(),
            outputs: step.output_rows.len(),
            sequences: step.spans.len(),
        };
        let key = PlanKey { batch, kv: self.kv, fusion: self.fusion };
        let (model, kv) = (&self.model, &self.kv);
        let options = PlanOptions {
            fusion: self.fusion,
            rules: &self.rules,
            unit: self.unit,
            ..PlanOptions::default()
        };
        let number = self.plans.builds();
        let entry = self.plans.get(&mut self.scheduler, &self.source, key, |scheduler| {
            let (graph, ports) = model.graph(&batch, kv)?;
            let plan = scheduler.plan(graph, &options)?;
            Ok::<_, EngineError>((plan, (ports, number)))
        })?;
        let (plan, (ports, number)) = (&mut entry.plan, &entry.data);
        for (input, data) in [
            (ports.tokens, &step.tokens),
            (ports.positions, &step.positions),
            (ports.sequences, &step.sequences),
            (ports.slots, &step.slots),
            (ports.block_table, &step.block_table),
            (ports.output_rows, &step.output_rows),
        ] {
            self.scheduler.write_i32(plan, input, data)?;
        }
        let (scheduler, logits) = (&mut self.scheduler, &mut self.logits);
        logits.resize(batch.outputs * self.model.info().vocab_size, 0.0);
        if let Some(watcher) = &mut self.watcher {
            let StepInputs { tokens, positions, sequences, block_table, .. } = step;
            let view = StepView { plan: *number, tokens, positions, sequences, block_table, kv };
            return watcher.run(scheduler, plan, ports.logits, logits, &view);
        }
        scheduler.execute(plan)?;
        scheduler.read_f32(plan, ports.logits, logits)?;
        Ok(())
    }

    /// The step has succeeded: its tokens now belong to their sequences.
    fn commit(&self, feeds: &mut [Feed<'_>]) {
        for &Span { feed, start, len } in &self.step.spans {
            let Feed { sequence, tokens, .. } = &mut feeds[feed];
            sequence.tokens.extend_from_slice(&tokens[start..start + len]);
        }
    }
}
