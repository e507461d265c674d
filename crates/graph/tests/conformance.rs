//! The conformance suite on the reference device, and on devices that are wrong on purpose: each fault must
//! be reported, and nothing but the fault.

mod common;

use common::{Hooked, Hooks, read_f32, read_words, write_f32, write_words};
use minfer_graph::conformance::{self, Options, Report};
use minfer_graph::devices::ReferenceDevice;
use minfer_graph::{Activation, Backend, BoundOp, DeviceError, Op, ProgramId};

#[test]
fn the_reference_device_passes_every_case() {
    let mut make = || -> Box<dyn Backend> { Box::new(ReferenceDevice::default()) };
    let report = conformance::run(&mut make, &Options::default());
    report.assert_passed();
    assert_eq!(report.skipped, Vec::<String>::new());
    assert!(report.passed > 2000, "{report}");
}

/// The suite's cases whose name contains `filter`, on devices with these hooks.
fn run_with<H: Hooks + 'static>(filter: &str, options: Options, hooks: impl Fn() -> H) -> Report {
    let options = Options { filter: Some(filter.to_owned()), ..options };
    conformance::run(&mut || Hooked::boxed("spoiled", hooks()), &options)
}

fn failed(report: &Report) -> Vec<&str> {
    report.failures.iter().map(|f| f.case.as_str()).collect()
}

/// Asserts that exactly the cases whose name satisfies `wrong` failed, and that there are such cases.
#[track_caller]
fn assert_only(report: &Report, wrong: impl Fn(&str) -> bool, passed_at_least: usize) {
    assert!(!report.failures.is_empty(), "the fault was not seen: {report}");
    let innocent: Vec<&str> = failed(report).into_iter().filter(|c| !wrong(c)).collect();
    assert_eq!(innocent, Vec::<&str>::new());
    assert!(report.passed >= passed_at_least, "{report}");
}

/// Changes an operation before it is compiled.
struct Rewrite(fn(&mut BoundOp));

impl Hooks for Rewrite {
    fn rewrite(&self, op: &mut BoundOp) {
        (self.0)(op);
    }
}

/// Runs code in place of the launch.
struct Run(fn(&mut ReferenceDevice, &BoundOp, ProgramId) -> Result<(), DeviceError>);

impl Hooks for Run {
    fn run(
        &mut self,
        device: &mut ReferenceDevice,
        op: &BoundOp,
        program: ProgramId,
    ) -> Result<(), DeviceError> {
        (self.0)(device, op, program)
    }
}

#[test]
fn inv20_an_element_that_is_not_written_is_reported_for_every_operation() {
    let skip_last = |device: &mut ReferenceDevice, op: &BoundOp, program: ProgramId| {
        if matches!(op.op, Op::KvStore) {
            return device.launch(program);
        }
        let before = read_words(device, &op.result);
        device.launch(program)?;
        let mut after = read_words(device, &op.result);
        let last = after.len() - 1;
        after[last] = before[last];
        write_words(device, &op.result, &after);
        Ok(())
    };
    let mut names: Vec<&str> = vec![
        "add [",
        "mul [",
        "scale ",
        "softcap ",
        "silu ",
        "gelu ",
        "rms_norm [",
        "rope ",
        "mat_mul Q4_K",
        "get_rows",
    ];
    names.extend(["attention ragged", "rms_norm_mul", "mat_mul_add Q8_0", "silu_mul", "gelu_mul"]);
    for name in names {
        let report = run_with(name, Options::default(), || Run(skip_last));
        // What is refused writes nothing anyway. An operation in place finds its last element unchanged,
        // which shows too, except where the operation does not change it.
        let passed = report.passed - report_refusals(name);
        assert!(report.failures.len() > 10 * passed, "{name}: {report}");
    }
}

fn report_refusals(name: &str) -> usize {
    let refusals = format!("{name} refuses");
    let count = |filter: &str| {
        let mut make = || -> Box<dyn Backend> { Box::new(ReferenceDevice::default()) };
        let options = Options { filter: Some(filter.to_owned()), ..Options::default() };
        conformance::run(&mut make, &options).passed
    };
    if name == "get_rows" { count(" refuses id") } else { count(&refusals) + usize::from(name == "rope ") }
}

#[test]
fn a_device_that_ignores_the_window_is_reported() {
    let report = run_with("attention", Options::default(), || {
        Rewrite(|op| {
            if let Op::Attention(a) = &mut op.op {
                a.window = None;
            }
        })
    });
    // A window that nothing exceeds changes nothing.
    assert_only(&report, |case| case.contains("window") && !case.contains("window 1000"), 50);
}

#[test]
fn inv25_a_device_that_mixes_up_kv_heads_is_reported() {
    let report = run_with("attention", Options::default(), || {
        Run(|device, op, program| {
            if !matches!(op.op, Op::KvStore) {
                return device.launch(program);
            }
            let v = read_words(device, &op.sources[2]);
            let dims = op.sources[2].shape;
            let (heads, dim) = (dims.dims()[1], dims.dims()[2]);
            let mut turned = v.clone();
            turned.chunks_exact_mut(heads * dim).for_each(|row| row.rotate_left(dim));
            write_words(device, &op.sources[2], &turned);
            let result = device.launch(program);
            write_words(device, &op.sources[2], &v);
            result
        })
    });
    assert_only(&report, |case| !case.contains(" 1/1×") && !case.contains(" 5/1×"), 10);
}

#[test]
fn inv05_a_device_that_reads_rows_nobody_wrote_is_reported() {
    let report = run_with("attention ragged", Options::default(), || {
        Run(|device, op, program| {
            if !matches!(op.op, Op::Attention(_)) {
                return device.launch(program);
            }
            // Every token looks one position too far, within its page.
            let positions = read_words(device, &op.sources[2]);
            let page = op.state.unwrap().page as u32;
            let beyond: Vec<u32> =
                positions.iter().map(|p| if (p + 1) % page == 0 { *p } else { p + 1 }).collect();
            write_words(device, &op.sources[2], &beyond);
            let result = device.launch(program);
            write_words(device, &op.sources[2], &positions);
            result
        })
    });
    assert_only(&report, |case| !case.contains("page 1 "), 0);
    assert!(report.failures.iter().all(|f| f.what.contains("NaN") || f.what.contains("instead of")));
}

#[test]
fn inv08_attention_that_rounds_differently_in_a_batch_is_reported() {
    // One unit in the last place, far within the tolerance, whenever there is more than one token.
    let report = run_with("attention", Options::default(), || {
        Run(|device, op, program| {
            device.launch(program)?;
            if matches!(op.op, Op::Attention(_)) && op.result.shape.rows() > 1 {
                let off: Vec<u32> = read_words(device, &op.result).iter().map(|x| x ^ 1).collect();
                write_words(device, &op.result, &off);
            }
            Ok(())
        })
    });
    assert_only(&report, |case| case.contains("chunked") || case.contains("long"), 50);
    assert!(
        report.failures.len() > 80 && report.failures.iter().all(|f| f.what.contains("to the bit")),
        "{report}"
    );
}

#[test]
fn inv07_a_device_that_does_not_check_index_data_is_reported() {
    let report = run_with("refuses", Options::default(), || {
        Run(|device, _, program| match device.launch(program) {
            Err(DeviceError::Kernel { .. }) => Ok(()),
            other => other,
        })
    });
    assert_eq!(report.passed, 0, "{report}");
    assert!(report.failures.len() > 60, "{report}");
}

#[test]
fn inv07_a_device_that_writes_before_it_checks_is_reported() {
    let report = run_with("kv_store", Options::default(), || {
        Run(|device, op, program| {
            let result = device.launch(program);
            if result.is_err() && matches!(op.op, Op::KvStore) {
                let slots = read_words(device, &op.sources[3]);
                let good: Vec<u32> =
                    slots.iter().map(|&s| s.min(op.state.unwrap().slots as u32 - 1)).collect();
                write_words(device, &op.sources[3], &good);
                device.launch(program)?;
            }
            result
        })
    });
    assert_only(&report, |case| case.contains("refuses slot"), 2);
    assert_eq!(report.passed, 2);
}

#[test]
fn a_device_that_rotates_whole_heads_or_ignores_factors_is_reported() {
    let report = run_with("rope", Options::default(), || {
        Rewrite(|op| {
            if let Op::Rope(rope) = &mut op.op {
                rope.rotary_dim = op.result.shape.width();
                op.sources.truncate(2);
            }
        })
    });
    let partial = |case: &str| case.contains("80 rotary 32") || case.contains("128 rotary 96");
    assert_only(&report, |case| partial(case) || case.contains("factors"), 40);
    assert!(failed(&report).iter().any(|c| partial(c) && !c.contains("factors")));
    assert!(failed(&report).iter().any(|c| !partial(c) && c.contains("factors")));
}

#[test]
fn a_device_that_clears_its_result_before_it_reads_is_reported_in_place() {
    for name in ["add", "mul [", "silu", "rms_norm", "rope"] {
        let report = run_with(name, Options::default(), || {
            Run(|device, op, program| {
                let zeros = vec![0; op.result.shape.len()];
                write_words(device, &op.result, &zeros);
                device.launch(program)
            })
        });
        assert_only(&report, |case| case.contains("in place"), 10);
    }
}

#[test]
fn gelu_that_overflows_at_extremes_is_reported() {
    let report = run_with("gelu", Options::default(), || {
        Run(|device, op, program| {
            if op.op != Op::Activate(Activation::Gelu) {
                return device.launch(program);
            }
            let mut x = read_f32(device, &op.sources[0]);
            for x in &mut x {
                // Where the exponential overflows, this is ∞ / ∞.
                let e = (2.0 * 0.797_884_6 * (*x + 0.044715 * *x * *x * *x)).exp();
                *x = *x * 0.5 * (1.0 + (e - 1.0) / (e + 1.0));
            }
            write_f32(device, &op.result, &x);
            Ok(())
        })
    });
    assert_eq!(failed(&report), ["gelu extremes"], "{report}");
}

/// Rounds the activations of a product to blocks of 8 bits, as integer kernels do.
fn eight_bits(device: &mut ReferenceDevice, op: &BoundOp, program: ProgramId) -> Result<(), DeviceError> {
    if !matches!(op.op, Op::MatMul | Op::MatMulAdd) || !op.sources[0].dtype.is_quantized() {
        return device.launch(program);
    }
    let x = read_f32(device, &op.sources[1]);
    let block = op.sources[0].dtype.block_size();
    let mut rounded = x.clone();
    for block in rounded.chunks_mut(block) {
        let step = block.iter().fold(0f32, |m, x| m.max(x.abs())) / 127.0;
        block.iter_mut().for_each(|x| *x = (*x / step).round() * step);
    }
    write_f32(device, &op.sources[1], &rounded);
    let result = device.launch(program);
    write_f32(device, &op.sources[1], &x);
    result
}

#[test]
fn eight_bit_activations_pass_where_they_are_declared_and_only_there() {
    let declared = Options { activation_bits: Some(8), ..Options::default() };
    run_with("mat_mul", declared.clone(), || Run(eight_bits)).assert_passed();
    let report = run_with("mat_mul", Options::default(), || Run(eight_bits));
    let float = |case: &str| ["F32", "F16", "BF16", "computed"].iter().any(|t| case.contains(t));
    assert_only(&report, |case| !float(case), 100);
    assert!(report.failures.len() > 500, "{report}");

    // The wider bound still sees a column left out.
    let report = run_with("mat_mul ", declared, || {
        Run(|device, op, program| {
            if !matches!(op.op, Op::MatMul) {
                return device.launch(program);
            }
            let x = read_f32(device, &op.sources[1]);
            let k = op.sources[1].shape.width();
            let mut cut = x.clone();
            cut.chunks_exact_mut(k).for_each(|row| row[k - 1] = 0.0);
            write_f32(device, &op.sources[1], &cut);
            let result = device.launch(program);
            write_f32(device, &op.sources[1], &x);
            result
        })
    });
    assert!(report.failures.len() > 2 * report.passed, "{report}");
}
