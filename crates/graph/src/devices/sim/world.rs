//! What simulated devices share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{SimDevice, SimOptions};
use crate::{Backend, NodeId};

/// A virtual clock and a log, shared by the devices that are made with it.
#[derive(Clone, Debug, Default)]
pub struct World {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    now: Duration,
    log: Vec<Ran>,
    /// Whether a recording of one device closes all of them, as in CUDA's global capture mode.
    global_capture: bool,
    recording: u32,
}

/// A node that ran on a simulated device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The device's name.
    pub device: Arc<str>,
    /// The node.
    pub node: NodeId,
    /// When the device began it, in virtual time.
    pub begin: Duration,
    /// When it had finished it.
    pub end: Duration,
}

impl World {
    /// A world whose clock stands at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// A device of this world, with the kernels of `kernels`, which must be synchronous.
    pub fn device(&self, name: &str, kernels: Box<dyn Backend>, options: SimOptions) -> SimDevice {
        SimDevice::new(name, self.clone(), kernels, options)
    }

    /// The virtual time: how far the host has come.
    pub fn now(&self) -> Duration {
        self.lock().now
    }

    /// The nodes that ran since the log was last taken, over all devices.
    pub fn take_log(&self) -> Vec<Ran> {
        std::mem::take(&mut self.lock().log)
    }

    /// Sets whether a recording on one device makes memory calls on every other one fail, as it does with a driver whose
    /// capture mode is global instead of thread-local.
    pub fn set_global_capture(&self, global: bool) {
        self.lock().global_capture = global;
    }

    /// The host does something for so long.
    pub fn pass(&self, time: Duration) {
        self.lock().now += time;
    }

    /// The host waits until then.
    pub(super) fn wait_until(&self, time: Duration) {
        let mut shared = self.lock();
        shared.now = shared.now.max(time);
    }

    pub(super) fn ran(&self, ran: Ran) {
        self.lock().log.push(ran);
    }

    pub(super) fn record(&self, begins: bool) {
        let mut shared = self.lock();
        shared.recording = if begins { shared.recording + 1 } else { shared.recording.saturating_sub(1) };
    }

    /// Whether another device's recording closes this one.
    pub(super) fn is_closed(&self) -> bool {
        let shared = self.lock();
        shared.global_capture && shared.recording > 0
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // A test that panicked elsewhere leaves the state whole: each change is a single assignment.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
