//! Parts of splits: what is handed to a device at once.

use std::ops::Range;

use crate::plan::Plan;
use crate::split::Crossing;

/// A part of a split. It starts where a value is read that has to cross first, and ends where one is made that crosses
/// later, so that a device neither waits for a copy before it needs it nor makes another one wait for more than the value.
#[derive(Debug, PartialEq)]
pub(super) struct Part {
    /// Index of the split.
    pub split: usize,
    /// Which of its nodes.
    pub nodes: Range<usize>,
    /// What crosses before it.
    pub copies: Vec<Crossing>,
}

/// The parts of all splits, in the order in which they run.
pub(super) fn parts(plan: &Plan) -> Vec<Part> {
    let mut crosses = vec![false; plan.graph.nodes().len()];
    for copy in plan.splits.iter().flat_map(|s| &s.copies) {
        crosses[copy.value.index()] = true;
    }
    let mut parts: Vec<Part> = Vec::with_capacity(plan.splits.len());
    for (index, split) in plan.splits.iter().enumerate() {
        let mut waiting = split.copies.clone();
        let mut made = true;
        for (i, &id) in split.nodes.iter().enumerate() {
            let reads =
                |c: &Crossing| plan.graph.node(id).sources.iter().any(|&s| plan.graph.root(s) == c.value);
            let copies: Vec<Crossing> = waiting.extract_if(.., |c| reads(c)).collect();
            match parts.last_mut() {
                Some(part) if !made && copies.is_empty() => part.nodes.end = i + 1,
                _ => parts.push(Part { split: index, nodes: i..i + 1, copies }),
            }
            made = crosses[id.index()];
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::ReferenceDevice;
    use crate::tests::common::{is, only};
    use crate::{DType, DeviceId, GraphBuilder, PlanOptions};

    #[test]
    fn a_split_is_cut_before_a_copy_is_read_and_after_a_value_that_crosses() {
        let mut b = GraphBuilder::new();
        let x = b.input("x", DType::F32, [1, 4]);
        let root = b.scale("root", x, 2.0);
        let left = b.scale("left", root, 2.0);
        let left = b.scale("left", left, 2.0);
        let first = b.add("first", root, x);
        let last = b.add("last", first, root);
        // Reads no copy, then one, then the same one and another.
        let on = b.scale("on", left, 2.0);
        let joined = b.mul("joined", on, last);
        let again = b.mul("again", joined, last);
        let y = b.mul("y", again, first);
        b.output(y);
        let other = only("other", |q| is(q.op, &["add"]));
        let rest = ReferenceDevice::new("rest");
        let plan = Plan::new(b.finish().unwrap(), &[&*other, &rest], &PlanOptions::default()).unwrap();
        let part = |split, nodes, copies: &[_]| {
            let (from, to) = if split == 1 { (1, 0) } else { (0, 1) };
            let crossing = |&value| Crossing { value, from: DeviceId(from), to: DeviceId(to) };
            Part { split, nodes, copies: copies.iter().map(crossing).collect() }
        };
        let wanted = [
            part(0, 0..1, &[]),
            part(0, 1..3, &[]),
            part(1, 0..1, &[root]),
            part(1, 1..2, &[]),
            part(2, 0..1, &[]),
            part(2, 1..3, &[last]),
            part(2, 3..4, &[first]),
        ];
        assert_eq!(parts(&plan), wanted);
    }
}
