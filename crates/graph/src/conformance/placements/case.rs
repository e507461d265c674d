//! One case: a graph on one device, and on several.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::random::Random;
use super::sample::{Data, Sample};
use super::{Coverage, Devices};
use crate::devices::{SimControl, SimOptions, World};
use crate::export::Document;
use crate::place::runs;
use crate::{
    Backend, BoundPlan, DeviceId, ExecError, Fusion, Graph, NodeId, NodeReport, Op, Plan, PlanError,
    PlanOptions, Reuse, Rule, Scheduler, Watch, WeightSource,
};

/// Runs on one plan: two direct ones, one that is recorded, at least one that is replayed.
const RUNS: usize = 4;

/// Where some of them are watched, there are more, so that these stages come all the same.
const MORE_RUNS: usize = 7;
const _: () = assert!(MORE_RUNS <= Sample::RUNS);

/// How a case is run. What the seed's lowest bits say comes in every combination as often.
#[derive(Clone, Debug)]
struct Setting {
    fusion: bool,
    reuse: bool,
    replay: bool,
    /// By run: whether it is watched.
    watched: Vec<bool>,
    /// Whether memory is poisoned before each run.
    poison: bool,
    /// Before which run another plan runs on the same devices, which may move buffers and working memory.
    disturbed: Option<usize>,
    /// Whether large buffers exist from the beginning, so that none grows.
    roomy: bool,
    /// Of 8 nodes, how many are on a device of their own choice and not on the last one's.
    scattered: usize,
}

impl Setting {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed, "setting");
        let bit = |i: u32| seed >> i & 1 == 1;
        let watched = match (bit(3), random.below(2)) {
            (false, _) => vec![false; RUNS],
            (true, 0) => vec![true; RUNS],
            // Watched runs among others, which go on as if there had been none.
            _ => (0..MORE_RUNS).map(|_| random.below(2) == 0).collect(),
        };
        let disturbed = (random.below(4) == 0).then(|| 1 + random.below(watched.len() - 1));
        Self {
            fusion: bit(0),
            reuse: bit(1),
            replay: bit(2),
            watched,
            poison: random.below(2) == 0,
            disturbed,
            roomy: random.below(2) == 0,
            scattered: [8, 4, 2][random.below(3)],
        }
    }
}

/// Why a case did not pass.
pub(super) enum Stop {
    /// No device takes an operation of the graph.
    Skipped,
    Failed(String),
}

impl From<ExecError> for Stop {
    fn from(error: ExecError) -> Self {
        Self::Failed(format!("a run failed: {error}"))
    }
}

impl From<PlanError> for Stop {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::NoDevice { .. } | PlanError::NoStateDevice { .. } => Self::Skipped,
            error => Self::Failed(error.to_string()),
        }
    }
}

/// What a run gave.
#[derive(Debug, Default, PartialEq)]
struct Values {
    outputs: Vec<Vec<u32>>,
    /// Every value, if the run was watched.
    all: HashMap<NodeId, Vec<u8>>,
}

impl Watch for HashMap<NodeId, Vec<u8>> {
    fn ran(&mut self, report: &NodeReport<'_>) {
        if let Some(value) = report.value {
            self.insert(report.node, value.to_vec());
        }
    }
}

/// A graph, its weights and its plan on a scheduler.
struct Bound<'a> {
    sample: &'a Sample,
    source: Arc<dyn WeightSource>,
    placement: HashMap<String, DeviceId>,
    fusion: Fusion,
    reuse: Reuse,
    plan: BoundPlan,
}

impl<'a> Bound<'a> {
    fn new(
        scheduler: &mut Scheduler,
        sample: &'a Sample,
        placement: HashMap<String, DeviceId>,
        fusion: Fusion,
        reuse: Reuse,
    ) -> Result<Self, Stop> {
        let source: Arc<dyn WeightSource> = Arc::new(sample.weights.clone());
        let plan = bind(scheduler, &sample.graph, &source, &placement, fusion, reuse)?;
        Ok(Self { sample, source, placement, fusion, reuse, plan })
    }

    /// Makes the plan anew if its addresses no longer hold; whether it was made anew.
    fn refresh(&mut self, scheduler: &mut Scheduler) -> Result<bool, Stop> {
        if scheduler.is_fresh(&self.plan) {
            return Ok(false);
        }
        let Self { sample, source, placement, fusion, reuse, .. } = self;
        let plan = bind(scheduler, &sample.graph, source, placement, *fusion, *reuse)?;
        scheduler.unbind(std::mem::replace(&mut self.plan, plan));
        Ok(true)
    }

    fn run(&mut self, scheduler: &mut Scheduler, run: usize, watched: bool) -> Result<Values, ExecError> {
        let mut values = Values::default();
        let plan = &mut self.plan;
        for (input, data) in self.sample.data(run) {
            match data {
                Data::F32(data) => scheduler.write_f32(plan, input, &data)?,
                Data::I32(data) => scheduler.write_i32(plan, input, &data)?,
            }
        }
        match watched {
            true => scheduler.execute_watched(plan, &mut values.all)?,
            false => scheduler.execute(plan)?,
        }
        let seen = |n: &&NodeId| !self.sample.graph.node(**n).op.is_alias();
        let running = plan.plan().splits().iter().flat_map(|s| &s.nodes).filter(seen).count();
        assert_eq!(values.all.len(), if watched { running } else { 0 }, "values watched");
        for &output in self.sample.graph.outputs() {
            let mut out = vec![0u32; self.sample.graph.node(output).shape.len()];
            scheduler.read_f32(plan, output, bytemuck::cast_slice_mut(&mut out))?;
            values.outputs.push(out);
        }
        Ok(values)
    }
}

fn bind(
    scheduler: &mut Scheduler,
    graph: &Graph,
    source: &Arc<dyn WeightSource>,
    placement: &HashMap<String, DeviceId>,
    fusion: Fusion,
    reuse: Reuse,
) -> Result<BoundPlan, PlanError> {
    let plan = plan(scheduler, graph, placement, fusion, reuse)?;
    scheduler.bind(plan, source, &mut |_, _| {})
}

/// Plans with each node on the device that `placement` names by label.
fn plan(
    scheduler: &Scheduler,
    graph: &Graph,
    placement: &HashMap<String, DeviceId>,
    fusion: Fusion,
    reuse: Reuse,
) -> Result<Plan, PlanError> {
    let rule = Rule::new("the placement", |node, _, device| {
        placement.get(&node.label).is_none_or(|&wanted| wanted == device)
    });
    let options = PlanOptions { fusion, reuse, rules: &[rule], ..PlanOptions::default() };
    scheduler.plan(graph.clone(), &options)
}

/// A device for each node that runs, among those that take it, as the seed wants. A KV cache and all that touches it is
/// on one device.
fn random_placement(
    seed: u64,
    graph: &Graph,
    devices: &[&dyn Backend],
    scattered: usize,
) -> HashMap<String, DeviceId> {
    let takes = |id: NodeId, d: DeviceId| runs(graph, graph.node(id), devices[d.index()]);
    let all = || (0..devices.len() as u32).map(DeviceId);
    let mut placement = HashMap::new();
    let mut last = DeviceId(0);
    for (id, node) in graph.iter().filter(|(_, n)| n.op.runs()) {
        // Drawn by label, so that it stays what it is when the graph gets shorter.
        let mut random = Random::new(seed, &format!("{}.device", node.label));
        let state = node.sources.iter().find_map(|&s| graph.state_of(s));
        let together = |&(other, n): &(NodeId, &crate::Node)| {
            other == id || state.is_some() && n.sources.iter().any(|&s| graph.state_of(s) == state)
        };
        let group: Vec<(NodeId, &crate::Node)> = graph.iter().filter(together).collect();
        let first = &group[0].1.label;
        let fits: Vec<DeviceId> = all().filter(|&d| group.iter().all(|&(id, _)| takes(id, d))).collect();
        let device = match (placement.get(first), fits.as_slice()) {
            (Some(&device), _) => device,
            (None, []) => continue,
            (None, fits) if fits.contains(&last) && random.below(8) >= scattered => last,
            (None, fits) => fits[random.below(fits.len())],
        };
        placement.insert(node.label.clone(), device);
        last = device;
    }
    placement
}

/// Two different devices of one world, each of which leaves some operations to others.
fn simulated(seed: u64, devices: &mut Devices<'_>) -> [(Box<dyn Backend>, SimControl); 2] {
    let world = World::new();
    let mut random = Random::new(seed, "devices");
    world.set_global_capture(random.below(2) == 0);
    let mut device = |name: &str, options: SimOptions| {
        let refuses = random.bits();
        let takes = move |op: &Op| Random::new(refuses, op.name()).below(6) > 0;
        let device = world.device(name, (devices.kernels)(), options.taking(move |q| takes(q.op)));
        let control = device.control();
        (Box::new(device) as Box<dyn Backend>, control)
    };
    let micros = Duration::from_micros;
    let slow = SimOptions {
        submit: micros(2),
        launch: micros(5),
        bandwidth: 1e9,
        copy: micros(10),
        link: 1e8,
        records: true,
        ..SimOptions::default()
    };
    [device("slow", slow), device("plain", SimOptions { records: false, ..SimOptions::default() })]
}

/// Runs a case: the sample on the device alone, then on it and two simulated ones.
pub(super) fn check(
    seed: u64,
    operations: usize,
    devices: &mut Devices<'_>,
    coverage: &mut Coverage,
) -> Result<(), Stop> {
    let setting = Setting::new(seed);
    let sample = Sample::new(seed, operations);
    let expected = alone(&sample, &setting.watched, devices)?;

    let [(slow, control), (plain, _)] = simulated(seed, devices);
    let mut scheduler = Scheduler::new(vec![(devices.device)(), slow, plain]);
    scheduler.set_replay(setting.replay);
    if setting.roomy {
        reserve(&mut scheduler)?;
    }
    let fusion = if setting.fusion { Fusion::all() } else { Fusion::none() };
    let reuse = if setting.reuse { Reuse::ByLiveness } else { Reuse::Never };
    let placement = random_placement(seed, &sample.graph, &scheduler.backends(), setting.scattered);
    let mut bound = Bound::new(&mut scheduler, &sample, placement, fusion, reuse)?;

    for (run, (&watched, expected)) in setting.watched.iter().zip(&expected).enumerate() {
        if setting.disturbed == Some(run) {
            disturb(seed, &mut scheduler, devices)?;
            coverage.moved += u64::from(bound.refresh(&mut scheduler)?);
        }
        if setting.poison {
            scheduler.poison()?;
        }
        let got = bound.run(&mut scheduler, run, watched).map_err(|e| e.to_string());
        got.and_then(|got| compare(&sample.graph, &got, expected)).map_err(|what| {
            let plan = Document::of_plan(bound.plan.plan()).to_text();
            Stop::Failed(format!("run {run} of {}: {what}\n{setting:?}\n{plan}", setting.watched.len()))
        })?;
    }
    coverage.count(seed, bound.plan.plan(), &control.counts());
    Ok(())
}

/// The sample's values on one device, each in memory of its own, with nothing fused.
fn alone(sample: &Sample, watched: &[bool], devices: &mut Devices<'_>) -> Result<Vec<Values>, Stop> {
    let mut scheduler = Scheduler::new(vec![(devices.kernels)()]);
    let mut bound = Bound::new(&mut scheduler, sample, HashMap::new(), Fusion::none(), Reuse::Never)?;
    let mut all = Vec::with_capacity(watched.len());
    for (run, &watched) in watched.iter().enumerate() {
        let values = bound.run(&mut scheduler, run, watched)?;
        // Where values are not numbers, poison would not show.
        if values.outputs.iter().flatten().any(|&bits| !f32::from_bits(bits).is_finite()) {
            return Err(Stop::Failed(format!("run {run} on one device gives infinite values or NaN")));
        }
        all.push(values);
    }
    Ok(all)
}

fn compare(graph: &Graph, got: &Values, expected: &Values) -> Result<(), String> {
    let differs = |id: NodeId, got: &[u32], expected: &[u32]| {
        let i = got.iter().zip(expected).position(|(a, b)| a != b)?;
        let (label, got, expected) =
            (&graph.node(id).label, f32::from_bits(got[i]), f32::from_bits(expected[i]));
        Some(format!("element {i} of {label} is {got:?} instead of {expected:?}"))
    };
    // Watched values first: they are met in build order, and the first that is wrong tells most.
    let mut watched: Vec<NodeId> = got.all.keys().copied().collect();
    watched.sort_unstable();
    for id in watched {
        let Some(expected) = expected.all.get(&id) else {
            return Err(format!("{} was watched, which does not run on one device", graph.node(id).label));
        };
        let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        let words = |bytes: &[u8]| -> Vec<u32> { bytes.chunks_exact(4).map(word).collect() };
        if let Some(what) = differs(id, &words(&got.all[&id]), &words(expected)) {
            return Err(format!("watched, {what}"));
        }
    }
    let outputs = graph.outputs().iter().zip(got.outputs.iter().zip(&expected.outputs));
    outputs.map(|(&id, (got, expected))| differs(id, got, expected)).find_map(|what| what).map_or(Ok(()), Err)
}

/// Makes large buffers on every device, which plans share.
fn reserve(scheduler: &mut Scheduler) -> Result<(), Stop> {
    let sample = Sample::roomy(scheduler.backends().len());
    let device = |label: &str| label.rsplit('.').next().and_then(|d| d.parse().ok()).unwrap_or(0);
    let runs = sample.graph.nodes().iter().filter(|n| n.op.runs());
    let placement = runs.map(|n| (n.label.clone(), DeviceId(device(&n.label)))).collect();
    let bound = match Bound::new(scheduler, &sample, placement, Fusion::none(), Reuse::Never) {
        // A device that does not look rows up gets no large buffers.
        Err(Stop::Skipped) => return Ok(()),
        other => other?,
    };
    scheduler.unbind(bound.plan);
    Ok(())
}

/// Runs another sample on the same devices, and checks it like the first.
fn disturb(seed: u64, scheduler: &mut Scheduler, devices: &mut Devices<'_>) -> Result<(), Stop> {
    let sample = Sample::disturbing(seed);
    let expected = alone(&sample, &[false], devices)?;
    let placement = random_placement(!seed, &sample.graph, &scheduler.backends(), 4);
    let mut bound = Bound::new(scheduler, &sample, placement, Fusion::all(), Reuse::ByLiveness)?;
    let got = bound.run(scheduler, 0, false)?;
    compare(&sample.graph, &got, &expected[0])
        .map_err(|what| Stop::Failed(format!("another plan on the same devices: {what}")))?;
    scheduler.unbind(bound.plan);
    Ok(())
}
