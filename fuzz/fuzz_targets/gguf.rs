//! Runs [`minfer_fuzz::gguf::run`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    minfer_fuzz::gguf::run(data);
});
