//! The simulated device as a [`Backend`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::queue::{Program, Queue, buffer};
use super::{FaultKind, Ran, SimControl, SimOptions, Site, World};
use crate::graph::dtype_bytes;
use crate::{
    Backend, BoundOp, BufferId, DeviceError, DeviceInfo, Event, KvTable, OpQuery, Operand, Place, ProgramId,
    RecordingId, StateDecl, StateHandle, WeightHandle, WeightRequest,
};

/// What memory holds that nobody has written: as f32 a quiet NaN, as i32 an index that nothing has.
const POISON: [u8; 4] = 0x7fc0_0bad_u32.to_le_bytes();

/// An asynchronous device; see the [module](super).
#[derive(Debug)]
pub struct SimDevice {
    name: Arc<str>,
    world: World,
    control: SimControl,
    kernels: Box<dyn Backend>,
    options: SimOptions,
    queue: Queue,
    /// Lengths of the buffers that exist.
    buffers: HashMap<BufferId, usize>,
    states: HashMap<StateHandle, u64>,
    programs: Vec<Option<Arc<Program>>>,
    recordings: Vec<Option<Recording>>,
    /// What is being recorded.
    recording: Option<Vec<Arc<Program>>>,
    /// Bytes of working memory, as much as the largest result of an operation.
    scratch: usize,
    generation: u64,
    /// What failed and has not been reported.
    failed: Option<DeviceError>,
    hangs: bool,
    /// How long copies and allocations may take.
    deadline: Duration,
}

#[derive(Debug)]
struct Recording {
    programs: Vec<Arc<Program>>,
    /// What the addresses in it belong to.
    generation: u64,
}

impl SimDevice {
    pub(super) fn new(name: &str, world: World, kernels: Box<dyn Backend>, options: SimOptions) -> Self {
        Self {
            name: name.into(),
            world,
            control: SimControl::default(),
            kernels,
            options,
            queue: Queue::default(),
            buffers: HashMap::new(),
            states: HashMap::new(),
            programs: Vec::new(),
            recordings: Vec::new(),
            recording: None,
            scratch: 0,
            generation: 0,
            failed: None,
            hangs: false,
            deadline: Duration::from_secs(1),
        }
    }

    /// Injects faults into this device and counts what it does.
    pub fn control(&self) -> SimControl {
        self.control.clone()
    }

    /// Refuses what must not happen while launches are recorded.
    fn closed_while_recording(&self, what: &str) -> Result<(), DeviceError> {
        if self.recording.is_some() || self.world.is_closed() {
            return Err(DeviceError::Failed(format!("{what} while a recording is made")));
        }
        Ok(())
    }

    /// Memory is asked for: room, and the fault that may be due.
    fn take_memory(&mut self, bytes: u64, what: &str) -> Result<(), DeviceError> {
        self.closed_while_recording("an allocation")?;
        let used = self.control.counts().bytes;
        let free = self.options.memory.map(|m| m.saturating_sub(used));
        match self.control.reach(Site::Allocation) {
            None if free.is_none_or(|f| bytes <= f) => {}
            Some(FaultKind::Hang) => return Err(self.late()),
            _ => {
                let what = what.to_owned();
                return Err(DeviceError::OutOfMemory { what, wanted: bytes as usize, free });
            }
        }
        self.control.count(|c| c.bytes += bytes);
        Ok(())
    }

    /// A call that hangs takes as long as it may.
    fn late(&self) -> DeviceError {
        self.world.pass(self.deadline);
        DeviceError::Timeout { waited: self.deadline }
    }

    fn free_memory(&mut self, bytes: u64) {
        self.control.count(|c| c.bytes -= bytes);
    }

    /// A copy between host and device happens: its time, and the fault that may be due.
    fn copy(&mut self, bytes: usize) -> Result<(), DeviceError> {
        self.closed_while_recording("a copy")?;
        self.world.pass(self.options.copy + seconds(bytes, self.options.link));
        match self.control.reach(Site::Copy) {
            None => Ok(()),
            Some(FaultKind::Fail) => Err(DeviceError::Failed("injected failure of a copy".to_owned())),
            Some(FaultKind::Hang) => Err(self.late()),
        }
    }

    fn program(&self, program: ProgramId) -> Result<Arc<Program>, DeviceError> {
        let found = self.programs.get(program.0 as usize).and_then(Option::as_ref);
        let program =
            found.ok_or_else(|| DeviceError::Failed(format!("program {} does not exist", program.0)))?;
        self.check(program)?;
        Ok(Arc::clone(program))
    }

    /// What a program uses must exist.
    fn check(&self, program: &Program) -> Result<(), DeviceError> {
        for place in program.places() {
            let gone = match place {
                Place::Buffer(b) if !self.buffers.contains_key(&b) => format!("buffer {}", b.0),
                Place::State(s) if !self.states.contains_key(&s) => format!("KV cache {}", s.0),
                _ => continue,
            };
            return Err(DeviceError::Failed(format!("a program uses {gone}, which was freed")));
        }
        Ok(())
    }

    /// Memory is freed. If work in flight uses it, that work is lost.
    fn gone(&mut self, place: Place, what: &str) {
        if self.queue.uses(place) {
            self.failed = Some(DeviceError::Failed(format!("{what} was freed while work in flight uses it")));
            self.queue.drain();
        }
    }

    /// Hands programs over in one submit.
    fn submit(&mut self, programs: &[Arc<Program>], replayed: bool, stale: bool) -> Result<(), DeviceError> {
        self.world.pass(self.options.submit);
        match self.control.reach(Site::Submit) {
            None => {}
            Some(FaultKind::Fail) => {
                return Err(DeviceError::Failed("injected failure of a submit".to_owned()));
            }
            Some(FaultKind::Hang) => self.hangs = true,
        }
        let Self { options, queue, world, .. } = self;
        let mut launch = options.launch;
        for program in programs {
            let takes = program.ops.iter().map(|(op, _)| {
                let bytes: usize = op.sources.iter().chain([&op.result]).map(Operand::bytes).sum();
                let takes = launch + seconds(bytes, options.bandwidth);
                launch = if replayed { Duration::ZERO } else { launch };
                takes
            });
            queue.push(Arc::clone(program), world.now(), takes, stale);
        }
        Ok(())
    }

    /// Runs what was handed over up to an event, as far as it gets.
    fn run(&mut self, event: u64) {
        while let Some(pending) = self.queue.first(event) {
            let Some((op, id)) = pending.program.ops.get(pending.done) else {
                self.queue.pop();
                continue;
            };
            let result = match self.control.reach(Site::Launch) {
                None => self.kernels.launch(*id),
                Some(FaultKind::Fail) => {
                    Err(DeviceError::Kernel { node: op.node, what: "injected failure".to_owned() })
                }
                Some(FaultKind::Hang) => {
                    self.hangs = true;
                    return;
                }
            };
            if result.is_ok() {
                let (begin, end) = pending.next_span();
                self.world.ran(Ran { device: Arc::clone(&self.name), node: op.node, begin, end });
            }
            pending.done += 1;
            let spoilt = if pending.stale { buffer(op.result.place) } else { None };
            let spoilt = spoilt.map_or(Ok(()), |b| poison(&mut *self.kernels, b, op.result.bytes()));
            if let Err(error) = result.and(spoilt) {
                self.failed = Some(error);
                self.queue.drain();
            }
        }
    }

    /// Waits until `event` at most so long, in virtual time.
    fn wait_for(&mut self, event: u64, deadline: Duration) -> Result<(), DeviceError> {
        self.closed_while_recording("a wait")?;
        let now = self.world.now();
        let finish = self.queue.finish_of(event).unwrap_or(now);
        if finish.saturating_sub(now) <= deadline && !self.hangs {
            self.run(event);
        } else if !self.hangs {
            self.world.pass(deadline);
            return Err(DeviceError::Timeout { waited: deadline });
        }
        if std::mem::take(&mut self.hangs) {
            self.world.pass(deadline);
            return Err(DeviceError::Timeout { waited: deadline });
        }
        self.world.wait_until(finish);
        self.failed.take().map_or(Ok(()), Err)
    }
}

/// The time that `bytes` take.
fn seconds(bytes: usize, per_second: f64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / per_second)
}

fn poison(kernels: &mut dyn Backend, buffer: BufferId, bytes: usize) -> Result<(), DeviceError> {
    let poison: Vec<u8> = POISON.iter().copied().cycle().take(bytes).collect();
    kernels.write(buffer, &poison)
}

impl Backend for SimDevice {
    fn info(&self) -> DeviceInfo {
        let used = self.control.counts().bytes;
        let free_memory = self.options.memory.map(|m| m.saturating_sub(used));
        DeviceInfo {
            name: self.name(),
            description: format!("simulated, with the kernels of {}", self.kernels.info().description),
            free_memory: free_memory.filter(|_| !self.control.memory_unknown()),
        }
    }

    fn name(&self) -> String {
        self.name.to_string()
    }

    fn supports(&self, query: &OpQuery<'_>) -> bool {
        (self.options.takes)(query) && self.kernels.supports(query)
    }

    fn load_weight(&mut self, request: &WeightRequest<'_>) -> Result<WeightHandle, DeviceError> {
        let bytes = dtype_bytes(request.dtype, &request.shape) as u64;
        self.take_memory(bytes, request.name)?;
        self.kernels.load_weight(request).inspect_err(|_| self.control.count(|c| c.bytes -= bytes))
    }

    fn create_state(&mut self, decl: &StateDecl) -> Result<StateHandle, DeviceError> {
        let bytes = 2 * decl.half_bytes() as u64;
        self.take_memory(bytes, "a KV cache")?;
        let state =
            self.kernels.create_state(decl).inspect_err(|_| self.control.count(|c| c.bytes -= bytes))?;
        self.states.insert(state, bytes);
        Ok(state)
    }

    fn release_state(&mut self, state: StateHandle) {
        self.gone(Place::State(state), &format!("KV cache {}", state.0));
        if let Some(bytes) = self.states.remove(&state) {
            self.free_memory(bytes);
            self.kernels.release_state(state);
        }
    }

    fn allocate(&mut self, bytes: usize) -> Result<BufferId, DeviceError> {
        self.take_memory(bytes as u64, "a buffer")?;
        let made =
            self.kernels.allocate(bytes).and_then(|b| poison(&mut *self.kernels, b, bytes).map(|()| b));
        let buffer = made.inspect_err(|_| self.control.count(|c| c.bytes -= bytes as u64))?;
        self.buffers.insert(buffer, bytes);
        Ok(buffer)
    }

    fn release(&mut self, buffer: BufferId) {
        self.gone(Place::Buffer(buffer), &format!("buffer {}", buffer.0));
        if let Some(bytes) = self.buffers.remove(&buffer) {
            self.free_memory(bytes as u64);
            self.kernels.release(buffer);
        }
    }

    fn compile(&mut self, ops: &[BoundOp]) -> Result<ProgramId, DeviceError> {
        self.closed_while_recording("compiling")?;
        let results = ops.iter().filter(|op| buffer(op.result.place).is_some());
        let scratch = results.map(|op| op.result.bytes()).max().unwrap_or(0);
        if scratch > self.scratch {
            // The new pool is made before the old one goes, and lies elsewhere.
            self.take_memory(scratch as u64, "working memory")?;
            self.free_memory(self.scratch as u64);
            self.scratch = scratch;
            self.generation += 1;
        }
        let mut program = Program { ops: Vec::with_capacity(ops.len()) };
        for op in ops {
            match self.kernels.compile(std::slice::from_ref(op)) {
                Ok(id) => program.ops.push((op.clone(), id)),
                Err(error) => {
                    for (_, id) in program.ops {
                        self.kernels.release_program(id);
                    }
                    return Err(error);
                }
            }
        }
        self.programs.push(Some(Arc::new(program)));
        Ok(ProgramId(self.programs.len() as u32 - 1))
    }

    fn release_program(&mut self, program: ProgramId) {
        let slot = self.programs.get_mut(program.0 as usize);
        for (_, id) in slot.and_then(Option::take).iter().flat_map(|p| &p.ops) {
            self.kernels.release_program(*id);
        }
    }

    fn launch(&mut self, program: ProgramId) -> Result<(), DeviceError> {
        let program = self.program(program)?;
        match &mut self.recording {
            Some(recorded) => {
                recorded.push(program);
                Ok(())
            }
            None => self.submit(&[program], false, false),
        }
    }

    fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    fn synchronize(&mut self, deadline: Duration) -> Result<(), DeviceError> {
        self.wait_for(self.queue.submitted, deadline)
    }

    fn mark(&mut self) -> Event {
        Event(self.queue.submitted)
    }

    fn wait(&mut self, event: Event, deadline: Duration) -> Result<(), DeviceError> {
        self.wait_for(event.0, deadline)
    }

    fn write(&mut self, buffer: BufferId, bytes: &[u8]) -> Result<(), DeviceError> {
        self.copy(bytes.len())?;
        if self.queue.uses(Place::Buffer(buffer)) {
            let what = format!("buffer {} was written while work in flight uses it", buffer.0);
            return Err(DeviceError::Failed(what));
        }
        self.kernels.write(buffer, bytes)
    }

    fn read(&mut self, buffer: BufferId, out: &mut [u8]) -> Result<(), DeviceError> {
        self.copy(out.len())?;
        if self.queue.writes(Place::Buffer(buffer)) || !self.buffers.contains_key(&buffer) {
            out.iter_mut().zip(POISON.iter().cycle()).for_each(|(to, from)| *to = *from);
            return Ok(());
        }
        self.kernels.read(buffer, out)
    }

    fn read_state(
        &mut self,
        state: StateHandle,
        table: KvTable,
        first_slot: usize,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.copy(size_of_val(out))?;
        if self.queue.writes(Place::State(state)) || !self.states.contains_key(&state) {
            out.fill(f32::from_le_bytes(POISON));
            return Ok(());
        }
        self.kernels.read_state(state, table, first_slot, out)
    }

    fn can_record(&self) -> bool {
        self.options.records
    }

    fn begin_recording(&mut self) -> Result<(), DeviceError> {
        self.closed_while_recording("a recording")?;
        self.world.record(true);
        self.recording = Some(Vec::new());
        Ok(())
    }

    fn end_recording(&mut self) -> Result<RecordingId, DeviceError> {
        let Some(programs) = self.recording.take() else {
            return Err(DeviceError::Failed("nothing is being recorded".to_owned()));
        };
        self.world.record(false);
        self.control.count(|c| c.recordings += 1);
        self.recordings.push(Some(Recording { programs, generation: self.generation }));
        Ok(RecordingId(self.recordings.len() as u32 - 1))
    }

    fn replay(&mut self, recording: RecordingId) -> Result<(), DeviceError> {
        let found = self.recordings.get(recording.0 as usize).and_then(Option::as_ref);
        let Some(Recording { programs, generation }) = found else {
            return Err(DeviceError::Failed(format!("recording {} does not exist", recording.0)));
        };
        let (programs, stale) = (programs.clone(), *generation != self.generation);
        programs.iter().try_for_each(|p| self.check(p))?;
        self.control.count(|c| c.replays += 1);
        self.submit(&programs, true, stale)
    }

    fn release_recording(&mut self, recording: RecordingId) {
        if let Some(slot) = self.recordings.get_mut(recording.0 as usize) {
            *slot = None;
        }
    }

    fn address_generation(&self) -> u64 {
        self.generation
    }
}
