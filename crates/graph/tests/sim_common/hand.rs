//! The protocol of a boundary, written a second time by hand, so that each of its rules can be left out.

use std::collections::HashSet;
use std::time::Duration;

use minfer_graph::devices::SimDevice;
use minfer_graph::{
    Backend, BoundOp, BufferId, DeviceError, DeviceId, NodeId, Op, Operand, Place, Plan, ProgramId,
};

/// The rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Broken {
    /// None: the results are right.
    Nothing,
    /// A value is read without a wait for what makes it.
    NoWait,
    /// Whether a value was staged is remembered by value, not by value and destination.
    StagedByValue,
    /// The copy of the first value lies where the second one, which is thought done with, was.
    StagedInMemoryOf(NodeId, NodeId),
    /// The producer's buffer is freed once it is copied.
    ProducerFreed,
}

/// A plan without weights and KV caches, bound by hand.
pub struct Hand<'a> {
    plan: &'a Plan,
    devices: Vec<SimDevice>,
    buffers: Vec<Vec<BufferId>>,
    programs: Vec<ProgramId>,
    broken: Broken,
}

const LONG: Duration = Duration::from_secs(1);

impl<'a> Hand<'a> {
    pub fn bind(plan: &'a Plan, mut devices: Vec<SimDevice>, broken: Broken) -> Self {
        let slots = plan.memory().slots.iter();
        let buffers = (slots.zip(&mut devices))
            .map(|(sizes, device)| sizes.iter().map(|&bytes| device.allocate(bytes).unwrap()).collect())
            .collect();
        let mut hand = Self { plan, devices, buffers, programs: Vec::new(), broken };
        for split in plan.splits() {
            let ops: Vec<BoundOp> = split.nodes.iter().map(|&n| hand.op(n, split.device)).collect();
            hand.programs.push(hand.devices[split.device.index()].compile(&ops).unwrap());
        }
        hand
    }

    fn buffer(&self, value: NodeId, device: DeviceId) -> BufferId {
        let value = match self.broken {
            Broken::StagedInMemoryOf(copied, victim)
                if value == copied && device != self.plan.device(copied) =>
            {
                victim
            }
            _ => value,
        };
        let slot = self.plan.memory().slot(self.plan.graph(), value, device).unwrap();
        self.buffers[device.index()][slot.0 as usize]
    }

    fn op(&self, id: NodeId, device: DeviceId) -> BoundOp {
        let node = self.plan.graph().node(id);
        let operand = |id: NodeId| {
            let node = self.plan.graph().node(id);
            let place = Place::Buffer(self.buffer(id, device));
            Operand { place, dtype: node.dtype, shape: node.shape }
        };
        BoundOp {
            node: id,
            label: node.label.clone(),
            op: node.op.clone(),
            sources: node.sources.iter().map(|&s| operand(s)).collect(),
            result: operand(id),
            state: None,
        }
    }

    /// One run: inputs of one value each, an output's first element.
    pub fn run(&mut self, x: f32, output: NodeId) -> Result<f32, DeviceError> {
        let plan = self.plan;
        for split in plan.splits() {
            for &source in split.nodes.iter().flat_map(|&n| &plan.graph().node(n).sources) {
                if plan.graph().node(source).op == Op::Input {
                    let buffer = self.buffer(source, split.device);
                    self.devices[split.device.index()].synchronize(LONG)?;
                    self.devices[split.device.index()].write(buffer, &x.to_le_bytes())?;
                }
            }
        }
        let mut staged = HashSet::new();
        for (split, &program) in plan.splits().iter().zip(&self.programs) {
            for copy in &split.copies {
                let key =
                    (copy.value, if self.broken == Broken::StagedByValue { DeviceId(0) } else { copy.to });
                if !staged.insert(key) {
                    continue;
                }
                let (from, to) = (self.buffer(copy.value, copy.from), self.buffer(copy.value, copy.to));
                let producer = &mut self.devices[copy.from.index()];
                if self.broken != Broken::NoWait {
                    producer.synchronize(LONG)?;
                }
                let mut host = vec![0; plan.graph().node(copy.value).bytes()];
                producer.read(from, &mut host)?;
                if self.broken == Broken::ProducerFreed {
                    producer.release(from);
                }
                self.devices[copy.to.index()].write(to, &host)?;
            }
            self.devices[split.device.index()].launch(program)?;
        }
        self.devices.iter_mut().try_for_each(|d| d.synchronize(LONG))?;
        let (home, mut bytes) = (plan.device(output), [0; 4]);
        let buffer = self.buffer(output, home);
        self.devices[home.index()].read(buffer, &mut bytes)?;
        Ok(f32::from_le_bytes(bytes))
    }
}
