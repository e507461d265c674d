//! The trace file: JSON lines, one for each plan when it is first run, and one for each step.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use minfer_graph::export::Document;
use minfer_graph::{ExecError, Trace};
use serde::Serialize;

use super::StepView;
use crate::EngineError;

/// The version of the format: a change that a reader could trip over raises it; new fields do not.
pub const VERSION: u32 = 1;

pub(super) struct TraceFile {
    path: PathBuf,
    file: File,
    run: Trace,
    line: Vec<u8>,
}

#[derive(Serialize)]
struct PlanLine<'a> {
    version: u32,
    kind: &'static str,
    plan: u64,
    graph: &'a Document,
}

#[derive(Serialize)]
struct StepLine<'a> {
    version: u32,
    kind: &'static str,
    step: u64,
    plan: u64,
    tokens: &'a [i32],
    positions: &'a [i32],
    sequences: &'a [i32],
    time_ns: u64,
    error: Option<String>,
    #[serde(flatten)]
    run: &'a Trace,
}

impl TraceFile {
    pub fn create(path: PathBuf) -> Result<Self, EngineError> {
        match File::create(&path) {
            Ok(file) => Ok(Self { path, file, run: Trace::default(), line: Vec::new() }),
            Err(source) => Err(EngineError::Write { path, source }),
        }
    }

    /// What is to hear of the nodes of the step.
    pub fn run(&mut self) -> &mut Trace {
        &mut self.run
    }

    /// Writes the line of a plan.
    pub fn plan(&mut self, plan: u64, graph: &Document) -> Result<(), EngineError> {
        self.line(&PlanLine { version: VERSION, kind: "plan", plan, graph })
    }

    /// Writes the line of a step, with what has been heard of it, and forgets that.
    pub fn step(
        &mut self,
        step: u64,
        view: &StepView<'_>,
        time: Duration,
        error: Option<&ExecError>,
    ) -> Result<(), EngineError> {
        let run = std::mem::take(&mut self.run);
        let written = self.line(&StepLine {
            version: VERSION,
            kind: "step",
            step,
            plan: view.plan,
            tokens: view.tokens,
            positions: view.positions,
            sequences: view.sequences,
            time_ns: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            error: error.map(ExecError::to_string),
            run: &run,
        });
        self.run = run;
        self.run.clear();
        written
    }

    /// Writes a line at once: what is held back when the process ends is lost.
    fn line(&mut self, value: &impl Serialize) -> Result<(), EngineError> {
        self.line.clear();
        let written = serde_json::to_writer(&mut self.line, value).map_err(Into::into).and_then(|()| {
            self.line.push(b'\n');
            self.file.write_all(&self.line)
        });
        written.map_err(|source| EngineError::Write { path: self.path.clone(), source })
    }
}
