//! MINFER_GRAPH_TRACE, MINFER_OP_PROFILE, MINFER_TRACE and MINFER_GRAPH_DUMP.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Ran, bare, fails, prints_json, run, tiny_minfer};

/// A short run, watched by these variables.
fn answer(variables: &[(&str, &str)]) -> Command {
    let mut command =
        tiny_minfer("run", "llama", &["--raw", "hello", "-n", "3", "--temp", "0", "--ignore-eos"]);
    command.envs(variables.iter().copied());
    command
}

/// What it prints on standard error; the answer must be the one that comes unwatched.
#[track_caller]
fn watched(variables: &[(&str, &str)]) -> String {
    let Ran { code, stdout, stderr } = run(answer(variables));
    assert_eq!(code, 0, "{stderr}");
    let unwatched = run(answer(&[]));
    assert_eq!((stdout, unwatched.stderr.as_str()), (unwatched.stdout, ""));
    stderr
}

#[test]
fn graph_trace_describes_each_plan_once() {
    let text = watched(&[("MINFER_GRAPH_TRACE", "true")]);
    let plans: Vec<&str> = text.lines().filter(|l| l.starts_with("plan ")).collect();
    assert_eq!(plans.len(), 2, "{text}");
    assert_eq!(plans[1], "plan 1: 1 token of 1 sequence");
    assert_eq!(text.lines().filter(|l| l.starts_with("split 0 on cpu: ")).count(), 2, "{text}");
    let mut command = tiny_minfer("graph", "llama", &[]);
    command.env("MINFER_GRAPH_TRACE", "false");
    // The second half is what `minfer graph` says of a step of one token.
    let graph = crate::support::prints(command);
    let summary = &text[text.find(plans[1]).unwrap() + plans[1].len() + 1..];
    assert!(graph.ends_with(summary) && summary.contains("attention"), "{graph}\n{summary}");
}

#[test]
fn op_profile_prints_a_table_at_the_end() {
    let text = watched(&[("MINFER_OP_PROFILE", "true")]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("operations of 3 runs,"), "{text}");
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let attention = lines.iter().find(|l| l.starts_with("attention ")).unwrap();
    let layers = prints_json(tiny_minfer("graph", "llama", &["--format", "json"]))["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|n| n["op"] == "attention")
        .count();
    assert_eq!(cells(attention)[1..3], ["cpu".to_owned(), (3 * layers).to_string()]);
    assert!(lines.last().unwrap().starts_with("all "), "{text}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_command_that_fails_says_where_the_time_went_all_the_same() {
    let mut command = tiny_minfer("logits", "llama", &["--ids", "1,2"]);
    // A folder in which nobody can make files.
    command.env("MINFER_OP_PROFILE", "true").env("MINFER_GRAPH_DUMP", "/proc");
    let ran = run(command);
    assert_eq!((ran.code, ran.stdout.as_str()), (4, ""));
    assert!(ran.stderr.starts_with("operations of 1 run,"), "{}", ran.stderr);
    let last = ran.stderr.lines().last().unwrap();
    assert!(last.starts_with("error: cannot write /proc/step-000000.logits.npy: "), "{last}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error() {
    fails(answer(&[("MINFER_TRACE", "/dev/full")]), 4, "cannot write /dev/full: No space left on device");
}

#[test]
fn trace_and_dump_write_files() {
    let dir = tempfile::tempdir().unwrap();
    let (trace, dump) = (dir.path().join("t.jsonl"), dir.path().join("d"));
    let text =
        watched(&[("MINFER_TRACE", trace.to_str().unwrap()), ("MINFER_GRAPH_DUMP", dump.to_str().unwrap())]);
    assert_eq!(text, "");
    let lines: Vec<Value> =
        std::fs::read_to_string(&trace).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let kinds: Vec<&str> = lines.iter().map(|l| l["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["plan", "step", "plan", "step", "step"]);
    assert!(lines.iter().all(|l| l["version"] == 1));
    let mut files: Vec<String> =
        std::fs::read_dir(&dump).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    let wanted: Vec<String> = (0..3)
        .flat_map(|step| {
            ["logits", "sequence-0.k", "sequence-0.v"].map(|n| format!("step-{step:06}.{n}.npy"))
        })
        .collect();
    assert_eq!(files, wanted);
}

#[test]
fn what_cannot_be_watched_is_refused() {
    fails(
        answer(&[("MINFER_GRAPH_TRACE", "1")]),
        2,
        "MINFER_GRAPH_TRACE is \"1\", but must be true or false",
    );
    fails(answer(&[("MINFER_OP_PROFILE", "yes")]), 2, "MINFER_OP_PROFILE");
    fails(answer(&[("MINFER_TRACE", "")]), 2, "MINFER_TRACE is \"\", but must be a path");
    fails(answer(&[("MINFER_TRACE", "/nonexistent/t")]), 4, "cannot write /nonexistent/t: No such file");
    fails(answer(&[("MINFER_GRAPH_DUMP", "/dev/null/d")]), 4, "cannot write /dev/null/d: ");
}

#[test]
fn config_shows_what_is_watched() {
    let mut command = bare();
    command.args(["config", "--json"]).env("MINFER_TRACE", "t.jsonl").env("MINFER_OP_PROFILE", "true");
    let config = prints_json(command);
    let entry = |value: Value, origin: &str| json!({"value": value, "origin": origin});
    assert_eq!(config["trace"], entry(json!("t.jsonl"), "environment MINFER_TRACE"));
    assert_eq!(config["op_profile"], entry(json!(true), "environment MINFER_OP_PROFILE"));
    assert_eq!(config["graph_trace"], entry(json!(false), "default"));
    assert_eq!(config["graph_dump"], entry(json!(null), "default"));
}
