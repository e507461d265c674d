//! The CPU backend: thread pool, SIMD kernels, weight repacking.

// A build for loom is of the pool alone.
#[cfg(not(loom))]
pub mod attention;
#[cfg(not(loom))]
mod backend;
#[cfg(not(loom))]
pub mod matmul;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
pub mod ops;
#[cfg(not(loom))]
pub mod pack;
pub mod pool;
#[cfg(not(loom))]
mod program;
#[cfg(not(loom))]
pub mod quantize;
#[cfg(not(loom))]
pub mod simd;
#[cfg(not(loom))]
mod slab;

#[cfg(all(test, not(loom)))]
mod testing;
#[cfg(not(loom))]
mod weights;

#[cfg(not(loom))]
pub use backend::{CpuBackend, CpuConfig, CpuError};
#[cfg(not(loom))]
pub use simd::Isa;
