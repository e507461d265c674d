//! Devices without hardware: one that computes nothing, and one that computes everything plainly.

mod null;
mod reference;

pub use null::NullDevice;
pub use reference::ReferenceDevice;
