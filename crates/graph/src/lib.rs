//! The compute graph: IR, placement, fusion, splits, memory plan, scheduler, and the Backend trait.
