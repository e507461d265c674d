//! Rotary position embedding.

use super::super::case::Net;
use super::super::tolerance::ROPE;
use super::{Options, Visit, case};
use crate::{DType, NodeId, Rope, RopePairs, Yarn};

/// Positions at the start, within and far beyond any context.
const POSITIONS: [i32; 5] = [0, 1, 77, 4095, 100_000];

pub(super) fn each(options: &Options, visit: &mut Visit<'_>) {
    let yarn = Yarn { original_context: 4096, beta_fast: 32.0, beta_slow: 1.0, magnitude: 1.138_629_4 };
    let scalings = [
        ("plain", 1e4, 1.0, None),
        ("base 1e6", 1e6, 1.0, None),
        ("linear", 1e4, 0.125, None),
        ("yarn", 1e6, 0.25, Some(yarn)),
        // So short a context that the ramp has no width.
        ("yarn at once", 1e4, 0.25, Some(Yarn { original_context: 2, ..yarn })),
    ];
    for pairs in [RopePairs::Halves, RopePairs::Adjacent] {
        for (heads, dim, rotary_dim) in
            [(1, 2, 2), (3, 24, 24), (2, 64, 64), (3, 80, 32), (2, 128, 96), (1, 256, 256)]
        {
            for (scaling, base, scale, yarn) in scalings {
                let rope = Rope { rotary_dim, pairs, base, scale, yarn };
                for with_factors in [false, true] {
                    for in_place in [false, true] {
                        let by = if with_factors { " factors" } else { "" };
                        let place = if in_place { " in place" } else { "" };
                        let name =
                            format!("rope {pairs:?} {heads}×{dim} rotary {rotary_dim} {scaling}{by}{place}");
                        case(options, visit, name, |mut net| {
                            let shape = [POSITIONS.len(), heads, dim];
                            let x = if in_place { net.computed("x", shape) } else { net.normal("x", shape) };
                            let positions = net.i32("positions", [POSITIONS.len()], POSITIONS.to_vec());
                            let factors = with_factors.then(|| factors(&mut net, rotary_dim / 2));
                            let y = net.b.rope("y", x, positions, factors, rope);
                            net.case(y, ROPE)
                        });
                    }
                }
            }
        }
    }
}

/// Frequency factors from 1 to 9, as models with a long context have.
fn factors(net: &mut Net, count: usize) -> NodeId {
    let values: Vec<f32> = (0..count).map(|_| 1.0 + 8.0 * net.random.unit()).collect();
    net.weights.insert_f32("factors", &values);
    net.b.weight("factors", DType::F32, [count])
}
