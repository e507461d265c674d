//! The CPU backend: thread pool, SIMD kernels, weight repacking.

pub mod attention;
mod backend;
pub mod matmul;
mod memory;
pub mod ops;
pub mod pack;
pub mod pool;
mod program;
pub mod quantize;
pub mod simd;
mod slab;

#[cfg(test)]
mod testing;
mod weights;

pub use backend::{CpuBackend, CpuConfig, CpuError};
pub use simd::Isa;
