//! Devices without hardware: one that computes nothing, one that computes everything plainly, and one that behaves like
//! a GPU.

mod null;
mod reference;
pub mod sim;

pub use null::NullDevice;
pub use reference::ReferenceDevice;
pub use sim::{Counts, Fault, FaultKind, Ran, SimControl, SimDevice, SimOptions, Site, Takes, World};
