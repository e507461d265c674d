//! The suite that every backend runs: each operation over its types, shapes and edge cases, against the
//! reference device.
//!
//! ```
//! use minfer_graph::conformance::{self, Options};
//! use minfer_graph::devices::ReferenceDevice;
//! let options = Options { filter: Some("rope".to_owned()), ..Options::default() };
//! let report = conformance::run(&mut || Box::new(ReferenceDevice::default()), &options);
//! report.assert_passed();
//! ```

mod case;
mod cases;
mod check;
pub mod placements;
mod random;
mod tolerance;

use std::fmt;

use crate::Backend;
use case::Case;

/// What to run and how to judge it.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Mixed into every case's random data.
    pub seed: u64,
    /// `Some(8)` for a backend that rounds activations to 8-bit blocks before it multiplies them with
    /// quantized weights.
    pub activation_bits: Option<u32>,
    /// Only cases whose name contains this.
    pub filter: Option<String>,
}

/// A case that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its name: operation, types, shapes.
    pub case: String,
    /// What was wrong, with values.
    pub what: String,
}

/// The outcome of a run of the suite.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// How many cases gave what they should.
    pub passed: usize,
    /// Cases with an operation that the backend does not claim to run.
    pub skipped: Vec<String>,
    /// Cases that went wrong.
    pub failures: Vec<Failure>,
}

impl Report {
    /// Panics with the report if a case went wrong, or if none ran.
    #[track_caller]
    pub fn assert_passed(&self) {
        assert!(self.failures.is_empty() && self.passed > 0, "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (failed, skipped) = (self.failures.len(), self.skipped.len());
        write!(f, "{} passed, {failed} failed, {skipped} skipped", self.passed)?;
        for Failure { case, what } in &self.failures {
            write!(f, "\n{case}: {what}")?;
        }
        Ok(())
    }
}

/// Runs every case on devices that `make` makes, one a case, and on the reference device.
pub fn run(make: &mut dyn FnMut() -> Box<dyn Backend>, options: &Options) -> Report {
    let mut report = Report::default();
    cases::each(options, &mut |name, build| {
        if options.filter.as_ref().is_some_and(|f| !name.contains(f.as_str())) {
            return;
        }
        let case: Case = build();
        match check::check(&case, make()) {
            check::Outcome::Passed => report.passed += 1,
            check::Outcome::Skipped => report.skipped.push(name),
            check::Outcome::Failed(what) => report.failures.push(Failure { case: name, what }),
        }
    });
    report
}
