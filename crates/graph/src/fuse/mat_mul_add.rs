//! `add(mat_mul(w, x), b)` → `mat_mul_add(w, x, b)`: a bias or a residual joins while the result is in
//! registers.

use super::{Rewrite, View};
use crate::{NodeId, Op};

pub(super) fn rule(view: &View<'_>, id: NodeId) -> Option<Rewrite> {
    let (Op::Add, &[a, b]) = view.op(id) else { return None };
    // Addition commutes, so the product may stand on either side as long as the other operand broadcasts to
    // it.
    [(a, b), (b, a)].into_iter().find_map(|(product, addend)| {
        let (Op::MatMul, &[weight, x]) = view.op(product) else { return None };
        let fits = view.same_shape(product, id)
            && (view.same_shape(addend, id) || view.is_row_of(addend, id))
            && product != addend;
        (fits && view.sole_use(product)).then(|| Rewrite {
            op: Op::MatMulAdd,
            sources: vec![weight, x, addend],
            absorbs: vec![product],
        })
    })
}
