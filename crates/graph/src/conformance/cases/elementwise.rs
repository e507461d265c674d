//! Elementwise operations and norms, from an input and in place.

use super::super::case::{Case, Net};
use super::super::tolerance::{ACTIVATION, NORM, ROUNDING, Tolerance, softcap};
use super::{Options, Visit, case};
use crate::{Activation, NodeId, Op, Shape};

/// Widths below, at and above what vectors hold.
const WIDTHS: [usize; 6] = [1, 7, 16, 33, 100, 2048];
/// Magnitudes at which an exponential, a cube or a square overflows or vanishes.
const EXTREMES: [f32; 14] =
    [0.0, -0.0, 1e-38, 1e-20, 1e-4, 0.5, 5.0, 17.0, 88.0, 104.0, 1e4, 1e13, 1e30, f32::MAX];

pub(super) fn each(options: &Options, visit: &mut Visit<'_>) {
    for op in [Op::Add, Op::Mul] {
        binary(options, visit, &op);
    }
    for factor in [1.0, -0.125, 62.225_4, 0.0] {
        unary(options, visit, &Op::Scale(factor), &ROUNDING);
    }
    for cap in [1.0, 30.0, 50.0] {
        unary(options, visit, &Op::Softcap(cap), &softcap(cap));
    }
    for activation in [Activation::Silu, Activation::Gelu] {
        unary(options, visit, &Op::Activate(activation), &ACTIVATION);
    }
    norms(options, visit);
    of_weights(options, visit);
}

/// Weights where models have activations.
fn of_weights(options: &Options, visit: &mut Visit<'_>) {
    case(options, visit, "add of a weight and an input".to_owned(), |mut net| {
        let (w, x) = (net.weight("w", crate::DType::F32, [3, 33]), net.normal("x", [3, 33]));
        let y = net.b.add("y", w, x);
        net.case(y, ROUNDING)
    });
    case(options, visit, "rms_norm of a weight".to_owned(), |mut net| {
        let w = net.weight("w", crate::DType::F32, [3, 33]);
        let y = net.b.rms_norm("y", w, 1e-5);
        net.case(y, NORM)
    });
}

fn binary(options: &Options, visit: &mut Visit<'_>, op: &Op) {
    for width in WIDTHS {
        for shape in [vec![width], vec![1, width], vec![3, width], vec![2, 3, width]] {
            for (second, row) in [("same shape", false), ("row", true), ("weight", true)] {
                for in_place in [None, Some(0), Some(1)] {
                    let shape = Shape::new(&shape);
                    let place = in_place.map_or(String::new(), |i| format!(" in place {i}"));
                    case(options, visit, format!("{} {shape} {second}{place}", op.name()), |mut net| {
                        let other = if row { Shape::new(&[width]) } else { shape };
                        let a = operand(&mut net, "a", shape, in_place == Some(0));
                        let b = match second {
                            "weight" => net.weight("w", crate::DType::F32, other),
                            _ => operand(&mut net, "b", other, in_place == Some(1)),
                        };
                        let y = net.b.append("y", op.clone(), &[a, b]);
                        net.case(y, ROUNDING)
                    });
                }
            }
        }
    }
}

fn operand(net: &mut Net, label: &str, shape: Shape, computed: bool) -> NodeId {
    if computed { net.computed(label, shape) } else { net.normal(label, shape) }
}

fn unary(options: &Options, visit: &mut Visit<'_>, op: &Op, tolerance: &Tolerance) {
    let name = match op {
        Op::Scale(v) | Op::Softcap(v) => format!("{} {v}", op.name()),
        _ => op.name().to_owned(),
    };
    for width in WIDTHS {
        for in_place in [false, true] {
            let place = if in_place { " in place" } else { "" };
            case(options, visit, format!("{name} [3×{width}]{place}"), |mut net| {
                let x = operand(&mut net, "x", Shape::new(&[3, width]), in_place);
                let y = net.b.append("y", op.clone(), &[x]);
                net.case(y, tolerance.clone())
            });
        }
    }
    case(options, visit, format!("{name} extremes"), |net| extremes(net, op, tolerance.clone()));
}

fn extremes(mut net: Net, op: &Op, tolerance: Tolerance) -> Case {
    let values: Vec<f32> = EXTREMES.iter().flat_map(|&x| [x, -x]).collect();
    // Scaling f32::MAX up is infinite on every device; stay finite so that a wrong infinity shows.
    let values = match op {
        Op::Scale(_) => values.into_iter().map(|x| x.clamp(-1e30, 1e30)).collect(),
        _ => values,
    };
    let x = net.f32("x", [2, values.len() / 2], values);
    let y = net.b.append("y", op.clone(), &[x]);
    net.case(y, tolerance)
}

fn norms(options: &Options, visit: &mut Visit<'_>) {
    for eps in [1e-5, 1e-6] {
        for width in WIDTHS {
            for shape in [vec![width], vec![1, width], vec![5, width], vec![2, 3, width]] {
                for in_place in [false, true] {
                    let (shape, place) = (Shape::new(&shape), if in_place { " in place" } else { "" });
                    case(options, visit, format!("rms_norm {shape} eps {eps}{place}"), |mut net| {
                        let x = operand(&mut net, "x", shape, in_place);
                        let y = net.b.rms_norm("y", x, eps);
                        net.case(y, NORM)
                    });
                }
            }
        }
        case(options, visit, format!("rms_norm extremes eps {eps}"), |mut net| {
            // A row of zeros, tiny ones, large ones, and one element that outweighs all others.
            let mut values = vec![0.0; 64];
            values.extend(net.random.normals(64).iter().map(|x| x * 1e-12));
            values.extend(net.random.normals(64).iter().map(|x| x * 1e15));
            values.extend((0..64).map(|i| if i == 40 { 1e6 } else { 1e-3 }));
            let x = net.f32("x", [4, 64], values);
            let y = net.b.rms_norm("y", x, eps);
            net.case(y, NORM)
        });
    }
}
