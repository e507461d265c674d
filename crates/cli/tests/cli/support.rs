//! Running `minfer` where no setting of this machine's user reaches it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A small model whose ids alone mean something.
pub fn tiny(name: &str) -> String {
    let path = golden().join("tiny").join(format!("tiny-{name}.gguf"));
    path.to_str().unwrap().to_owned()
}

pub fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden")
}

pub fn golden_json(name: &str) -> Value {
    let path = golden().join(name);
    let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).unwrap()
}

/// The folder of models, in which the default one has to be.
pub fn models() -> PathBuf {
    let dir = std::env::var_os("MINFER_MODELS")
        .map_or_else(|| minfer_hub::Store::default_dir().unwrap(), PathBuf::from);
    let default = dir.join(format!("{}.gguf", minfer_hub::DEFAULT_MODEL));
    assert!(
        default.is_file(),
        "{} is missing; `cargo xtask test` fetches it and runs the tests",
        default.display()
    );
    dir
}

/// The program without any configuration and without models.
pub fn bare() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_minfer"));
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("MINFER_") || name.starts_with("XDG_")) {
            command.env_remove(name);
        }
    }
    let nowhere = Path::new(env!("CARGO_TARGET_TMPDIR")).join("home");
    command.env("HOME", nowhere).stdin(Stdio::null());
    command
}

/// The program with the models of this machine.
pub fn minfer(arguments: &[&str]) -> Command {
    let mut command = bare();
    command.env("MINFER_MODELS", models()).args(arguments);
    command
}

/// The program with a tiny model.
pub fn tiny_minfer(command: &str, model: &str, arguments: &[&str]) -> Command {
    let mut process = bare();
    process.args([command, "-m", &tiny(model)]).args(arguments);
    process
}

pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {:?}", self.stdout))
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Ran {
            code: output.status.code().expect("ended by itself"),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Runs it to its end.
pub fn run(mut command: Command) -> Ran {
    command.output().unwrap().into()
}

/// Runs it to its end with this on standard input.
pub fn run_with_input(mut command: Command, input: &[u8]) -> Ran {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // One that refuses its flags reads nothing.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap().into()
}

/// What it prints when all is well.
#[track_caller]
pub fn prints(command: Command) -> String {
    let ran = run(command);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    ran.stdout
}

#[track_caller]
pub fn prints_json(command: Command) -> Value {
    serde_json::from_str(&prints(command)).unwrap()
}

/// It must end with this code and exactly one line on standard error, which names the thing.
#[track_caller]
pub fn fails(command: Command, code: i32, naming: &str) {
    check_failure(&run(command), code, naming);
}

#[track_caller]
pub fn check_failure(ran: &Ran, code: i32, naming: &str) {
    let Ran { stdout, stderr, .. } = ran;
    assert_eq!(ran.code, code, "{stderr}");
    assert_eq!(stdout, "");
    let line = stderr.strip_suffix('\n').unwrap_or_else(|| panic!("no line: {stderr:?}"));
    assert!(line.starts_with("error: ") && !line.contains('\n'), "{stderr:?}");
    assert!(line.contains(naming), "{line:?} does not name {naming:?}");
}

/// The tiny llama with a chat template: its metadata and tensors, written anew.
pub fn tiny_with_template(template: &str) -> Vec<u8> {
    use minfer_gguf::{Gguf, MetaValue, Value, Writer};

    fn meta(value: Value<'_>) -> MetaValue {
        match value {
            Value::U32(v) => MetaValue::U32(v),
            Value::I32(v) => MetaValue::I32(v),
            Value::F32(v) => MetaValue::F32(v),
            Value::Bool(v) => MetaValue::Bool(v),
            Value::String(v) => MetaValue::String(v.to_vec()),
            Value::Array(v) => MetaValue::Array(v.element_type(), v.iter().map(meta).collect()),
            other => panic!("the tiny models hold no {}", other.value_type()),
        }
    }

    let gguf = Gguf::open(tiny("llama")).unwrap();
    let mut writer = Writer::new().meta("tokenizer.chat_template", template);
    for (key, value) in gguf.metadata().iter() {
        writer = writer.meta(key, meta(value));
    }
    for tensor in gguf.tensors() {
        writer = writer.tensor(tensor.name, tensor.ty, tensor.shape, tensor.data.to_vec());
    }
    writer.to_bytes().unwrap()
}
