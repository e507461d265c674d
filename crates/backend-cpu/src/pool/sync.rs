//! The primitives [`super::state`] is built from, named in one place so that a model checker can stand in for them.

pub(super) use std::hint::spin_loop;
pub(super) use std::sync::atomic::{AtomicU32, Ordering};
pub(super) use std::thread::{Thread, park, yield_now};
