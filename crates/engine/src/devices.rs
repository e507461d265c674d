//! The registry of backends: the one place that knows them all.

use minfer_backend_cpu::{CpuBackend, CpuConfig};
use minfer_graph::devices::{SimOptions, World};
use minfer_graph::{Backend, DeviceInfo};

use crate::{EngineError, EngineOptions};

/// A device family.
struct Family {
    name: &'static str,
    /// Whether it is used without having been asked for.
    by_default: bool,
    /// Opens the device, or says why it cannot be had.
    open: fn(&EngineOptions) -> Result<Box<dyn Backend>, EngineError>,
}

/// Every device family, the preferred one first.
const REGISTRY: &[Family] = &[
    Family { name: "sim", by_default: false, open: open_sim },
    Family { name: "cpu", by_default: true, open: open_cpu },
];

/// The names of all device families.
pub fn names() -> impl Iterator<Item = &'static str> {
    REGISTRY.iter().map(|f| f.name)
}

/// Opens the devices that the options name, else every one that this machine has.
pub fn open_all(options: &EngineOptions) -> Result<Vec<Box<dyn Backend>>, EngineError> {
    let asked = &options.placement.devices;
    if asked.is_empty() {
        return REGISTRY.iter().filter(|f| f.by_default).map(|f| (f.open)(options)).collect();
    }
    let mut devices = Vec::with_capacity(asked.len());
    for (i, name) in asked.iter().enumerate() {
        let family = REGISTRY.iter().find(|f| f.name == name).filter(|_| !asked[..i].contains(name));
        let Some(family) = family else {
            let what = if names().any(|n| n == name) {
                "named twice".to_owned()
            } else {
                format!("there is no such device; known are {}", names().collect::<Vec<_>>().join(", "))
            };
            return Err(EngineError::NoDevice { name: name.clone(), what });
        };
        devices.push((family.open)(options)?);
    }
    Ok(devices)
}

/// Describes the devices that the options name, else every one that this machine has.
pub fn describe(options: &EngineOptions) -> Result<Vec<DeviceInfo>, EngineError> {
    Ok(open_all(options)?.iter().map(|d| d.info()).collect())
}

/// The CPU.
pub fn open_cpu(options: &EngineOptions) -> Result<Box<dyn Backend>, EngineError> {
    let config =
        CpuConfig { threads: options.threads, threads_batch: options.threads_batch, isa: options.isa };
    let backend = CpuBackend::new(&config)
        .map_err(|e| EngineError::NoDevice { name: "cpu".to_owned(), what: e.to_string() })?;
    Ok(Box::new(backend))
}

/// A simulated GPU with the CPU's kernels, for trying out placement.
fn open_sim(options: &EngineOptions) -> Result<Box<dyn Backend>, EngineError> {
    Ok(Box::new(World::new().device("sim", open_cpu(options)?, SimOptions::default())))
}
