//! Matrix products and row lookup over every weight type.

use minfer_gguf::quant::DECODABLE;

use super::super::case::{Case, Net};
use super::super::tolerance::{Tolerance, mat_mul};
use super::{Options, Visit, case};
use crate::{DType, NodeId};

/// Weight rows: all odd numbers to 48, which leave every remainder of a tile, and whole tiles.
pub(super) fn row_counts() -> impl Iterator<Item = usize> {
    (1..48).step_by(2).chain([2, 4, 8, 16, 32, 48])
}

/// Tokens: decode, small odd batches, and more than a tile of prefill.
pub(super) const TOKENS: [usize; 5] = [1, 2, 3, 7, 33];

/// Inner sizes: one block, an odd number of blocks, and for floats no whole vector either.
pub(super) fn widths(dtype: DType) -> &'static [usize] {
    match dtype.block_size() {
        1 => &[1, 7, 32, 100, 257],
        32 => &[32, 96, 256, 288],
        _ => &[256, 512, 768],
    }
}

pub(super) fn each(options: &Options, visit: &mut Visit<'_>) {
    for dtype in DECODABLE {
        for (i, rows) in row_counts().enumerate() {
            // Each row count meets each number of tokens at some type, and all of them at two counts.
            let tokens = if matches!(rows, 17 | 32) { &TOKENS[..] } else { &TOKENS[i % 5..][..1] };
            for &n in tokens {
                let ks = widths(dtype);
                let k = ks[(i + n) % ks.len()];
                case(options, visit, format!("mat_mul {dtype} [{rows}×{k}] n {n}"), |mut net| {
                    let (w, x, tolerance) = product(&mut net, options, dtype, [n, rows, k]);
                    let y = net.b.mat_mul("y", w, x);
                    net.case(y, tolerance)
                });
            }
        }
        get_rows(options, visit, dtype);
    }
    case(options, visit, "mat_mul by a computed matrix".to_owned(), |mut net| {
        let (weight, x) = (net.normal("w", [9, 33]), net.normal("x", [5, 33]));
        let tolerance = mat_mul(DType::F32, net.values(weight), net.values(x), 33, None);
        let w = net.compute(weight);
        let y = net.b.mat_mul("y", w, x);
        net.case(y, tolerance)
    });
    case(options, visit, "get_rows of a computed table".to_owned(), |mut net| {
        let table = net.computed("table", [6, 33]);
        let ids = net.i32("ids", [3], vec![5, 0, 5]);
        let y = net.b.get_rows("y", table, ids);
        net.case(y, Tolerance::Exact)
    });
}

/// A weight `[rows, k]`, activations `[n, k]`, and the bound on their product.
pub(super) fn product(
    net: &mut Net,
    options: &Options,
    dtype: DType,
    [n, rows, k]: [usize; 3],
) -> (NodeId, NodeId, Tolerance) {
    let w = net.weight("w", dtype, [rows, k]);
    let x = net.normal("x", [n, k]);
    let weight = net.decoded("w", dtype, rows * k);
    let tolerance = mat_mul(dtype, &weight, net.values(x), k, options.activation_bits);
    (w, x, tolerance)
}

fn get_rows(options: &Options, visit: &mut Visit<'_>, dtype: DType) {
    for &width in widths(dtype) {
        case(options, visit, format!("get_rows {dtype} [11×{width}]"), |mut net| -> Case {
            let table = net.weight("table", dtype, [11, width]);
            let ids = net.i32("ids", [5], vec![10, 0, 3, 3, 9]);
            let y = net.b.get_rows("y", table, ids);
            // Decoding a block is a product and a sum of small integers and f16 scales; its order may differ
            // by a rounding.
            net.case(y, Tolerance::Within { abs: 1e-6, rel: 3e-7 })
        });
    }
}
