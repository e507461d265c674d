//! Tests that need the planner's insides: random graphs, memory, inputs.

#[path = "../../tests/common/mod.rs"]
pub(crate) mod common;
mod crossing;
mod guards;
mod memory;
mod placement;
pub(crate) mod random;
