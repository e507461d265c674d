//! The table of cases. Each file holds a family; a case's data depend on its name and the seed alone.

mod attention;
mod elementwise;
mod fused;
mod matrix;
mod refusals;
mod rope;

use super::Options;
use super::case::{Case, Net};

/// Hears of each case's name and how to build it.
pub(super) type Visit<'a> = dyn FnMut(String, &dyn Fn() -> Case) + 'a;

/// Every case.
pub(super) fn each(options: &Options, visit: &mut Visit<'_>) {
    elementwise::each(options, visit);
    matrix::each(options, visit);
    rope::each(options, visit);
    attention::each(options, visit);
    fused::each(options, visit);
    refusals::each(options, visit);
}

/// A case whose net is seeded with its name.
fn case(options: &Options, visit: &mut Visit<'_>, name: String, build: impl Fn(Net) -> Case) {
    let seed = options.seed;
    visit(name.clone(), &|| build(Net::new(seed, &name)));
}
