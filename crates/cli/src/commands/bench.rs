//! `minfer bench`: tokens per second, as llama-bench measures and prints them.

use std::io::Write as _;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use minfer_engine::{Engine, EngineError, Feed, Flow, Outputs, Sequence};
use serde::Serialize;

use crate::args::{DeviceArgs, Globals, SubjectArgs, positive};
use crate::config::{Config, Flags};
use crate::exit::Failure;
use crate::progress::Bar;
use crate::{model, output};

/// Measure how fast a model evaluates prompts and generates
///
/// A prompt of random tokens is evaluated in one batch; then random tokens are evaluated one by one, without sampling.
/// Each test is preceded by an untimed run of a whole prompt and 8 single tokens.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(flatten)]
    model: SubjectArgs,
    /// Prompt tokens; 0 skips the test
    #[arg(short = 'p', long, value_name = "N", default_value_t = 512)]
    n_prompt: usize,
    /// Tokens to generate; 0 skips the test
    #[arg(short, long, value_name = "N", default_value_t = 128)]
    n_gen: usize,
    /// Tokens in the KV cache beforehand
    #[arg(short = 'd', long, value_name = "DEPTH", default_value_t = 0)]
    n_depth: usize,
    /// Runs of each test
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = positive)]
    repetitions: usize,
    /// How to print the results
    #[arg(short, long, value_name = "FORMAT", default_value = "md")]
    output: Format,
    #[command(flatten)]
    devices: DeviceArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// A Markdown table
    Md,
    /// Comma-separated values with a header
    Csv,
    /// An array of objects
    Json,
}

/// One test's result; field names are llama-bench's where it has them.
#[derive(Debug, Serialize)]
struct Row {
    model: String,
    model_filename: String,
    model_size: u64,
    model_n_params: u64,
    backend: String,
    isa: String,
    n_threads: usize,
    n_batch: usize,
    type_kv: String,
    n_prompt: usize,
    n_gen: usize,
    n_depth: usize,
    avg_ns: f64,
    stddev_ns: f64,
    avg_ts: f64,
    stddev_ts: f64,
    samples_ns: Vec<u64>,
    samples_ts: Vec<f64>,
}

pub fn run(args: BenchArgs, globals: &Globals) -> Result<(), Failure> {
    let name = args.model.name();
    let mut config = Config::load(globals, Flags { model: name, devices: args.devices, ..Flags::default() })?;
    let (p, n, depth) = (args.n_prompt, args.n_gen, args.n_depth);
    if p == 0 && n == 0 {
        return Err(Failure::Usage("-p and -n are both 0: there is nothing to measure".to_owned()));
    }
    // A prompt is one batch. Without one, the cache is filled in steps of the usual size.
    config.engine.n_batch = if p == 0 { config.engine.n_batch } else { p.max(16) };
    config.engine.n_ctx = Some(depth.saturating_add(p.max(n).max(16)));

    let mut engine = model::load(&config)?;
    let tests: Vec<_> = [(p, 0), (0, n)].into_iter().filter(|(p, n)| p + n > 0).collect();
    // It is drawn between the runs, never while one is timed.
    let mut bar = Bar::count("bench").at_once();
    let (mut runs, total) = (0, tests.len().saturating_mul(args.repetitions) as u64);
    bar.set(runs, total);
    let mut bench = Bench { ids: RandomIds::new(engine.info().vocab_size), sequence: engine.new_sequence() };
    bench.warm_up(&mut engine, p)?;
    bench.evaluate(&mut engine, depth)?;
    let mut rows = Vec::new();
    for (n_prompt, n_gen) in tests {
        let mut times = Vec::new();
        for _ in 0..args.repetitions {
            bench.sequence.truncate(depth);
            times.push(if n_gen == 0 {
                bench.evaluate(&mut engine, n_prompt)?
            } else {
                bench.evaluate_one_by_one(&mut engine, n_gen)?
            });
            runs += 1;
            bar.set(runs, total);
        }
        rows.push(Row::new(&engine, &config, [n_prompt, n_gen, depth], &times));
    }
    drop(bar);
    match args.output {
        Format::Md => output::text(&markdown(&rows)),
        Format::Csv => output::text(&csv(&rows)),
        Format::Json => output::pretty_json(&rows),
    }
}

struct Bench {
    ids: RandomIds,
    sequence: Sequence,
}

impl Bench {
    fn warm_up(&mut self, engine: &mut Engine, n_prompt: usize) -> Result<(), EngineError> {
        self.evaluate(engine, n_prompt)?;
        self.sequence.truncate(0);
        self.evaluate_one_by_one(engine, 8)?;
        self.sequence.truncate(0);
        Ok(())
    }

    /// Evaluates `n` random tokens at once; the time it took.
    fn evaluate(&mut self, engine: &mut Engine, n: usize) -> Result<Duration, EngineError> {
        let ids = self.ids.take(n);
        if ids.is_empty() {
            return Ok(Duration::ZERO);
        }
        let started = Instant::now();
        forward(engine, &mut self.sequence, &ids)?;
        Ok(started.elapsed())
    }

    /// Evaluates `n` random tokens, a step for each; the time it took.
    fn evaluate_one_by_one(&mut self, engine: &mut Engine, n: usize) -> Result<Duration, EngineError> {
        let ids = self.ids.take(n);
        let started = Instant::now();
        for id in &ids {
            forward(engine, &mut self.sequence, std::slice::from_ref(id))?;
        }
        Ok(started.elapsed())
    }
}

fn forward(engine: &mut Engine, sequence: &mut Sequence, tokens: &[u32]) -> Result<(), EngineError> {
    let mut feeds = [Feed { sequence, tokens, outputs: Outputs::Last }];
    engine.forward(&mut feeds, &mut |_| Flow::Continue(()))
}

/// The same ids in every run: SplitMix64 from a fixed seed.
struct RandomIds {
    state: u64,
    vocab_size: u64,
}

impl RandomIds {
    fn new(vocab_size: usize) -> Self {
        Self { state: 1, vocab_size: vocab_size as u64 }
    }

    fn take(&mut self, n: usize) -> Vec<u32> {
        let mut next = || {
            self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            ((z ^ (z >> 31)) % self.vocab_size) as u32
        };
        (0..n).map(|_| next()).collect()
    }
}

impl Row {
    fn new(
        engine: &Engine,
        config: &Config,
        [n_prompt, n_gen, n_depth]: [usize; 3],
        times: &[Duration],
    ) -> Self {
        let tokens = (n_prompt + n_gen) as f64;
        let samples_ns: Vec<u64> = times.iter().map(|t| t.as_nanos() as u64).collect();
        let samples_ts: Vec<f64> = times.iter().map(|t| tokens / t.as_secs_f64()).collect();
        let (avg_ns, stddev_ns) = mean_and_deviation(samples_ns.iter().map(|&ns| ns as f64));
        let (avg_ts, stddev_ts) = mean_and_deviation(samples_ts.iter().copied());
        let info = engine.info();
        let device = engine.devices().into_iter().next();
        let (backend, description) = device.map(|d| (d.name, d.description)).unwrap_or_default();
        Self {
            model: info.name.clone().unwrap_or_else(|| info.architecture.clone()),
            model_filename: engine.path().display().to_string(),
            model_size: engine.gguf().file_bytes(),
            model_n_params: info.parameters,
            backend,
            isa: description.split(',').next().unwrap_or_default().to_owned(),
            n_threads: if n_gen == 0 { config.engine.threads_batch } else { config.engine.threads },
            n_batch: config.engine.n_batch,
            type_kv: config.engine.kv_type.name().to_ascii_lowercase(),
            n_prompt,
            n_gen,
            n_depth,
            avg_ns,
            stddev_ns,
            avg_ts,
            stddev_ts,
            samples_ns,
            samples_ts,
        }
    }

    /// As llama-bench calls it: `pp512`, `tg128`, `tg128 @ d4096`.
    fn test(&self) -> String {
        let test = if self.n_gen == 0 { format!("pp{}", self.n_prompt) } else { format!("tg{}", self.n_gen) };
        if self.n_depth == 0 { test } else { format!("{test} @ d{}", self.n_depth) }
    }
}

/// Mean and sample standard deviation, which is 0 for a single value.
fn mean_and_deviation(values: impl ExactSizeIterator<Item = f64> + Clone) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.clone().sum::<f64>() / n;
    let squares: f64 = values.map(|v| (v - mean) * (v - mean)).sum();
    (mean, if n > 1.0 { (squares / (n - 1.0)).sqrt() } else { 0.0 })
}

fn markdown(rows: &[Row]) -> String {
    let head = ["model", "size", "params", "backend", "isa", "threads", "test", "t/s"].map(str::to_owned);
    let cells = |row: &Row| {
        [
            row.model.replace('|', "\\|"),
            output::human_bytes(row.model_size),
            format!("{:.2} M", row.model_n_params as f64 / 1e6),
            row.backend.clone(),
            row.isa.clone(),
            row.n_threads.to_string(),
            row.test(),
            format!("{:.2} ± {:.2}", row.avg_ts, row.stddev_ts),
        ]
    };
    let mut table = vec![head];
    table.extend(rows.iter().map(cells));
    let width = |column: usize| table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..table[0].len()).map(width).collect();
    let mut text = String::new();
    for (i, row) in table.iter().enumerate() {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // Texts to the left, numbers to the right.
            let pad = " ".repeat(width - cell.chars().count());
            let (before, behind) = if matches!(column, 0 | 3 | 4) { ("", &*pad) } else { (&*pad, "") };
            text.push_str(&format!("| {before}{cell}{behind} "));
        }
        text.push_str("|\n");
        if i == 0 {
            for (column, width) in widths.iter().enumerate() {
                let colon = if matches!(column, 0 | 3 | 4) { '-' } else { ':' };
                text.push_str(&format!("| {}{colon} ", "-".repeat(width - 1)));
            }
            text.push_str("|\n");
        }
    }
    text
}

fn csv(rows: &[Row]) -> String {
    let mut out = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        // The struct's fields, in their order; samples are left to JSON, as llama-bench does.
        let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(row) else { continue };
        let fields: Vec<_> = fields.iter().filter(|(_, value)| !value.is_array()).collect();
        let quoted = |text: String| format!("\"{}\"", text.replace('"', "\"\""));
        let line = |cells: Vec<String>| cells.join(",");
        if i == 0 {
            let _ = writeln!(out, "{}", line(fields.iter().map(|(key, _)| (*key).clone()).collect()));
        }
        let cell =
            |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let _ = writeln!(out, "{}", line(fields.iter().map(|(_, value)| quoted(cell(value))).collect()));
    }
    String::from_utf8(out).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviation_is_that_of_a_sample() {
        assert_eq!(mean_and_deviation([2.0, 4.0, 6.0].into_iter()), (4.0, 2.0));
        assert_eq!(mean_and_deviation([5.0].into_iter()), (5.0, 0.0));
    }

    #[test]
    fn random_ids_are_fixed_and_in_range() {
        let ids = RandomIds::new(1000).take(10_000);
        assert_eq!(ids, RandomIds::new(1000).take(10_000));
        assert!(ids.iter().all(|&id| id < 1000));
        assert!(ids.iter().collect::<std::collections::BTreeSet<_>>().len() > 990);
    }
}
