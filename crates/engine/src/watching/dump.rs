//! Dumps: the logits and the first layer's keys and values after each step, as NumPy array files.

use std::fs;
use std::path::PathBuf;

use minfer_graph::{KvTable, Scheduler};
use minfer_models::KvShape;

use super::{StepView, npy};
use crate::EngineError;

/// The layer whose rows are dumped: an error in it is not one that an earlier layer has made.
const LAYER: u32 = 0;

pub(super) struct Dump {
    dir: PathBuf,
    shape: KvShape,
}

impl Dump {
    pub fn create(dir: PathBuf, shape: KvShape) -> Result<Self, EngineError> {
        match fs::create_dir_all(&dir) {
            Ok(()) => Ok(Self { dir, shape }),
            Err(source) => Err(EngineError::Write { path: dir, source }),
        }
    }

    /// Writes the files of a step.
    pub fn write(
        &mut self,
        step: u64,
        logits_shape: &[usize],
        logits: &[f32],
        scheduler: &mut Scheduler,
        view: &StepView<'_>,
    ) -> Result<(), EngineError> {
        self.file(step, "logits", logits_shape, logits)?;
        let KvShape { kv_heads, head_dim } = self.shape;
        for (sequence, pages) in view.block_table.chunks_exact(view.kv.blocks).enumerate() {
            // A sequence's positions are all there up to its last token's.
            let of_it = view.sequences.iter().zip(view.positions).filter(|(s, _)| **s as usize == sequence);
            let positions = of_it.map(|(_, p)| *p as usize + 1).max().unwrap_or(0);
            for (name, table) in [("k", KvTable::K), ("v", KvTable::V)] {
                let mut rows = vec![0.0; positions * kv_heads * head_dim];
                let page_len = view.kv.page * kv_heads * head_dim;
                for (page, rows) in pages.iter().zip(rows.chunks_mut(page_len)) {
                    scheduler.read_kv(LAYER, table, *page as usize * view.kv.page, rows)?;
                }
                let shape = [positions, kv_heads, head_dim];
                self.file(step, &format!("sequence-{sequence}.{name}"), &shape, &rows)?;
            }
        }
        Ok(())
    }

    fn file(&self, step: u64, name: &str, shape: &[usize], values: &[f32]) -> Result<(), EngineError> {
        let path = self.dir.join(format!("step-{step:06}.{name}.npy"));
        fs::write(&path, npy::f32s(shape, values)).map_err(|source| EngineError::Write { path, source })
    }
}
