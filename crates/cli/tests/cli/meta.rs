//! Help, manual, completions, configuration, devices.

use std::path::Path;

use serde_json::json;

use crate::support::{bare, fails, prints, prints_json, run};

const COMMANDS: [&str; 16] = [
    "run",
    "chat",
    "logits",
    "tokenize",
    "detokenize",
    "inspect",
    "graph",
    "bench",
    "perplexity",
    "devices",
    "config",
    "pull",
    "list",
    "rm",
    "completions",
    "man",
];

fn with(arguments: &[&str]) -> std::process::Command {
    let mut command = bare();
    command.args(arguments);
    command
}

#[test]
fn help_man_and_completions_know_every_command() {
    let help = prints(with(&["--help"]));
    let man = prints(with(&["man"]));
    for command in COMMANDS {
        assert!(help.lines().any(|line| line.trim_start().starts_with(&format!("{command} "))), "{command}");
        assert!(man.contains(&format!("minfer\\-{command}(1)")), "{command}");
        assert!(
            prints(with(&[command, "--help"])).contains(&format!("Usage: minfer {command}")),
            "{command}"
        );
        assert!(prints(with(&["man", command])).contains(".SH NAME"), "{command}");
        for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
            assert!(prints(with(&["completions", shell])).contains(command), "{shell} {command}");
        }
    }
    for code in ["2    usage", "3    model", "4    input", "5    device", "130  interrupted"] {
        assert!(help.contains(code), "{code}");
    }
    assert!(man.contains("Exit codes") && man.contains("130"));
    assert_eq!(prints(with(&["--version"])), format!("minfer {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn all_manual_pages_are_written_into_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    prints(with(&["man", "--dir", pages.to_str().unwrap()]));
    let page = std::fs::read_to_string(pages.join("minfer-perplexity.1")).unwrap();
    let head = concat!(".TH MINFER-PERPLEXITY 1  \"minfer ", env!("CARGO_PKG_VERSION"), "\"");
    assert!(page.contains(head) && page.contains("chunk"), "{page}");
    assert_eq!(prints(with(&["man", "perplexity"])), page);
    assert_eq!(std::fs::read_dir(&pages).unwrap().count(), COMMANDS.len() + 1);
}

#[test]
fn config_says_where_each_value_comes_from() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    std::fs::write(&file, "context = 1024\nbatch = 64\nkv_type = \"f32\"\n").unwrap();
    let path = file.to_str().unwrap();
    let mut command = with(&["config", "--json", "--config", path, "-t", "3"]);
    command.env("MINFER_BATCH", "32").env("MINFER_THREADS", "2");
    let config = prints_json(command);
    let entry = |value: serde_json::Value, origin: &str| json!({"value": value, "origin": origin});
    assert_eq!(config["threads"], entry(json!(3), "flag"));
    assert_eq!(config["batch"], entry(json!(32), "environment MINFER_BATCH"));
    assert_eq!(config["context"], entry(json!(1024), &format!("file {path}")));
    assert_eq!(config["kv_type"], entry(json!("f32"), &format!("file {path}")));
    assert_eq!(config["model"], entry(json!("smollm2-135m"), "default"));
    assert_eq!(config["isa"], entry(json!(null), "default"));
}

#[test]
fn what_config_prints_can_be_its_file() {
    let printed = prints(with(&["config", "-t", "3", "-c", "99", "--kv-type", "f32", "--models", "/m"]));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    std::fs::write(&file, printed).unwrap();
    let mut command = with(&["config", "--json"]);
    command.env("MINFER_CONFIG", &file);
    let config = prints_json(command);
    let value = |key: &str| config[key]["value"].clone();
    assert_eq!([value("threads"), value("context"), value("kv_type")], [json!(3), json!(99), json!("f32")]);
    assert_eq!(value("models"), "/m");
}

#[test]
fn the_file_in_the_users_folder_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("minfer");
    std::fs::create_dir(&place).unwrap();
    std::fs::write(place.join("config.toml"), "threads = 7\n").unwrap();
    let mut command = with(&["config", "--json"]);
    command.env("XDG_CONFIG_HOME", dir.path());
    assert_eq!(prints_json(command)["threads"]["value"], 7);
}

#[test]
fn unknown_keys_and_wrong_values_are_refused_by_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |text: &str, naming: &str| {
        let file = dir.path().join("c.toml");
        std::fs::write(&file, text).unwrap();
        fails(with(&["devices", "--config", file.to_str().unwrap()]), 2, naming);
    };
    refused("thread = 1", "unknown key thread");
    refused("verbose = \"yes\"", "verbose is \"yes\", but must be true or false");
    refused("batch = 2\n threads = ", "c.toml: line 2, column 12: ");
    refused("threads = 1 2", "line 1, column ");
    let variable = |name: &str, value: &str, naming: &str| {
        let mut command = with(&["devices"]);
        command.env(name, value);
        fails(command, 2, naming);
    };
    variable("MINFER_THREAD", "1", "unknown key MINFER_THREAD");
    variable("MINFER_VERBOSE", "1", "MINFER_VERBOSE is \"1\", but must be true or false");
    variable("MINFER_ISA", "", "MINFER_ISA");
    variable("MINFER_CONFIG", "/nonexistent.toml", "/nonexistent.toml");
}

#[test]
fn devices_are_listed() {
    let devices = prints_json(with(&["devices", "--json", "-t", "2", "-tb", "1", "--isa", "scalar"]));
    assert_eq!(devices[0]["name"], "cpu");
    assert_eq!(devices[0]["description"], "scalar, 2 threads, 1 for prompts");
    assert!(devices[0]["isa_available"].as_array().unwrap().contains(&json!("scalar")));
    assert!(prints(with(&["devices"])).starts_with("cpu: "));
}

#[test]
fn output_that_nobody_reads_is_no_error() {
    use std::process::Stdio;
    let model = crate::support::tiny("llama");
    let mut command = with(&["logits", "-m", &model, "--ids", "1"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
#[cfg(target_os = "linux")]
fn output_that_cannot_be_written_is_one() {
    let mut command = with(&["devices"]);
    command.stdout(std::fs::File::create("/dev/full").unwrap());
    let ran = run(command);
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.starts_with("error: cannot write to standard output: "), "{}", ran.stderr);
    assert!(Path::new("/dev/full").exists());
}
