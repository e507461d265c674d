//! One run: the walk over the splits, part by part.

use std::time::{Duration, Instant};

use super::error::run_error;
use super::registry::Device;
use super::{BoundCopy, BoundPlan, Scheduler, Step};
use crate::watch::{CopyReport, NodeReport, Watch};
use crate::{DeviceError, Event, ExecError, Plan};

impl Scheduler {
    /// Walks the splits and waits for every device used, also where the walk breaks off.
    pub(super) fn walk(
        &mut self,
        bound: &mut BoundPlan,
        mut watch: Option<&mut dyn Watch>,
    ) -> Result<(), ExecError> {
        let BoundPlan { steps, events, used, bounce, plan, .. } = bound;
        for &device in used.iter() {
            self.devices[device.index()].settle(self.deadline)?;
        }
        let mut run = Run { devices: &mut self.devices, deadline: self.deadline, replay: self.replay, plan };
        let mut result = Ok(());
        for (i, step) in steps.iter_mut().enumerate() {
            result = run.step(i, step, events, bounce, &mut watch);
            if result.is_err() {
                break;
            }
        }
        for &device in used.iter() {
            // One that a copy has waited for in vain has had its time; whoever uses it next waits for it first.
            if run.devices[device.index()].overdue {
                continue;
            }
            let end = run.synchronize(device.index());
            result = result.and(end);
        }
        result
    }
}

struct Run<'a> {
    devices: &'a mut [Device],
    deadline: Duration,
    replay: bool,
    plan: &'a Plan,
}

impl Run<'_> {
    fn step(
        &mut self,
        index: usize,
        step: &mut Step,
        events: &mut [Event],
        bounce: &mut [u8],
        watch: &mut Option<&mut dyn Watch>,
    ) -> Result<(), ExecError> {
        for copy in &step.copies {
            let start = watch.is_some().then(Instant::now);
            self.copy(copy, events[copy.made_by], &mut bounce[..copy.bytes])?;
            if let (Some(watch), Some(start)) = (&mut *watch, start) {
                let &BoundCopy { value, from, to, bytes, .. } = copy;
                let (from, to, time) = (from.0, to.0, start.elapsed());
                watch.copied(&CopyReport {
                    plan: self.plan,
                    split: step.split,
                    value,
                    from,
                    to,
                    bytes,
                    time,
                });
            }
        }
        match watch {
            None => self.launch(step)?,
            Some(watch) => self.watched(step, *watch)?,
        }
        if step.is_copied {
            events[index] = self.devices[step.device.index()].backend.mark();
        }
        Ok(())
    }

    /// Waits for what makes the value, no more, and copies it. Its place on the device that reads it is its own, so
    /// that nothing in flight there can be reading it.
    fn copy(&mut self, copy: &BoundCopy, made: Event, host: &mut [u8]) -> Result<(), ExecError> {
        let from = &mut self.devices[copy.from.0.index()];
        from.wait(made, self.deadline).map_err(|e| run_error(&self.plan.graph, from, "waiting", e))?;
        let read = from.backend.read(copy.from.1, host);
        from.noted(read).map_err(|e| from.error("reading a value to copy", e))?;
        let to = &mut self.devices[copy.to.0.index()];
        let written = to.backend.write(copy.to.1, host);
        to.noted(written).map_err(|e| to.error("writing a copied value", e))
    }

    fn launch(&mut self, step: &mut Step) -> Result<(), ExecError> {
        let device = &mut self.devices[step.device.index()];
        device.pending = true;
        device.dispatched.clone_from(&step.title);
        let launched = if self.replay && device.records {
            step.replay.launch(&mut *device.backend, step.program)
        } else {
            device.backend.launch(step.program)
        };
        launched.map_err(|error| run_error(&self.plan.graph, device, "launching", error))
    }

    /// Each operation of a part as a program of its own, waited for and reported.
    fn watched(&mut self, step: &mut Step, watch: &mut dyn Watch) -> Result<(), ExecError> {
        let device = &mut self.devices[step.device.index()];
        while let Some(op) = step.ops.get(step.singles.len()) {
            let compiled = device.backend.compile(std::slice::from_ref(op));
            step.singles.push(compiled.map_err(|e| device.error("compiling an operation to watch", e))?);
        }
        device.dispatched.clone_from(&step.title);
        let mut value: Vec<u8> = Vec::new();
        for (op, &program) in step.ops.iter().zip(&step.singles) {
            let failed = |device: &Device, what, e: DeviceError| run_error(&self.plan.graph, device, what, e);
            let start = Instant::now();
            device.pending = true;
            device.backend.launch(program).map_err(|e| failed(device, "launching", e))?;
            let submit = start.elapsed();
            let start = Instant::now();
            device.synchronize(self.deadline).map_err(|e| failed(device, "waiting", e))?;
            let wait = start.elapsed();
            let buffer = match op.result.place {
                crate::Place::Buffer(buffer) if watch.wants(self.plan, op.node) => Some(buffer),
                _ => None,
            };
            if let Some(buffer) = buffer {
                value.resize(op.result.bytes(), 0);
                let read = device.backend.read(buffer, &mut value);
                read.map_err(|e| device.error("reading a watched value", e))?;
            }
            watch.ran(&NodeReport {
                plan: self.plan,
                split: step.split,
                node: op.node,
                device: step.device,
                submit,
                wait,
                value: buffer.map(|_| value.as_slice()),
            });
        }
        Ok(())
    }

    fn synchronize(&mut self, device: usize) -> Result<(), ExecError> {
        let device = &mut self.devices[device];
        device.synchronize(self.deadline).map_err(|e| run_error(&self.plan.graph, device, "waiting", e))
    }
}
