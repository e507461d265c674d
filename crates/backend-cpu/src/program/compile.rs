//! From bound operations to steps: resolves addresses, shares quantized activations and rope tables, places
//! barriers.

mod operands;

use std::sync::Arc;

use minfer_graph::{Activation, BoundOp, DeviceError, NodeId, Op, Operand, Place, Shape};

use super::cache::{Attend, Store as KvStore};
use super::checks::{Check, Checks};
use super::hazards::{Access, Hazards, Region, Share};
use super::kernel::Kernel;
use super::product::{Input, MatMul, MatMuls, Quantize};
use super::{Program, Step};
use crate::attention::{AttentionLimits, AttentionParams, AttentionPlan};
use crate::backend::Store;
use crate::matmul::scratch_bytes;
use crate::ops::{Binary, Rope, Unary};
use crate::quantize::QuantizedLayout;
use crate::weights::Weight;

/// From this many tokens on, a program uses the threads meant for prompts.
const BATCH_TOKENS: usize = 8;

/// Makes a program of a split.
pub(crate) fn compile(store: &Store, ops: &[BoundOp]) -> Result<Program, DeviceError> {
    let tokens = ops.iter().map(|o| rows_and_width(&o.result.shape).0).max().unwrap_or(1);
    let mut compiler = Compiler {
        store,
        threads: store.threads[usize::from(tokens >= BATCH_TOKENS)],
        current: NodeId(0),
        steps: Vec::new(),
        checks: Checks::default(),
        hazards: Hazards::default(),
        shared_scratch: 0,
        thread_scratch: 0,
        rope_tables: Vec::new(),
        quantized: None,
        quantized_at: None,
        attention_scratch: None,
    };
    for op in ops {
        compiler.current = op.node;
        compiler.op(op)?;
    }
    let Compiler { threads, steps, checks, shared_scratch, thread_scratch, .. } = compiler;
    let operands = ops.iter().flat_map(|op| op.sources.iter().chain([&op.result]));
    let mut places: Vec<Place> = Vec::new();
    for place in operands.map(|o| o.place).filter(|p| !matches!(p, Place::Weight(_))) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    Ok(Program {
        steps,
        checks,
        threads,
        isa: store.isa,
        shared_scratch,
        thread_scratch,
        places,
        alive: true,
    })
}

struct Compiler<'a> {
    store: &'a Store,
    threads: usize,
    /// Node of the operation being compiled.
    current: NodeId,
    steps: Vec<Step>,
    checks: Checks,
    hazards: Hazards,
    shared_scratch: usize,
    thread_scratch: usize,
    /// Rope tables made so far, with what they were made from.
    rope_tables: Vec<RopeTable>,
    /// The activation whose quantized form is in the working memory, if nothing has overwritten either.
    quantized: Option<Operand>,
    /// Where quantized activations go, and how much room was given to them.
    quantized_at: Option<(usize, usize)>,
    /// Where attention's partial results go, and how much room was given to them.
    attention_scratch: Option<(usize, usize)>,
}

struct RopeTable {
    rope: Arc<Rope>,
    positions: *const i32,
    offset: usize,
    bytes: usize,
}

impl Compiler<'_> {
    fn op(&mut self, op: &BoundOp) -> Result<(), DeviceError> {
        // The quantized form is that of a value which is gone once its memory is written again.
        if self.quantized.is_some_and(|q| q.place == op.result.place) {
            self.quantized = None;
        }
        match op.op {
            Op::GetRows => self.get_rows(op),
            Op::MatMul | Op::MatMulAdd => self.mat_mul(op),
            Op::Add => self.binary(op, Binary::Add),
            Op::Mul => self.binary(op, Binary::Mul),
            Op::GatedActivate(Activation::Silu) => self.binary(op, Binary::SiluMul),
            Op::GatedActivate(Activation::Gelu) => self.binary(op, Binary::GeluMul),
            Op::Scale(factor) => self.unary(op, Unary::Scale(factor)),
            Op::Softcap(cap) => self.unary(op, Unary::Softcap(cap)),
            Op::Activate(Activation::Silu) => self.unary(op, Unary::Silu),
            Op::Activate(Activation::Gelu) => self.unary(op, Unary::Gelu),
            Op::RmsNorm { eps } | Op::RmsNormMul { eps } => self.rms_norm(op, eps),
            Op::Rope(_) => self.rope(op),
            Op::KvStore => self.kv_store(op),
            Op::Attention(_) => self.attention(op),
            Op::Input | Op::Weight(_) | Op::State(_) | Op::Reshape => {
                Err(DeviceError::Failed(format!("{} runs nothing and cannot be compiled", op.op.name())))
            }
        }
    }

    fn get_rows(&mut self, op: &BoundOp) -> Result<(), DeviceError> {
        let [table, ids] = [&op.sources[0], &op.sources[1]];
        let ids_at = self.ids(ids)?;
        let (rows, width) = (table.shape.rows(), table.shape.width());
        self.checks.add(self.current, Check::Rows { ids: ids_at, rows });
        let out = self.out(op)?;
        let mut accesses = vec![self.write(op, Share::Rows(ids_at.len))?];
        let kernel = match table.place {
            Place::Weight(handle) => match self.weight(handle)? {
                Weight::Table(t) => {
                    let row_bytes = t.len() / rows;
                    Kernel::LookUp {
                        table: t.as_ptr(),
                        dtype: table.dtype,
                        row_bytes,
                        width,
                        ids: ids_at,
                        out,
                    }
                }
                _ => return Err(misused(op, "a table")),
            },
            _ => {
                accesses.push(self.read(table, Share::Any)?);
                Kernel::SelectRows { table: self.f32s(table)?, width, ids: ids_at, out }
            }
        };
        self.step(kernel, &accesses);
        Ok(())
    }

    fn unary(&mut self, op: &BoundOp, function: Unary) -> Result<(), DeviceError> {
        let (rows, width) = rows_and_width(&op.result.shape);
        let (x, out) = (self.f32s(&op.sources[0])?, self.out(op)?);
        let accesses = [self.read(&op.sources[0], Share::Rows(rows))?, self.write(op, Share::Rows(rows))?];
        self.step(Kernel::Unary { op: function, rows, width, x, out }, &accesses);
        Ok(())
    }

    fn rms_norm(&mut self, op: &BoundOp, eps: f32) -> Result<(), DeviceError> {
        let (rows, row) = rows_and_width(&op.result.shape);
        let width = op.result.shape.width();
        let (x, out) = (self.f32s(&op.sources[0])?, self.out(op)?);
        let mut accesses =
            vec![self.read(&op.sources[0], Share::Rows(rows))?, self.write(op, Share::Rows(rows))?];
        let mut weight = None;
        if let Some(w) = op.sources.get(1) {
            weight = Some(self.f32s(w)?);
            accesses.push(self.read(w, Share::Any)?);
        }
        self.step(Kernel::RmsNorm { rows, inner: row / width, width, eps, x, weight, out }, &accesses);
        Ok(())
    }

    fn binary(&mut self, op: &BoundOp, function: Binary) -> Result<(), DeviceError> {
        let [a_at, b_at] = [&op.sources[0], &op.sources[1]];
        let (rows, row) = rows_and_width(&op.result.shape);
        let (a, b, out) = (self.f32s(a_at)?, self.f32s(b_at)?, self.out(op)?);
        // A row that is added to a single row is no broadcast: there the result may be in its place.
        let same = a_at.shape.len() == b_at.shape.len();
        let accesses = [
            self.read(a_at, Share::Rows(rows))?,
            self.read(b_at, if same { Share::Rows(rows) } else { Share::Any })?,
            self.write(op, Share::Rows(rows))?,
        ];
        let kernel = if same {
            Kernel::Binary { op: function, rows, width: row, a, b, out }
        } else {
            let width = b_at.shape.len();
            Kernel::Broadcast { op: function, rows, inner: row / width, width, a, b, out }
        };
        self.step(kernel, &accesses);
        Ok(())
    }

    fn rope(&mut self, op: &BoundOp) -> Result<(), DeviceError> {
        let Op::Rope(params) = &op.op else { return Err(misused(op, "rope")) };
        let &[rows, heads, head_dim] = op.result.shape.dims() else {
            return Err(misused(op, "three dimensions"));
        };
        let positions = self.ids(&op.sources[1])?;
        self.checks.add(self.current, Check::Positions(positions));
        let factors = match op.sources.get(2) {
            Some(f) => {
                let start = self.f32s(f)?;
                if !matches!(f.place, Place::Weight(_)) {
                    return Err(misused(op, "factors that are a weight"));
                }
                // SAFETY: a loaded vector of this many elements, which nothing writes.
                Some(unsafe { std::slice::from_raw_parts(start, f.shape.len()) })
            }
            None => None,
        };
        let rope =
            Rope::new(params, factors).map_err(|e| DeviceError::Unsupported(format!("{}: {e}", op.label)))?;
        let found = self.rope_tables.iter().position(|t| *t.rope == rope && t.positions == positions.start);
        let table = match found {
            Some(i) => i,
            None => {
                let bytes = rows * rope.row_len() * size_of::<f32>();
                let offset = self.reserve_shared(bytes);
                let rope = Arc::new(rope);
                self.rope_tables.push(RopeTable {
                    rope: Arc::clone(&rope),
                    positions: positions.start,
                    offset,
                    bytes,
                });
                let written =
                    Access { region: scratch(offset, bytes), writes: true, share: Share::Rows(rows) };
                self.step(Kernel::RopeTable { rope, positions, table: offset }, &[written]);
                self.rope_tables.len() - 1
            }
        };
        let RopeTable { rope, offset, bytes, .. } = &self.rope_tables[table];
        let (rope, table, bytes) = (Arc::clone(rope), *offset, *bytes);
        let (x, out) = (self.f32s(&op.sources[0])?, self.out(op)?);
        let accesses = [
            self.read(&op.sources[0], Share::Rows(rows))?,
            self.write(op, Share::Rows(rows))?,
            Access { region: scratch(table, bytes), writes: false, share: Share::Rows(rows) },
        ];
        self.step(Kernel::Rope { rope, rows, heads, head_dim, table, x, out }, &accesses);
        Ok(())
    }

    fn mat_mul(&mut self, op: &BoundOp) -> Result<(), DeviceError> {
        let [weight, x] = [&op.sources[0], &op.sources[1]];
        let Place::Weight(handle) = weight.place else { return Err(misused(op, "a weight")) };
        let (layout, weights) = match self.weight(handle)? {
            Weight::Matrix { layout, data } => (*layout, data.as_ptr().cast_const()),
            _ => return Err(misused(op, "a packed matrix")),
        };
        if (layout.rows(), layout.k()) != (weight.shape.rows(), weight.shape.width()) {
            return Err(misused(op, "a matrix of the weight's shape"));
        }
        let bias = match op.sources.get(2) {
            // Not from a buffer, whose other uses this step would have to be kept apart from.
            Some(b) if matches!(b.place, Place::Weight(_)) && b.shape.len() == layout.rows() => {
                Some(self.f32s(b)?)
            }
            Some(_) => return Err(misused(op, "a row of the model as addend")),
            None => None,
        };
        let input = if layout.quantized() {
            self.quantized(x)?
        } else {
            Input::F32 { x: self.f32s(x)?, rows: x.shape.rows(), k: x.shape.width() }
        };
        let mut accesses = vec![self.write(op, Share::Any)?];
        match input {
            Input::Quantized { layout, from } => {
                accesses.push(Access {
                    region: scratch(from, layout.bytes()),
                    writes: false,
                    share: Share::Any,
                });
            }
            Input::F32 { .. } => accesses.push(self.read(x, Share::Any)?),
        }
        let scratch = scratch_bytes(&layout);
        self.thread_scratch = self.thread_scratch.max(scratch.next_multiple_of(64));
        let product = MatMul { layout, weights, bias, out: self.out(op)?, scratch };
        // Products of one activation that follow each other share a step, unless one touches what another does.
        if let Some(Step { kernel: Kernel::MatMuls(last), .. }) = self.steps.last_mut()
            && last.x == input
            && self.hazards.join(&accesses)
        {
            last.products.push(product);
        } else {
            self.step(Kernel::MatMuls(MatMuls { x: input, products: vec![product] }), &accesses);
        }
        Ok(())
    }

    /// The quantized form of an activation: made once, however many products read it.
    fn quantized(&mut self, x: &Operand) -> Result<Input, DeviceError> {
        let (rows, k) = (x.shape.rows(), x.shape.width());
        let layout = QuantizedLayout::new(rows, k).map_err(|e| DeviceError::Unsupported(e.to_string()))?;
        let from = match self.quantized_at {
            Some((offset, room)) if room >= layout.bytes() => offset,
            _ => {
                let offset = self.reserve_shared(layout.bytes());
                self.quantized_at = Some((offset, layout.bytes()));
                offset
            }
        };
        let same = self
            .quantized
            .is_some_and(|q| q.place == x.place && q.shape.width() == k && q.shape.rows() == rows);
        if !same {
            // One row is one tile; tiles of more rows are not the rows that other steps share out.
            let share = if rows == 1 { Share::Rows(1) } else { Share::Any };
            let accesses =
                [self.read(x, share)?, Access { region: scratch(from, layout.bytes()), writes: true, share }];
            self.step(Kernel::Quantize(Quantize { layout, x: self.f32s(x)?, to: from }), &accesses);
            self.quantized = Some(*x);
        }
        Ok(Input::Quantized { layout, from })
    }

    fn kv_store(&mut self, op: &BoundOp) -> Result<(), DeviceError> {
        let [state, k, v, slots] = [&op.sources[0], &op.sources[1], &op.sources[2], &op.sources[3]];
        let (cache, [k_region, v_region]) = self.cache(op, state)?;
        let slots = self.ids(slots)?;
        let rows = slots.len;
        if let Some(state) = op.state {
            self.checks.add(self.current, Check::Slots { slots, state });
        }
        let accesses = [
            self.read(k, Share::Rows(rows))?,
            self.read(v, Share::Rows(rows))?,
            Access { region: k_region, writes: true, share: Share::Any },
            Access { region: v_region, writes: true, share: Share::Any },
        ];
        let kernel = Kernel::Store(KvStore { cache, slots, k: self.f32s(k)?, v: self.f32s(v)? });
        self.step(kernel, &accesses);
        Ok(())
    }

    fn attention(&mut self, op: &BoundOp) -> Result<(), DeviceError> {
        let (Op::Attention(attention), Some(state)) = (&op.op, &op.state) else {
            return Err(misused(op, "a KV cache"));
        };
        let [q, kv, positions, sequences, table] =
            [&op.sources[0], &op.sources[1], &op.sources[2], &op.sources[3], &op.sources[4]];
        let (cache, regions) = self.cache(op, kv)?;
        let &[tokens, heads, _] = q.shape.dims() else { return Err(misused(op, "three dimensions")) };
        let params = AttentionParams {
            heads,
            scale: attention.scale,
            window: attention.window,
            softcap: attention.softcap,
        };
        let limits =
            AttentionLimits { tokens, page: state.page, blocks: table.shape.width(), threads: self.threads };
        let plan = AttentionPlan::new(self.store.isa, params, cache, limits)
            .map_err(|e| DeviceError::Unsupported(format!("{}: {e}", op.label)))?;
        self.thread_scratch = self.thread_scratch.max(bytes_of_f32s(plan.worker_scratch()));
        let bytes = bytes_of_f32s(plan.shared_scratch());
        // Every attention starts after a barrier, so they may all use the same working memory.
        let shared = match self.attention_scratch {
            Some((offset, room)) if room >= bytes => offset,
            _ => {
                let offset = self.reserve_shared(bytes);
                self.attention_scratch = Some((offset, bytes));
                offset
            }
        };
        let mut accesses = vec![self.read(q, Share::Any)?, self.write(op, Share::Any)?];
        accesses.extend(regions.map(|region| Access { region, writes: false, share: Share::Any }));
        accesses.push(Access { region: scratch(shared, bytes), writes: true, share: Share::Any });
        let blocks = table.shape.width();
        let [positions, sequences, table] = [self.ids(positions)?, self.ids(sequences)?, self.ids(table)?];
        self.checks.add(
            self.current,
            Check::Attention { attention: *attention, positions, sequences, table, blocks, state: *state },
        );
        let kernel = Kernel::Attention(Attend {
            plan,
            positions,
            sequences,
            block_table: table,
            threads: self.threads,
            q: self.f32s(q)?,
            out: self.out(op)?,
            shared,
        });
        self.step(kernel, &accesses);
        Ok(())
    }

    /// Adds a step, with a barrier before it if it needs one.
    fn step(&mut self, kernel: Kernel, accesses: &[Access]) {
        let conflict = self.hazards.step(accesses, kernel.claims() && !self.steps.is_empty());
        self.steps.push(Step { barrier: conflict, kernel });
    }

    /// Room in the shared working memory, aligned for vectors.
    fn reserve_shared(&mut self, bytes: usize) -> usize {
        let offset = self.shared_scratch;
        self.shared_scratch += bytes.next_multiple_of(64);
        offset
    }
}

/// The rows of a value that threads share out (tokens, for activations) and the elements of each. A vector is one
/// row.
fn rows_and_width(shape: &Shape) -> (usize, usize) {
    let rows = if shape.rank() > 1 { shape.dims()[0] } else { 1 };
    (rows, shape.len() / rows)
}

fn bytes_of_f32s(n: usize) -> usize {
    (n * size_of::<f32>()).next_multiple_of(64)
}

/// Working memory moves between runs, so its regions are offsets. One that looks like an address costs a barrier
/// at worst.
fn scratch(offset: usize, bytes: usize) -> Region {
    Region::new(offset, bytes)
}

fn misused(op: &BoundOp, wanted: &str) -> DeviceError {
    DeviceError::Unsupported(format!("{} {}: {wanted} wanted", op.op.name(), op.label))
}
