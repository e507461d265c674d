//! Running a case on a device and on the reference.

use std::sync::Arc;

use super::case::{Case, Data, Expect, SameRow, Step};
use super::tolerance::Tolerance;
use crate::devices::ReferenceDevice;
use crate::{
    Backend, DeviceError, ExecError, Fusion, NodeError, PlanError, PlanOptions, Scheduler, WeightSource,
};

pub(super) enum Outcome {
    Passed,
    /// The device does not claim to run an operation of the case.
    Skipped,
    Failed(String),
}

/// Why a step gave no result.
enum Stop {
    Unsupported,
    Plan(PlanError),
    Run(ExecError),
}

pub(super) fn check(case: &Case, device: Box<dyn Backend>) -> Outcome {
    let source: Arc<dyn WeightSource> = Arc::new(case.weights.clone());
    let mut tested = Scheduler::new(vec![device]);
    let mut reference = Scheduler::new(vec![Box::new(ReferenceDevice::default())]);
    let mut results: Vec<Vec<f32>> = Vec::new();
    for (i, step) in case.steps.iter().enumerate() {
        let failed = |what: String| Outcome::Failed(format!("step {i}: {what}"));
        let got = match run(&mut tested, step, &source) {
            Err(Stop::Unsupported) => return Outcome::Skipped,
            Err(Stop::Plan(error)) => return failed(format!("cannot be planned: {error}")),
            other => other,
        };
        let wanted = match run(&mut reference, step, &source) {
            Ok(values) => Ok(values),
            Err(Stop::Run(error)) => Err(error),
            Err(Stop::Unsupported) => return failed("the reference does not run it".to_owned()),
            Err(Stop::Plan(error)) => return failed(format!("the reference: {error}")),
        };
        let what = match (got, wanted) {
            (Ok(got), Ok(wanted)) => {
                let what = compare(step, &got, &wanted, &results);
                results.push(got);
                what
            }
            (Err(Stop::Run(got)), Err(wanted)) => {
                results.push(Vec::new());
                compare_errors(&step.expect, &got, &wanted)
            }
            (Ok(_), Err(wanted)) => Some(format!("gave a result instead of: {wanted}")),
            (Err(Stop::Run(error)), Ok(_)) => Some(format!("failed: {error}")),
            (Err(_), _) => unreachable!("returned above"),
        };
        if let Some(what) = what {
            return failed(what);
        }
    }
    Outcome::Passed
}

fn run(scheduler: &mut Scheduler, step: &Step, source: &Arc<dyn WeightSource>) -> Result<Vec<f32>, Stop> {
    // The operations of the case themselves are on trial, not what fusion makes of them.
    let options = PlanOptions { fusion: Fusion::none(), ..PlanOptions::default() };
    let plan = scheduler.plan(step.graph.clone(), &options).map_err(|e| match e {
        PlanError::NoDevice { .. } | PlanError::NoStateDevice { .. } => Stop::Unsupported,
        other => Stop::Plan(other),
    })?;
    let mut plan = scheduler.bind(plan, source, &mut |_, _| {}).map_err(Stop::Plan)?;
    let outcome = (|| {
        // An element that the device does not write stays NaN.
        scheduler.poison()?;
        for (input, data) in &step.inputs {
            match data {
                Data::F32(values) => scheduler.write_f32(&mut plan, *input, values)?,
                Data::I32(values) => scheduler.write_i32(&mut plan, *input, values)?,
            }
        }
        scheduler.execute(&mut plan)?;
        let mut out = vec![0.0; step.graph.node(step.output).shape.len()];
        scheduler.read_f32(&plan, step.output, &mut out)?;
        Ok(out)
    })();
    scheduler.unbind(plan);
    outcome.map_err(Stop::Run)
}

fn compare(step: &Step, got: &[f32], wanted: &[f32], results: &[Vec<f32>]) -> Option<String> {
    let Expect::Result(tolerance) = &step.expect else {
        return Some("the reference gave a result where it should refuse".to_owned());
    };
    let width = step.graph.node(step.output).shape.width();
    tolerance.violation(got, wanted).or_else(|| {
        step.same_rows.iter().find_map(|&SameRow { row, step, of }| {
            let (row_of, earlier) = (|v: usize| v * width..(v + 1) * width, &results[step]);
            let what = Tolerance::Exact.violation(&got[row_of(row)], &earlier[row_of(of)])?;
            Some(format!("row {row} is not, to the bit, row {of} of step {step}: {what}"))
        })
    })
}

fn compare_errors(expect: &Expect, got: &ExecError, wanted: &ExecError) -> Option<String> {
    if !matches!(expect, Expect::Error) {
        return Some(format!("the reference failed: {wanted}"));
    }
    match (got, wanted) {
        (ExecError::Node(got), ExecError::Node(wanted)) if same(got, wanted) => None,
        _ => Some(format!("failed with `{got}` instead of `{wanted}`")),
    }
}

/// The same node for the same reason; the position in the split and the device may differ.
fn same(a: &NodeError, b: &NodeError) -> bool {
    let what = |e: &NodeError| match &e.error {
        DeviceError::Kernel { what, .. } => Some(what.clone()),
        _ => None,
    };
    a.node == b.node && what(a).is_some() && what(a) == what(b)
}
