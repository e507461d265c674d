//! What a user asks of placement.

use std::borrow::Cow;
use std::fmt;

use crate::{DeviceId, Graph, Node};

/// Where in the model a node belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Before the first layer: the embedding.
    Input,
    /// In a layer.
    Layer(u32),
    /// After the last layer that came before it: the output.
    Output,
}

/// The stage of each node, by index.
pub(super) fn stages(graph: &Graph) -> Vec<Stage> {
    let mut seen = false;
    let stage = |node: &Node| match node.layer {
        Some(layer) => {
            seen = true;
            Stage::Layer(layer)
        }
        None if seen => Stage::Output,
        None => Stage::Input,
    };
    graph.nodes().iter().map(stage).collect()
}

/// One restriction of a user's: which devices may run which nodes.
pub struct Rule<'a> {
    /// How the user put it, such as `--gpu-layers 4`.
    pub name: Cow<'a, str>,
    /// Whether a device may run a node.
    pub allows: Allows<'a>,
}

/// The question that a [`Rule`] answers.
pub type Allows<'a> = Box<dyn Fn(&Node, Stage, DeviceId) -> bool + Send + Sync + 'a>;

impl<'a> Rule<'a> {
    /// A rule.
    pub fn new(
        name: impl Into<Cow<'a, str>>,
        allows: impl Fn(&Node, Stage, DeviceId) -> bool + Send + Sync + 'a,
    ) -> Self {
        Self { name: name.into(), allows: Box::new(allows) }
    }
}

impl fmt::Debug for Rule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rule").field(&self.name).finish()
    }
}

/// The largest part of a graph that goes to one device or another as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Unit {
    /// A node: each goes to the first device that takes it.
    #[default]
    Node,
    /// A layer: a device takes all its nodes or none.
    Layer,
    /// The model: a device takes all nodes or none.
    Model,
}

impl Unit {
    /// The piece of which a node at this stage is a part.
    pub(super) fn piece(self, stage: Stage) -> Option<Piece> {
        match self {
            Self::Node => None,
            Self::Layer => Some(Piece::Stage(stage)),
            Self::Model => Some(Piece::Model),
        }
    }
}

/// A part of a graph that goes to one device as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Piece {
    /// All nodes of a stage.
    Stage(Stage),
    /// All nodes.
    Model,
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stage(Stage::Input) => f.write_str("the embedding"),
            Self::Stage(Stage::Layer(layer)) => write!(f, "layer {layer}"),
            Self::Stage(Stage::Output) => f.write_str("the output"),
            Self::Model => f.write_str("the model"),
        }
    }
}
