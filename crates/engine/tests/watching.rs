//! What is watched is what happened, and watching changes nothing.

mod common;

use std::collections::HashMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};

use common::{feed, greedy, load, options, path, request, tokens};
use minfer_engine::{
    Engine, EngineError, EngineOptions, ErrorKind, Feed, GpuLayers, Outputs, Placement, Step, TRACE_VERSION,
    Watch, Watching, devices,
};
use minfer_graph::devices::{Fault, FaultKind, SimOptions, Site, World};
use minfer_graph::export::Document;
use minfer_graph::{DType, NodeReport, Op};
use serde_json::Value;

/// Everything into this folder.
fn all(dir: &Path) -> Watching {
    Watching {
        graph_trace: true,
        op_profile: true,
        graph_dump: Some(dir.join("dump")),
        trace: Some(dir.join("trace.jsonl")),
    }
}

/// One thread: each operation of a watched run is handed over by itself, which would wake the others each time.
fn with(watching: Watching) -> EngineOptions {
    EngineOptions { watching, threads: 1, threads_batch: 1, ..options() }
}

/// The last layer and the output on a simulated GPU, the rest on the CPU.
fn divided(watching: Watching) -> EngineOptions {
    let placement = Placement {
        devices: vec!["sim".to_owned(), "cpu".to_owned()],
        gpu_layers: Some(GpuLayers::Count(2)),
        ..Placement::default()
    };
    EngineOptions { placement, ..with(watching) }
}

/// Loads it with a sink that holds the graph trace's texts.
fn load_quietly(name: &str, options: &EngineOptions) -> (Engine, Arc<Mutex<Vec<String>>>) {
    let mut engine = load(name, options);
    let texts = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&texts);
    engine.set_graph_trace_sink(move |text| sink.lock().unwrap().push(text.to_owned()));
    (engine, texts)
}

fn trace(dir: &Path) -> Vec<Value> {
    let text = fs::read_to_string(dir.join("trace.jsonl")).unwrap();
    assert!(text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The shape and the values of an array file, read by the format's description.
fn npy(path: &Path) -> (Vec<usize>, Vec<f32>) {
    let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
    let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = std::str::from_utf8(&bytes[10..start]).unwrap();
    assert!(header.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': ("), "{header}");
    let shape = header.split(['(', ')']).nth(1).unwrap();
    let shape = shape.split(", ").map(|d| d.trim_end_matches(',').parse().unwrap()).collect();
    let values = bytes[start..].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    (shape, values)
}

#[test]
fn watching_everything_changes_no_logit_and_no_token() {
    for name in ["tiny-llama", "tiny-llama31", "tiny-qwen2", "tiny-qwen3", "tiny-gemma3"] {
        let run = |engine: &mut Engine| {
            let mut sequence = engine.new_sequence();
            let logits = feed(engine, &mut sequence, &tokens(20), &[17, 1, 2]);
            let mut sequence = engine.new_sequence();
            (logits, greedy(engine, &mut sequence, &tokens(9), Some(8)))
        };
        for options in [with, divided] {
            let dir = tempfile::tempdir().unwrap();
            let wanted = run(&mut load(name, &options(Watching::default())));
            let (mut engine, texts) = load_quietly(name, &options(all(dir.path())));
            assert!(run(&mut engine) == wanted, "{name}");
            assert!(!texts.lock().unwrap().is_empty());
            // What is watched for a while leaves nothing behind.
            let mut engine = load(name, &options(Watching::default()));
            let (hook, seen) = Stored::new();
            engine.set_watch(Some(Box::new(hook)));
            assert!(run(&mut engine) == wanted, "{name}");
            let steps = seen.lock().unwrap().len();
            assert!(steps > 3, "{steps}");
            engine.set_watch(None);
            assert!(run(&mut engine) == wanted, "{name}");
            assert_eq!(seen.lock().unwrap().len(), steps);
        }
    }
}

#[test]
fn nothing_is_watched_unless_asked_for() {
    assert_eq!(EngineOptions::default().watching, Watching::default());
    assert!(load("tiny-llama", &options()).profile().is_none());
    let (mut engine, texts) = load_quietly("tiny-llama", &options());
    let mut sequence = engine.new_sequence();
    feed(&mut engine, &mut sequence, &tokens(3), &[2, 1]);
    assert!(texts.lock().unwrap().is_empty());
}

#[test]
fn a_trace_has_each_plan_once_and_each_step_with_the_logits_that_came_out() {
    let dir = tempfile::tempdir().unwrap();
    let options = divided(Watching { trace: Some(dir.path().join("trace.jsonl")), ..Watching::default() });
    let mut engine = load("tiny-gemma3", &options);
    let mut sequence = engine.new_sequence();
    let rows = feed(&mut engine, &mut sequence, &tokens(7), &[5, 1, 1]);
    // Every line is written at once.
    let lines = trace(dir.path());
    let kinds: Vec<(&str, u64)> =
        lines.iter().map(|l| (l["kind"].as_str().unwrap(), l["plan"].as_u64().unwrap())).collect();
    assert_eq!(kinds, [("plan", 0), ("step", 0), ("plan", 1), ("step", 1), ("step", 1)]);
    assert!(lines.iter().all(|l| l["version"] == TRACE_VERSION));

    let mut start = 0;
    for (n, (step, line)) in [5, 1, 1].into_iter().zip([1, 3, 4].map(|i| &lines[i]).into_iter().enumerate()) {
        let graph =
            &lines.iter().find(|l| l["kind"] == "plan" && l["plan"] == line["plan"]).unwrap()["graph"];
        let positions: Vec<usize> = (start..start + n).collect();
        assert_eq!((&line["step"], &line["error"]), (&step.into(), &Value::Null));
        assert_eq!(line["tokens"], serde_json::json!(tokens(7)[start..start + n]));
        assert_eq!(line["positions"], serde_json::json!(positions));
        assert_eq!(line["sequences"], serde_json::json!(vec![0; n]));

        let nodes = line["nodes"].as_array().unwrap();
        assert_eq!(graph["totals"]["running"], nodes.len());
        assert_eq!(graph["totals"]["copies"], line["copies"].as_array().unwrap().len());
        assert!(line["copies"].as_array().unwrap().iter().any(|c| c["from"] == "cpu" && c["to"] == "sim"));
        let sum: u64 =
            nodes.iter().map(|n| n["submit_ns"].as_u64().unwrap() + n["wait_ns"].as_u64().unwrap()).sum();
        assert!(line["time_ns"].as_u64().unwrap() >= sum && sum > 0);

        let last = nodes.last().unwrap();
        assert_eq!(graph["nodes"][last["node"].as_u64().unwrap() as usize]["output"], true);
        let logits = rows[start..start + n].concat();
        let samples = last["samples"].as_array().unwrap();
        assert_eq!(samples.len(), 8);
        for sample in samples {
            let index = sample[0].as_u64().unwrap() as usize;
            assert_eq!(sample[1].as_f64().unwrap() as f32, logits[index]);
        }
        assert_eq!(samples[7][0], logits.len() - 1);
        let max = logits.iter().copied().fold(f32::MIN, f32::max);
        assert_eq!(last["statistics"]["max"].as_f64().unwrap() as f32, max);
        start += n;
    }
}

/// The values that each run stores in the first layer's cache: keys and values.
type Rows = Arc<Mutex<Vec<[Vec<f32>; 2]>>>;

#[derive(Default)]
struct Stored {
    values: HashMap<u32, Vec<f32>>,
    stored: Rows,
}

impl Stored {
    fn new() -> (Self, Rows) {
        let hook = Self::default();
        let stored = Arc::clone(&hook.stored);
        (hook, stored)
    }
}

impl Watch for Stored {
    fn ran(&mut self, report: &NodeReport<'_>) {
        let graph = report.plan.graph();
        let node = graph.node(report.node);
        if let Some(values) = report.f32s() {
            self.values.insert(report.node.0, values);
        }
        if node.op == Op::KvStore && node.layer == Some(0) {
            let source = |i: usize| self.values[&graph.root(node.sources[i]).0].clone();
            self.stored.lock().unwrap().push([source(1), source(2)]);
        }
    }
}

#[test]
fn a_dump_holds_the_logits_and_the_rows_that_were_stored() {
    let dir = tempfile::tempdir().unwrap();
    let options = EngineOptions {
        kv_type: DType::F32,
        max_sequences: 2,
        ..with(Watching { graph_dump: Some(dir.path().join("a/b")), ..Watching::default() })
    };
    let mut engine = load("tiny-qwen3", &options);
    let (hook, stored) = Stored::new();
    engine.set_watch(Some(Box::new(hook)));
    // The first one's second page is behind the page of the other.
    let (mut one, mut other) = (engine.new_sequence(), engine.new_sequence());
    let ids = tokens(71);
    feed(&mut engine, &mut one, &ids[..60], &[60]);
    feed(&mut engine, &mut other, &ids[30..40], &[10]);
    feed(&mut engine, &mut one, &ids[60..70], &[10]);
    let mut feeds = [
        Feed { sequence: &mut one, tokens: &ids[70..], outputs: Outputs::Last },
        Feed { sequence: &mut other, tokens: &ids[..1], outputs: Outputs::Last },
    ];
    let mut logits = Vec::new();
    let mut collect = |step: Step<'_>| {
        if let Step::Logits { logits: row, .. } = step {
            logits.extend_from_slice(row);
        }
        ControlFlow::Continue(())
    };
    engine.forward(&mut feeds, &mut collect).unwrap();

    let file = |name: &str| npy(&dir.path().join("a/b").join(name));
    assert_eq!(file("step-000003.logits.npy"), (vec![2, engine.info().vocab_size], logits));
    let stored = stored.lock().unwrap();
    assert_eq!(stored.len(), 4);
    for (table, name) in ["k", "v"].into_iter().enumerate() {
        let width = stored[3][table].len() / 2;
        let (first, second) = stored[3][table].split_at(width);
        let of_one = [&stored[0][table][..], &stored[2][table], first].concat();
        let of_other = [&stored[1][table][..], second].concat();
        for (sequence, positions, rows) in [(0, 71, of_one), (1, 11, of_other)] {
            let (shape, found) = file(&format!("step-000003.sequence-{sequence}.{name}.npy"));
            assert_eq!((shape[0], shape[1] * shape[2]), (positions, width));
            assert!(found == rows && rows.iter().any(|&v| v != 0.0), "{name} of sequence {sequence}");
        }
        // A step of one sequence has that one.
        assert_eq!(file(&format!("step-000001.sequence-0.{name}.npy")).1, stored[1][table]);
        assert!(!dir.path().join(format!("a/b/step-000001.sequence-1.{name}.npy")).exists());
    }
}

#[test]
fn a_graph_trace_describes_each_plan_when_it_is_first_run() {
    let options = divided(Watching { graph_trace: true, ..Watching::default() });
    let (mut engine, texts) = load_quietly("tiny-llama", &options);
    let mut sequence = engine.new_sequence();
    feed(&mut engine, &mut sequence, &tokens(14), &[5, 1, 1, 1, 5, 1]);
    let texts = texts.lock().unwrap();
    assert_eq!(texts.len(), 2);
    assert!(texts[0].starts_with("plan 0: 5 tokens of 1 sequence\nsplit 0 on cpu: "), "{}", texts[0]);
    let document = Document::of_plan(&engine.plan(1).unwrap());
    assert_eq!(texts[1], format!("plan 1: 1 token of 1 sequence\n{}", document.to_summary()));
    let products = document.census().into_iter().find(|r| r.op == "mat_mul").unwrap();
    assert!(products.nodes.iter().all(|&n| n > 0));
    let row = format!("mat_mul {:>12}  {:>5}\n", products.nodes[0], products.nodes[1]);
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(squeezed(&texts[1]).contains(&squeezed(&row)), "{}", texts[1]);
}

#[test]
fn a_profile_counts_every_operation_of_every_step() {
    let mut engine = load("tiny-llama", &divided(Watching { op_profile: true, ..Watching::default() }));
    let mut sequence = engine.new_sequence();
    let mut wanted: HashMap<(String, String), u64> = HashMap::new();
    let mut copies = 0;
    for piece in [&tokens(5)[..], &[7], &[8], &[9]] {
        let mut feeds = [Feed { sequence: &mut sequence, tokens: piece, outputs: Outputs::Last }];
        engine.forward(&mut feeds, &mut |_| ControlFlow::Continue(())).unwrap();
        let document = Document::of_plan(&engine.plan(piece.len()).unwrap());
        for row in document.census() {
            for (device, nodes) in document.devices.iter().zip(row.nodes) {
                *wanted.entry((row.op.to_owned(), device.name.clone())).or_default() += nodes as u64;
            }
        }
        copies += document.totals.copies as u64;
    }
    let profile = engine.profile().unwrap();
    assert_eq!(profile.runs, 4);
    wanted.retain(|_, count| *count > 0);
    let found: HashMap<_, _> =
        profile.operations.iter().map(|o| ((o.op.to_owned(), o.device.clone()), o.launches)).collect();
    assert_eq!(found, wanted);
    assert_eq!(profile.copies.iter().map(|c| c.copies).sum::<u64>(), copies);
    assert!(copies > 0 && profile.operations.iter().all(|o| o.submit_ns > 0));
}

#[test]
fn what_cannot_be_written_is_named_before_the_model_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let missing = dir.path().join("none/trace.jsonl");
    let trace = Watching { trace: Some(missing.clone()), ..Watching::default() };
    let dump = Watching { graph_dump: Some(file.clone()), ..Watching::default() };
    for (watching, path) in [(trace, missing), (dump, file)] {
        let mut loaded = 0;
        let model = common::path("tiny-llama.gguf".to_owned());
        let error = Engine::load(model, &with(watching), &mut |_| loaded += 1).unwrap_err();
        assert!(error.to_string().starts_with(&format!("cannot write {}: ", path.display())), "{error}");
        assert_eq!((error.kind(), loaded), (ErrorKind::Input, 0));
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_ends_the_run_with_an_error() {
    let full = Watching { trace: Some("/dev/full".into()), ..Watching::default() };
    let mut engine = load("tiny-llama", &with(full));
    let mut sequence = engine.new_sequence();
    let prompt = tokens(4);
    let error = engine
        .generate(&mut sequence, &request(&prompt, Some(2)), &mut |_| ControlFlow::Continue(()))
        .unwrap_err();
    assert!(error.to_string().starts_with("cannot write /dev/full: No space left on device"), "{error}");
    assert_eq!(sequence.len(), 0);
}

#[test]
fn a_dump_that_fails_in_the_middle_is_reported_and_the_next_step_is_right() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("dump");
    let options = with(Watching { graph_dump: Some(folder.clone()), ..Watching::default() });
    let mut engine = load("tiny-llama", &options);
    let ids = tokens(8);
    let mut sequence = engine.new_sequence();
    let wanted = feed(&mut engine, &mut sequence, &ids, &[6, 2]);
    sequence.truncate(0);
    let mut rows = feed(&mut engine, &mut sequence, &ids[..6], &[6]);
    fs::rename(&folder, dir.path().join("elsewhere")).unwrap();
    let mut feeds = [Feed { sequence: &mut sequence, tokens: &ids[6..], outputs: Outputs::From(0) }];
    let error = engine.forward(&mut feeds, &mut |_| ControlFlow::Continue(())).unwrap_err();
    let EngineError::Write { path, .. } = &error else { panic!("{error}") };
    assert_eq!(*path, folder.join("step-000003.logits.npy"));
    fs::create_dir(&folder).unwrap();
    rows.extend(feed(&mut engine, &mut sequence, &ids[6..], &[2]));
    assert!(rows == wanted);
}

#[test]
fn a_step_that_fails_is_in_the_trace_up_to_where_it_failed() {
    let dir = tempfile::tempdir().unwrap();
    let options = divided(Watching { trace: Some(dir.path().join("trace.jsonl")), ..Watching::default() });
    let gpu = World::new().device("sim", devices::open_cpu(&options).unwrap(), SimOptions::default());
    let control = gpu.control();
    let all: Vec<Box<dyn minfer_graph::Backend>> = vec![Box::new(gpu), devices::open_cpu(&options).unwrap()];
    let model = path("tiny-llama.gguf".to_owned());
    let mut engine = Engine::load_on(model, &options, all, &mut |_| {}).unwrap();
    let mut sequence = engine.new_sequence();
    let ids = tokens(3);
    let wanted = feed(&mut engine, &mut sequence, &ids, &[3]);
    sequence.truncate(0);
    control.inject(Fault { site: Site::Launch, nth: 2, kind: FaultKind::Fail });
    let mut feeds = [Feed { sequence: &mut sequence, tokens: &ids, outputs: Outputs::From(0) }];
    let error = engine.forward(&mut feeds, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(feed(&mut engine, &mut sequence, &ids, &[3]) == wanted);

    let lines = trace(dir.path());
    assert_eq!(lines.len(), 4);
    let [good, failed, again] = [1, 2, 3].map(|i| lines[i]["nodes"].as_array().unwrap());
    assert_eq!(lines[2]["error"], error.to_string());
    assert_eq!(lines[3]["error"], Value::Null);
    let on_gpu = failed.iter().filter(|n| n["device"] == "sim").count();
    assert_eq!(on_gpu, 2, "what ran before the third launch");
    let labels = |nodes: &[Value]| nodes.iter().map(|n| n["label"].to_string()).collect::<Vec<_>>();
    assert_eq!(labels(failed)[..], labels(good)[..failed.len()]);
    assert_eq!(labels(again), labels(good));
}
