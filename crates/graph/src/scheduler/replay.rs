//! Replay: runs one and two of a split are direct, the third is recorded, later ones replay the recording.

use super::Step;
use crate::{Backend, DeviceError, ProgramId, RecordingId};

/// Direct launches before the first recording: what is run once or twice is not worth one.
const DIRECT: u32 = 2;

/// How far a split has come.
#[derive(Debug)]
pub(super) enum Replay {
    /// Launched directly so many times.
    Direct(u32),
    /// Recorded, while the device's addresses had this generation.
    Recorded { recording: RecordingId, generation: u64 },
}

impl Replay {
    /// Launches the program in the way that it has come to.
    pub fn launch(&mut self, backend: &mut dyn Backend, program: ProgramId) -> Result<(), DeviceError> {
        let current = backend.address_generation();
        if let Self::Recorded { recording, generation } = *self {
            if generation == current {
                return backend.replay(recording);
            }
            self.forget(backend);
        }
        match self {
            Self::Direct(runs) if *runs < DIRECT => {
                *runs += 1;
                backend.launch(program)
            }
            _ => {
                let recording = record(backend, program)?;
                *self = Self::Recorded { recording, generation: current };
                backend.replay(recording)
            }
        }
    }

    /// Frees the recording, if there is one, and starts over.
    pub fn forget(&mut self, backend: &mut dyn Backend) {
        if let Self::Recorded { recording, .. } = *self {
            backend.release_recording(recording);
        }
        *self = Self::Direct(0);
    }
}

fn record(backend: &mut dyn Backend, program: ProgramId) -> Result<RecordingId, DeviceError> {
    backend.begin_recording()?;
    let launched = backend.launch(program);
    // Recording ends in any case, or nothing else could be done with the device.
    let recording = backend.end_recording();
    match (launched, recording) {
        (Ok(()), recording) => recording,
        (Err(error), recording) => {
            if let Ok(recording) = recording {
                backend.release_recording(recording);
            }
            Err(error)
        }
    }
}

impl Step {
    /// Frees what the device keeps for it.
    pub fn release(mut self, backend: &mut dyn Backend) {
        self.replay.forget(backend);
        for program in self.singles.into_iter().chain([self.program]) {
            backend.release_program(program);
        }
    }
}
