//! The reference device: every operation in plain f64 code, against which kernels are judged.

mod attention;
mod elementwise;
mod matrix;
mod memory;
mod rope;

use std::time::Duration;

use elementwise::{add, map, mul, rms_norm};
use memory::{KvCache, Memory};
use minfer_gguf::quant;

use crate::{
    Activation, Backend, BoundOp, BufferId, DeviceError, DeviceInfo, KvTable, Op, OpQuery, Operand,
    ProgramId, StateDecl, StateHandle, WeightHandle, WeightRequest,
};

/// Runs every operation, fused ones included, in f64 over f32 values, with weights decoded to f32; each
/// result is rounded once. Slow and plain on purpose; a launch computes at once and allocates.
///
/// New memory is filled with NaN, KV caches too, so that reading what nobody wrote shows.
#[derive(Debug)]
pub struct ReferenceDevice {
    name: String,
    memory: Memory,
    programs: Vec<Option<Vec<BoundOp>>>,
}

impl Default for ReferenceDevice {
    fn default() -> Self {
        Self::new("reference")
    }
}

impl ReferenceDevice {
    /// A device of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), memory: Memory::default(), programs: Vec::new() }
    }

    /// Runs one operation, or says why its data do not allow it; then nothing has been written.
    ///
    /// A fused operation is its primitives one after the other, each result rounded to f32, so that fusion
    /// does not change a bit here.
    fn run(&mut self, op: &BoundOp) -> Result<(), String> {
        let m = &self.memory;
        let f32s = |i: usize| m.f32s(&op.sources[i]);
        let i32s = |i: usize| m.i32s(&op.sources[i]);
        let result = match &op.op {
            Op::Input | Op::Weight(_) | Op::State(_) | Op::Reshape => {
                return Err(format!("{} is not an operation to run", op.op.name()));
            }
            Op::GetRows => matrix::get_rows(&f32s(0), op.sources[0].shape.width(), &i32s(1))?,
            Op::MatMul => matrix::mat_mul(&f32s(0), &f32s(1), op.sources[0].shape),
            Op::MatMulAdd => add(&matrix::mat_mul(&f32s(0), &f32s(1), op.sources[0].shape), &f32s(2)),
            Op::Add => add(&f32s(0), &f32s(1)),
            Op::Mul => mul(&f32s(0), &f32s(1)),
            &Op::Scale(factor) => map(&f32s(0), |x| x * f64::from(factor)),
            &Op::Softcap(cap) => map(&f32s(0), |x| softcap(x, cap)),
            &Op::Activate(activation) => map(&f32s(0), |x| activate(activation, x)),
            &Op::GatedActivate(activation) => mul(&map(&f32s(0), |x| activate(activation, x)), &f32s(1)),
            &Op::RmsNorm { eps } => rms_norm(&f32s(0), op.result.shape.width(), eps),
            &Op::RmsNormMul { eps } => mul(&rms_norm(&f32s(0), op.result.shape.width(), eps), &f32s(1)),
            Op::Rope(rope) => {
                let factors = op.sources.get(2).map(|s| m.f32s(s));
                rope::rope(rope, &f32s(0), &i32s(1), factors.as_deref(), op.sources[0].shape)?
            }
            Op::KvStore => {
                let (k, v, slots) = (f32s(1), f32s(2), i32s(3));
                return self.memory.state_mut(&op.sources[0]).store(&k, &v, &slots);
            }
            Op::Attention(attention) => {
                let batch = attention::Batch {
                    q: &f32s(0),
                    positions: &i32s(2),
                    sequences: &i32s(3),
                    block_table: &i32s(4),
                    blocks: op.sources[4].shape.width(),
                };
                attention::attention(attention, &batch, m.state(&op.sources[1]))?
            }
        };
        // The result may be the memory of a source, which is why it is computed apart.
        self.memory.write(&op.result, &result);
        Ok(())
    }
}

/// `cap · tanh(x / cap)`.
fn softcap(x: f64, cap: f32) -> f64 {
    f64::from(cap) * (x / f64::from(cap)).tanh()
}

fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            x / 2.0 * (1.0 + inner.tanh())
        }
    }
}

impl Backend for ReferenceDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { name: self.name.clone(), description: "plain f64 code".to_owned(), free_memory: None }
    }

    fn supports(&self, query: &OpQuery<'_>) -> bool {
        query.sources.iter().all(|s| !s.is_weight || quant::DECODABLE.contains(&s.dtype))
    }

    fn load_weight(&mut self, request: &WeightRequest<'_>) -> Result<WeightHandle, DeviceError> {
        let bytes = request
            .source
            .bytes(request.name)
            .ok_or_else(|| DeviceError::Failed(format!("tensor {} is missing", request.name)))?;
        let mut values = vec![0.0; request.shape.len()];
        quant::dequantize(request.dtype, bytes, &mut values)
            .map_err(|e| DeviceError::Unsupported(format!("tensor {}: {e}", request.name)))?;
        Ok(self.memory.add_weight(values))
    }

    fn create_state(&mut self, decl: &StateDecl) -> Result<StateHandle, DeviceError> {
        Ok(self.memory.add_state(KvCache::new(*decl)?))
    }

    fn release_state(&mut self, state: StateHandle) {
        self.memory.release_state(state);
    }

    fn allocate(&mut self, bytes: usize) -> Result<BufferId, DeviceError> {
        Ok(self.memory.allocate(bytes))
    }

    fn release(&mut self, buffer: BufferId) {
        self.memory.release(buffer);
    }

    fn compile(&mut self, ops: &[BoundOp]) -> Result<ProgramId, DeviceError> {
        for op in ops {
            let operands = op.sources.iter().chain([&op.result]);
            if let Some(what) = operands.filter_map(|o| self.misplaced(o)).next() {
                return Err(DeviceError::Failed(format!("{} {}: {what}", op.op.name(), op.label)));
            }
        }
        self.programs.push(Some(ops.to_vec()));
        Ok(ProgramId(self.programs.len() as u32 - 1))
    }

    fn release_program(&mut self, program: ProgramId) {
        self.programs[program.0 as usize] = None;
    }

    fn launch(&mut self, program: ProgramId) -> Result<(), DeviceError> {
        let slot = program.0 as usize;
        let Some(ops) = self.programs[slot].take() else {
            return Err(DeviceError::Failed(format!("program {slot} was released")));
        };
        let mut run = Ok(());
        for op in &ops {
            run = self.run(op).map_err(|what| DeviceError::Kernel { node: op.node, what });
            if run.is_err() {
                break;
            }
        }
        self.programs[slot] = Some(ops);
        run
    }

    fn synchronize(&mut self, _deadline: Duration) -> Result<(), DeviceError> {
        Ok(())
    }

    fn write(&mut self, buffer: BufferId, bytes: &[u8]) -> Result<(), DeviceError> {
        self.memory.bytes_mut(buffer, bytes.len()).map(|b| b.copy_from_slice(bytes))
    }

    fn read(&mut self, buffer: BufferId, out: &mut [u8]) -> Result<(), DeviceError> {
        self.memory.bytes_mut(buffer, out.len()).map(|b| out.copy_from_slice(b))
    }

    fn read_state(
        &mut self,
        state: StateHandle,
        table: KvTable,
        first_slot: usize,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.memory.read_state(state, table, first_slot, out)
    }
}

impl ReferenceDevice {
    /// What is wrong with where an operand is.
    fn misplaced(&self, operand: &Operand) -> Option<String> {
        let (len, wanted) = (self.memory.len(operand.place), operand.shape.len());
        match len {
            Some(len) if len >= wanted => None,
            _ => Some(format!("{:?} has not the {wanted} elements of {}", operand.place, operand.shape)),
        }
    }
}
