//! A plan: a graph placed, fused, split and laid out in memory. Pure data, made once per shape; the
//! scheduler binds it to devices and runs it.

use crate::fuse::{Fusion, fuse};
use crate::memory::{MemoryPlan, Reuse, plan_memory};
use crate::place::{Placement, Rule, Unit, Why, Wishes, place};
use crate::split::{Split, split};
use crate::{Backend, DeviceError, DeviceId, Graph, NodeId};

/// Why a plan could not be made or bound.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// No device takes a node.
    #[error("no device runs {op} {label} ({shapes}): {refused}")]
    NoDevice {
        /// The node's label.
        label: String,
        /// Its operation.
        op: &'static str,
        /// Its sources.
        shapes: String,
        /// What kept each device from it.
        refused: String,
    },
    /// No device takes all of what must go to one device.
    #[error("no device takes all of {piece}: {refused}")]
    NoPieceDevice {
        /// What must: a layer, or the model.
        piece: String,
        /// What kept each device from it.
        refused: String,
    },
    /// Each operation on a KV cache has a device that runs it, but no device runs them all.
    #[error("no device runs every operation on layer {layer}'s KV cache: {refused}")]
    NoStateDevice {
        /// The layer.
        layer: u32,
        /// What kept each device from it.
        refused: String,
    },
    /// A KV cache with a layer's rows is on a device that does not run an operation that reads or writes it.
    #[error("layer {layer}'s KV cache is on {device}, where {op} {label} does not run; release it first")]
    StateElsewhere {
        /// The layer.
        layer: u32,
        /// The name of the device that has the cache.
        device: String,
        /// The node's label.
        label: String,
        /// Its operation.
        op: &'static str,
    },
    /// The weight source lacks a tensor.
    #[error("tensor {name} is missing")]
    MissingWeight {
        /// Its name.
        name: String,
    },
    /// The tensor's bytes do not match its declared type and shape.
    #[error("tensor {name} has {found} bytes, its type and shape need {wanted}")]
    WeightSize {
        /// Its name.
        name: String,
        /// Bytes found.
        found: usize,
        /// Bytes needed.
        wanted: usize,
    },
    /// The tensor is loaded already, as one of another type or shape.
    #[error("tensor {name} is loaded as {existing}, the graph wants {wanted}")]
    WeightMismatch {
        /// Its name.
        name: String,
        /// The type and shape loaded.
        existing: String,
        /// The type and shape declared.
        wanted: String,
    },
    /// The graph names a KV cache of another size or type than the one that exists.
    #[error("layer {layer}'s KV cache is {existing}, the graph wants {wanted}; release it first")]
    StateMismatch {
        /// The layer.
        layer: u32,
        /// What exists.
        existing: String,
        /// What the graph declares.
        wanted: String,
    },
    /// The plan was made for other devices.
    #[error("the plan is for the devices {planned}, these are {devices}")]
    OtherDevices {
        /// Those that it was made for.
        planned: String,
        /// Those that it should be bound to.
        devices: String,
    },
    /// A device has not the memory.
    #[error(
        "device {device} has {free} bytes free and would need {} (weights {weights}, KV cache {states}, activations {activations})",
        weights + states + activations
    )]
    OverBudget {
        /// The device's name.
        device: String,
        /// Bytes free.
        free: u64,
        /// Bytes of weights to load.
        weights: u64,
        /// Bytes of KV caches to create.
        states: u64,
        /// Bytes of activations to allocate.
        activations: u64,
    },
    /// A device could not load, allocate or compile.
    #[error("device {device}: {what}: {error}")]
    Device {
        /// The device's name.
        device: String,
        /// During what.
        what: String,
        /// Its error.
        error: DeviceError,
    },
}

/// What shapes a plan besides the graph.
pub struct PlanOptions<'a> {
    /// The fusion rules that are on.
    pub fusion: Fusion,
    /// Whether values may share memory.
    pub reuse: Reuse,
    /// The user's restrictions on placement; all of them hold.
    pub rules: &'a [Rule<'a>],
    /// What goes to one device as a whole.
    pub unit: Unit,
}

impl Default for PlanOptions<'_> {
    fn default() -> Self {
        Self { fusion: Fusion::all(), reuse: Reuse::ByLiveness, rules: &[], unit: Unit::Node }
    }
}

/// A graph made ready for a list of devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub(crate) graph: Graph,
    pub(crate) placed: Vec<DeviceId>,
    why: Vec<Why>,
    rule_names: Vec<String>,
    pub(crate) dead: Vec<bool>,
    pub(crate) splits: Vec<Split>,
    pub(crate) memory: MemoryPlan,
    pub(crate) device_names: Vec<String>,
}

impl Plan {
    /// Places, fuses, splits and lays out, for devices on which no KV cache exists yet.
    pub fn new(graph: Graph, devices: &[&dyn Backend], options: &PlanOptions<'_>) -> Result<Self, PlanError> {
        Self::with_homes(graph, devices, options, &|_| None)
    }

    /// Like [`Plan::new`], where `homes` says on which device a layer's KV cache is.
    pub(crate) fn with_homes(
        mut graph: Graph,
        devices: &[&dyn Backend],
        options: &PlanOptions<'_>,
        homes: &dyn Fn(u32) -> Option<DeviceId>,
    ) -> Result<Self, PlanError> {
        let wishes = Wishes { rules: options.rules, unit: options.unit, homes };
        let Placement { placed, why } = place(&graph, devices, wishes)?;
        let dead = fuse(&mut graph, &placed, devices, options.fusion);
        let splits = split(&graph, &placed, &dead);
        let memory = plan_memory(&graph, &placed, &dead, &splits, devices.len(), options.reuse);
        let device_names = devices.iter().map(|d| d.name()).collect();
        let rule_names = options.rules.iter().map(|r| r.name.to_string()).collect();
        Ok(Self { graph, placed, why, rule_names, dead, splits, memory, device_names })
    }

    /// The graph after fusion; node ids are those of the graph it was made from.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The device of a node.
    pub fn device(&self, id: NodeId) -> DeviceId {
        self.placed[id.index()]
    }

    /// Why a node is on its device.
    pub fn why(&self, id: NodeId) -> &Why {
        &self.why[id.index()]
    }

    /// The same in words.
    pub fn describe_why(&self, id: NodeId) -> String {
        self.why(id).describe(&self.device_names, &self.rule_names, &self.graph)
    }

    /// The devices' names, in priority order.
    pub fn device_names(&self) -> &[String] {
        &self.device_names
    }

    /// Whether fusion has absorbed the node.
    pub fn is_dead(&self, id: NodeId) -> bool {
        self.dead[id.index()]
    }

    /// The splits in the order in which they run.
    pub fn splits(&self) -> &[Split] {
        &self.splits
    }

    /// Where values live.
    pub fn memory(&self) -> &MemoryPlan {
        &self.memory
    }
}
