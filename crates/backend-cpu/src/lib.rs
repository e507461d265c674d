//! The CPU backend: thread pool, SIMD kernels, weight repacking.

pub mod pool;

pub mod simd;
