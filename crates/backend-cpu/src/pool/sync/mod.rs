//! What the pool takes from the system, named in one place: the standard library's, or under `--cfg loom` a model
//! checker's, which runs every interleaving and every stale read that the memory model allows.

#[cfg(loom)]
pub(super) mod checked;
#[cfg(not(loom))]
mod system;

#[cfg(loom)]
pub(super) use self::checked::*;
#[cfg(not(loom))]
pub(super) use self::system::*;
