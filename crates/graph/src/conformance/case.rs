//! A case: what to build, feed and compare.

use minfer_gguf::quant;

use super::random::Random;
use super::tolerance::Tolerance;
use crate::{DType, Graph, GraphBuilder, NodeId, Op, Shape, WeightTable};

/// Graphs that run one after the other on one device, sharing weights and KV caches.
#[derive(Debug, Default)]
pub(super) struct Case {
    pub weights: WeightTable,
    pub steps: Vec<Step>,
}

/// One run.
#[derive(Debug)]
pub(super) struct Step {
    pub graph: Graph,
    pub inputs: Vec<(NodeId, Data)>,
    pub output: NodeId,
    pub expect: Expect,
    /// Rows of the output that have the bits of rows of earlier steps on the same device.
    pub same_rows: Vec<SameRow>,
}

/// A row of an output, and the row of an earlier step that it must equal to the bit.
#[derive(Clone, Copy, Debug)]
pub(super) struct SameRow {
    pub row: usize,
    pub step: usize,
    pub of: usize,
}

/// What a step must do.
#[derive(Debug)]
pub(super) enum Expect {
    /// Give the reference's result.
    Result(Tolerance),
    /// Refuse, with the reference's words.
    Error,
}

/// An input's content.
#[derive(Clone, Debug)]
pub(super) enum Data {
    F32(Vec<f32>),
    I32(Vec<i32>),
}

impl Step {
    /// Replaces the content of an i32 input.
    pub fn set_i32(&mut self, label: &str, values: Vec<i32>) {
        for (id, data) in &mut self.inputs {
            if self.graph.node(*id).label == label {
                *data = Data::I32(values.clone());
            }
        }
    }
}

/// A graph being built together with the data it is fed.
pub(super) struct Net {
    pub b: GraphBuilder,
    pub random: Random,
    pub weights: WeightTable,
    inputs: Vec<(NodeId, Data)>,
}

impl Net {
    pub fn new(seed: u64, name: &str) -> Self {
        Self {
            b: GraphBuilder::new(),
            random: Random::new(seed, name),
            weights: WeightTable::new(),
            inputs: Vec::new(),
        }
    }

    /// An f32 input of normal values.
    pub fn normal(&mut self, label: &str, shape: impl Into<Shape>) -> NodeId {
        let shape = shape.into();
        let values = self.random.normals(shape.len());
        self.f32(label, shape, values)
    }

    /// An f32 input.
    pub fn f32(&mut self, label: &str, shape: impl Into<Shape>, values: Vec<f32>) -> NodeId {
        let id = self.b.input(label, DType::F32, shape);
        self.inputs.push((id, Data::F32(values)));
        id
    }

    /// An i32 input.
    pub fn i32(&mut self, label: &str, shape: impl Into<Shape>, values: Vec<i32>) -> NodeId {
        let id = self.b.input(label, DType::I32, shape);
        self.inputs.push((id, Data::I32(values)));
        id
    }

    /// An f32 input that is not read directly but through an operation that does not change it, so that the
    /// next one may work in place.
    pub fn computed(&mut self, label: &str, shape: impl Into<Shape>) -> NodeId {
        let x = self.normal(label, shape);
        self.compute(x)
    }

    /// The same values, computed.
    pub fn compute(&mut self, x: NodeId) -> NodeId {
        self.b.append("copy", Op::Scale(1.0), &[x])
    }

    /// A weight of random content.
    pub fn weight(&mut self, name: &str, dtype: DType, shape: impl Into<Shape>) -> NodeId {
        let shape = shape.into();
        let bytes = self.random.weights(dtype, shape.len());
        self.weights.insert(name, bytes);
        self.b.weight(name, dtype, shape)
    }

    /// A weight's values.
    pub fn decoded(&self, name: &str, dtype: DType, len: usize) -> Vec<f32> {
        use crate::WeightSource as _;
        let mut values = vec![0.0; len];
        let bytes = self.weights.bytes(name).expect("a weight of this case");
        quant::dequantize(dtype, bytes, &mut values).expect("a type that the suite covers");
        values
    }

    /// An f32 input's values.
    pub fn values(&self, input: NodeId) -> &[f32] {
        match self.inputs.iter().find(|(id, _)| *id == input) {
            Some((_, Data::F32(values))) => values,
            _ => panic!("node {} is not an f32 input of this case", input.0),
        }
    }

    /// The whole case, of one step.
    pub fn case(self, output: NodeId, tolerance: Tolerance) -> Case {
        let (weights, step) = self.step(output, Expect::Result(tolerance));
        Case { weights, steps: vec![step] }
    }

    /// The whole case, of one step that must be refused.
    pub fn error_case(self, output: NodeId) -> Case {
        let (weights, step) = self.step(output, Expect::Error);
        Case { weights, steps: vec![step] }
    }

    pub fn step(mut self, output: NodeId, expect: Expect) -> (WeightTable, Step) {
        self.b.output(output);
        let graph = self.b.finish().expect("the suite builds valid graphs");
        (self.weights, Step { graph, inputs: self.inputs, output, expect, same_rows: Vec::new() })
    }
}
