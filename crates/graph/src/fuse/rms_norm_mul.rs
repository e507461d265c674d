//! `mul(rms_norm(x), w)` → `rms_norm_mul(x, w)`: one pass over the row instead of two.

use super::{Rewrite, View};
use crate::{NodeId, Op};

pub(super) fn rule(view: &View<'_>, id: NodeId) -> Option<Rewrite> {
    let (Op::Mul, &[a, weight]) = view.op(id) else { return None };
    let (&Op::RmsNorm { eps }, &[x]) = view.op(a) else { return None };
    (view.sole_use(a) && view.is_row_of(weight, x)).then(|| Rewrite {
        op: Op::RmsNormMul { eps },
        sources: vec![x, weight],
        absorbs: vec![a],
    })
}
