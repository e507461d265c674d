//! Random graphs on random placements over the reference device and two simulated ones.

use std::time::Duration;

use minfer_graph::conformance::placements::{self, Devices, Options, Report};
use minfer_graph::devices::{ReferenceDevice, SimOptions, World};
use minfer_graph::{
    Backend, BoundOp, BufferId, DeviceError, DeviceInfo, Event, KvTable, OpQuery, ProgramId, RecordingId,
    StateDecl, StateHandle, WeightHandle, WeightRequest,
};

fn reference() -> Box<dyn Backend> {
    Box::new(ReferenceDevice::default())
}

/// A quarter of the 20,000 cases, which run beside each other; fewer in a debug build, where they would take minutes.
fn quarter(number: u64) {
    const CASES: u64 = if cfg!(debug_assertions) { 500 } else { 5000 };
    let options = Options { first: number * CASES, cases: CASES, ..Options::default() }.or_env();
    let report = placements::run(&mut reference, &options);
    report.assert_passed();
    if options.cases == CASES {
        let Report { passed, skipped, coverage, .. } = report;
        assert_eq!((passed, skipped), (CASES, 0));
        // The cases are what they are meant to be.
        assert!(coverage.combinations.iter().all(|&cases| cases >= CASES / 16), "{coverage:?}");
        assert!(coverage.splits > 5 * CASES && coverage.copies > 5 * CASES, "{coverage:?}");
        assert!(coverage.replays > CASES && coverage.fused > CASES / 5, "{coverage:?}");
        assert!(coverage.cached > CASES / 3 && coverage.moved > CASES / 20, "{coverage:?}");
    }
}

#[test]
fn any_placement_gives_the_bits_of_one_device_first_quarter() {
    quarter(0);
}

#[test]
fn any_placement_gives_the_bits_of_one_device_second_quarter() {
    quarter(1);
}

#[test]
fn any_placement_gives_the_bits_of_one_device_third_quarter() {
    quarter(2);
}

#[test]
fn any_placement_gives_the_bits_of_one_device_fourth_quarter() {
    quarter(3);
}

/// How a device breaks the protocol.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// Waiting for an event returns at once.
    ForgetsEvents,
    /// An event stands for the end of the work before the last launch.
    MarksEarly,
    /// Recordings are replayed although addresses have changed.
    ReplaysStale,
    /// A replay does nothing.
    ReplaysNothing,
    /// Each buffer is the last one's memory, if it fits.
    SharesBuffers,
}

/// An asynchronous device that may be broken.
struct Broken {
    inner: Box<dyn Backend>,
    fault: Fault,
    marked: Event,
    last: Option<(BufferId, usize)>,
    shared: Vec<BufferId>,
}

impl Backend for Broken {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }
    fn supports(&self, query: &OpQuery<'_>) -> bool {
        self.inner.supports(query)
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
        if let Some((last, len)) = self.last
            && self.fault == Fault::SharesBuffers
            && len >= bytes
        {
            self.shared.push(last);
            return Ok(last);
        }
        let made = self.inner.allocate(bytes)?;
        self.last = Some((made, bytes));
        Ok(made)
    }
    fn release(&mut self, buffer: BufferId) {
        if !self.shared.contains(&buffer) {
            self.inner.release(buffer);
        }
    }
    fn compile(&mut self, ops: &[BoundOp]) -> Result<ProgramId, DeviceError> {
        self.inner.compile(ops)
    }
    fn release_program(&mut self, program: ProgramId) {
        self.inner.release_program(program);
    }
    fn launch(&mut self, program: ProgramId) -> Result<(), DeviceError> {
        self.marked = self.inner.mark();
        self.inner.launch(program)
    }
    fn synchronize(&mut self, deadline: Duration) -> Result<(), DeviceError> {
        self.inner.synchronize(deadline)
    }
    fn mark(&mut self) -> Event {
        if self.fault == Fault::MarksEarly { self.marked } else { self.inner.mark() }
    }
    fn wait(&mut self, event: Event, deadline: Duration) -> Result<(), DeviceError> {
        if self.fault == Fault::ForgetsEvents { Ok(()) } else { self.inner.wait(event, deadline) }
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
    fn can_record(&self) -> bool {
        self.inner.can_record()
    }
    fn begin_recording(&mut self) -> Result<(), DeviceError> {
        self.inner.begin_recording()
    }
    fn end_recording(&mut self) -> Result<RecordingId, DeviceError> {
        self.inner.end_recording()
    }
    fn replay(&mut self, recording: RecordingId) -> Result<(), DeviceError> {
        self.marked = self.inner.mark();
        if self.fault == Fault::ReplaysNothing { Ok(()) } else { self.inner.replay(recording) }
    }
    fn release_recording(&mut self, recording: RecordingId) {
        self.inner.release_recording(recording);
    }
    fn address_generation(&self) -> u64 {
        if self.fault == Fault::ReplaysStale { 0 } else { self.inner.address_generation() }
    }
}

/// The first cases with such a device on trial.
fn with_fault(fault: Fault, cases: u64) -> Report {
    with_fault_and(fault, &Options { cases, ..Options::default() })
}

fn with_fault_and(fault: Fault, options: &Options) -> Report {
    let mut device = || -> Box<dyn Backend> {
        let inner = World::new().device("broken", reference(), SimOptions::default());
        let inner = Box::new(inner);
        Box::new(Broken { inner, fault, marked: Event::default(), last: None, shared: Vec::new() })
    };
    let mut devices = Devices { device: &mut device, kernels: &mut reference };
    placements::run_with(&mut devices, options)
}

#[test]
fn an_asynchronous_device_on_trial_passes() {
    let report = with_fault(Fault::None, 500);
    report.assert_passed();
    assert_eq!(report.passed, 500);
}

/// The fault is found within so many cases, and again by its seed alone.
fn is_caught(fault: Fault, cases: u64) {
    let report = with_fault(fault, cases);
    let failure =
        report.failure.unwrap_or_else(|| panic!("{fault:?} was not found in {} cases", report.passed));
    assert_eq!(failure.seed, report.passed);
    let options = Options { first: failure.seed, cases: 1, ..Options::default() };
    assert_eq!(with_fault_and(fault, &options).failure, Some(failure));
}

#[test]
fn a_device_that_does_not_wait_for_events_is_caught() {
    is_caught(Fault::ForgetsEvents, 20);
}

#[test]
fn a_device_whose_events_come_early_is_caught() {
    is_caught(Fault::MarksEarly, 20);
}

#[test]
fn a_device_that_replays_at_old_addresses_is_caught() {
    is_caught(Fault::ReplaysStale, 1000);
}

#[test]
fn a_replay_that_does_nothing_is_caught() {
    is_caught(Fault::ReplaysNothing, 100);
}

#[test]
fn buffers_that_share_memory_are_caught() {
    is_caught(Fault::SharesBuffers, 20);
}
