//! Simulated devices under a scheduler, and wrappers that break what they promise.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod hand;
pub mod sample;

use std::sync::Arc;
use std::time::Duration;

use minfer_graph::devices::{ReferenceDevice, SimControl, SimDevice, SimOptions, World};
use minfer_graph::{
    Backend, BoundOp, BoundPlan, BufferId, DeviceError, DeviceInfo, Event, Graph, KvTable, OpQuery,
    PlanOptions, ProgramId, RecordingId, Scheduler, StateDecl, StateHandle, WeightHandle, WeightRequest,
    WeightSource, WeightTable,
};

/// Options of a device that takes the operations named.
pub fn takes(names: &'static [&'static str]) -> SimOptions {
    SimOptions::default().taking(move |q| names.contains(&q.op.name()))
}

/// A simulated device with the reference device's kernels.
pub fn sim(world: &World, name: &str, options: SimOptions) -> SimDevice {
    world.device(name, Box::new(ReferenceDevice::new(name)), options)
}

/// A scheduler over simulated devices of one world.
pub struct Rig {
    pub world: World,
    pub controls: Vec<SimControl>,
    pub scheduler: Scheduler,
}

/// Simulated devices, the preferred one first.
pub fn rig(devices: &[(&str, SimOptions)]) -> Rig {
    rig_of(devices.iter().map(|(name, options)| (*name, options.clone(), ())))
}

/// Simulated devices, each with something around it.
pub fn rig_of<'a, A: Around + 'static>(devices: impl IntoIterator<Item = (&'a str, SimOptions, A)>) -> Rig {
    let world = World::new();
    let mut controls = Vec::new();
    let mut boxed: Vec<Box<dyn Backend>> = Vec::new();
    for (name, options, around) in devices {
        let device = sim(&world, name, options);
        controls.push(device.control());
        boxed.push(Box::new(Wrapped { device, around }));
    }
    Rig { world, controls, scheduler: Scheduler::new(boxed) }
}

impl Rig {
    /// Plans and binds a graph without weights.
    pub fn bind(&mut self, graph: &Graph) -> BoundPlan {
        bind(&mut self.scheduler, graph)
    }

    /// The bytes in use, by device.
    pub fn bytes(&self) -> Vec<u64> {
        self.controls.iter().map(|c| c.counts().bytes).collect()
    }
}

/// Plans and binds a graph without weights.
pub fn bind(scheduler: &mut Scheduler, graph: &Graph) -> BoundPlan {
    let plan = scheduler.plan(graph.clone(), &PlanOptions::default()).unwrap();
    scheduler.bind(plan, &no_weights(), &mut |_, _| {}).unwrap()
}

pub fn no_weights() -> Arc<dyn WeightSource> {
    Arc::new(WeightTable::new())
}

/// What a [`Wrapped`] device does differently.
pub trait Around: Send {
    fn compile(&mut self, device: &mut SimDevice, ops: &[BoundOp]) -> Result<ProgramId, DeviceError> {
        device.compile(ops)
    }
    fn launch(&mut self, device: &mut SimDevice, program: ProgramId) -> Result<(), DeviceError> {
        device.launch(program)
    }
    fn wait(&mut self, device: &mut SimDevice, event: Event, deadline: Duration) -> Result<(), DeviceError> {
        device.wait(event, deadline)
    }
    fn begin_recording(&mut self, device: &mut SimDevice) -> Result<(), DeviceError> {
        device.begin_recording()
    }
    fn address_generation(&self, device: &SimDevice) -> u64 {
        device.address_generation()
    }
}

/// Nothing is different.
impl Around for () {}

/// A simulated device with something around it.
pub struct Wrapped<A> {
    pub device: SimDevice,
    pub around: A,
}

impl<A: Around> Backend for Wrapped<A> {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }
    fn name(&self) -> String {
        self.device.name()
    }
    fn supports(&self, query: &OpQuery<'_>) -> bool {
        self.device.supports(query)
    }
    fn load_weight(&mut self, request: &WeightRequest<'_>) -> Result<WeightHandle, DeviceError> {
        self.device.load_weight(request)
    }
    fn create_state(&mut self, decl: &StateDecl) -> Result<StateHandle, DeviceError> {
        self.device.create_state(decl)
    }
    fn release_state(&mut self, state: StateHandle) {
        self.device.release_state(state);
    }
    fn allocate(&mut self, bytes: usize) -> Result<BufferId, DeviceError> {
        self.device.allocate(bytes)
    }
    fn release(&mut self, buffer: BufferId) {
        self.device.release(buffer);
    }
    fn compile(&mut self, ops: &[BoundOp]) -> Result<ProgramId, DeviceError> {
        self.around.compile(&mut self.device, ops)
    }
    fn release_program(&mut self, program: ProgramId) {
        self.device.release_program(program);
    }
    fn launch(&mut self, program: ProgramId) -> Result<(), DeviceError> {
        self.around.launch(&mut self.device, program)
    }
    fn synchronize(&mut self, deadline: Duration) -> Result<(), DeviceError> {
        self.device.synchronize(deadline)
    }
    fn mark(&mut self) -> Event {
        self.device.mark()
    }
    fn wait(&mut self, event: Event, deadline: Duration) -> Result<(), DeviceError> {
        self.around.wait(&mut self.device, event, deadline)
    }
    fn write(&mut self, buffer: BufferId, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write(buffer, bytes)
    }
    fn read(&mut self, buffer: BufferId, out: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(buffer, out)
    }
    fn read_state(
        &mut self,
        state: StateHandle,
        table: KvTable,
        first_slot: usize,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.device.read_state(state, table, first_slot, out)
    }
    fn can_record(&self) -> bool {
        self.device.can_record()
    }
    fn begin_recording(&mut self) -> Result<(), DeviceError> {
        self.around.begin_recording(&mut self.device)
    }
    fn end_recording(&mut self) -> Result<RecordingId, DeviceError> {
        self.device.end_recording()
    }
    fn replay(&mut self, recording: RecordingId) -> Result<(), DeviceError> {
        self.device.replay(recording)
    }
    fn release_recording(&mut self, recording: RecordingId) {
        self.device.release_recording(recording);
    }
    fn address_generation(&self) -> u64 {
        self.around.address_generation(&self.device)
    }
}
