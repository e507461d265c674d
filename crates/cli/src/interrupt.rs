//! Ctrl-C: ends the program, or what it is doing, when there is something to print or to go on with.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::exit::{Failure, INTERRUPTED};

/// Ctrl-C ends the program.
const IDLE: u8 = 0;
/// Ctrl-C is noted.
const WATCHED: u8 = 1;
/// Ctrl-C was noted; the next one ends the program.
const NOTED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(IDLE);

/// While this lives, the first Ctrl-C is noted and does not end the program.
pub struct Watch(());

/// Takes over Ctrl-C.
pub fn watch() -> Result<Watch, Failure> {
    static HANDLER: std::sync::Once = std::sync::Once::new();
    let mut failed = None;
    HANDLER.call_once(|| failed = ctrlc::set_handler(on_signal).err());
    if let Some(error) = failed {
        return Err(Failure::Usage(format!("cannot watch for Ctrl-C: {error}")));
    }
    STATE.store(WATCHED, Ordering::SeqCst);
    Ok(Watch(()))
}

fn on_signal() {
    if STATE.compare_exchange(WATCHED, NOTED, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        std::process::exit(INTERRUPTED.into());
    }
}

impl Watch {
    /// Whether Ctrl-C was pressed.
    pub fn interrupted(&self) -> bool {
        STATE.load(Ordering::SeqCst) == NOTED
    }

    /// To break off when Ctrl-C was pressed.
    pub fn flow(&self) -> ControlFlow<()> {
        if self.interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        STATE.store(IDLE, Ordering::SeqCst);
    }
}
