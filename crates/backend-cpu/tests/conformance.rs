//! The suite that every backend runs, on every instruction set of this machine and on one and several threads.

use minfer_backend_cpu::{CpuBackend, CpuConfig, Isa};
use minfer_graph::Backend;
use minfer_graph::conformance::{self, Options};

fn passes(isa: Isa, threads: usize) {
    let config = CpuConfig { threads, threads_batch: threads, isa: Some(isa) };
    let mut make = || -> Box<dyn Backend> { Box::new(CpuBackend::new(&config).unwrap()) };
    let report = conformance::run(&mut make, &Options { activation_bits: Some(8), ..Options::default() });
    report.assert_passed();
    assert!(report.passed > 1500, "{isa}, {threads} threads: {report}");
    // What is computed is neither packed as a matrix nor added within a product.
    let computed = |case: &str| {
        case == "mat_mul by a computed matrix" || case.starts_with("mat_mul_add") && case.contains(" full")
    };
    let others: Vec<&String> = report.skipped.iter().filter(|case| !computed(case)).collect();
    assert!(others.is_empty(), "{isa}, {threads} threads skipped {others:?}");
}

#[test]
fn the_best_instruction_set_passes() {
    passes(Isa::detect(), 1);
}

#[test]
fn several_threads_pass() {
    passes(Isa::detect(), 3);
}

#[test]
fn every_other_instruction_set_passes() {
    for isa in Isa::available().filter(|&isa| isa != Isa::detect()) {
        passes(isa, 2);
    }
}
