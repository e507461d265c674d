//! Ctrl-C.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

use crate::support::{minfer, tiny_minfer};

fn spawn(mut command: Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn interrupt(child: &Child) {
    let done = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(done.success());
}

#[test]
fn a_run_prints_what_there_is_and_ends_with_130() {
    let arguments = ["run", "--raw", "--temp", "0", "--ignore-eos", "-c", "8192", "1, 2, 3, 4, 5, 6,"];
    let mut child = spawn(minfer(&arguments));
    drop(child.stdin.take());
    let mut out = child.stdout.take().unwrap();
    let mut text = [0; 8];
    out.read_exact(&mut text).unwrap();
    assert_eq!(&text, b" 7, 8, 9");
    interrupt(&child);
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(rest.starts_with(',') && rest.ends_with('\n'), "{rest:?}");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn interrupted_json_says_so() {
    let arguments = ["--raw", "--json", "--ignore-eos", "--verbose", "-c", "2000000", "x"];
    let mut child = spawn(tiny_minfer("run", "llama", &arguments));
    drop(child.stdin.take());
    // It has something to say once the model is loaded; then it generates for minutes.
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.by_ref().any(|line| line.unwrap().starts_with("loaded")));
    std::thread::sleep(std::time::Duration::from_millis(300));
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["finish_reason"], "cancelled");
    assert!(!json["tokens"].as_array().unwrap().is_empty());
}

#[test]
fn in_a_chat_it_stops_the_reply_and_not_the_program() {
    let arguments = ["chat", "--temp", "0", "--ignore-eos", "Count to a thousand."];
    let mut child = spawn(minfer(&arguments[..4]));
    let mut input = child.stdin.take().unwrap();
    let mut out = child.stdout.take().unwrap();
    writeln!(input, "{}", arguments[4]).unwrap();
    let mut text = [0; 4];
    out.read_exact(&mut text).unwrap();
    interrupt(&child);
    // The reply ends; the next message is answered as well.
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "note: stopped");
    writeln!(input, "And now?").unwrap();
    let mut more = [0; 4];
    let mut out = BufReader::new(out);
    let mut first = String::new();
    out.read_line(&mut first).unwrap();
    out.read_exact(&mut more).unwrap();
    interrupt(&child);
    assert_eq!(lines.next().unwrap().unwrap(), "note: stopped");
    writeln!(input, "/exit").unwrap();
    drop(out);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
