//! What the Graphviz export shows of two devices.

use minfer_graph::devices::ReferenceDevice;
use minfer_graph::export::Document;
use minfer_graph::{DType, GraphBuilder, Plan, PlanOptions, Rule};

/// Each of two devices scales a reshaped input, and the second one scales the first one's result too.
fn dot() -> String {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1, 256]);
    let square = b.reshape("square", x, [16, 16]);
    let first = b.scale("first", square, 2.0);
    let second = b.scale("second", square, 3.0);
    let reshaped = b.reshape("reshaped", first, [1, 256]);
    let third = b.scale("third", reshaped, 4.0);
    for output in [second, third] {
        b.output(output);
    }
    let devices = [ReferenceDevice::new("one"), ReferenceDevice::new("two")];
    let rules = [Rule::new("by name", |node, _, device| (node.label == "first") == (device.0 == 0))];
    let options = PlanOptions { rules: &rules, ..PlanOptions::default() };
    let plan = Plan::new(b.finish().unwrap(), &[&devices[0], &devices[1]], &options).unwrap();
    Document::of_plan(&plan).to_dot()
}

#[test]
fn only_computed_values_are_drawn_as_copies_whatever_their_shape() {
    let dot = dot();
    // An input in another shape is still an input, which each device gets from the host.
    let dashed: Vec<&str> = dot.lines().filter(|l| l.contains("dashed")).map(str::trim).collect();
    assert_eq!(dashed, [r#"n4 -> n5 [color=red, style=dashed, label="1.0 KiB"];"#], "{dot}");
    assert!(dot.contains(r#"label="split 1 on two\ncopies first from one (1.0 KiB)";"#), "{dot}");
}

#[test]
fn devices_have_colours_and_the_whole_plan_has_its_totals() {
    let dot = dot();
    let colours = |node: &str| dot.lines().find(|l| l.contains(&format!("[label=\"{node}\\n"))).unwrap();
    assert!(colours("first").contains("fillcolor=lightblue"), "{dot}");
    assert!(colours("third").contains("fillcolor=palegreen"), "{dot}");
    for summary in
        ["one (lightblue): ", "two (palegreen): ", "2 splits, 1 copy (1.0 KiB)", "live peak 3.0 KiB"]
    {
        assert!(dot.contains(summary), "{summary}: {dot}");
    }
}
