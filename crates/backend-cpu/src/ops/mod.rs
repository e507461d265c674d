//! Row-wise operations on `f32` activations: norms, rotary embedding, activations, elementwise arithmetic.
//!
//! Every function takes the instruction set first and raw pointers after it, because the result often overwrites a
//! source: `out` may be the same pointer as an input of the same layout, and must not overlap one otherwise. All
//! results are bit-equal on every instruction set and do not depend on how rows are shared between threads.

mod elementwise;
mod norm;
mod rope;
#[cfg(test)]
mod tests;

pub use elementwise::{Binary, Unary, binary, binary_broadcast, unary};
pub use norm::{RmsNorm, rms_norm};
pub use rope::{Rope, RopeError, rope};

pub(crate) use elementwise::Softcap;
