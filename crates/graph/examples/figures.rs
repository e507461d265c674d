//! Makes the figures of `docs/scheduler.md`: a plan for two devices, and when what of it runs, on the virtual clock of two
//! simulated devices.
//!
//! `cargo run -p minfer-graph --example figures` writes them to `docs/figures`, to the same bytes each time. The plan is
//! drawn by Graphviz, where its `dot` is installed.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use minfer_graph::devices::{Ran, ReferenceDevice, SimDevice, SimOptions, World};
use minfer_graph::export::Document;
use minfer_graph::{
    Activation, Backend, BoundOp, BufferId, DType, DeviceError, DeviceInfo, Event, Graph, GraphBuilder,
    KvTable, NodeId, OpQuery, Plan, PlanOptions, ProgramId, Rule, Scheduler, StateDecl, StateHandle,
    WeightHandle, WeightRequest, WeightSource, WeightTable,
};

const NAMES: [&str; 2] = ["sim0", "sim1"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/figures");
    std::fs::create_dir_all(&folder)?;
    for (name, text) in figures() {
        std::fs::write(folder.join(name), text)?;
    }
    let plan = [folder.join("plan.dot"), folder.join("plan.svg")];
    match Command::new("dot").arg("-Tsvg").arg(&plan[0]).arg("-o").arg(&plan[1]).status() {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(format!("dot ended with {status}").into()),
        Err(error) => eprintln!("plan.svg is left as it is: dot cannot be run: {error}"),
    }
    Ok(())
}

/// Every figure's file name and contents.
pub fn figures() -> [(&'static str, String); 3] {
    let (plan, overlapped) = run(Protocol::Events);
    let (_, naive) = run(Protocol::WholeDevice);
    // One scale for both, so that they can be compared by eye.
    let end = overlapped.end().max(naive.end());
    let title = "Waiting for the values that are needed";
    let naive_title = "Waiting for the device after every split";
    [
        ("plan.dot", Document::of_plan(&plan).to_dot()),
        ("timeline.svg", timeline(title, &plan, &overlapped, end)),
        ("timeline-naive.svg", timeline(naive_title, &plan, &naive, end)),
    ]
}

/// A gated feed-forward network whose gate is computed on one device and whose other matrices are on the other one.
fn graph() -> (Graph, NodeId) {
    let (tokens, width, hidden) = (4, 64, 128);
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [tokens, width]);
    let norm = b.rms_norm("norm", x, 1e-5);
    let [up, gate] = ["up", "gate"].map(|name| {
        let weight = b.weight(format!("{name}.weight"), DType::F32, [hidden, width]);
        b.mat_mul(name, weight, norm)
    });
    let gate = b.activate("gate.silu", gate, Activation::Silu);
    let gated = b.mul("gated", gate, up);
    let weight = b.weight("down.weight", DType::F32, [width, hidden]);
    let down = b.mat_mul("down", weight, gated);
    let out = b.add("out", down, x);
    b.output(out);
    (b.finish().expect("a graph without mistakes"), x)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    /// As the scheduler does it.
    Events,
    /// Each launch is waited for before anything else is done.
    WholeDevice,
}

/// What happened in a run.
struct Trace {
    /// What the host did.
    host: Vec<HostSpan>,
    /// What the devices did.
    ran: Vec<Ran>,
}

struct HostSpan {
    what: &'static str,
    /// Index of the device.
    device: usize,
    begin: Duration,
    end: Duration,
}

impl Trace {
    fn end(&self) -> Duration {
        self.host.iter().map(|h| h.end).max().unwrap_or_default()
    }
}

/// Runs the graph once on two devices.
fn run(protocol: Protocol) -> (Plan, Trace) {
    let world = World::new();
    let host = Arc::new(Mutex::new(Vec::new()));
    let micros = Duration::from_micros;
    let devices = NAMES.iter().enumerate().map(|(index, name)| {
        let options = SimOptions {
            submit: micros(3),
            launch: micros(4),
            bandwidth: 1.2e9,
            copy: micros(5),
            link: 1e9,
            ..SimOptions::default()
        };
        let device = world.device(name, Box::new(ReferenceDevice::default()), options);
        Box::new(Traced { device, world: world.clone(), host: Arc::clone(&host), index, protocol })
            as Box<dyn Backend>
    });
    let mut scheduler = Scheduler::new(devices.collect());
    let first = ["norm", "gate", "gate.silu"];
    let rules =
        [Rule::new("the figure's rule", move |node, _, d| first.contains(&&*node.label) == (d.0 == 0))];
    let (graph, x) = graph();
    let mut weights = WeightTable::new();
    for weight in graph.weights() {
        weights.insert_f32(weight.name.as_str(), &vec![0.01; weight.shape.len()]);
    }
    let plan = scheduler.plan(graph, &PlanOptions { rules: &rules, ..PlanOptions::default() });
    let plan = plan.expect("two devices that take everything");
    let source: Arc<dyn WeightSource> = Arc::new(weights);
    let mut bound = scheduler.bind(plan, &source, &mut |_, _| {}).expect("memory without bounds");
    scheduler.write_f32(&mut bound, x, &[1.0; 4 * 64]).expect("an input of the graph");
    let lock = |host: &Mutex<Vec<HostSpan>>| std::mem::take(&mut *host.lock().expect("no thread panicked"));
    drop((lock(&host), world.take_log()));
    let start = world.now();
    scheduler.execute(&mut bound).expect("devices without faults");
    let mut trace = Trace { host: lock(&host), ran: world.take_log() };
    for span in &mut trace.host {
        (span.begin, span.end) = (span.begin - start, span.end - start);
    }
    for ran in &mut trace.ran {
        (ran.begin, ran.end) = (ran.begin - start, ran.end - start);
    }
    (scheduler.unbind(bound), trace)
}

/// A simulated device that writes down what the host does with it.
struct Traced {
    device: SimDevice,
    world: World,
    host: Arc<Mutex<Vec<HostSpan>>>,
    index: usize,
    protocol: Protocol,
}

impl Traced {
    fn traced<T>(&mut self, what: &'static str, call: impl FnOnce(&mut SimDevice) -> T) -> T {
        let begin = self.world.now();
        let result = call(&mut self.device);
        let span = HostSpan { what, device: self.index, begin, end: self.world.now() };
        self.host.lock().expect("no thread panicked").push(span);
        result
    }
}

impl Backend for Traced {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }
    fn supports(&self, query: &OpQuery<'_>) -> bool {
        self.device.supports(query)
    }
    fn load_weight(&mut self, request: &WeightRequest<'_>) -> Result<WeightHandle, DeviceError> {
        self.device.load_weight(request)
    }
    fn create_state(&mut self, decl: &StateDecl) -> Result<StateHandle, DeviceError> {
        self.device.create_state(decl)
    }
    fn release_state(&mut self, state: StateHandle) {
        self.device.release_state(state);
    }
    fn allocate(&mut self, bytes: usize) -> Result<BufferId, DeviceError> {
        self.device.allocate(bytes)
    }
    fn release(&mut self, buffer: BufferId) {
        self.device.release(buffer);
    }
    fn compile(&mut self, ops: &[BoundOp]) -> Result<ProgramId, DeviceError> {
        self.device.compile(ops)
    }
    fn release_program(&mut self, program: ProgramId) {
        self.device.release_program(program);
    }
    fn launch(&mut self, program: ProgramId) -> Result<(), DeviceError> {
        self.traced("submit", |d| d.launch(program))?;
        match self.protocol {
            Protocol::Events => Ok(()),
            Protocol::WholeDevice => self.synchronize(Scheduler::DEFAULT_DEADLINE),
        }
    }
    fn synchronize(&mut self, deadline: Duration) -> Result<(), DeviceError> {
        self.traced("wait", |d| d.synchronize(deadline))
    }
    fn mark(&mut self) -> Event {
        self.device.mark()
    }
    fn wait(&mut self, event: Event, deadline: Duration) -> Result<(), DeviceError> {
        self.traced("wait", |d| d.wait(event, deadline))
    }
    fn write(&mut self, buffer: BufferId, bytes: &[u8]) -> Result<(), DeviceError> {
        self.traced("copy", |d| d.write(buffer, bytes))
    }
    fn read(&mut self, buffer: BufferId, out: &mut [u8]) -> Result<(), DeviceError> {
        self.traced("copy", |d| d.read(buffer, out))
    }
    fn read_state(
        &mut self,
        state: StateHandle,
        table: KvTable,
        first_slot: usize,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.device.read_state(state, table, first_slot, out)
    }
}

const LEFT: f64 = 64.0;
const WIDTH: f64 = 840.0;
const LANE: f64 = 44.0;
const TOP: f64 = 44.0;

/// A drawing of a run: a lane for the host and one for each device, time from left to right up to `until`.
fn timeline(title: &str, plan: &Plan, trace: &Trace, until: Duration) -> String {
    let micros = |t: Duration| t.as_secs_f64() * 1e6;
    let scale = (WIDTH - LEFT - 24.0) / micros(until);
    let at = |t: Duration| LEFT + micros(t) * scale;
    let lane = |i: usize| TOP + LANE * i as f64;
    let height = lane(3) + 62.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n"
    );
    out += STYLE;
    let _ = writeln!(out, "<rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\"/>");
    let total = micros(trace.end());
    let _ = writeln!(out, "<text class=\"title\" x=\"12\" y=\"24\">{title}: {total:.0} µs</text>");
    for (i, name) in ["host"].iter().chain(&NAMES).enumerate() {
        let _ = writeln!(out, "<text x=\"12\" y=\"{:.1}\">{name}</text>", lane(i) + 20.0);
    }
    let mut bar = |class: &str, row: usize, begin: Duration, end: Duration, text: &str, tip: &str| {
        let (x, width) = (at(begin), micros(end - begin) * scale);
        let tip = format!("{tip}, {:.1} to {:.1} µs", micros(begin), micros(end));
        let y = lane(row);
        let _ = writeln!(
            out,
            "<g><title>{tip}</title><rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"32\"/>"
        );
        // Only what fits, at some 7 units a character.
        if text.chars().count() as f64 * 7.0 < width {
            let (x, y) = (x + width / 2.0, y + 20.0);
            let _ = writeln!(out, "<text class=\"in\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>");
        }
        out.push_str("</g>\n");
    };
    for span in trace.host.iter().filter(|s| s.end > s.begin) {
        let tip = format!("{} {}", span.what, NAMES[span.device]);
        bar(span.what, 0, span.begin, span.end, span.what, &tip);
    }
    for (i, split) in plan.splits().iter().enumerate() {
        let device = split.device.index();
        for ran in trace.ran.iter().filter(|r| split.nodes.contains(&r.node)) {
            let tip = format!("split {i}, {}", plan.graph().node(ran.node).label);
            let text = format!("{i}: {}", plan.graph().node(ran.node).label);
            bar(["d0", "d1"][device], 1 + device, ran.begin, ran.end, &text, &tip);
        }
    }
    let axis = lane(3) + 2.0;
    let _ = writeln!(out, "<path class=\"axis\" d=\"M{LEFT} {axis}H{:.1}\"/>", WIDTH - 24.0);
    let step = 50;
    for tick in (0..=until.as_micros() as u64).step_by(step) {
        let x = at(Duration::from_micros(tick));
        let _ = writeln!(
            out,
            "<path class=\"axis\" d=\"M{x:.1} {axis}v5\"/><text class=\"in tick\" x=\"{x:.1}\" y=\"{:.1}\">{tick} µs</text>",
            axis + 18.0
        );
    }
    let y = axis + 32.0;
    let mut x = LEFT;
    for (class, text) in [
        ("submit", "host submits"),
        ("copy", "host copies"),
        ("wait", "host waits"),
        ("d0", "sim0 computes"),
        ("d1", "sim1 computes"),
    ] {
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\"/><text x=\"{}\" y=\"{}\">{text}</text>",
            x + 18.0,
            y + 10.5
        );
        x += 130.0;
    }
    out += "</svg>\n";
    out
}

const STYLE: &str = "<style>
.page{fill:#fff}text{fill:#1f2328}.title{font-weight:bold;font-size:14px}.in{text-anchor:middle;font-size:11px}.axis{stroke:#8c959f;fill:none}
rect{stroke:#57606a;stroke-width:.6}.page{stroke:none}.submit{fill:#f0c36d}.copy{fill:#f4a6a0}.wait{fill:#e6e9ed}.d0{fill:#add8e6}.d1{fill:#98fb98}
@media (prefers-color-scheme:dark){.page{fill:#0d1117}text{fill:#e6edf3}.submit{fill:#8a6414}.copy{fill:#8f3b36}.wait{fill:#2d333b}.d0{fill:#1f5d73}.d1{fill:#1f6b2d}}
</style>
";
