//! The simulated device: an asynchronous device with memory of its own, whose kernels are another device's.
//!
//! It makes visible what a real one leaves to chance. A launch is only written down; it runs when it is waited for, and
//! until then its results read as poison, as does memory that was freed or never written. What a real driver would let
//! pass, with garbage for a result, is an error here: writing to or freeing a buffer that work in flight uses, launching
//! a program whose buffers are gone, or touching the device inside a recording.
//!
//! Devices of one [`World`] share a virtual clock, on which launches, submits and copies take the time that
//! [`SimOptions`] gives them, and a log of the nodes that ran. A [`SimControl`] injects faults and counts.
//!
//! ```
//! use minfer_graph::devices::{ReferenceDevice, SimOptions, World};
//! use minfer_graph::{DType, GraphBuilder, PlanOptions, Scheduler, WeightTable};
//! let world = World::new();
//! let device = world.device("gpu", Box::new(ReferenceDevice::default()), SimOptions::default());
//! let control = device.control();
//! let mut scheduler = Scheduler::new(vec![Box::new(device)]);
//! let mut b = GraphBuilder::new();
//! let x = b.input("x", DType::F32, [1, 2]);
//! let y = b.scale("y", x, 2.0);
//! b.output(y);
//! let plan = scheduler.plan(b.finish().unwrap(), &PlanOptions::default()).unwrap();
//! let mut plan = scheduler.bind(plan, &(std::sync::Arc::new(WeightTable::new()) as _), &mut |_, _| {}).unwrap();
//! scheduler.write_f32(&mut plan, x, &[1.0, 3.0]).unwrap();
//! scheduler.execute(&mut plan).unwrap();
//! let mut out = [0.0; 2];
//! scheduler.read_f32(&plan, y, &mut out).unwrap();
//! assert_eq!(out, [2.0, 6.0]);
//! assert_eq!(control.counts().launches, 1);
//! ```

mod backend;
mod control;
mod queue;
mod world;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::OpQuery;

pub use backend::SimDevice;
pub use control::{Counts, Fault, FaultKind, SimControl, Site};
pub use world::{Ran, World};

/// Whether a device takes an operation.
pub type Takes = Arc<dyn Fn(&OpQuery<'_>) -> bool + Send + Sync>;

/// What a simulated device is like.
#[derive(Clone)]
pub struct SimOptions {
    /// The operations, types and shapes it takes, of those that its kernels' device takes.
    pub takes: Takes,
    /// Memory in bytes, for weights, KV caches, buffers and working memory; `None` for as much as is asked for.
    pub memory: Option<u64>,
    /// Host time to hand over a program.
    pub submit: Duration,
    /// Device time to start an operation. In a replay only the first one takes it.
    pub launch: Duration,
    /// Bytes that an operation reads and writes in a second; infinite for no time at all.
    pub bandwidth: f64,
    /// Host time to start a copy between host and device.
    pub copy: Duration,
    /// Bytes a second of such a copy.
    pub link: f64,
    /// Whether launches can be recorded and replayed.
    pub records: bool,
}

impl Default for SimOptions {
    /// Takes everything, at once, and records.
    fn default() -> Self {
        Self {
            takes: Arc::new(|_| true),
            memory: None,
            submit: Duration::ZERO,
            launch: Duration::ZERO,
            bandwidth: f64::INFINITY,
            copy: Duration::ZERO,
            link: f64::INFINITY,
            records: true,
        }
    }
}

impl SimOptions {
    /// The same, for a device that takes only some operations.
    #[must_use]
    pub fn taking(self, takes: impl Fn(&OpQuery<'_>) -> bool + Send + Sync + 'static) -> Self {
        Self { takes: Arc::new(takes), ..self }
    }
}

impl fmt::Debug for SimOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimOptions")
            .field("memory", &self.memory)
            .field("submit", &self.submit)
            .field("launch", &self.launch)
            .field("bandwidth", &self.bandwidth)
            .field("copy", &self.copy)
            .field("link", &self.link)
            .field("records", &self.records)
            .finish_non_exhaustive()
    }
}
