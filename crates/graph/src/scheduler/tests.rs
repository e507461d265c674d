//! Inputs: never shared, never freed, valid for one run.

use proptest::prelude::*;

use crate::devices::ReferenceDevice;
use crate::tests::common::model::noise;
use crate::tests::random::{samples, scattered};
use crate::{DType, ExecError, GraphBuilder, NodeId, PlanOptions, Scheduler, WeightTable};

fn two() -> Scheduler {
    Scheduler::new(vec![Box::new(ReferenceDevice::new("a")), Box::new(ReferenceDevice::new("b"))])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn inv02_inputs_read_back_as_written_before_and_after_a_run(sample in samples(30), seed in any::<u64>()) {
        let (mut scheduler, fence) = (two(), scattered(2, seed));
        let plan = scheduler.plan(sample.graph.clone(), &PlanOptions { rules: &fence, ..PlanOptions::default() }).unwrap();
        let mut plan = scheduler.bind(plan, &sample.source(), &mut |_, _| {}).unwrap();
        sample.feed(&mut scheduler, &mut plan);
        for _ in 0..2 {
            for input in &plan.inputs {
                let written: Vec<u32> = match sample.f32s.iter().find(|(id, _)| *id == input.node) {
                    Some((_, values)) => values.iter().map(|v| v.to_bits()).collect(),
                    None => {
                        let values = sample.i32s.iter().find(|(id, _)| *id == input.node);
                        values.unwrap().1.iter().map(|&v| v as u32).collect()
                    }
                };
                for &(device, buffer) in &input.readers {
                    let mut found = vec![0u32; written.len()];
                    let backend = &mut scheduler.devices[device.index()].backend;
                    backend.read(buffer, bytemuck::cast_slice_mut(&mut found)).unwrap();
                    prop_assert_eq!(&found, &written);
                }
            }
            let _ = scheduler.execute(&mut plan);
        }
    }
}

/// `y = x · 2`, with an input that nobody reads.
fn doubling(scheduler: &mut Scheduler) -> (crate::BoundPlan, [NodeId; 3]) {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1, 8]);
    let unread = b.input("unread", DType::I32, [3]);
    let y = b.scale("y", x, 2.0);
    b.output(y);
    let plan = scheduler.plan(b.finish().unwrap(), &PlanOptions::default()).unwrap();
    let source = std::sync::Arc::new(WeightTable::new()) as _;
    (scheduler.bind(plan, &source, &mut |_, _| {}).unwrap(), [x, unread, y])
}

#[test]
fn every_input_is_written_for_every_run_even_one_that_nobody_reads() {
    let mut scheduler = two();
    let (mut plan, [x, unread, y]) = doubling(&mut scheduler);
    let missing = |label: &str| ExecError::InputNotWritten { label: label.to_owned() };
    assert_eq!(scheduler.execute(&mut plan), Err(missing("x")));
    scheduler.write_f32(&mut plan, x, &noise(1, 8)).unwrap();
    assert_eq!(scheduler.execute(&mut plan), Err(missing("unread")));
    scheduler.write_i32(&mut plan, unread, &[1, 2, 3]).unwrap();
    scheduler.execute(&mut plan).unwrap();
    let mut out = [0.0; 8];
    scheduler.read_f32(&plan, y, &mut out).unwrap();
    assert_eq!(out.to_vec(), noise(1, 8).iter().map(|x| 2.0 * x).collect::<Vec<f32>>());
    assert_eq!(scheduler.execute(&mut plan), Err(missing("x")));
}

#[test]
fn wrong_data_is_refused_by_length_type_and_node() {
    let mut scheduler = two();
    let (mut plan, [x, unread, y]) = doubling(&mut scheduler);
    let text = |e: Result<(), ExecError>| e.unwrap_err().to_string();
    assert_eq!(text(scheduler.write_f32(&mut plan, x, &[0.0; 7])), "x takes input F32 [1×8], given 7 × F32");
    assert_eq!(text(scheduler.write_i32(&mut plan, x, &[0; 8])), "x takes input F32 [1×8], given 8 × I32");
    assert_eq!(
        text(scheduler.write_f32(&mut plan, unread, &[0.0; 3])),
        "unread takes input I32 [3], given 3 × F32"
    );
    assert_eq!(text(scheduler.write_f32(&mut plan, y, &[0.0; 8])), "y takes scale F32 [1×8], given 8 × F32");
    assert_eq!(
        text(scheduler.read_f32(&plan, y, &mut [0.0; 9])),
        "y takes F32 [1×8], given room for 9 × F32"
    );
    assert_eq!(
        text(scheduler.read_f32(&plan, x, &mut [0.0; 8])),
        "x takes F32 [1×8], given room for 8 × F32"
    );
    let beyond = NodeId(17);
    assert!(scheduler.write_f32(&mut plan, beyond, &[0.0; 8]).is_err());
    assert!(scheduler.read_f32(&plan, beyond, &mut [0.0; 8]).is_err());
}

#[test]
fn plans_share_buffers_so_one_s_inputs_and_outputs_do_not_survive_the_other() {
    let mut scheduler = two();
    let (mut first, [x, unread, y]) = doubling(&mut scheduler);
    let (mut second, _) = doubling(&mut scheduler);
    let feed = |s: &mut Scheduler, plan: &mut crate::BoundPlan, seed| {
        s.write_f32(plan, x, &noise(seed, 8)).unwrap();
        s.write_i32(plan, unread, &[0; 3]).unwrap();
    };
    // The second plan's inputs lie where the first one's are.
    feed(&mut scheduler, &mut first, 1);
    feed(&mut scheduler, &mut second, 2);
    assert_eq!(scheduler.execute(&mut first), Err(ExecError::InputNotWritten { label: "x".to_owned() }));
    scheduler.execute(&mut second).unwrap();

    // And its outputs where the first one's were.
    feed(&mut scheduler, &mut first, 3);
    scheduler.execute(&mut first).unwrap();
    let mut out = [0.0; 8];
    scheduler.read_f32(&first, y, &mut out).unwrap();
    let gone = Err(ExecError::OutputNotComputed { label: "y".to_owned() });
    assert_eq!(scheduler.read_f32(&second, y, &mut out), gone);
    feed(&mut scheduler, &mut second, 4);
    assert_eq!(scheduler.read_f32(&first, y, &mut out), gone);
}

#[test]
fn a_plan_of_another_scheduler_is_stale() {
    let (mut one, mut other) = (two(), two());
    let (mut plan, [x, ..]) = doubling(&mut one);
    doubling(&mut other);
    assert_eq!(other.write_f32(&mut plan, x, &[0.0; 8]), Err(ExecError::Stale));
    assert_eq!(other.execute(&mut plan), Err(ExecError::Stale));
    one.write_f32(&mut plan, x, &[0.0; 8]).unwrap();
}

#[test]
fn poison_takes_inputs_and_outputs_away() {
    let mut scheduler = two();
    let (mut plan, [x, unread, y]) = doubling(&mut scheduler);
    scheduler.write_f32(&mut plan, x, &[1.0; 8]).unwrap();
    scheduler.write_i32(&mut plan, unread, &[0; 3]).unwrap();
    scheduler.execute(&mut plan).unwrap();
    // The inputs of the run that is over do not come back.
    scheduler.poison().unwrap();
    let error = scheduler.execute(&mut plan).unwrap_err();
    assert_eq!(error, ExecError::InputNotWritten { label: "x".to_owned() });

    scheduler.write_f32(&mut plan, x, &[1.0; 8]).unwrap();
    scheduler.write_i32(&mut plan, unread, &[0; 3]).unwrap();
    scheduler.execute(&mut plan).unwrap();
    let mut out = [0.0; 8];
    scheduler.read_f32(&plan, y, &mut out).unwrap();
    scheduler.write_f32(&mut plan, x, &[1.0; 8]).unwrap();
    scheduler.write_i32(&mut plan, unread, &[0; 3]).unwrap();
    scheduler.poison().unwrap();
    let error = scheduler.read_f32(&plan, y, &mut out).unwrap_err();
    assert_eq!(error, ExecError::OutputNotComputed { label: "y".to_owned() });
    let error = scheduler.execute(&mut plan).unwrap_err();
    assert_eq!(error, ExecError::InputNotWritten { label: "x".to_owned() });
    // What was in the buffers is gone from the device that computes.
    let mut words = [0; 8];
    let (device, buffer) = plan.inputs[0].readers[0];
    scheduler.devices[device.index()].backend.read(buffer, bytemuck::cast_slice_mut(&mut words)).unwrap();
    assert_eq!(words, [f32::NAN.to_bits(); 8]);
}

#[test]
fn what_is_unbound_is_freed_on_its_device() {
    let mut scheduler = two();
    let (mut plan, [x, unread, _]) = doubling(&mut scheduler);
    scheduler.write_f32(&mut plan, x, &[1.0; 8]).unwrap();
    scheduler.write_i32(&mut plan, unread, &[0; 3]).unwrap();
    // Watching makes programs of single operations.
    struct Nothing;
    impl crate::Watch for Nothing {
        fn ran(&mut self, _: &crate::NodeReport<'_>) {}
    }
    scheduler.execute_watched(&mut plan, &mut Nothing).unwrap();
    let step = &plan.steps[0];
    let (device, programs) = (step.device.index(), [step.program, step.singles[0]]);
    for program in programs {
        scheduler.devices[device].backend.launch(program).unwrap();
    }
    scheduler.unbind(plan);
    for program in programs {
        let error = scheduler.devices[device].backend.launch(program).unwrap_err();
        assert_eq!(error.to_string(), format!("program {} was released", program.0));
    }
}
