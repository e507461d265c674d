//! Index data out of range: refused, with the reference's words, before anything is written; and the next run
//! is right.

use minfer_gguf::quant::DECODABLE;

use super::super::case::{Case, Expect};
use super::attention::{Paged, Spec, Store};
use super::matrix::widths;
use super::{Options, Visit, case};
use crate::{DType, Rope, RopePairs};

pub(super) fn each(options: &Options, visit: &mut Visit<'_>) {
    for dtype in DECODABLE {
        for bad in [-1, 11, i32::MIN, i32::MAX] {
            case(options, visit, format!("get_rows {dtype} refuses id {bad}"), |mut net| {
                let table = net.weight("table", dtype, [11, widths(dtype)[0]]);
                let ids = net.i32("ids", [3], vec![10, bad, 0]);
                let y = net.b.get_rows("y", table, ids);
                net.error_case(y)
            });
        }
    }
    case(options, visit, "rope refuses position -1".to_owned(), |mut net| {
        let x = net.normal("x", [2, 1, 8]);
        let positions = net.i32("positions", [2], vec![0, -1]);
        let rope = Rope { rotary_dim: 8, pairs: RopePairs::Halves, base: 1e4, scale: 1.0, yarn: None };
        let y = net.b.rope("y", x, positions, None, rope);
        net.error_case(y)
    });
    for dtype in [DType::F32, DType::F16] {
        for bad in [-1, 1_000_000, i32::MIN, i32::MAX] {
            case(options, visit, format!("kv_store {dtype} refuses slot {bad}"), |mut net| -> Case {
                let paged = Paged::new(&mut net, Spec::small(dtype), &[4]);
                let good = paged.step(&[(0, 0), (0, 1)], Store::AfterPoison);
                // The first token's slot is a good one, and has to keep what it holds.
                let slot = paged.table[0] * 16;
                let mut refused = paged.step_at(&[(0, 2), (0, 3)], vec![slot, bad], &[(0, 1)], Store::Batch);
                refused.expect = Expect::Error;
                let after = paged.step(&[(0, 1)], Store::Nothing);
                Case { steps: vec![good, refused, after], ..Case::default() }
            });
        }
        for (block, page) in [(0, -1), (1, 3), (0, i32::MAX)] {
            case(options, visit, format!("attention {dtype} refuses page {page}"), |mut net| {
                let mut paged = Paged::new(&mut net, Spec::small(dtype), &[20]);
                let rows: Vec<(usize, usize)> = (0..20).map(|p| (0, p)).collect();
                let good = paged.step(&rows, Store::AfterPoison);
                paged.table[block] = page;
                let mut refused = paged.step_at(&[], Vec::new(), &[(0, 19)], Store::Nothing);
                refused.expect = Expect::Error;
                Case { steps: vec![good, refused], ..Case::default() }
            });
        }
        for (what, sequence, position) in
            [("sequence 1", 1, 0), ("sequence -1", -1, 0), ("position 48", 0, 48), ("position -1", 0, -1)]
        {
            case(options, visit, format!("attention {dtype} refuses {what}"), |mut net| {
                let paged = Paged::new(&mut net, Spec::small(dtype), &[20]);
                let mut refused = paged.step(&[(0, 0)], Store::AfterPoison);
                refused.set_i32("sequences", vec![sequence]);
                refused.set_i32("positions", vec![position]);
                refused.expect = Expect::Error;
                // What of the refused step ran before the attention is the device's affair; the next step
                // must be whole.
                let after = paged.step(&[(0, 0)], Store::AfterPoison);
                Case { steps: vec![refused, after], ..Case::default() }
            });
        }
    }
}
