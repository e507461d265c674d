//! Watching what the engine runs: plans as text, per-node data, times, and dumps. `docs/watching.md` describes the formats.

mod dump;
mod npy;
mod trace;

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use minfer_graph::export::Document;
use minfer_graph::{BoundPlan, CopyReport, NodeId, NodeReport, Plan, Profile, Scheduler, Watch};
use minfer_models::{KvConfig, KvShape};

use crate::EngineError;
use dump::Dump;
use trace::TraceFile;
pub use trace::VERSION as TRACE_VERSION;

/// What is watched. By default nothing is, and then it costs nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watching {
    /// Describe each plan when it is first run: its splits and copies, and how many nodes of each operation run on each
    /// device. The text goes to [`crate::Engine::set_graph_trace_sink`]'s sink, else to standard error.
    pub graph_trace: bool,
    /// Sum up the time of operations and copies, for [`crate::Engine::profile`].
    pub op_profile: bool,
    /// Write the logits and the first layer's KV rows of each step into this folder, which is made if it is missing.
    pub graph_dump: Option<PathBuf>,
    /// Write what every node of each step was like to this file, which is replaced.
    pub trace: Option<PathBuf>,
}

/// Where the text of [`Watching::graph_trace`] goes.
type Sink = Box<dyn FnMut(&str) + Send>;

/// What a step is about.
pub(crate) struct StepView<'a> {
    /// The plan's number, counted over all plans.
    pub plan: u64,
    pub tokens: &'a [i32],
    pub positions: &'a [i32],
    /// Each token's row of the block table.
    pub sequences: &'a [i32],
    /// Pages of the sequences, `kv.blocks` each.
    pub block_table: &'a [i32],
    pub kv: &'a KvConfig,
}

/// Does what [`Watching`] asks for, step by step.
pub(crate) struct Watcher {
    graph_trace: bool,
    sink: Sink,
    dump: Option<Dump>,
    nodes: Nodes,
    /// Plans up to this number have been shown.
    plans: u64,
    steps: u64,
}

/// All that hears of single nodes.
#[derive(Default)]
struct Nodes {
    profile: Option<Profile>,
    trace: Option<TraceFile>,
    hook: Option<Box<dyn Watch + Send>>,
}

impl Watcher {
    /// Opens what is to be written; `None` if nothing is watched.
    pub fn open(settings: &Watching, first_layer: KvShape) -> Result<Option<Box<Self>>, EngineError> {
        if *settings == Watching::default() {
            return Ok(None);
        }
        let mut watcher = Self::idle();
        watcher.graph_trace = settings.graph_trace;
        watcher.nodes.profile = settings.op_profile.then(Profile::default);
        watcher.nodes.trace = settings.trace.clone().map(TraceFile::create).transpose()?;
        watcher.dump = settings.graph_dump.clone().map(|dir| Dump::create(dir, first_layer)).transpose()?;
        Ok(Some(Box::new(watcher)))
    }

    /// One that watches nothing yet.
    pub fn idle() -> Self {
        let sink = |text: &str| {
            // Where standard error cannot be written to, nobody is there to tell.
            let _ = std::io::stderr().write_all(text.as_bytes());
        };
        Self {
            graph_trace: false,
            sink: Box::new(sink),
            dump: None,
            nodes: Nodes::default(),
            plans: 0,
            steps: 0,
        }
    }

    pub fn set_sink(&mut self, sink: Sink) {
        self.sink = sink;
    }

    pub fn set_hook(&mut self, hook: Option<Box<dyn Watch + Send>>) {
        self.nodes.hook = hook;
    }

    pub fn profile(&self) -> Option<&Profile> {
        self.nodes.profile.as_ref()
    }

    /// Runs a step and reads its logits, as an unwatched one does, and tells of it.
    pub fn run(
        &mut self,
        scheduler: &mut Scheduler,
        bound: &mut BoundPlan,
        output: NodeId,
        logits: &mut [f32],
        view: &StepView<'_>,
    ) -> Result<(), EngineError> {
        let step = self.steps;
        self.steps += 1;
        if view.plan >= self.plans {
            self.plans = view.plan + 1;
            self.show_plan(bound.plan(), view)?;
        }
        let started = Instant::now();
        let ran = if self.nodes.is_empty() {
            scheduler.execute(bound)
        } else {
            scheduler.execute_watched(bound, &mut self.nodes)
        };
        let time = started.elapsed();
        if let Some(profile) = &mut self.nodes.profile {
            profile.end_run();
        }
        if let Some(trace) = &mut self.nodes.trace {
            let written = trace.step(step, view, time, ran.as_ref().err());
            // That the run failed matters more than that it could not be written down.
            ran.clone()?;
            written?;
        }
        ran?;
        scheduler.read_f32(bound, output, logits)?;
        if let Some(dump) = &mut self.dump {
            let shape = bound.plan().graph().node(output).shape;
            dump.write(step, shape.dims(), logits, scheduler, view)?;
        }
        Ok(())
    }

    fn show_plan(&mut self, plan: &Plan, view: &StepView<'_>) -> Result<(), EngineError> {
        if !self.graph_trace && self.nodes.trace.is_none() {
            return Ok(());
        }
        let document = Document::of_plan(plan);
        if self.graph_trace {
            let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
            (self.sink)(&format!(
                "plan {}: {} of {}\n{}",
                view.plan,
                count(view.tokens.len(), "token"),
                count(view.block_table.len() / view.kv.blocks, "sequence"),
                document.to_summary()
            ));
        }
        match &mut self.nodes.trace {
            Some(trace) => trace.plan(view.plan, &document),
            None => Ok(()),
        }
    }
}

impl Nodes {
    fn is_empty(&self) -> bool {
        self.profile.is_none() && self.trace.is_none() && self.hook.is_none()
    }

    fn each(&mut self) -> impl Iterator<Item = &mut dyn Watch> {
        let profile = self.profile.as_mut().map(|p| p as &mut dyn Watch);
        let trace = self.trace.as_mut().map(|t| t.run() as &mut dyn Watch);
        let hook = self.hook.as_mut().map(|h| &mut **h as &mut dyn Watch);
        [profile, trace, hook].into_iter().flatten()
    }
}

impl Watch for Nodes {
    fn wants(&mut self, plan: &Plan, node: NodeId) -> bool {
        // A value that one of them wants is read, and then all of them get it.
        self.each().any(|watch| watch.wants(plan, node))
    }

    fn ran(&mut self, report: &NodeReport<'_>) {
        self.each().for_each(|watch| watch.ran(report));
    }

    fn copied(&mut self, report: &CopyReport<'_>) {
        self.each().for_each(|watch| watch.copied(report));
    }
}
