//! The model store: what a model is called, where it can be had, and how it gets onto this machine.
//!
//! A model is named by a [`ModelRef`]: a path, a [`catalog`] name, or `hf:org/repo[:quant|file]`. A [`Store`] is a
//! folder of models that are complete and checked: [`Store::pull`] tries the sources of a model in order, and only
//! a file whose size and SHA-256 are right is ever moved into place under the model's name.
//!
//! Everything here blocks and nothing here prints: whoever calls passes a [`Progress`] and decides how to show it.

pub mod catalog;
mod digest;
mod error;
mod http;
mod inventory;
mod listing;
mod model_ref;
mod partial;
mod pip;
mod progress;
mod select;
mod staging;
mod stamp;
mod store;
mod transfer;

pub use catalog::{DEFAULT_MODEL, Entry, Part, Source};
pub use error::{Error, HubError, IoError, PipError, SelectError};
pub use http::HubConfig;
pub use inventory::Installed;
pub use model_ref::{HubRef, ModelRef, Selector};
pub use pip::PipConfig;
pub use progress::{Progress, Silent};
pub use store::Store;
