//! Text, DOT and JSON of a plan.

mod common;

use std::iter::Peekable;

use common::model::TINY;
use common::only;
use minfer_graph::devices::ReferenceDevice;
use minfer_graph::export::Document;
use minfer_graph::{DType, GraphBuilder, Plan, PlanOptions, Scheduler};

/// A plan over two devices: the gpu runs no silu.
fn mixed() -> Plan {
    let gpu = only("gpu", |q| !q.op.name().contains("silu"));
    let scheduler = Scheduler::new(vec![gpu, Box::new(ReferenceDevice::new("cpu"))]);
    scheduler.plan(TINY.graph(3, 1).0, &PlanOptions::default()).unwrap()
}

/// A small plan with a label that every format has to escape.
fn small() -> Plan {
    let mut b = GraphBuilder::new();
    let x = b.input("x \"quoted\" \\ é", DType::F32, [2, 4]);
    let w = b.weight("w", DType::F32, [3, 4]);
    let s = b.softcap("s", x, 30.0);
    let r = b.reshape("r", s, [2, 4]);
    let y = b.mat_mul("y", w, r);
    b.output(y);
    let gpu = only("gpu", |q| q.op.name() == "softcap");
    Scheduler::new(vec![gpu, Box::new(ReferenceDevice::new("cpu"))])
        .plan(b.finish().unwrap(), &PlanOptions::default())
        .unwrap()
}

#[test]
fn the_text_is_this() {
    let wanted = "\
id  label           op       sources  type  shape  device  split  slot  bytes
 0  x \"quoted\" \\ é  input             F32   2×4    gpu         -     0     32
 1  w               weight            F32   3×4    cpu         -     -     48
 2  s               softcap  0        F32   2×4    gpu         0     1     32
 3  r               reshape  2        F32   2×4    gpu         -     1     32
 4  y *             mat_mul  1,3      F32   2×3    cpu         1     1     24
split 0 on gpu: 1 node
split 1 on cpu: 1 node; copies s from gpu (32 B)
1 node on gpu: first device
1 node on cpu: gpu does not run it
           gpu    cpu
softcap      1      0
mat_mul      0      1
gpu: 2 slots, 512 B
cpu: 2 slots, 512 B
5 nodes: 2 run, 0 absorbed by fusion; 2 splits, 1 copy (32 B)
weights 48 B, KV 0 B, slots 1.0 KiB, live peak 56 B
";
    assert_eq!(Document::of_plan(&small()).to_text(), wanted);
}

#[test]
fn the_text_of_a_graph_without_a_plan_has_no_devices() {
    let text = Document::of_graph(small().graph()).to_text();
    assert!(
        text.contains(" 2  s               softcap  0        F32   2×4    -           -     -     32\n"),
        "{text}"
    );
    assert!(text.ends_with("5 nodes: 2 run, 0 absorbed by fusion; 0 splits, 0 copies (0 B)\nweights 48 B, KV 0 B, slots 0 B, live peak 0 B\n"));
}

#[test]
fn the_json_is_the_documented_schema() {
    let json: serde_json::Value = serde_json::from_str(&Document::of_plan(&small()).to_json()).unwrap();
    let wanted = serde_json::json!({
        "version": 1,
        "devices": [{"name": "gpu", "slots": [256, 256]}, {"name": "cpu", "slots": [256, 256]}],
        "nodes": [
            {"id": 0, "label": "x \"quoted\" \\ é", "op": "input", "parameters": {}, "layer": null, "sources": [],
             "dtype": "F32", "shape": [2, 4], "bytes": 32, "device": 0, "why": null, "split": null, "slot": 0, "dead": false, "output": false},
            {"id": 1, "label": "w", "op": "weight", "parameters": {"name": "w"}, "layer": null, "sources": [],
             "dtype": "F32", "shape": [3, 4], "bytes": 48, "device": 1, "why": null, "split": null, "slot": null, "dead": false, "output": false},
            {"id": 2, "label": "s", "op": "softcap", "parameters": {"cap": 30.0}, "layer": null, "sources": [0],
             "dtype": "F32", "shape": [2, 4], "bytes": 32, "device": 0, "why": "first device", "split": 0, "slot": 1, "dead": false, "output": false},
            {"id": 3, "label": "r", "op": "reshape", "parameters": {}, "layer": null, "sources": [2],
             "dtype": "F32", "shape": [2, 4], "bytes": 32, "device": 0, "why": null, "split": null, "slot": 1, "dead": false, "output": false},
            {"id": 4, "label": "y", "op": "mat_mul", "parameters": {}, "layer": null, "sources": [1, 3],
             "dtype": "F32", "shape": [2, 3], "bytes": 24, "device": 1, "why": "gpu does not run it", "split": 1, "slot": 1, "dead": false, "output": true},
        ],
        "splits": [
            {"device": 0, "nodes": [2], "copies": []},
            {"device": 1, "nodes": [4], "copies": [{"value": 2, "from": 0, "bytes": 32}]},
        ],
        "totals": {"nodes": 5, "running": 2, "dead": 0, "splits": 2, "copies": 1, "copy_bytes": 32, "weight_bytes": 48,
                   "state_bytes": 0, "slot_bytes": 1024, "live_peak": 56},
    });
    assert_eq!(json, wanted);
}

#[test]
fn the_json_of_a_whole_decoder_agrees_with_its_plan() {
    let plan = mixed();
    let json: serde_json::Value = serde_json::from_str(&Document::of_plan(&plan).to_json()).unwrap();
    let nodes = json["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), plan.graph().nodes().len());
    for (id, node) in plan.graph().iter() {
        let row = &nodes[id.index()];
        assert_eq!(row["dead"], plan.is_dead(id));
        assert_eq!(row["device"].is_null(), plan.is_dead(id), "{}", node.label);
        assert_eq!(row["layer"].as_u64(), node.layer.map(u64::from));
    }
    let find = |op: &str| nodes.iter().find(|n| n["op"] == op).unwrap();
    let yarn = serde_json::Value::Null;
    let rope =
        serde_json::json!({"rotary_dim": 4, "pairs": "halves", "base": 10000.0, "scale": 1.0, "yarn": yarn});
    assert_eq!(find("rope")["parameters"], rope);
    let attention = serde_json::json!({"scale": 0.5, "window": null, "softcap": null});
    assert_eq!(find("attention")["parameters"], attention);
    let state = serde_json::json!({"layer": 0, "slots": 64, "page": 4, "kv_heads": 2, "head_dim": 4});
    assert_eq!(find("state")["parameters"], state);
    assert_eq!(json["totals"]["state_bytes"], 2 * 2 * 64 * 2 * 4 * 4);
    // The gates' silu is on the other device and stays.
    assert_eq!(json["totals"]["dead"], 15);
}

#[test]
fn the_dot_is_valid_and_shows_splits_devices_and_crossings() {
    for plan in [small(), mixed()] {
        let dot = Document::of_plan(&plan).to_dot();
        let graph = Dot::parse(&dot);
        assert_eq!(graph.clusters, plan.splits().len());
        let live = plan.graph().iter().filter(|(id, _)| !plan.is_dead(*id)).count();
        assert_eq!(graph.vertices.len(), live);
        // Every edge joins declared vertices, and one is dashed for every read of a value from another
        // device.
        let mut crossing = 0;
        for (id, node) in plan.graph().iter().filter(|(id, _)| !plan.is_dead(*id)) {
            for &s in &node.sources {
                let edge = (format!("n{}", s.0), format!("n{}", id.0));
                assert!(graph.edges.iter().any(|e| (e.0.clone(), e.1.clone()) == edge), "{edge:?}");
                let computed = !plan.graph().node(s).op.is_leaf();
                crossing += usize::from(computed && plan.device(s) != plan.device(id));
            }
        }
        assert!(crossing > 0);
        assert_eq!(graph.edges.iter().filter(|e| e.2.contains("dashed")).count(), crossing);
        for (from, to, _) in &graph.edges {
            assert!(graph.vertices.contains(from) && graph.vertices.contains(to));
        }
    }
    let dot = Document::of_plan(&small()).to_dot();
    assert!(
        dot.contains(r#"n0 [label="x \"quoted\" \\ é\ninput\nF32 2×4", shape=ellipse, fillcolor=white"#),
        "{dot}"
    );
    assert!(
        dot.contains(r#"n2 -> n3;"#) && dot.contains(r#"n3 -> n4 [color=red, style=dashed, label="32 B"];"#),
        "{dot}"
    );
}

#[test]
#[should_panic(expected = "unexpected")]
fn the_dot_parser_refuses_what_graphviz_refuses() {
    Dot::parse("digraph g {\n  n0 [label=\"a\"b\"];\n}\n");
}

/// What a DOT text declares, read by the language's grammar (as far as the export uses it), strictly.
#[derive(Default)]
struct Dot {
    vertices: Vec<String>,
    edges: Vec<(String, String, String)>,
    clusters: usize,
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Id(String),
    Mark(&'static str),
}

impl Dot {
    fn parse(text: &str) -> Self {
        let mut tokens = tokens(text).into_iter().peekable();
        let mut dot = Self::default();
        expect(&mut tokens, &Token::Id("digraph".to_owned()));
        id(&mut tokens);
        dot.body(&mut tokens);
        assert_eq!(tokens.next(), None, "unexpected text after the graph");
        dot
    }

    /// `{ statement; … }`
    fn body(&mut self, tokens: &mut Peekable<std::vec::IntoIter<Token>>) {
        expect(tokens, &Token::Mark("{"));
        while tokens.peek() != Some(&Token::Mark("}")) {
            let first = id(tokens);
            match tokens.peek() {
                _ if first == "subgraph" => {
                    assert!(id(tokens).starts_with("cluster"));
                    self.clusters += 1;
                    self.body(tokens);
                    continue;
                }
                Some(Token::Mark("=")) => {
                    tokens.next();
                    id(tokens);
                }
                Some(Token::Mark("->")) => {
                    tokens.next();
                    let to = id(tokens);
                    let attributes = attributes(tokens);
                    self.edges.push((first, to, attributes));
                }
                _ => {
                    attributes(tokens);
                    if first != "node" && first != "edge" {
                        self.vertices.push(first);
                    }
                }
            }
            expect(tokens, &Token::Mark(";"));
        }
        tokens.next();
    }
}

/// `[a=b, …]`, or nothing.
fn attributes(tokens: &mut Peekable<std::vec::IntoIter<Token>>) -> String {
    let mut all = String::new();
    if tokens.peek() == Some(&Token::Mark("[")) {
        tokens.next();
        loop {
            all += &id(tokens);
            expect(tokens, &Token::Mark("="));
            all += &format!("={} ", id(tokens));
            match tokens.next() {
                Some(Token::Mark("]")) => break,
                Some(Token::Mark(",")) => {}
                other => panic!("unexpected {other:?}"),
            }
        }
    }
    all
}

fn expect(tokens: &mut Peekable<std::vec::IntoIter<Token>>, wanted: &Token) {
    let found = tokens.next();
    assert_eq!(found.as_ref(), Some(wanted), "unexpected token");
}

fn id(tokens: &mut Peekable<std::vec::IntoIter<Token>>) -> String {
    match tokens.next() {
        Some(Token::Id(id)) => id,
        other => panic!("unexpected {other:?} for an id"),
    }
}

fn tokens(text: &str) -> Vec<Token> {
    let mut out = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\n' => {}
            '"' => {
                let mut id = String::new();
                loop {
                    match chars.next().expect("unexpected end in a string") {
                        '"' => break,
                        '\\' => id.extend(['\\', chars.next().expect("unexpected end in a string")]),
                        c => id.push(c),
                    }
                }
                out.push(Token::Id(id));
            }
            '-' if chars.next_if_eq(&'>').is_some() => out.push(Token::Mark("->")),
            c if c.is_alphanumeric() || c == '_' => {
                let mut id = String::from(c);
                while let Some(c) = chars.next_if(|c| c.is_alphanumeric() || *c == '_') {
                    id.push(c);
                }
                out.push(Token::Id(id));
            }
            c => {
                let marks = ["{", "}", "[", "]", "=", ",", ";"];
                let mark = marks.into_iter().find(|m| m.starts_with(c));
                out.push(Token::Mark(mark.unwrap_or_else(|| panic!("unexpected character {c}"))));
            }
        }
    }
    out
}
