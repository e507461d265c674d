//! Runs random placements for as long as wanted: see `minfer_graph::conformance::placements`.
//!
//! `cargo run --release -p minfer-backend-cpu --example placements_soak -- --cases 1000000 --seed 1000000`

use std::process::ExitCode;
use std::time::Instant;

use minfer_backend_cpu::{CpuBackend, CpuConfig};
use minfer_graph::Backend;
use minfer_graph::conformance::placements::{self, Coverage, Options};
use minfer_graph::devices::ReferenceDevice;

const USAGE: &str =
    "usage: placements_soak [--cases N] [--seed FIRST] [--device cpu|reference] [--threads N]";

/// What is wanted.
struct Wanted {
    cases: u64,
    seed: u64,
    threads: usize,
    reference: bool,
}

fn parse(mut args: impl Iterator<Item = String>) -> Option<Wanted> {
    let mut wanted = Wanted { cases: 1_000_000, seed: 1_000_000, threads: 1, reference: false };
    while let Some(flag) = args.next() {
        let value = args.next()?;
        match flag.as_str() {
            "--cases" => wanted.cases = value.parse().ok()?,
            "--seed" => wanted.seed = value.parse().ok()?,
            "--threads" => wanted.threads = value.parse().ok()?,
            "--device" => wanted.reference = ["cpu", "reference"].iter().position(|d| *d == value)? == 1,
            _ => return None,
        }
    }
    Some(wanted)
}

fn main() -> ExitCode {
    let Some(Wanted { cases, seed, threads, reference }) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let config = CpuConfig { threads, threads_batch: threads, isa: None };
    let mut make = || -> Box<dyn Backend> {
        if reference {
            return Box::new(ReferenceDevice::default());
        }
        Box::new(CpuBackend::new(&config).expect("the threads asked for"))
    };
    println!("{cases} cases from seed {seed} on; {}", make().info().description);
    let (start, mut passed, mut skipped, mut sum) = (Instant::now(), 0, 0, Coverage::default());
    while passed + skipped < cases {
        let done = passed + skipped;
        let options = Options { first: seed + done, cases: (cases - done).min(10_000), ..Options::default() };
        let report = placements::run(&mut make, &options);
        passed += report.passed;
        skipped += report.skipped;
        sum.add(&report.coverage);
        println!("{passed} passed, {skipped} skipped, {:.0} s", start.elapsed().as_secs_f64());
        if report.failure.is_some() {
            println!("{report}");
            return ExitCode::FAILURE;
        }
    }
    println!("{sum:?}");
    ExitCode::SUCCESS
}
