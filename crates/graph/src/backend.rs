//! What a device has to offer: the [`Backend`] trait.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::{DType, NodeId, Op, Shape, StateDecl, WeightDecl};

/// Index of a device in the scheduler's priority order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u32);

impl DeviceId {
    /// As a `Vec` index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A device's memory region for activations, inputs and staging copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// A weight that a device has loaded for one use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightHandle(pub u32);

/// A KV cache that a device has created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateHandle(pub u32);

/// A split that a device has compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProgramId(pub u32);

/// Launches that a device has recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordingId(pub u32);

/// A point in a device's work: the end of all that was launched before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Event(pub u64);

/// One of the two tables of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvTable {
    /// Keys.
    K,
    /// Values.
    V,
}

/// What a device is, for people and for memory budgets.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceInfo {
    /// A short name that fences use, such as `cpu`.
    pub name: String,
    /// What it runs on and how, such as the SIMD instruction set chosen.
    pub description: String,
    /// Free memory in bytes; `None` where the device cannot tell, which is not zero.
    pub free_memory: Option<u64>,
}

/// What an operation reads a weight for; a device may keep a layout for each use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WeightUse {
    /// The first source of a matrix product.
    MatMul,
    /// A table whose rows are looked up.
    Lookup,
    /// A vector read element by element: norms, biases, frequency factors.
    Vector,
}

impl WeightUse {
    /// The use that source `i` of `op` makes of a weight.
    pub fn of(op: &Op, i: usize) -> Self {
        match (op, i) {
            (Op::MatMul | Op::MatMulAdd, 0) => Self::MatMul,
            (Op::GetRows, 0) => Self::Lookup,
            _ => Self::Vector,
        }
    }
}

/// Where weights come from: a model file, or a table in a test.
pub trait WeightSource: Send + Sync {
    /// The tensor's bytes in the file's block format, or `None` if there is no such tensor.
    fn bytes(&self, name: &str) -> Option<&[u8]>;

    /// The device has copied this range of the tensor's bytes, so its pages may be given back. Reading it
    /// again must still work.
    fn release(&self, _name: &str, _bytes: Range<usize>) {}
}

/// One weight to load.
#[derive(Clone)]
pub struct WeightRequest<'a> {
    /// The tensor's name.
    pub name: &'a str,
    /// Its type in the source.
    pub dtype: DType,
    /// Its shape, outermost first.
    pub shape: Shape,
    /// What it is read for.
    pub usage: WeightUse,
    /// Where its bytes are; a device may keep this and read from it later.
    pub source: Arc<dyn WeightSource>,
}

/// The type, shape and kind of one source, for [`OpQuery`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SourceInfo {
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Shape,
    /// Whether it is a weight.
    pub is_weight: bool,
}

/// The question a device answers when nodes are placed.
#[derive(Clone, Debug)]
pub struct OpQuery<'a> {
    /// The operation.
    pub op: &'a Op,
    /// Its sources.
    pub sources: &'a [SourceInfo],
    /// The result's type.
    pub dtype: DType,
    /// The result's shape.
    pub shape: Shape,
    /// For operations on a KV cache, the cache.
    pub state: Option<&'a StateDecl>,
}

/// Where a bound operation finds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// At the start of a buffer of this device.
    Buffer(BufferId),
    /// A weight of this device.
    Weight(WeightHandle),
    /// A KV cache of this device.
    State(StateHandle),
}

/// A value with its place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Operand {
    /// Where it is.
    pub place: Place,
    /// Its element type.
    pub dtype: DType,
    /// Its shape.
    pub shape: Shape,
}

impl Operand {
    /// The bytes of the value.
    pub fn bytes(&self) -> usize {
        crate::graph::dtype_bytes(self.dtype, &self.shape)
    }
}

/// One operation of a split with everything it touches. Sources and the result may share memory only where
/// [`Op::in_place_sources`] allows it.
#[derive(Clone, Debug)]
pub struct BoundOp {
    /// The node it came from.
    pub node: NodeId,
    /// A name for traces and errors.
    pub label: String,
    /// What to compute.
    pub op: Op,
    /// Where the sources are.
    pub sources: Vec<Operand>,
    /// Where the result goes; a state for [`Op::KvStore`].
    pub result: Operand,
    /// For operations on a KV cache, the cache.
    pub state: Option<StateDecl>,
}

/// A device's failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// An allocation did not fit.
    #[error("out of memory: {wanted} bytes wanted for {what}{}", free_note(.free))]
    OutOfMemory {
        /// What for.
        what: String,
        /// Bytes.
        wanted: usize,
        /// Bytes free, where the device can tell.
        free: Option<u64>,
    },
    /// An operation's precondition failed while it ran: for example a token id outside the table.
    #[error("{what}")]
    Kernel {
        /// The operation's node.
        node: NodeId,
        /// What was wrong, with the values.
        what: String,
    },
    /// The device did not finish in time.
    #[error("not finished after {waited:?}")]
    Timeout {
        /// How long it was waited for.
        waited: Duration,
    },
    /// The device cannot take this weight, state or operation.
    #[error("{0}")]
    Unsupported(String),
    /// The device failed in a way of its own.
    #[error("{0}")]
    Failed(String),
}

fn free_note(free: &Option<u64>) -> String {
    free.map_or_else(String::new, |f| format!(", {f} free"))
}

/// A device: memory, weights and kernels. Calls come from one thread at a time, in program order.
///
/// A device may be asynchronous: [`Backend::launch`] may return before the work is done. It runs what it is given in the
/// order in which it was given. A result is defined after a wait for it ([`Backend::wait`], [`Backend::synchronize`]). An
/// operation that fails on the device is reported by the next wait, and what was launched after it does not run.
///
/// A device that can record a launch says so ([`Backend::can_record`]); the scheduler then has each program recorded once
/// and replayed from there on. While a device records, nothing is read, written, allocated, loaded, compiled or waited for
/// on it.
pub trait Backend: Send {
    /// What it is.
    fn info(&self) -> DeviceInfo;

    /// Its name alone, where all of [`Backend::info`] takes longer to find out.
    fn name(&self) -> String {
        self.info().name
    }

    /// Whether it runs this operation with these types and shapes. Pure: asked when a plan is made, never
    /// later.
    fn supports(&self, query: &OpQuery<'_>) -> bool;

    /// The memory that loading a weight for one use takes, in bytes: for the budget that is checked before anything is
    /// allocated.
    fn weight_memory(&self, decl: &WeightDecl, _usage: WeightUse) -> usize {
        crate::graph::dtype_bytes(decl.dtype, &decl.shape)
    }

    /// Loads a weight for one use.
    fn load_weight(&mut self, request: &WeightRequest<'_>) -> Result<WeightHandle, DeviceError>;

    /// Creates a KV cache. Its rows need no defined content before they are stored.
    fn create_state(&mut self, decl: &StateDecl) -> Result<StateHandle, DeviceError>;

    /// Frees a KV cache. Programs that name it are not launched again, but may be released later.
    fn release_state(&mut self, state: StateHandle);

    /// Allocates a buffer.
    fn allocate(&mut self, bytes: usize) -> Result<BufferId, DeviceError>;

    /// Frees a buffer. Programs that name it are not launched again, but may be released later.
    fn release(&mut self, buffer: BufferId);

    /// Makes a split ready to run: kernels, addresses and scratch memory are bound here, so that a launch
    /// allocates nothing.
    fn compile(&mut self, ops: &[BoundOp]) -> Result<ProgramId, DeviceError>;

    /// Frees a program.
    fn release_program(&mut self, program: ProgramId);

    /// Runs a program, or hands it to the device. After an error none of its later operations has run. Index
    /// data are checked before an operation writes (see [`crate::bounds`]).
    fn launch(&mut self, program: ProgramId) -> Result<(), DeviceError>;

    /// Sets how long any other call may wait for the device: reading, writing, allocating. What takes longer is
    /// [`DeviceError::Timeout`].
    fn set_deadline(&mut self, _deadline: Duration) {}

    /// Waits until all that was launched is done, at most `deadline`.
    fn synchronize(&mut self, deadline: Duration) -> Result<(), DeviceError>;

    /// Marks the end of what was launched so far.
    fn mark(&mut self) -> Event {
        Event::default()
    }

    /// Waits until the work before an event is done, at most `deadline`. A device without events waits for all its work.
    fn wait(&mut self, _event: Event, deadline: Duration) -> Result<(), DeviceError> {
        self.synchronize(deadline)
    }

    /// Writes host bytes to the start of a buffer, ahead of all that is launched later. Only called when nothing in flight
    /// uses the buffer.
    fn write(&mut self, buffer: BufferId, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Reads a buffer from its start. Only called when what writes the buffer has been waited for; other work may be in
    /// flight.
    fn read(&mut self, buffer: BufferId, out: &mut [u8]) -> Result<(), DeviceError>;

    /// Reads rows of a KV cache from a slot on, converted to f32; `out` is a whole number of rows `[kv_heads][head_dim]`.
    /// Only called when the device is synchronized.
    fn read_state(
        &mut self,
        state: StateHandle,
        table: KvTable,
        first_slot: usize,
        out: &mut [f32],
    ) -> Result<(), DeviceError>;

    /// Whether launches can be recorded and replayed.
    fn can_record(&self) -> bool {
        false
    }

    /// Until [`Backend::end_recording`], launches are written down and not run.
    fn begin_recording(&mut self) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported("recording".to_owned()))
    }

    /// Ends what [`Backend::begin_recording`] began; after an error nothing is being recorded any more.
    fn end_recording(&mut self) -> Result<RecordingId, DeviceError> {
        Err(DeviceError::Unsupported("recording".to_owned()))
    }

    /// Runs what was recorded, as [`Backend::launch`] does. Only called while [`Backend::address_generation`] is what it was
    /// when the recording began.
    fn replay(&mut self, _recording: RecordingId) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported("replay".to_owned()))
    }

    /// Frees a recording.
    fn release_recording(&mut self, _recording: RecordingId) {}

    /// Changes whenever addresses that a recording holds stop to be valid, such as those of working memory that has grown.
    fn address_generation(&self) -> u64 {
        0
    }
}

impl fmt::Debug for dyn Backend + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Backend({})", self.name())
    }
}
