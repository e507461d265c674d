//! `mul(silu(gate), up)` → `silu_mul(gate, up)`, likewise for GELU: the activated gate never goes to memory.

use super::{Rewrite, View};
use crate::{NodeId, Op};

pub(super) fn rule(view: &View<'_>, id: NodeId) -> Option<Rewrite> {
    let (Op::Mul, &[a, b]) = view.op(id) else { return None };
    let (&Op::Activate(activation), &[gate]) = view.op(a) else { return None };
    (view.sole_use(a) && view.same_shape(gate, b)).then(|| Rewrite {
        op: Op::GatedActivate(activation),
        sources: vec![gate, b],
        absorbs: vec![a],
    })
}
