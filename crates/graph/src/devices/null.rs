//! A device that takes every operation and computes nothing, for measuring what the graph itself costs.

use std::time::Duration;

use crate::{
    Backend, BoundOp, BufferId, DeviceError, DeviceInfo, KvTable, OpQuery, ProgramId, RecordingId, StateDecl,
    StateHandle, WeightHandle, WeightRequest,
};

/// Accepts everything, holds no memory and runs nothing. What is read from it is zero.
#[derive(Debug, Default)]
pub struct NullDevice {
    handles: u32,
    launches: u64,
}

impl NullDevice {
    /// A device.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many programs were launched.
    pub fn launches(&self) -> u64 {
        self.launches
    }

    fn handle(&mut self) -> u32 {
        self.handles += 1;
        self.handles - 1
    }
}

impl Backend for NullDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { name: "null".to_owned(), description: "computes nothing".to_owned(), free_memory: None }
    }

    fn supports(&self, _query: &OpQuery<'_>) -> bool {
        true
    }

    fn load_weight(&mut self, _request: &WeightRequest<'_>) -> Result<WeightHandle, DeviceError> {
        Ok(WeightHandle(self.handle()))
    }

    fn create_state(&mut self, _decl: &StateDecl) -> Result<StateHandle, DeviceError> {
        Ok(StateHandle(self.handle()))
    }

    fn release_state(&mut self, _state: StateHandle) {}

    fn allocate(&mut self, _bytes: usize) -> Result<BufferId, DeviceError> {
        Ok(BufferId(self.handle()))
    }

    fn release(&mut self, _buffer: BufferId) {}

    fn compile(&mut self, _ops: &[BoundOp]) -> Result<ProgramId, DeviceError> {
        Ok(ProgramId(self.handle()))
    }

    fn release_program(&mut self, _program: ProgramId) {}

    fn launch(&mut self, _program: ProgramId) -> Result<(), DeviceError> {
        self.launches += 1;
        Ok(())
    }

    fn synchronize(&mut self, _deadline: Duration) -> Result<(), DeviceError> {
        Ok(())
    }

    fn can_record(&self) -> bool {
        true
    }

    fn begin_recording(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn end_recording(&mut self) -> Result<RecordingId, DeviceError> {
        Ok(RecordingId(self.handle()))
    }

    fn replay(&mut self, _recording: RecordingId) -> Result<(), DeviceError> {
        self.launches += 1;
        Ok(())
    }

    fn write(&mut self, _buffer: BufferId, _bytes: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn read(&mut self, _buffer: BufferId, out: &mut [u8]) -> Result<(), DeviceError> {
        out.fill(0);
        Ok(())
    }

    fn read_state(
        &mut self,
        _state: StateHandle,
        _table: KvTable,
        _first_slot: usize,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        out.fill(0.0);
        Ok(())
    }
}
