//! Devices that watch, restrict or spoil a reference device.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod model;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use minfer_graph::devices::ReferenceDevice;
use minfer_graph::{
    Backend, BoundOp, BoundPlan, BufferId, DeviceError, DeviceInfo, KvTable, NodeId, Op, OpQuery, Operand,
    Place, ProgramId, Scheduler, StateDecl, StateHandle, WeightHandle, WeightRequest,
};

/// What a [`Hooked`] device does differently.
pub trait Hooks: Send {
    fn supports(&self, _query: &OpQuery<'_>) -> bool {
        true
    }

    /// Changes an operation before it is compiled.
    fn rewrite(&self, _op: &mut BoundOp) {}

    /// Runs one operation, which is compiled as a program of its own.
    fn run(
        &mut self,
        device: &mut ReferenceDevice,
        op: &BoundOp,
        program: ProgramId,
    ) -> Result<(), DeviceError> {
        let _ = op;
        device.launch(program)
    }
}

/// A reference device with hooks around every operation.
pub struct Hooked<H> {
    pub inner: ReferenceDevice,
    pub hooks: H,
    programs: Vec<Vec<(BoundOp, ProgramId)>>,
}

impl<H: Hooks + 'static> Hooked<H> {
    pub fn boxed(name: &str, hooks: H) -> Box<dyn Backend> {
        Box::new(Self { inner: ReferenceDevice::new(name), hooks, programs: Vec::new() })
    }
}

impl<H: Hooks> Backend for Hooked<H> {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }
    fn supports(&self, query: &OpQuery<'_>) -> bool {
        self.hooks.supports(query) && self.inner.supports(query)
    }
    fn load_weight(&mut self, request: &WeightRequest<'_>) -> Result<WeightHandle, DeviceError> {
        self.inner.load_weight(request)
    }
    fn create_state(&mut self, decl: &StateDecl) -> Result<StateHandle, DeviceError> {
        self.inner.create_state(decl)
    }
    fn release_state(&mut self, state: StateHandle) {
        self.inner.release_state(state);
    }
    fn allocate(&mut self, bytes: usize) -> Result<BufferId, DeviceError> {
        self.inner.allocate(bytes)
    }
    fn release(&mut self, buffer: BufferId) {
        self.inner.release(buffer);
    }
    fn compile(&mut self, ops: &[BoundOp]) -> Result<ProgramId, DeviceError> {
        let mut program = Vec::new();
        for op in ops {
            let mut op = op.clone();
            self.hooks.rewrite(&mut op);
            let id = self.inner.compile(std::slice::from_ref(&op))?;
            program.push((op, id));
        }
        self.programs.push(program);
        Ok(ProgramId(self.programs.len() as u32 - 1))
    }
    fn release_program(&mut self, program: ProgramId) {
        for (_, id) in std::mem::take(&mut self.programs[program.0 as usize]) {
            self.inner.release_program(id);
        }
    }
    fn launch(&mut self, program: ProgramId) -> Result<(), DeviceError> {
        for (op, id) in &self.programs[program.0 as usize] {
            self.hooks.run(&mut self.inner, op, *id)?;
        }
        Ok(())
    }
    fn synchronize(&mut self, deadline: Duration) -> Result<(), DeviceError> {
        self.inner.synchronize(deadline)
    }
    fn write(&mut self, buffer: BufferId, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.write(buffer, bytes)
    }
    fn read(&mut self, buffer: BufferId, out: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(buffer, out)
    }
    fn read_state(
        &mut self,
        state: StateHandle,
        table: KvTable,
        first_slot: usize,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.inner.read_state(state, table, first_slot, out)
    }
}

/// The content of a value in a buffer, as 32-bit words.
pub fn read_words(device: &mut ReferenceDevice, operand: &Operand) -> Vec<u32> {
    let Place::Buffer(buffer) = operand.place else { panic!("{operand:?} is not in a buffer") };
    let mut words = vec![0u32; operand.shape.len()];
    device.read(buffer, bytemuck::cast_slice_mut(&mut words)).unwrap();
    words
}

pub fn read_f32(device: &mut ReferenceDevice, operand: &Operand) -> Vec<f32> {
    read_words(device, operand).into_iter().map(f32::from_bits).collect()
}

pub fn write_words(device: &mut ReferenceDevice, operand: &Operand, words: &[u32]) {
    let Place::Buffer(buffer) = operand.place else { panic!("{operand:?} is not in a buffer") };
    device.write(buffer, bytemuck::cast_slice(words)).unwrap();
}

pub fn write_f32(device: &mut ReferenceDevice, operand: &Operand, values: &[f32]) {
    write_words(device, operand, bytemuck::cast_slice(values));
}

/// Runs only what a predicate allows.
pub struct Only<F>(pub F);

impl<F: Fn(&OpQuery<'_>) -> bool + Send> Hooks for Only<F> {
    fn supports(&self, query: &OpQuery<'_>) -> bool {
        (self.0)(query)
    }
}

/// A device named `name` that runs only what `allow` allows.
pub fn only(name: &str, allow: impl Fn(&OpQuery<'_>) -> bool + Send + 'static) -> Box<dyn Backend> {
    Hooked::boxed(name, Only(allow))
}

/// The nodes that ran, over all devices that share the list.
pub type Log = Arc<Mutex<Vec<NodeId>>>;

/// Notes each node that runs; the one with the number `fail` fails instead.
pub struct Logged {
    pub log: Log,
    pub fail: Arc<Mutex<Option<usize>>>,
}

impl Hooks for Logged {
    fn run(
        &mut self,
        device: &mut ReferenceDevice,
        op: &BoundOp,
        program: ProgramId,
    ) -> Result<(), DeviceError> {
        let mut log = self.log.lock().unwrap();
        if *self.fail.lock().unwrap() == Some(log.len()) {
            return Err(DeviceError::Kernel { node: op.node, what: "injected".to_owned() });
        }
        log.push(op.node);
        device.launch(program)
    }
}

/// Runs with f32 inputs and gives one output.
pub fn run(
    scheduler: &mut Scheduler,
    plan: &mut BoundPlan,
    inputs: &[(NodeId, &[f32])],
    output: NodeId,
) -> Vec<f32> {
    for (id, values) in inputs {
        scheduler.write_f32(plan, *id, values).unwrap();
    }
    scheduler.execute(plan).unwrap();
    let mut out = vec![0.0; plan.plan().graph().node(output).shape.len()];
    scheduler.read_f32(plan, output, &mut out).unwrap();
    out
}

/// Whether an operation has one of these names.
pub fn is(op: &Op, names: &[&str]) -> bool {
    names.contains(&op.name())
}
