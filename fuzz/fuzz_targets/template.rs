//! Runs [`minfer_fuzz::template::run`] under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    minfer_fuzz::template::run(data);
});
