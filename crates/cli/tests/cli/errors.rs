//! Bad input: one clear line that names the thing, and the documented exit code.

use crate::support::{bare, check_failure, fails, minfer, run, run_with_input, tiny, tiny_minfer};

/// A changed copy of the tiny llama in a folder of its own.
fn with_model(change: impl FnOnce(&mut Vec<u8>), test: impl FnOnce(&str)) {
    let mut bytes = std::fs::read(tiny("llama")).unwrap();
    change(&mut bytes);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    test(path.to_str().unwrap());
}

fn find(bytes: &[u8], needle: &[u8]) -> usize {
    bytes.windows(needle.len()).position(|window| window == needle).unwrap()
}

fn run_model(path: &str) -> std::process::Command {
    let mut command = bare();
    command.args(["run", "-m", path, "--raw", "hello"]);
    command
}

#[test]
fn usage() {
    let usage = |arguments: &[&str], naming| {
        let mut command = bare();
        command.args(arguments);
        fails(command, 2, naming);
    };
    usage(&["frobnicate"], "'frobnicate'");
    usage(&["run", "--nosuch", "x"], "'--nosuch'");
    usage(
        &["run", "--tmp", "0", "x"],
        "unexpected argument '--tmp' found; a similar argument exists: '--temp'",
    );
    usage(
        &["run", "-temp", "0", "x"],
        "unexpected argument '-temp' found; a similar argument exists: '--temp'",
    );
    usage(&["run", "Why", "is", "the", "sky", "blue"], "in quotes; usage: minfer run [OPTIONS] [TEXT]");
    usage(&["chat", "hello"], "unexpected argument 'hello' found; messages are typed");
    usage(&["run", "--threads", "0", "x"], "--threads");
    usage(&["run", "-tb", "none", "x"], "'none' for '--threads-batch");
    usage(
        &["run", "-n", "-2", "x"],
        "'-2' for '--n-predict <N>': expected a whole number, or -1 for no limit",
    );
    usage(&["bench", "-r", "0"], "'0' for '--repetitions <N>': expected a whole number above 0");
    usage(&["run", "--isa", "sse9", "x"], "\"sse9\" is unknown");
    usage(&["run", "--kv-type", "q8", "x"], "'q8'");
    usage(&["run", "--logit-bias", "5", "x"], "expected ID=VALUE");
    usage(&["run", "--raw", "--system", "s", "x"], "--system");
    usage(&["logits"], "--ids");
    usage(&["graph", "--tokens", "0"], "--tokens");
    usage(&["bench", "-p", "0", "-n", "0"], "-p and -n");
    usage(&["completions", "tcsh9"], "'tcsh9'");
    usage(&["man", "nosuch"], "\"nosuch\"");
    // Nobody is told to type into a program that reads a pipe, and an empty one is an empty prompt.
    check_failure(&run(tiny_minfer("run", "llama", &["--raw"])), 4, "the prompt has no tokens");
}

#[test]
fn no_arguments_show_the_help() {
    let ran = run(bare());
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    assert!(ran.stderr.contains("Usage: minfer"), "{}", ran.stderr);
}

#[test]
fn files_that_are_no_models() {
    fails(run_model("/nonexistent/model.gguf"), 3, "/nonexistent/model.gguf: No such file");
    let dir = tempfile::tempdir().unwrap();
    fails(run_model(dir.path().to_str().unwrap()), 3, "is a directory, not a GGUF file");
    let text = dir.path().join("notes.gguf");
    std::fs::write(&text, "Dear diary\n").unwrap();
    fails(run_model(text.to_str().unwrap()), 3, "notes.gguf: not a GGUF file: it is text");
    fails(minfer(&["run", "-m", "smolm", "x"]), 3, "unknown model \"smolm\"");
    fails(minfer(&["inspect", "/nonexistent.gguf"]), 3, "/nonexistent.gguf");
    let repo = "Qwen/Qwen2.5-0.5B-Instruct-GGUF";
    fails(run_model(repo), 3, &format!("write hf:{repo}"));
    fails(run_model(&format!("https://huggingface.co/{repo}")), 3, &format!("write hf:{repo}"));
}

#[test]
fn a_file_truncated_anywhere_is_refused() {
    let whole = std::fs::read(tiny("llama")).unwrap();
    let data = whole.len();
    // Every byte of the header's start, then samples of metadata, tensor list and data.
    let cuts = (0..32).chain((32..data).step_by(data / 48)).chain([data - 1]);
    for cut in cuts {
        with_model(
            |bytes| bytes.truncate(cut),
            |path| {
                let ran = run(run_model(path));
                check_failure(&ran, 3, "model.gguf");
            },
        );
    }
}

#[test]
fn an_unknown_architecture_is_named() {
    let change = |bytes: &mut Vec<u8>| {
        let key = b"general.architecture";
        let value = find(bytes, key) + key.len() + 4 + 8;
        assert_eq!(&bytes[value..value + 5], b"llama");
        bytes[value..value + 5].copy_from_slice(b"mamba");
    };
    with_model(change, |path| fails(run_model(path), 3, "architecture \"mamba\" is not supported"));
}

#[test]
fn an_unsupported_tensor_type_is_named() {
    let set_type = |bytes: &mut Vec<u8>, id: u32| {
        let name = b"output_norm.weight";
        // Behind the name: the number of dimensions, one dimension, the type.
        let at = find(bytes, name) + name.len() + 4 + 8;
        assert_eq!(bytes[at..at + 4], 0u32.to_le_bytes());
        bytes[at..at + 4].copy_from_slice(&id.to_le_bytes());
    };
    with_model(|b| set_type(b, 26), |path| fails(run_model(path), 3, "\"output_norm.weight\" has type I32"));
    with_model(|b| set_type(b, 9999), |path| fails(run_model(path), 3, "9999"));
}

#[test]
fn k02_a_prompt_longer_than_the_context_is_refused_with_both_numbers() {
    let text = "x".repeat(65);
    let command = tiny_minfer("run", "llama", &["--raw", "-c", "64", &text]);
    fails(command, 4, "the prompt has 65 tokens, the context holds 64; -c makes it longer");
}

#[test]
fn s02_sampling_parameters_that_are_no_numbers_are_refused() {
    let refused = |flag: &str, value: &str, naming: &str| {
        fails(tiny_minfer("run", "llama", &["--raw", "x", flag, value]), 4, naming);
    };
    refused("--temp", "nan", "temperature is NaN");
    refused("--temp", "inf", "temperature is inf");
    refused("--top-p", "nan", "top_p is NaN");
    refused("--min-p", "-0.5", "min_p is -0.5");
    refused("--typical", "1.5", "typical_p is 1.5");
    refused("--xtc-probability", "nan", "xtc_probability is NaN");
    refused("--dry-base", "nan", "dry_base is NaN");
    refused("--presence-penalty", "-inf", "presence_penalty is -inf");
    // At or below 0 it means greedy, as elsewhere.
    let greedy =
        |t| crate::support::prints(tiny_minfer("run", "llama", &["--raw", "x", "-n", "8", "--temp", t]));
    assert_eq!(greedy("-1"), greedy("0"));
}

#[test]
fn s04_a_repeat_penalty_of_0_is_refused() {
    let command = tiny_minfer("run", "llama", &["--raw", "x", "--repeat-penalty", "0"]);
    fails(command, 4, "repeat_penalty is 0, but must be above 0");
}

#[test]
fn s08_a_logit_bias_outside_the_vocabulary_is_refused() {
    for (entry, naming) in
        [("999999=5", "\"999999\""), ("-1=5", "\"-1\""), ("abc=1", "\"abc\""), ("1=nan", "NaN")]
    {
        let command = tiny_minfer("run", "llama", &["--raw", "x", "--logit-bias", entry]);
        fails(command, 4, naming);
    }
}

#[test]
fn token_ids_outside_the_vocabulary_are_refused() {
    fails(
        tiny_minfer("logits", "llama", &["--ids", "1,266"]),
        4,
        "token id 266 is outside the vocabulary of 266",
    );
    fails(tiny_minfer("logits", "llama", &["--ids", "1,x"]), 4, "\"x\" is not a token id");
    fails(tiny_minfer("logits", "llama", &["--ids", "[]"]), 4, "the prompt has no tokens");
    fails(tiny_minfer("detokenize", "llama", &["1", "266"]), 4, "token id 266");
    fails(tiny_minfer("detokenize", "llama", &["one"]), 4, "\"one\" is not a token id");
}

#[test]
fn t15_a_prompt_that_is_no_text() {
    let bytes = [0xFF, 0xFE, 0x41];
    // Into a chat template only text can be put; raw, a byte is a token where there is no other.
    let chat = run_with_input(minfer(&["run", "-n", "1"]), &bytes);
    check_failure(&chat, 4, "the prompt is not valid UTF-8 at byte 0; only --raw takes any bytes");
    let raw = run_with_input(tiny_minfer("run", "llama", &["--raw", "-n", "1", "--json"]), &bytes);
    assert_eq!((raw.code, raw.stderr.as_str()), (0, ""));
    assert_eq!(raw.json()["prompt_tokens"], serde_json::json!([0xFF, 0xFE, 0x41]));
    let ids = run_with_input(tiny_minfer("tokenize", "llama", &["--stdin"]), &bytes);
    assert_eq!(ids.stdout, "[255,254,65]\n");
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        let mut command = bare();
        command.args(["run", "-p"]).arg(std::ffi::OsStr::from_bytes(&bytes));
        fails(command, 2, "invalid UTF-8");
    }
}

#[test]
fn devices_that_cannot_be_had() {
    let missing = if cfg!(target_arch = "aarch64") { "avx2" } else { "neon" };
    let command = tiny_minfer("run", "llama", &["--raw", "x", "--isa", missing]);
    fails(command, 5, &format!("isa {missing} is not available"));
    let command = tiny_minfer("run", "llama", &["--raw", "x", "-t", "100000"]);
    fails(command, 5, "thread count 100000");
}

#[test]
fn a_context_that_fits_no_memory_is_refused() {
    let command = tiny_minfer("run", "llama", &["--raw", "x", "-c", "1000000000"]);
    fails(command, 5, "bytes free and would need");
    let command = tiny_minfer("run", "llama", &["--raw", "x", "-c", "99999999999"]);
    fails(command, 4, "the context length is 99999999999");
}

#[test]
fn weights_that_are_no_numbers_are_the_models_fault() {
    let spoil = |bytes: &mut Vec<u8>| {
        let end = bytes.len();
        bytes[end - 4096..].fill(0xFF);
    };
    with_model(spoil, |path| fails(run_model(path), 3, "is NaN"));
}

#[test]
fn messages_are_one_line_of_bounded_length_without_control_characters() {
    let command = tiny_minfer("perplexity", "llama", &["-f", "no\u{1b}[31m.txt"]);
    fails(command, 4, r"cannot read no\u{1b}[31m.txt: No such file");
    let ran = run(tiny_minfer("detokenize", "llama", &[&"x".repeat(5000)]));
    check_failure(&ran, 4, "x\" is not a token id");
    assert!(ran.stderr.len() < 1100, "{} bytes", ran.stderr.len());
}

#[cfg(target_os = "linux")]
#[test]
fn streams_that_cannot_be_written_to() {
    use std::fs::File;
    use std::process::Stdio;

    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let mut command = run_model("/nonexistent.gguf");
    command.stderr(full());
    // Not ended by a signal: `run` wants a code.
    assert_eq!(run(command).code, 3);
    let mut command = tiny_minfer("run", "llama", &["--raw", "-n", "1", "-v", "x"]);
    command.stderr(full());
    let ran = run(command);
    assert_eq!(ran.code, 0);
    assert!(!ran.stdout.is_empty());
    for arguments in [&["run", "--help"][..], &["--version"], &["devices"]] {
        let mut command = bare();
        command.args(arguments).stdout(full());
        fails_unprinted(command);
    }
}

#[cfg(target_os = "linux")]
fn fails_unprinted(command: std::process::Command) {
    use std::process::Stdio;

    let mut command = command;
    let done = command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    let stderr = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("error: cannot write to standard output: "), "{stderr}");
}

#[cfg(unix)]
#[test]
fn input_without_an_end_is_refused() {
    let endless = || std::fs::File::open("/dev/zero").unwrap();
    fails(
        tiny_minfer("perplexity", "llama", &["-f", "/dev/zero"]),
        4,
        "/dev/zero: there are more than 256 MiB",
    );
    for arguments in [&["run"][..], &["run", "x"], &["chat"]] {
        let mut command = tiny_minfer(arguments[0], "qwen2", &arguments[1..]);
        command.stdin(endless());
        let ran = run(command);
        assert_eq!(ran.code, 4, "{}", ran.stderr);
        assert!(ran.stderr.contains("error: standard input: there are more than 256 MiB"), "{}", ran.stderr);
    }
}

#[cfg(unix)]
#[test]
fn a_home_that_is_no_folder_has_no_configuration() {
    let mut command = tiny_minfer("run", "llama", &["--raw", "-n", "1", "x"]);
    command.env("HOME", "/dev/null");
    assert!(!crate::support::prints(command).is_empty());
    let mut command = bare();
    command.args(["--config", "/dev/null/config.toml", "config"]);
    fails(command, 2, "/dev/null/config.toml: Not a directory");
}

#[test]
fn texts_that_cannot_be_scored() {
    fails(tiny_minfer("perplexity", "llama", &["-f", "/nonexistent.txt"]), 4, "/nonexistent.txt");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("short.txt");
    std::fs::write(&path, "too short").unwrap();
    let path = path.to_str().unwrap();
    fails(tiny_minfer("perplexity", "llama", &["-f", path, "-c", "64"]), 4, "fewer than one chunk of 64");
    fails(tiny_minfer("perplexity", "llama", &["-f", path, "-c", "3"]), 2, "-c is 3");
}
