//! The operations a graph is made of.

/// What a node computes. Sources are listed in order; `n` is the number of tokens of the step.
///
/// The first three are leaves. The operations below the line "fused" are made by the fusion rules, never by a
/// model.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Data the host writes before a run.
    Input,
    /// A tensor of the model, loaded once per device.
    Weight(WeightId),
    /// Memory that lives across runs: one layer's paged KV cache.
    State(StateId),

    /// `(table [rows, w], ids i32 [m]) → f32 [m, w]`: row lookup, dequantizing. The table is a weight or a
    /// computed value. An id outside it is an error ([`crate::bounds::row_ids`]).
    GetRows,
    /// `(weight [rows, k], x f32 [n, k]) → f32 [n, rows]`: x · weightᵀ.
    MatMul,
    /// `(a f32 s, b f32 s | [width]) → f32 s`: a + b, b broadcast over rows.
    Add,
    /// `(a f32 s, b f32 s | [width]) → f32 s`: a · b, b broadcast over rows.
    Mul,
    /// `(x) → x · factor`.
    Scale(f32),
    /// `(x) → cap · tanh(x / cap)`.
    Softcap(f32),
    /// `(x) → x / sqrt(mean(x²) + eps)` over the last dimension.
    RmsNorm {
        /// Added to the mean of squares.
        eps: f32,
    },
    /// An elementwise activation.
    Activate(Activation),
    /// `(x f32 [n, heads, dim], positions i32 [n] [, factors f32 [rotary_dim / 2]])`: rotary position
    /// embedding. A negative position is an error ([`crate::bounds::positions`]).
    Rope(Rope),
    /// `(x) → the same elements in another shape`. Never copies.
    Reshape,
    /// `(state, k f32 [n, kv_heads, dim], v f32 [n, kv_heads, dim], slots i32 [n]) → state`: writes one KV
    /// row a token. The result stands for the state after the write, so reading it depends on the write. A
    /// slot outside the cache is an error, and then no row is written ([`crate::bounds::slots`]). An f16
    /// cache rounds to nearest, ties to even. Where two tokens name one slot, it is undefined whose row
    /// stays.
    KvStore,
    /// `(q f32 [n, heads, dim], state, positions i32 [n], sequences i32 [n], block_table i32 [sequences,
    /// blocks]) → f32 [n, heads · dim]`. A token attends to the rows of its own sequence at positions up to
    /// its own: `Σ softmax(cap(scale · q·k)) · v`, where `cap` is the softcap. Query head `h` reads KV head
    /// `h / (heads / kv_heads)`.
    ///
    /// `sequences` holds rows of the block table; entry `b` of such a row is the page with the positions `b ·
    /// page ..`, so that position `p` is in slot `table[s][p / page] · page + p % page`. Entries that no
    /// token reads may be anything; a bad one that is read is an error ([`crate::bounds::attention`]). Rows
    /// that no token reads may be NaN.
    Attention(Attention),

    // ---- fused ----
    /// `(x, weight f32 [width])`: [`Op::RmsNorm`] then [`Op::Mul`].
    RmsNormMul {
        /// Added to the mean of squares.
        eps: f32,
    },
    /// `(weight, x, addend f32 [rows] | [n, rows])`: [`Op::MatMul`] then [`Op::Add`].
    MatMulAdd,
    /// `(gate, up)`: [`Op::Activate`] of the gate, then [`Op::Mul`].
    GatedActivate(Activation),
}

/// Elementwise activation functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// GELU in its tanh approximation: `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`.
    Gelu,
}

/// How [`Op::Rope`] pairs the elements of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopePairs {
    /// Element `i` with `i + rotary_dim/2` (GPT-NeoX style).
    Halves,
    /// Element `2i` with `2i + 1` (the original form; llama files are permuted for it).
    Adjacent,
}

/// Parameters of [`Op::Rope`]. Pair `i` of each head at position `p` turns by the angle `p · frequency(i) /
/// factors[i]` (see [`Rope::frequency`]): `(a, b) → m · (a cos − b sin, a sin + b cos)`, with the magnitude
/// `m` of YaRN, else 1. Elements from `rotary_dim` on are copied. Cosine and sine are right to an f32
/// rounding at any position, which an angle computed in f32 is not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// The leading elements of each head that rotate; even, at most the head size.
    pub rotary_dim: usize,
    /// The pairing.
    pub pairs: RopePairs,
    /// The frequency base.
    pub base: f32,
    /// Multiplies every frequency: 1/factor for linear scaling and YaRN, else 1.
    pub scale: f32,
    /// YaRN's frequency mixing.
    pub yarn: Option<Yarn>,
}

impl Rope {
    /// The frequency of pair `i`, in radians a position, before division by its factor:
    /// `base^(-2i/rotary_dim) · scale`, or with YaRN `base^(-2i/rotary_dim) · (scale · (1 - keep) + keep)`
    /// with [`Yarn::keep`].
    pub fn frequency(&self, i: usize) -> f64 {
        let own = f64::from(self.base).powf(-2.0 * i as f64 / self.rotary_dim as f64);
        let keep = self.yarn.map_or(0.0, |y| y.keep(i, self.rotary_dim, self.base));
        own * (f64::from(self.scale) * (1.0 - keep) + keep)
    }

    /// What multiplies cosine and sine.
    pub fn magnitude(&self) -> f32 {
        self.yarn.map_or(1.0, |y| y.magnitude)
    }

    /// The indices of the elements of pair `i` within a head.
    pub fn pair(&self, i: usize) -> (usize, usize) {
        match self.pairs {
            RopePairs::Halves => (i, i + self.rotary_dim / 2),
            RopePairs::Adjacent => (2 * i, 2 * i + 1),
        }
    }
}

/// YaRN: pairs that turn often over the original context keep their frequency, slow ones are interpolated
/// (Peng et al. 2023, arXiv 2309.00071).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// The context length the model was first trained with.
    pub original_context: usize,
    /// Rotations over the original context above which a pair is left alone.
    pub beta_fast: f32,
    /// Rotations below which a pair is fully interpolated.
    pub beta_slow: f32,
    /// Multiplies cosine and sine (the attention temperature).
    pub magnitude: f32,
}

impl Yarn {
    /// The share of its own frequency that pair `i` keeps, from 1 for fast pairs to 0 for slow ones: `1 -
    /// ramp`, where `ramp = clamp((i - low) / max(high - low, 0.001), 0, 1)`. The pair that turns `r` times
    /// over the original context is `c(r) = rotary_dim · ln(original_context / (2π r)) / (2 ln base)`; `low =
    /// max(⌊c(beta_fast)⌋, 0)` and `high = min(⌈c(beta_slow)⌉, rotary_dim - 1)`.
    pub fn keep(&self, i: usize, rotary_dim: usize, base: f32) -> f64 {
        let pair = |rotations: f32| {
            let period = self.original_context as f64 / (std::f64::consts::TAU * f64::from(rotations));
            rotary_dim as f64 * period.ln() / (2.0 * f64::from(base).ln())
        };
        let low = pair(self.beta_fast).floor().max(0.0);
        let high = pair(self.beta_slow).ceil().min(rotary_dim as f64 - 1.0);
        1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0)
    }
}

/// Parameters of [`Op::Attention`]. Head counts and sizes come from the shapes and the state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Multiplies q·k.
    pub scale: f32,
    /// With `Some(w)`, a token at `p` sees positions in `(p - w, p]` only.
    pub window: Option<usize>,
    /// With `Some(c)`, scores become `c · tanh(score / c)`.
    pub softcap: Option<f32>,
}

impl Attention {
    /// The first position that a token at `position` sees.
    pub fn first_position(&self, position: usize) -> usize {
        self.window.map_or(0, |w| (position + 1).saturating_sub(w))
    }
}

/// Index of a weight in [`crate::Graph::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// Index of a state in [`crate::Graph::states`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub u32);

impl Op {
    /// The operation's name as exports and errors show it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Weight(_) => "weight",
            Self::State(_) => "state",
            Self::GetRows => "get_rows",
            Self::MatMul => "mat_mul",
            Self::Add => "add",
            Self::Mul => "mul",
            Self::Scale(_) => "scale",
            Self::Softcap(_) => "softcap",
            Self::RmsNorm { .. } => "rms_norm",
            Self::Activate(Activation::Silu) => "silu",
            Self::Activate(Activation::Gelu) => "gelu",
            Self::Rope(_) => "rope",
            Self::Reshape => "reshape",
            Self::KvStore => "kv_store",
            Self::Attention(_) => "attention",
            Self::RmsNormMul { .. } => "rms_norm_mul",
            Self::MatMulAdd => "mat_mul_add",
            Self::GatedActivate(Activation::Silu) => "silu_mul",
            Self::GatedActivate(Activation::Gelu) => "gelu_mul",
        }
    }

    /// A leaf has no sources and runs nothing.
    pub fn is_leaf(&self) -> bool {
        matches!(self, Self::Input | Self::Weight(_) | Self::State(_))
    }

    /// Whether the result is the first source's memory under another name: it gets no buffer of its own.
    pub fn is_alias(&self) -> bool {
        matches!(self, Self::Reshape | Self::KvStore)
    }

    /// Whether a device executes something for this node.
    pub fn runs(&self) -> bool {
        !self.is_leaf() && !matches!(self, Self::Reshape)
    }

    /// The sources whose memory the result may overwrite, element by element, while they are read.
    pub fn in_place_sources(&self) -> &'static [usize] {
        match self {
            Self::Add | Self::Mul | Self::GatedActivate(_) => &[0, 1],
            Self::Scale(_) | Self::Softcap(_) | Self::Activate(_) | Self::Rope(_) => &[0],
            Self::RmsNorm { .. } | Self::RmsNormMul { .. } => &[0],
            // The addend is read at the very element that is written.
            Self::MatMulAdd => &[2],
            _ => &[],
        }
    }
}
