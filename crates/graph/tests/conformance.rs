//! The conformance suite on the reference device, and on devices that are wrong on purpose.

use minfer_graph::Backend;
use minfer_graph::conformance::{self, Options};
use minfer_graph::devices::ReferenceDevice;

fn reference() -> Box<dyn Backend> {
    Box::new(ReferenceDevice::default())
}

#[test]
fn the_reference_device_passes_every_case() {
    let report = conformance::run(&mut reference, &Options::default());
    report.assert_passed();
    assert_eq!(report.skipped, Vec::<String>::new());
    println!("{report}");
}
