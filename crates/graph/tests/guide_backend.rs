//! The backend of `docs/adding-a-backend.md`: two operations, synchronous, and all that makes it one of several devices.

use std::time::Duration;

use minfer_graph::conformance::{self, placements};
use minfer_graph::devices::ReferenceDevice;
use minfer_graph::{
    Backend, BoundOp, BufferId, DType, DeviceError, DeviceInfo, GraphBuilder, KvTable, Op, OpQuery, Operand,
    Place, PlanError, PlanOptions, ProgramId, Scheduler, StateDecl, StateHandle, WeightHandle, WeightRequest,
    WeightTable,
};

/// Runs matrix products and sums of f32.
struct GuideDevice {
    /// By handle; freed ones are empty, and their handles are not given out again.
    buffers: Vec<Vec<f32>>,
    weights: Vec<Vec<f32>>,
    programs: Vec<Vec<BoundOp>>,
    /// Bytes that may still be taken.
    free: usize,
}

impl GuideDevice {
    fn new(memory: usize) -> Self {
        Self { buffers: Vec::new(), weights: Vec::new(), programs: Vec::new(), free: memory }
    }

    /// Takes memory, or says that there is not enough.
    fn take(&mut self, bytes: usize, what: &str) -> Result<(), DeviceError> {
        match self.free.checked_sub(bytes) {
            Some(left) => self.free = left,
            None => {
                let (what, free) = (what.to_owned(), Some(self.free as u64));
                return Err(DeviceError::OutOfMemory { what, wanted: bytes, free });
            }
        }
        Ok(())
    }

    /// The values of an operand.
    fn values(&self, operand: &Operand) -> Result<&[f32], DeviceError> {
        let memory = match operand.place {
            Place::Buffer(b) => self.buffers.get(b.0 as usize),
            Place::Weight(w) => self.weights.get(w.0 as usize),
            Place::State(_) => None,
        };
        memory.and_then(|m| m.get(..operand.shape.len())).ok_or_else(|| {
            DeviceError::Failed(format!("{:?} does not hold {}", operand.place, operand.shape))
        })
    }

    fn bytes(&mut self, buffer: BufferId, len: usize) -> Result<&mut [u8], DeviceError> {
        let memory = self.buffers.get_mut(buffer.0 as usize).map(Vec::as_mut_slice).unwrap_or_default();
        bytemuck::cast_slice_mut(memory)
            .get_mut(..len)
            .ok_or_else(|| DeviceError::Failed(format!("buffer {} has not {len} bytes", buffer.0)))
    }

    fn run(&self, op: &BoundOp) -> Result<Vec<f32>, DeviceError> {
        let (a, b) = (self.values(&op.sources[0])?, self.values(&op.sources[1])?);
        match op.op {
            Op::MatMul => {
                let width = op.sources[0].shape.width();
                let dot = |row: &[f32], x: &[f32]| -> f64 {
                    row.iter().zip(x).map(|(&r, &x)| f64::from(r) * f64::from(x)).sum()
                };
                let rows =
                    b.chunks_exact(width).flat_map(|x| a.chunks_exact(width).map(move |row| dot(row, x)));
                Ok(rows.map(|sum| sum as f32).collect())
            }
            // The second source may be one row, which is added to each.
            Op::Add => Ok(a.iter().zip(b.iter().cycle()).map(|(a, b)| a + b).collect()),
            _ => Err(DeviceError::Unsupported(op.op.name().to_owned())),
        }
    }
}

impl Backend for GuideDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: "guide".to_owned(),
            description: "two operations".to_owned(),
            free_memory: Some(self.free as u64),
        }
    }

    fn supports(&self, query: &OpQuery<'_>) -> bool {
        matches!(query.op, Op::MatMul | Op::Add) && query.sources.iter().all(|s| s.dtype == DType::F32)
    }

    fn load_weight(&mut self, request: &WeightRequest<'_>) -> Result<WeightHandle, DeviceError> {
        let bytes = request
            .source
            .bytes(request.name)
            .ok_or_else(|| DeviceError::Failed(format!("tensor {} is missing", request.name)))?;
        self.take(bytes.len(), request.name)?;
        let values = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        self.weights.push(values.collect());
        // Weights are copied, so the file's pages are not needed any more.
        request.source.release(request.name, 0..bytes.len());
        Ok(WeightHandle(self.weights.len() as u32 - 1))
    }

    fn create_state(&mut self, _decl: &StateDecl) -> Result<StateHandle, DeviceError> {
        Err(DeviceError::Unsupported("a KV cache".to_owned()))
    }

    fn release_state(&mut self, _state: StateHandle) {}

    fn allocate(&mut self, bytes: usize) -> Result<BufferId, DeviceError> {
        self.take(bytes, "a buffer")?;
        // What nobody has written must show.
        self.buffers.push(vec![f32::NAN; bytes.div_ceil(4)]);
        Ok(BufferId(self.buffers.len() as u32 - 1))
    }

    fn release(&mut self, buffer: BufferId) {
        if let Some(memory) = self.buffers.get_mut(buffer.0 as usize) {
            self.free += 4 * std::mem::take(memory).len();
        }
    }

    fn compile(&mut self, ops: &[BoundOp]) -> Result<ProgramId, DeviceError> {
        for operand in ops.iter().flat_map(|op| op.sources.iter().chain([&op.result])) {
            self.values(operand)?;
        }
        self.programs.push(ops.to_vec());
        Ok(ProgramId(self.programs.len() as u32 - 1))
    }

    fn release_program(&mut self, program: ProgramId) {
        if let Some(ops) = self.programs.get_mut(program.0 as usize) {
            *ops = Vec::new();
        }
    }

    fn launch(&mut self, program: ProgramId) -> Result<(), DeviceError> {
        let program = program.0 as usize;
        for i in 0..self.programs.get(program).map_or(0, Vec::len) {
            let op = &self.programs[program][i];
            let (values, place) = (self.run(op)?, op.result.place);
            // The result may lie over a source, so it is written when it is complete.
            if let Place::Buffer(buffer) = place {
                self.bytes(buffer, 4 * values.len())?.copy_from_slice(bytemuck::cast_slice(&values));
            }
        }
        Ok(())
    }

    fn synchronize(&mut self, _deadline: Duration) -> Result<(), DeviceError> {
        Ok(())
    }

    fn write(&mut self, buffer: BufferId, bytes: &[u8]) -> Result<(), DeviceError> {
        self.bytes(buffer, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, buffer: BufferId, out: &mut [u8]) -> Result<(), DeviceError> {
        out.copy_from_slice(self.bytes(buffer, out.len())?);
        Ok(())
    }

    fn read_state(
        &mut self,
        _state: StateHandle,
        _table: KvTable,
        _first_slot: usize,
        _out: &mut [f32],
    ) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported("a KV cache".to_owned()))
    }
}

fn guide() -> Box<dyn Backend> {
    Box::new(GuideDevice::new(1 << 30))
}

fn reference() -> Box<dyn Backend> {
    Box::new(ReferenceDevice::default())
}

#[test]
fn the_guides_backend_passes_the_suite() {
    let report = conformance::run(&mut guide, &conformance::Options::default());
    report.assert_passed();
    // What it does not claim to run was skipped, not passed.
    assert!(report.passed >= 10 && report.skipped.iter().any(|case| case.starts_with("rope")), "{report}");
}

#[test]
fn the_guides_backend_is_right_on_any_placement() {
    let options = placements::Options { cases: 100, ..placements::Options::default() };
    let mut devices = placements::Devices { device: &mut guide, kernels: &mut reference };
    let report = placements::run_with(&mut devices, &options);
    report.assert_passed();
    // Cases with an operation that only it could have taken are skipped.
    assert!(report.passed > 75, "{report}");
}

#[test]
fn what_does_not_fit_on_the_guides_backend_is_refused_before_anything_is_allocated() {
    let mut scheduler = Scheduler::new(vec![Box::new(GuideDevice::new(1000))]);
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1, 16]);
    let weight = b.weight("weight", DType::F32, [16, 16]);
    let y = b.mat_mul("y", weight, x);
    b.output(y);
    let mut weights = WeightTable::new();
    weights.insert_f32("weight", &[0.0; 256]);
    let plan = scheduler.plan(b.finish().unwrap(), &PlanOptions::default()).unwrap();
    let error = scheduler.bind(plan, &(std::sync::Arc::new(weights) as _), &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, PlanError::OverBudget { free: 1000, weights: 1024, .. }), "{error}");
    assert_eq!(scheduler.backends()[0].info().free_memory, Some(1000));
}

#[test]
fn the_code_in_the_guide_is_this_files() {
    let (guide, code) = (include_str!("../../../docs/adding-a-backend.md"), include_str!("guide_backend.rs"));
    let blocks: Vec<&str> =
        guide.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() >= 5, "{} blocks", blocks.len());
    for block in blocks {
        assert!(code.contains(block), "the guide has code of its own:\n{block}");
    }
}
