//! How a random graph is put together, operation by operation.

use super::super::super::random::Random;
use super::{BLOCKS, Feed, PAGE, ROOM, Sample};
use crate::{
    Activation, Attention, DType, GraphBuilder, NodeId, Rope, RopePairs, Shape, StateDecl, WeightTable,
};

/// Larger values are normalized before they are multiplied, so that nothing overflows: a NaN would equal any other.
const LARGE: f32 = 1e6;

/// A graph being built.
pub(super) struct Maker {
    random: Random,
    pub b: GraphBuilder,
    pub weights: WeightTable,
    pub inputs: Vec<(NodeId, Feed)>,
    /// All f32 values.
    values: Vec<NodeId>,
    /// By node: how large its values may be, about; 0 for what is not f32.
    bounds: Vec<f32>,
    computed: Vec<NodeId>,
    tokens: usize,
    sequences: usize,
    step: Option<Step>,
    caches: Vec<Cache>,
    most_caches: usize,
}

/// The inputs that a batch has for attention.
#[derive(Clone, Copy)]
struct Step {
    positions: NodeId,
    slots: NodeId,
    sequences: NodeId,
    table: NodeId,
}

/// A KV cache that was written to.
#[derive(Clone, Copy)]
struct Cache {
    decl: StateDecl,
    stored: NodeId,
    bound: f32,
}

impl Maker {
    pub fn new(random: Random, tokens: usize, sequences: usize, most_caches: usize) -> Self {
        let mut maker = Self {
            random,
            b: GraphBuilder::new(),
            weights: WeightTable::new(),
            inputs: Vec::new(),
            values: Vec::new(),
            bounds: Vec::new(),
            computed: Vec::new(),
            tokens,
            sequences,
            step: None,
            caches: Vec::new(),
            most_caches,
        };
        for (i, width) in [8, 32].into_iter().enumerate() {
            maker.fresh(&format!("x{i}"), Shape::new(&[tokens, width]));
        }
        maker
    }

    /// Appends an operation, together with what it needs.
    pub fn add(&mut self, i: usize) {
        let label = format!("v{i}");
        let label = label.as_str();
        let x = self.pick();
        let value = match self.random.below(100) {
            0..12 => {
                let other = self.alike(x);
                self.sum(label, x, other)
            }
            12..22 => {
                let other = self.alike(x);
                self.product(label, x, other)
            }
            22..30 => self.unary(label, x),
            30..38 => self.gate(label, x),
            38..43 => self.norm(label, x),
            43..52 => self.weighted_norm(label, x),
            52..64 => self.mat_mul(label, x),
            64..74 => self.mat_mul_add(label, x),
            74..80 => self.rows(label, x),
            80..86 => self.rope(label, x),
            86..92 => self.reshape(label, x),
            92..98 if self.most_caches > 0 => self.attention(label, x),
            _ => {
                let shape = self.b.shape(x);
                self.fresh(label, shape)
            }
        };
        if self.computed.contains(&value) && self.random.below(7) == 0 {
            self.b.output(value);
        }
    }

    pub fn finish(mut self, seed: u64) -> Sample {
        let last = self.values[self.values.len() - 1];
        let last = self.b.scale("last", last, 1.0);
        self.b.output(last);
        let graph = self.b.finish().expect("the generator appends valid nodes only");
        let Self { weights, inputs, tokens, sequences, .. } = self;
        Sample { graph, weights, inputs, seed, tokens, sequences }
    }

    /// Mostly a recent value, so that chains arise; sometimes an old one, so that lives are long. Most old values are
    /// never picked again, some often.
    fn pick(&mut self) -> NodeId {
        let count = self.values.len();
        let back = if self.random.below(4) == 0 { count } else { count.min(4) };
        self.values[count - 1 - self.random.below(back)]
    }

    /// A value of the same shape, perhaps the same one.
    fn alike(&mut self, x: NodeId) -> NodeId {
        let shape = self.b.shape(x);
        let alike: Vec<NodeId> = self.values.iter().copied().filter(|&v| self.b.shape(v) == shape).collect();
        alike[self.random.below(alike.len())]
    }

    fn bound(&self, x: NodeId) -> f32 {
        self.bounds[x.index()]
    }

    /// Takes note of a value.
    fn note(&mut self, id: NodeId, bound: f32, computed: bool) -> NodeId {
        self.bounds.resize(id.index() + 1, 0.0);
        self.bounds[id.index()] = bound;
        self.values.push(id);
        if computed {
            self.computed.push(id);
        }
        id
    }

    pub fn fresh(&mut self, label: &str, shape: Shape) -> NodeId {
        let id = self.b.input(label, DType::F32, shape);
        self.inputs.push((id, Feed::Normal));
        self.note(id, 3.5, false)
    }

    pub fn i32s(&mut self, label: &str, shape: impl Into<Shape>, feed: Feed) -> NodeId {
        let id = self.b.input(label, DType::I32, shape);
        self.inputs.push((id, feed));
        id
    }

    /// A weight whose content follows from its name, so that it is the same in all graphs.
    fn weight(&mut self, kind: &str, dtype: DType, shape: impl Into<Shape>) -> NodeId {
        let shape = shape.into();
        let name = format!("{kind}.{}.{shape}", dtype.name());
        let bytes = Random::new(0, &name).weights(dtype, shape.len());
        self.weights.insert(name.as_str(), bytes);
        self.b.weight(name, dtype, shape)
    }

    /// A matrix of a type that has rows of this width.
    fn matrix(&mut self, rows: usize, width: usize) -> NodeId {
        let types = [DType::F32, DType::F16, DType::Q8_0];
        let dtype = types[self.random.below(if width.is_multiple_of(32) { 3 } else { 2 })];
        self.weight("matrix", dtype, [rows, width])
    }

    fn vector(&mut self, width: usize) -> NodeId {
        self.weight("vector", DType::F32, [width])
    }

    fn activation(&mut self) -> Activation {
        [Activation::Silu, Activation::Gelu][self.random.below(2)]
    }

    fn sum(&mut self, label: &str, a: NodeId, b: NodeId) -> NodeId {
        let id = self.b.add(label, a, b);
        let bound = self.bound(a) + self.bound(b);
        self.note(id, bound, true)
    }

    fn product(&mut self, label: &str, a: NodeId, b: NodeId) -> NodeId {
        let bound = self.bound(a) * self.bound(b);
        if bound > LARGE {
            return self.norm(label, a);
        }
        let id = self.b.mul(label, a, b);
        self.note(id, bound, true)
    }

    fn unary(&mut self, label: &str, x: NodeId) -> NodeId {
        let bound = self.bound(x);
        match self.random.below(4) {
            0 => {
                let factor = self.random.unit() * 2.0 - 1.0;
                let id = self.b.scale(label, x, factor);
                self.note(id, bound, true)
            }
            1 => {
                let id = self.b.softcap(label, x, 3.0);
                self.note(id, 3.0, true)
            }
            _ => {
                let activation = self.activation();
                let id = self.b.activate(label, x, activation);
                self.note(id, bound, true)
            }
        }
    }

    /// What fusion makes a gated activation of, if it can.
    fn gate(&mut self, label: &str, x: NodeId) -> NodeId {
        let activation = self.activation();
        let gate = self.b.activate(format!("{label}.gate"), x, activation);
        let bound = self.bound(x);
        let gate = self.note(gate, bound, true);
        let other = self.alike(x);
        self.product(label, gate, other)
    }

    fn norm(&mut self, label: &str, x: NodeId) -> NodeId {
        let id = self.b.rms_norm(label, x, 1e-5);
        let bound = (self.b.shape(x).width() as f32).sqrt();
        self.note(id, bound, true)
    }

    fn weighted_norm(&mut self, label: &str, x: NodeId) -> NodeId {
        let normed = self.norm(&format!("{label}.normed"), x);
        let weight = self.vector(self.b.shape(x).width());
        let id = self.b.mul(label, normed, weight);
        let bound = 3.5 * self.bound(normed);
        self.note(id, bound, true)
    }

    /// The value as a matrix of at most 12 rows of at most 64, so that products stay small.
    fn flat(&mut self, label: &str, x: NodeId) -> NodeId {
        let fits = |shape: Shape| shape.rank() == 2 && shape.rows() <= 12 && shape.width() <= 64;
        let shape = self.b.shape(x);
        if fits(shape) {
            return x;
        }
        let len = shape.len();
        let width = [64, 32, 16, 8, 4].into_iter().find(|w| len.is_multiple_of(*w)).unwrap_or(1);
        let matrix = self.reshaped(&format!("{label}.flat"), x, Shape::new(&[len / width, width]));
        if fits(self.b.shape(matrix)) { matrix } else { self.taken(&format!("{label}.few"), matrix, 3) }
    }

    /// Some rows of a matrix.
    fn taken(&mut self, label: &str, table: NodeId, count: usize) -> NodeId {
        let ids = self.i32s(&format!("{label}.rows.ids"), [count], Feed::Rows(self.b.shape(table).rows()));
        let id = self.b.get_rows(format!("{label}.rows"), table, ids);
        let bound = self.bound(table);
        self.note(id, bound, true)
    }

    fn reshaped(&mut self, label: &str, x: NodeId, shape: Shape) -> NodeId {
        let id = self.b.reshape(label, x, shape);
        let (bound, computed) = (self.bound(x), self.computed.contains(&x));
        self.note(id, bound, computed)
    }

    fn mat_mul(&mut self, label: &str, x: NodeId) -> NodeId {
        let rows = [4, 8, 12, 16, 32, 64][self.random.below(6)];
        self.projected(label, x, rows)
    }

    fn projected(&mut self, label: &str, x: NodeId, rows: usize) -> NodeId {
        let mut x = self.flat(label, x);
        let width = self.b.shape(x).width();
        if self.bound(x) > LARGE {
            x = self.norm(&format!("{label}.normed"), x);
        }
        let weight = self.matrix(rows, width);
        let id = self.b.mat_mul(label, weight, x);
        let bound = 3.5 * width as f32 * self.bound(x);
        self.note(id, bound, true)
    }

    /// With a bias, or an addend of the product's shape.
    fn mat_mul_add(&mut self, label: &str, x: NodeId) -> NodeId {
        let product = self.mat_mul(&format!("{label}.product"), x);
        let other = self.alike(product);
        if other == product || self.random.below(3) == 0 {
            let bias = self.vector(self.b.shape(product).width());
            let id = self.b.add(label, product, bias);
            let bound = 3.5 + self.bound(product);
            return self.note(id, bound, true);
        }
        let (a, b) = if self.random.below(2) == 0 { (product, other) } else { (other, product) };
        self.sum(label, a, b)
    }

    /// Rows of a value or of a weight, in another number: values of other sizes.
    fn rows(&mut self, label: &str, x: NodeId) -> NodeId {
        let count = 1 + self.random.below(6);
        if self.random.below(3) > 0 {
            let x = self.flat(label, x);
            return self.taken(label, x, count);
        }
        let width = [8, 32][self.random.below(2)];
        let table = self.matrix(7, width);
        let ids = self.i32s(&format!("{label}.ids"), [count], Feed::Rows(7));
        let id = self.b.get_rows(label, table, ids);
        self.note(id, 3.5, true)
    }

    fn step(&mut self) -> Step {
        if let Some(step) = self.step {
            return step;
        }
        let n = self.tokens;
        let step = Step {
            positions: self.i32s("positions", [n], Feed::Positions),
            slots: self.i32s("slots", [n], Feed::Slots),
            sequences: self.i32s("sequences", [n], Feed::Sequences),
            table: self.i32s("block_table", [self.sequences, BLOCKS], Feed::Table),
        };
        self.step = Some(step);
        step
    }

    /// `[tokens, heads, dim]` of a value; one of another number of elements is multiplied by a matrix first, after
    /// taking as many rows.
    fn heads(&mut self, label: &str, x: NodeId, heads: usize, dim: usize) -> NodeId {
        let (n, width) = (self.tokens, heads * dim);
        let mut x = x;
        if self.b.shape(x).len() != n * width {
            x = self.flat(label, x);
            if self.b.shape(x).rows() != n {
                x = self.taken(&format!("{label}.tokens"), x, n);
            }
            if self.b.shape(x).width() != width {
                x = self.projected(&format!("{label}.product"), x, width);
            }
        }
        self.reshaped(&format!("{label}.heads"), x, Shape::new(&[n, heads, dim]))
    }

    fn rope(&mut self, label: &str, x: NodeId) -> NodeId {
        let (heads, dim) = (1 + self.random.below(2), [4, 8][self.random.below(2)]);
        let x = self.heads(label, x, heads, dim);
        self.rotated(label, x)
    }

    fn rotated(&mut self, label: &str, x: NodeId) -> NodeId {
        let dim = self.b.shape(x).width();
        let rotary_dim = [dim, dim / 2][self.random.below(2)];
        let pairs = [RopePairs::Halves, RopePairs::Adjacent][self.random.below(2)];
        let rope = Rope { rotary_dim, pairs, base: 1e4, scale: 1.0, yarn: None };
        let positions = self.step().positions;
        // Factors are divided by: an input would be near zero at times.
        let factors = (self.random.below(3) == 0).then(|| {
            let name = format!("factors.{}", rotary_dim / 2);
            let values: Vec<f32> = (0..rotary_dim / 2).map(|i| 1.0 + i as f32).collect();
            self.weights.insert_f32(name.as_str(), &values);
            self.b.weight(name, DType::F32, [rotary_dim / 2])
        });
        let id = self.b.rope(label, x, positions, factors, rope);
        let bound = 1.5 * self.bound(x);
        self.note(id, bound, true)
    }

    fn reshape(&mut self, label: &str, x: NodeId) -> NodeId {
        let len = self.b.shape(x).len();
        let shapes = [vec![len, 1], vec![len / 2, 2], vec![len], vec![2, len / 4, 2], vec![1, len]];
        let fits: Vec<Shape> =
            shapes.iter().map(|s| Shape::new(s)).filter(|s| s.len() == len && !s.is_empty()).collect();
        let shape = fits[self.random.below(fits.len())];
        self.reshaped(label, x, shape)
    }

    /// Attention over a cache of its own, or over one that an earlier operation wrote to and that may be written to
    /// again before. Now and then a cache is only written.
    fn attention(&mut self, label: &str, x: NodeId) -> NodeId {
        let known = self.caches.len();
        let mut at = if known > 0 { self.random.below(known + 1) } else { 0 };
        if at == known && known < self.most_caches {
            let dtype = [DType::F32, DType::F16][self.random.below(2)];
            let (kv_heads, head_dim) = (1 + self.random.below(2), [4, 8][self.random.below(2)]);
            let slots = self.sequences * ROOM;
            let decl = StateDecl { layer: known as u32, dtype, slots, page: PAGE, kv_heads, head_dim };
            let stored = self.b.state(format!("kv{known}"), decl);
            self.caches.push(Cache { decl, stored, bound: 0.0 });
            self.store(label, known, x);
        } else {
            at = at.min(known - 1);
            if self.random.below(3) == 0 {
                self.store(label, at, x);
            }
        }
        if self.random.below(8) == 0 {
            return self.values[self.values.len() - 1];
        }
        let Cache { decl: StateDecl { kv_heads, head_dim, .. }, stored, bound, .. } = self.caches[at];
        let group = 1 + self.random.below(2);
        let q = self.pick();
        let q = self.heads(&format!("{label}.q"), q, kv_heads * group, head_dim);
        let q = self.norm(&format!("{label}.q.normed"), q);
        let attention = Attention {
            scale: 1.0 / (head_dim as f32).sqrt(),
            window: [None, Some(3)][self.random.below(2)],
            softcap: [None, Some(5.0)][self.random.below(2)],
        };
        let Step { positions, sequences, table, .. } = self.step();
        let id = self.b.attention(label, q, stored, positions, sequences, table, attention);
        self.note(id, bound, true)
    }

    /// Writes a row a token to a cache.
    fn store(&mut self, label: &str, cache: usize, x: NodeId) {
        let Cache { decl, stored, bound } = self.caches[cache];
        let v = self.pick();
        let k = self.heads(&format!("{label}.k"), x, decl.kv_heads, decl.head_dim);
        // Bounded, so that scores and an f16 cache do not overflow.
        let mut k = self.norm(&format!("{label}.k.normed"), k);
        if self.random.below(2) == 0 {
            k = self.rotated(&format!("{label}.k.rope"), k);
        }
        let v = self.heads(&format!("{label}.v"), v, decl.kv_heads, decl.head_dim);
        let v = self.norm(&format!("{label}.v.normed"), v);
        let slots = self.step().slots;
        let bound = bound.max(self.bound(v));
        let stored = self.b.kv_store(format!("{label}.stored"), stored, k, v, slots);
        self.caches[cache] = Cache { decl, stored, bound };
    }
}
