//! The CPU backend: thread pool, SIMD kernels, weight repacking.

pub mod pool;
