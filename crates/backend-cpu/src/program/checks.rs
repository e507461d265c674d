//! What a run checks before its first step: indices in host data, which decide where kernels read and write.
//!
//! All i32 values of a graph are inputs, so they are complete when a program starts. Layers share them, so a
//! check is made once however many operations need it.

use minfer_graph::{Attention, DeviceError, NodeId, StateDecl, bounds};

/// An i32 array in a buffer: host data, complete before a program starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ids {
    pub start: *const i32,
    pub len: usize,
}

impl Ids {
    /// # Safety
    /// The buffer is alive and nothing writes to it.
    pub unsafe fn slice<'a>(self) -> &'a [i32] {
        // SAFETY: by the caller; `compile` made the pointer from a buffer of at least `len` values.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

/// A check of [`bounds`] with the data it looks at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Check {
    Rows {
        ids: Ids,
        rows: usize,
    },
    Positions(Ids),
    Slots {
        slots: Ids,
        state: StateDecl,
    },
    Attention {
        attention: Attention,
        positions: Ids,
        sequences: Ids,
        table: Ids,
        blocks: usize,
        state: StateDecl,
    },
}

/// Checks in order of the operations that first need them.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// With that operation's node.
    checks: Vec<(NodeId, Check)>,
}

impl Checks {
    /// Adds a check unless an operation before has the same.
    pub fn add(&mut self, node: NodeId, check: Check) {
        // Layers differ in their cache's number alone, which no bound depends on.
        let check = match check {
            Check::Slots { slots, state } => Check::Slots { slots, state: StateDecl { layer: 0, ..state } },
            Check::Attention { attention, positions, sequences, table, blocks, state } => {
                let state = StateDecl { layer: 0, ..state };
                Check::Attention { attention, positions, sequences, table, blocks, state }
            }
            other => other,
        };
        if !self.checks.iter().any(|c| c.1 == check) {
            self.checks.push((node, check));
        }
    }

    /// Makes all checks.
    ///
    /// # Safety
    /// The buffers are alive and nothing writes to them.
    pub unsafe fn run(&self) -> Result<(), DeviceError> {
        for &(node, ref check) in &self.checks {
            // SAFETY: by the caller.
            let result = unsafe {
                match *check {
                    Check::Rows { ids, rows } => bounds::row_ids(ids.slice(), rows),
                    Check::Positions(positions) => bounds::positions(positions.slice()),
                    Check::Slots { slots, ref state } => bounds::slots(slots.slice(), state),
                    Check::Attention { ref attention, positions, sequences, table, blocks, ref state } => {
                        let [positions, sequences, table] = [positions, sequences, table].map(|i| i.slice());
                        bounds::attention(attention, positions, sequences, table, blocks, state)
                    }
                }
            };
            result.map_err(|what| DeviceError::Kernel { node, what })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_operation_that_needs_a_check_is_named_and_it_is_made_once() {
        let data = [0, 7];
        let ids = Ids { start: data.as_ptr(), len: data.len() };
        let mut checks = Checks::default();
        checks.add(NodeId(1), Check::Rows { ids, rows: 8 });
        checks.add(NodeId(2), Check::Rows { ids, rows: 7 });
        checks.add(NodeId(3), Check::Rows { ids, rows: 7 });
        assert_eq!(checks.checks.len(), 2);
        // SAFETY: the array outlives the call.
        let error = unsafe { checks.run() }.unwrap_err();
        assert!(matches!(error, DeviceError::Kernel { node: NodeId(2), .. }), "{error:?}");
    }
}
