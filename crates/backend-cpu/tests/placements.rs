//! Random graphs on random placements over the CPU and two simulated devices with its kernels.

use minfer_backend_cpu::{CpuBackend, CpuConfig};
use minfer_graph::Backend;
use minfer_graph::conformance::placements::{self, Options};

/// Cases on so many threads; fewer in a debug build, where they would take minutes.
fn pass(threads: usize, first: u64, cases: u64) {
    let config = CpuConfig { threads, threads_batch: threads, isa: None };
    let mut make = || -> Box<dyn Backend> { Box::new(CpuBackend::new(&config).unwrap()) };
    let cases = if cfg!(debug_assertions) { cases / 10 } else { cases };
    let options = Options { first, cases, ..Options::default() }.or_env();
    let report = placements::run(&mut make, &options);
    report.assert_passed();
    assert_eq!((report.passed, report.skipped), (options.cases, 0));
}

#[test]
fn any_placement_gives_the_bits_of_one_cpu_first_half() {
    pass(1, 20_000, 10_000);
}

#[test]
fn any_placement_gives_the_bits_of_one_cpu_second_half() {
    pass(1, 30_000, 10_000);
}

#[test]
fn any_placement_gives_the_bits_of_one_cpu_on_two_threads() {
    pass(2, 40_000, 200);
}
