//! The operations that fusion makes, built directly.

use minfer_gguf::quant::DECODABLE;

use super::super::tolerance::{ACTIVATION, NORM, Tolerance};
use super::matrix::{TOKENS, product, row_counts, widths};
use super::{Options, Visit, case};
use crate::{Activation, Op, Shape};

pub(super) fn each(options: &Options, visit: &mut Visit<'_>) {
    rms_norm_mul(options, visit);
    gated_activate(options, visit);
    mat_mul_add(options, visit);
}

fn rms_norm_mul(options: &Options, visit: &mut Visit<'_>) {
    for width in [1, 7, 33, 64, 896] {
        for shape in [vec![1, width], vec![5, width], vec![3, 2, width]] {
            for in_place in [false, true] {
                let (shape, place) = (Shape::new(&shape), if in_place { " in place" } else { "" });
                case(options, visit, format!("rms_norm_mul {shape}{place}"), |mut net| {
                    let x = if in_place { net.computed("x", shape) } else { net.normal("x", shape) };
                    let w = net.weight("w", crate::DType::F32, [width]);
                    let y = net.b.append("y", Op::RmsNormMul { eps: 1e-6 }, &[x, w]);
                    net.case(y, NORM)
                });
            }
        }
    }
}

fn gated_activate(options: &Options, visit: &mut Visit<'_>) {
    for activation in [Activation::Silu, Activation::Gelu] {
        let op = Op::GatedActivate(activation);
        for width in [1, 7, 33, 100, 1024] {
            for in_place in [None, Some(0), Some(1)] {
                let place = in_place.map_or(String::new(), |i| format!(" in place {i}"));
                case(options, visit, format!("{} [3×{width}]{place}", op.name()), |mut net| {
                    let mut sources = ["gate", "up"].map(|label| net.normal(label, [3, width]));
                    if let Some(i) = in_place {
                        sources[i] = net.compute(sources[i]);
                    }
                    let y = net.b.append("y", op.clone(), &sources);
                    // The activation's error times a factor of up to about 5.
                    let Tolerance::Within { abs, rel } = ACTIVATION else { unreachable!() };
                    net.case(y, Tolerance::Within { abs: 5.0 * abs, rel })
                });
            }
        }
    }
}

fn mat_mul_add(options: &Options, visit: &mut Visit<'_>) {
    for dtype in DECODABLE {
        for (i, rows) in row_counts().enumerate().step_by(3) {
            for addend in ["row", "full", "full in place"] {
                let (n, ks) = (TOKENS[i % TOKENS.len()], widths(dtype));
                let k = ks[i % ks.len()];
                case(
                    options,
                    visit,
                    format!("mat_mul_add {dtype} [{rows}×{k}] n {n} {addend}"),
                    |mut net| {
                        let (w, x, tolerance) = product(&mut net, options, dtype, [n, rows, k]);
                        let addend = match addend {
                            "row" => net.weight("bias", crate::DType::F32, [rows]),
                            "full" => net.normal("addend", [n, rows]),
                            _ => net.computed("addend", [n, rows]),
                        };
                        let y = net.b.append("y", Op::MatMulAdd, &[w, x, addend]);
                        net.case(y, tolerance.plus_rounding(6.0))
                    },
                );
            }
        }
    }
}
