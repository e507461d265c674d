//! The compute graph: IR, placement, fusion, splits, memory plan, scheduler, and the Backend trait.
//!
//! A model appends nodes to a [`GraphBuilder`]; the checked [`Graph`] becomes a [`Plan`] (which device runs
//! each node, what is fused, where the splits are, where each value lives); the [`Scheduler`] binds the plan
//! to its devices and runs it, as often as wanted, never reading a value before its producer has finished
//! writing it.

mod backend;
pub mod bounds;
mod builder;
mod cache;
pub mod conformance;
pub mod devices;
pub mod export;
mod fuse;
mod graph;
mod infer;
mod memory;
mod op;
mod place;
mod plan;
mod scheduler;
mod shape;
mod split;
pub mod watch;
mod weights;

#[cfg(test)]
extern crate self as minfer_graph;
#[cfg(test)]
mod tests;

pub use backend::{
    Backend, BoundOp, BufferId, DeviceError, DeviceId, DeviceInfo, Event, KvTable, OpQuery, Operand, Place,
    ProgramId, RecordingId, SourceInfo, StateHandle, WeightHandle, WeightRequest, WeightSource, WeightUse,
};
pub use builder::{GraphBuilder, GraphError, Problem};
pub use cache::{Entry, PlanCache};
pub use fuse::Fusion;
pub use graph::{Graph, Node, NodeId, StateDecl, WeightDecl};
pub use memory::{MemoryPlan, Reuse, SLOT_ALIGN, SlotId};
/// Element types are those of the model files.
pub use minfer_gguf::TensorType as DType;
pub use op::{Activation, Attention, Op, Rope, RopePairs, StateId, WeightId, Yarn};
pub use place::{Piece, Refusal, Rule, Stage, Unit, Why};
pub use plan::{Plan, PlanError, PlanOptions};
pub use scheduler::{BoundPlan, ExecError, NodeError, Scheduler};
pub use shape::Shape;
pub use split::{Crossing, Split};
pub use watch::{CopyReport, NodeReport, Profile, Statistics, Trace, Watch};
pub use weights::WeightTable;
