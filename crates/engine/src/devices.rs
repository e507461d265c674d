//! The registry of backends: the one place that knows them all.

use minfer_backend_cpu::{CpuBackend, CpuConfig};
use minfer_graph::{Backend, DeviceInfo};

use crate::{EngineError, EngineOptions};

/// Opens one device, or says why it cannot be had.
type Open = fn(&EngineOptions) -> Result<Box<dyn Backend>, EngineError>;

/// Every device family by name, the preferred one first.
const REGISTRY: &[(&str, Open)] = &[("cpu", open_cpu)];

/// The names of all device families.
pub fn names() -> impl Iterator<Item = &'static str> {
    REGISTRY.iter().map(|r| r.0)
}

/// Opens every device that this machine has.
pub fn open_all(options: &EngineOptions) -> Result<Vec<Box<dyn Backend>>, EngineError> {
    REGISTRY.iter().map(|(_, open)| open(options)).collect()
}

/// Describes every device that this machine has.
pub fn describe(options: &EngineOptions) -> Result<Vec<DeviceInfo>, EngineError> {
    Ok(open_all(options)?.iter().map(|d| d.info()).collect())
}

fn open_cpu(options: &EngineOptions) -> Result<Box<dyn Backend>, EngineError> {
    let config =
        CpuConfig { threads: options.threads, threads_batch: options.threads_batch, isa: options.isa };
    let backend = CpuBackend::new(&config)
        .map_err(|e| EngineError::NoDevice { name: "cpu".to_owned(), what: e.to_string() })?;
    Ok(Box::new(backend))
}
