//! The CPU as a [`Backend`].

use std::time::Duration;

use minfer_graph::{
    Backend, BoundOp, BufferId, DType, DeviceError, DeviceInfo, KvTable, Op, OpQuery, Place, ProgramId,
    StateDecl, StateHandle, WeightDecl, WeightHandle, WeightRequest, WeightUse,
};

use crate::memory::{AllocError, ZeroedBytes};
use crate::pool::{PoolConfig, PoolError, ThreadPool};
use crate::program::{Program, compile};
use crate::simd::{Isa, IsaError};
use crate::slab::Slab;
use crate::weights::Weight;

/// How the CPU is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuConfig {
    /// Threads for programs over one or a few tokens.
    pub threads: usize,
    /// Threads for programs over many tokens.
    pub threads_batch: usize,
    /// The instruction set; `None` for the best this machine has.
    pub isa: Option<Isa>,
}

/// Why the CPU cannot be used as asked.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// The instruction set is not to be had.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// The threads are not to be had.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// One layer's keys and values, each `[slots][kv_heads][head_dim]`.
#[derive(Debug)]
pub(crate) struct Cache {
    pub decl: StateDecl,
    pub k: ZeroedBytes,
    pub v: ZeroedBytes,
}

impl Cache {
    /// Copies rows as f32; says whether there are as many.
    fn read(&self, table: KvTable, first_slot: usize, out: &mut [f32]) -> bool {
        let bytes = match table {
            KvTable::K => self.k.as_slice(),
            KvTable::V => self.v.as_slice(),
        };
        let size = self.decl.dtype.type_size();
        let start = first_slot * self.decl.kv_heads * self.decl.head_dim * size;
        let Some(from) = bytes.get(start..).and_then(|b| b.get(..out.len() * size)) else { return false };
        for (value, from) in out.iter_mut().zip(from.chunks_exact(size)) {
            *value = match *from {
                [a, b] => half::f16::from_le_bytes([a, b]).to_f32(),
                [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
                _ => return false,
            };
        }
        true
    }
}

/// All that programs refer to.
#[derive(Debug)]
pub(crate) struct Store {
    pub isa: Isa,
    /// Threads for decode and for prompts.
    pub threads: [usize; 2],
    pub buffers: Slab<ZeroedBytes>,
    pub weights: Slab<Weight>,
    pub states: Slab<Cache>,
}

/// The CPU backend: synchronous, one program at a time on a pool of threads.
#[derive(Debug)]
pub struct CpuBackend {
    pool: ThreadPool,
    store: Store,
    programs: Slab<Program>,
    /// Working memory of programs, as long as the longest needs.
    scratch: Option<ZeroedBytes>,
}

impl CpuBackend {
    /// Starts the threads.
    pub fn new(config: &CpuConfig) -> Result<Self, CpuError> {
        let isa = config.isa.map_or_else(|| Ok(Isa::detect()), Isa::checked)?;
        for threads in [config.threads, config.threads_batch] {
            if threads == 0 {
                return Err(PoolError::ThreadCount { asked: 0, available: PoolConfig::MAX_THREADS }.into());
            }
        }
        let pool = ThreadPool::new(PoolConfig::new(config.threads.max(config.threads_batch)))?;
        let store = Store {
            isa,
            threads: [config.threads, config.threads_batch],
            buffers: Slab::default(),
            weights: Slab::default(),
            states: Slab::default(),
        };
        Ok(Self { pool, store, programs: Slab::default(), scratch: None })
    }

    /// Programs hold addresses: those that hold one of this place do not run any more.
    fn revoke(&mut self, place: Place) {
        self.programs.iter_mut().for_each(|p| p.revoke(place));
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.store.isa
    }
}

impl Backend for CpuBackend {
    fn info(&self) -> DeviceInfo {
        let [decode, batch] = self.store.threads;
        DeviceInfo {
            name: self.name(),
            description: format!("{}, {decode} threads, {batch} for prompts", self.store.isa),
            free_memory: available_memory(),
        }
    }

    fn name(&self) -> String {
        "cpu".to_owned()
    }

    fn supports(&self, query: &OpQuery<'_>) -> bool {
        let weight = query.sources.first().filter(|s| s.is_weight);
        match query.op {
            Op::MatMul => weight.is_some_and(|w| Weight::can_multiply(w.dtype, w.shape)),
            // A bias of the model, which is added to every result row. What is computed is added by an operation
            // of its own: here it would be read while other threads may still write it.
            Op::MatMulAdd => {
                let bias = query.sources.get(2).is_some_and(|b| b.is_weight && b.shape.rank() == 1);
                bias && weight.is_some_and(|w| Weight::can_multiply(w.dtype, w.shape))
            }
            Op::GetRows => weight.is_none_or(|w| Weight::can_look_up(w.dtype)),
            _ => true,
        }
    }

    fn weight_memory(&self, decl: &WeightDecl, usage: WeightUse) -> usize {
        match usage {
            // Read where the file is mapped.
            WeightUse::Lookup => 0,
            WeightUse::Vector => decl.shape.len() * size_of::<f32>(),
            WeightUse::MatMul => Weight::matrix_bytes(decl.dtype, decl.shape),
        }
    }

    fn load_weight(&mut self, request: &WeightRequest<'_>) -> Result<WeightHandle, DeviceError> {
        let weight = Weight::load(&self.pool, request)?;
        Ok(WeightHandle(self.store.weights.insert(weight)))
    }

    fn create_state(&mut self, decl: &StateDecl) -> Result<StateHandle, DeviceError> {
        if !matches!(decl.dtype, DType::F16 | DType::F32) {
            return Err(DeviceError::Unsupported(format!("a KV cache of type {}", decl.dtype.name())));
        }
        let half = || {
            ZeroedBytes::new(decl.half_bytes())
                .map_err(|e| out_of_memory(e, format!("layer {}'s KV cache", decl.layer)))
        };
        let cache = Cache { decl: *decl, k: half()?, v: half()? };
        Ok(StateHandle(self.store.states.insert(cache)))
    }

    fn release_state(&mut self, state: StateHandle) {
        self.revoke(Place::State(state));
        self.store.states.remove(state.0);
    }

    fn allocate(&mut self, bytes: usize) -> Result<BufferId, DeviceError> {
        let memory = ZeroedBytes::new(bytes).map_err(|e| out_of_memory(e, "activations".to_owned()))?;
        Ok(BufferId(self.store.buffers.insert(memory)))
    }

    fn release(&mut self, buffer: BufferId) {
        self.revoke(Place::Buffer(buffer));
        self.store.buffers.remove(buffer.0);
    }

    fn compile(&mut self, ops: &[BoundOp]) -> Result<ProgramId, DeviceError> {
        let program = compile(&self.store, ops)?;
        let wanted = program.scratch_bytes();
        if self.scratch.as_ref().is_none_or(|s| s.len() < wanted) {
            let scratch =
                ZeroedBytes::new(wanted).map_err(|e| out_of_memory(e, "working memory".to_owned()))?;
            self.scratch = Some(scratch);
        }
        Ok(ProgramId(self.programs.insert(program)))
    }

    fn release_program(&mut self, program: ProgramId) {
        self.programs.remove(program.0);
    }

    fn launch(&mut self, program: ProgramId) -> Result<(), DeviceError> {
        let (Some(program), Some(scratch)) = (self.programs.get(program.0), self.scratch.as_mut()) else {
            return Err(DeviceError::Failed(format!("program {} is not known", program.0)));
        };
        program.run(&self.pool, &self.store, scratch)
    }

    fn synchronize(&mut self, _deadline: Duration) -> Result<(), DeviceError> {
        // A launch returns when it is done.
        Ok(())
    }

    fn write(&mut self, buffer: BufferId, bytes: &[u8]) -> Result<(), DeviceError> {
        let memory = self.store.buffers.get_mut(buffer.0).map(ZeroedBytes::as_mut_slice);
        match memory.and_then(|m| m.get_mut(..bytes.len())) {
            Some(to) => {
                to.copy_from_slice(bytes);
                Ok(())
            }
            None => {
                Err(DeviceError::Failed(format!("buffer {} does not hold {} bytes", buffer.0, bytes.len())))
            }
        }
    }

    fn read(&mut self, buffer: BufferId, out: &mut [u8]) -> Result<(), DeviceError> {
        match self.store.buffers.get(buffer.0).and_then(|m| m.as_slice().get(..out.len())) {
            Some(from) => {
                out.copy_from_slice(from);
                Ok(())
            }
            None => {
                Err(DeviceError::Failed(format!("buffer {} does not hold {} bytes", buffer.0, out.len())))
            }
        }
    }

    fn read_state(
        &mut self,
        state: StateHandle,
        table: KvTable,
        first_slot: usize,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        let cache = self.store.states.get(state.0);
        match cache.is_some_and(|c| c.read(table, first_slot, out)) {
            true => Ok(()),
            false => Err(DeviceError::Failed(format!(
                "KV cache {} does not hold {} values from slot {first_slot} on",
                state.0,
                out.len()
            ))),
        }
    }
}

pub(crate) fn out_of_memory(error: AllocError, what: String) -> DeviceError {
    DeviceError::OutOfMemory { what, wanted: error.bytes, free: available_memory() }
}

/// Memory that programs may still take, where the system tells.
fn available_memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
