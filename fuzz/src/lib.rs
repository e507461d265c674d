//! What the fuzz targets do with their input. The engine's test `fuzz_corpus` includes these files too, and replays the
//! corpora on every test run.
//!
//! Each `run` panics on a finding, and tells how far the input came, so that a corpus can be shown to reach the code it
//! is for.

pub mod gguf;
pub mod memory;
pub mod model;
pub mod template;
pub mod tokenizer;

/// Checks what is printed on a terminal: one line, and nothing that a file's author could steer the terminal with.
fn check_message(message: impl std::fmt::Display) {
    let message = message.to_string();
    assert!(!message.is_empty(), "empty message");
    assert!(!message.contains(char::is_control), "message not fit for a terminal: {message:?}");
}
