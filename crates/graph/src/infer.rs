//! The result type and shape of each operation, and the checks on its sources.

use crate::{DType, Graph, Node, NodeId, Op, Shape, StateDecl, Yarn};

/// A node's sources, looked up.
pub(crate) struct Sources<'g> {
    graph: &'g Graph,
    ids: &'g [NodeId],
}

type Checked<T> = Result<T, String>;

impl<'g> Sources<'g> {
    pub(crate) fn new(graph: &'g Graph, ids: &'g [NodeId]) -> Self {
        Self { graph, ids }
    }

    fn node(&self, i: usize) -> &'g Node {
        self.graph.node(self.ids[i])
    }

    fn count(&self, allowed: std::ops::RangeInclusive<usize>) -> Checked<()> {
        let n = self.ids.len();
        if allowed.contains(&n) { Ok(()) } else { Err(format!("{n} sources given, {allowed:?} wanted")) }
    }

    /// A computed or input f32 value.
    fn f32(&self, i: usize, what: &str) -> Checked<Shape> {
        let node = self.node(i);
        if node.dtype == DType::F32 && self.graph.state_of(self.ids[i]).is_none() {
            Ok(node.shape)
        } else {
            Err(format!("{what} must be f32, is {} {}", node.dtype.name(), node.shape))
        }
    }

    /// An i32 vector; its length.
    fn ids(&self, i: usize, what: &str) -> Checked<usize> {
        let node = self.node(i);
        if node.dtype == DType::I32 && node.shape.rank() == 1 {
            Ok(node.shape.width())
        } else {
            Err(format!("{what} must be an i32 vector, is {} {}", node.dtype.name(), node.shape))
        }
    }

    fn matrix(&self, i: usize, what: &str) -> Checked<(usize, usize)> {
        let shape = self.node(i).shape;
        if shape.rank() == 2 {
            Ok((shape.rows(), shape.width()))
        } else {
            Err(format!("{what} must be a matrix, is {shape}"))
        }
    }

    fn state(&self, i: usize) -> Checked<&'g StateDecl> {
        match self.graph.state_of(self.ids[i]) {
            Some(s) => Ok(self.graph.state(s)),
            None => Err(format!("source {i} must be a KV state, is {}", self.node(i).shape)),
        }
    }
}

/// The type and shape of `op` over `s`, or what is wrong.
pub(crate) fn result(op: &Op, s: &Sources<'_>) -> Checked<(DType, Shape)> {
    let f32s = |shape: Shape| Ok((DType::F32, shape));
    match *op {
        Op::Input | Op::Weight(_) | Op::State(_) | Op::Reshape => Err("not made by append".to_owned()),
        Op::GetRows => {
            s.count(2..=2)?;
            let (_, width) = s.matrix(0, "the table")?;
            f32s(Shape::new(&[s.ids(1, "the ids")?, width]))
        }
        Op::MatMul => {
            s.count(2..=2)?;
            f32s(mat_mul(s)?)
        }
        Op::MatMulAdd => {
            s.count(3..=3)?;
            let shape = mat_mul(s)?;
            broadcast(shape, s.f32(2, "the addend")?)?;
            f32s(shape)
        }
        Op::Add | Op::Mul => {
            s.count(2..=2)?;
            let a = s.f32(0, "the first operand")?;
            broadcast(a, s.f32(1, "the second operand")?)?;
            f32s(a)
        }
        Op::GatedActivate(_) => {
            s.count(2..=2)?;
            let (gate, up) = (s.f32(0, "the gate")?, s.f32(1, "the other operand")?);
            if gate != up {
                return Err(format!("gate {gate} and operand {up} differ"));
            }
            f32s(gate)
        }
        Op::Scale(factor) => {
            s.count(1..=1)?;
            finite("factor", factor)?;
            f32s(s.f32(0, "x")?)
        }
        Op::Softcap(cap) => {
            s.count(1..=1)?;
            positive("cap", cap)?;
            f32s(s.f32(0, "x")?)
        }
        Op::Activate(_) => {
            s.count(1..=1)?;
            f32s(s.f32(0, "x")?)
        }
        Op::RmsNorm { eps } => {
            s.count(1..=1)?;
            not_negative("eps", eps)?;
            f32s(s.f32(0, "x")?)
        }
        Op::RmsNormMul { eps } => {
            s.count(2..=2)?;
            not_negative("eps", eps)?;
            let x = s.f32(0, "x")?;
            let weight = s.f32(1, "the weight")?;
            if weight.dims() != [x.width()] {
                return Err(format!("the weight {weight} does not fit x {x}"));
            }
            f32s(x)
        }
        Op::Rope(rope) => {
            s.count(2..=3)?;
            let x = s.f32(0, "x")?;
            let &[n, _, dim] = x.dims() else {
                return Err(format!("x must be [tokens, heads, head_dim], is {x}"));
            };
            let positions = s.ids(1, "the positions")?;
            if positions != n {
                return Err(format!("{positions} positions for {n} tokens"));
            }
            if rope.rotary_dim == 0 || rope.rotary_dim % 2 != 0 || rope.rotary_dim > dim {
                return Err(format!("rotary_dim {} does not fit a head of {dim}", rope.rotary_dim));
            }
            positive("the frequency base", rope.base)?;
            positive("the frequency scale", rope.scale)?;
            if let Some(yarn) = rope.yarn {
                check_yarn(&yarn, rope.base)?;
            }
            if s.ids.len() == 3 && s.f32(2, "the factors")?.dims() != [rope.rotary_dim / 2] {
                return Err(format!("the factors {} are not [{}]", s.node(2).shape, rope.rotary_dim / 2));
            }
            f32s(x)
        }
        Op::KvStore => {
            s.count(4..=4)?;
            let state = s.state(0)?;
            let n = s.ids(3, "the slots")?;
            let want = [n, state.kv_heads, state.head_dim];
            for (i, what) in [(1, "k"), (2, "v")] {
                let shape = s.f32(i, what)?;
                if shape.dims() != want {
                    return Err(format!("{what} is {shape}, the cache takes {}", Shape::new(&want)));
                }
            }
            Ok((state.dtype, s.node(0).shape))
        }
        Op::Attention(attention) => {
            s.count(5..=5)?;
            let (q, state) = (s.f32(0, "q")?, s.state(1)?);
            let &[n, heads, dim] = q.dims() else {
                return Err(format!("q must be [tokens, heads, head_dim], is {q}"));
            };
            if dim != state.head_dim || heads.checked_rem(state.kv_heads) != Some(0) {
                return Err(format!("q {q} does not fit {} KV heads of {}", state.kv_heads, state.head_dim));
            }
            for (i, what) in [(2, "positions"), (3, "sequences")] {
                let len = s.ids(i, what)?;
                if len != n {
                    return Err(format!("{len} {what} for {n} tokens"));
                }
            }
            let (_, _) = s.matrix(4, "the block table")?;
            if s.node(4).dtype != DType::I32 {
                return Err(format!("the block table must be i32, is {}", s.node(4).dtype.name()));
            }
            finite("scale", attention.scale)?;
            if attention.window == Some(0) {
                return Err("a window of 0 sees nothing".to_owned());
            }
            if let Some(cap) = attention.softcap {
                positive("softcap", cap)?;
            }
            f32s(Shape::new(&[n, heads * dim]))
        }
    }
}

fn mat_mul(s: &Sources<'_>) -> Checked<Shape> {
    let (rows, k) = s.matrix(0, "the weight")?;
    let x = s.f32(1, "x")?;
    if x.rank() != 2 || x.width() != k {
        return Err(format!("x {x} does not fit the weight {}", s.node(0).shape));
    }
    Ok(Shape::new(&[x.rows(), rows]))
}

fn broadcast(a: Shape, b: Shape) -> Checked<()> {
    if a == b || b.dims() == [a.width()] { Ok(()) } else { Err(format!("{b} does not broadcast to {a}")) }
}

fn check_yarn(yarn: &Yarn, base: f32) -> Checked<()> {
    positive("beta_fast", yarn.beta_fast)?;
    positive("beta_slow", yarn.beta_slow)?;
    positive("the magnitude", yarn.magnitude)?;
    if yarn.original_context == 0 {
        return Err("the original context is 0".to_owned());
    }
    // Which pair turns how often is found through the logarithm of the base.
    if base <= 1.0 { Err(format!("the frequency base is {base}, YaRN needs one above 1")) } else { Ok(()) }
}

fn finite(what: &str, v: f32) -> Checked<()> {
    if v.is_finite() { Ok(()) } else { Err(format!("{what} is {v}")) }
}

fn positive(what: &str, v: f32) -> Checked<()> {
    if v.is_finite() && v > 0.0 { Ok(()) } else { Err(format!("{what} is {v}")) }
}

fn not_negative(what: &str, v: f32) -> Checked<()> {
    if v.is_finite() && v >= 0.0 { Ok(()) } else { Err(format!("{what} is {v}")) }
}
