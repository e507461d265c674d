//! The memory plan: which slot of which device each value lives in, by liveness in build order.
//!
//! A slot is one buffer of a device. Slots of inputs and staging copies belong to one value; the others are
//! handed on from values that are no longer read to values that are made later. An output's slot is not
//! handed on.

use crate::split::{Split, input_readers};
use crate::{DeviceId, Graph, NodeId, Op};

/// Index of a slot on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// Slots start at multiples of this and are as long, so that devices may align values and kernels may write
/// whole vectors.
pub const SLOT_ALIGN: usize = 256;

/// Where every value lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Slot sizes in bytes, by device.
    pub slots: Vec<Vec<usize>>,
    /// By device and node: the slot that holds the value, or its copy, on that device.
    at: Vec<Vec<Option<SlotId>>>,
    /// The largest number of bytes live at once over all devices: what a perfect allocator would need.
    pub live_peak: usize,
}

impl MemoryPlan {
    /// The slot of a value on a device. Aliases have the slot of their root.
    pub fn slot(&self, graph: &Graph, value: NodeId, device: DeviceId) -> Option<SlotId> {
        self.at[device.index()][graph.root(value).index()]
    }

    /// The bytes of all slots.
    pub fn bytes(&self) -> usize {
        self.slots.iter().flatten().sum()
    }
}

/// One device's slots while planning.
#[derive(Default)]
struct Slots {
    sizes: Vec<usize>,
    free: Vec<SlotId>,
}

impl Slots {
    /// A slot of its own, never handed on.
    fn fresh(&mut self, bytes: usize) -> SlotId {
        self.sizes.push(bytes.next_multiple_of(SLOT_ALIGN));
        SlotId(self.sizes.len() as u32 - 1)
    }

    /// The smallest free slot that fits, else the largest free one made longer, else a new one.
    fn take(&mut self, bytes: usize) -> SlotId {
        let bytes = bytes.next_multiple_of(SLOT_ALIGN);
        let size = |&i: &usize| self.sizes[self.free[i].0 as usize];
        let fitting = (0..self.free.len()).filter(|i| size(i) >= bytes).min_by_key(size);
        match fitting.or_else(|| (0..self.free.len()).max_by_key(size)) {
            Some(i) => {
                let slot = self.free.swap_remove(i);
                let s = &mut self.sizes[slot.0 as usize];
                *s = bytes.max(*s);
                slot
            }
            None => self.fresh(bytes),
        }
    }
}

/// Whether values may share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Reuse {
    /// By liveness.
    #[default]
    ByLiveness,
    /// Never: every value keeps its own slot. For finding out whether reuse is at fault, and for reading
    /// every value after a run.
    Never,
}

/// Plans the memory of a placed, fused and split graph.
pub fn plan_memory(
    graph: &Graph,
    placed: &[DeviceId],
    dead: &[bool],
    splits: &[Split],
    devices: usize,
    reuse: Reuse,
) -> MemoryPlan {
    let count = graph.nodes().len();
    let lives = Lives::of(graph, dead);
    let mut slots: Vec<Slots> = (0..devices).map(|_| Slots::default()).collect();
    let mut at = vec![vec![None; count]; devices];
    for input in graph.inputs() {
        for device in input_readers(graph, placed, dead, input) {
            at[device.index()][input.index()] = Some(slots[device.index()].fresh(graph.node(input).bytes()));
        }
    }
    for crossing in splits.iter().flat_map(|s| &s.copies) {
        let slot = slots[crossing.to.index()].fresh(graph.node(crossing.value).bytes());
        at[crossing.to.index()][crossing.value.index()] = Some(slot);
    }

    let (mut live, mut live_peak) = (0usize, 0usize);
    for (id, node) in graph.iter() {
        if dead[id.index()] || !node.op.runs() {
            continue;
        }
        let device = placed[id.index()].index();
        if !node.op.is_alias() {
            let inherited = match reuse {
                Reuse::ByLiveness => in_place(graph, placed, &lives, id).and_then(|r| at[device][r.index()]),
                Reuse::Never => None,
            };
            let slot = match inherited {
                Some(slot) => slot,
                None => {
                    live += node.bytes();
                    match reuse {
                        Reuse::Never => slots[device].fresh(node.bytes()),
                        Reuse::ByLiveness => slots[device].take(node.bytes()),
                    }
                }
            };
            at[device][id.index()] = Some(slot);
            live_peak = live_peak.max(live);
        }
        if reuse == Reuse::Never {
            continue;
        }
        for ended in lives.ending_at(graph, id) {
            let home = placed[ended.index()].index();
            let Some(slot) = at[home][ended.index()] else { continue };
            let handed_on =
                id != ended && !node.op.is_alias() && home == device && at[device][id.index()] == Some(slot);
            if !handed_on {
                live -= graph.node(ended).bytes();
                slots[home].free.push(slot);
            }
        }
    }
    MemoryPlan { slots: slots.into_iter().map(|s| s.sizes).collect(), at, live_peak }
}

/// Who reads each value, aliases included, and when for the last time.
struct Lives {
    /// By root: the last node that reads it or any alias of it.
    last_read: Vec<Option<NodeId>>,
    /// By root: the number of readers.
    readers: Vec<u32>,
    /// By root: whether it or an alias is an output.
    is_output: Vec<bool>,
}

impl Lives {
    fn of(graph: &Graph, dead: &[bool]) -> Self {
        let count = graph.nodes().len();
        let mut lives =
            Self { last_read: vec![None; count], readers: vec![0; count], is_output: vec![false; count] };
        for (id, node) in graph.iter() {
            if dead[id.index()] || !node.op.runs() {
                continue;
            }
            for &s in &node.sources {
                let root = graph.root(s).index();
                lives.last_read[root] = Some(id);
                lives.readers[root] += 1;
            }
        }
        for &o in graph.outputs() {
            lives.is_output[graph.root(o).index()] = true;
        }
        lives
    }

    /// The computed values whose last reader is `id`, and `id` itself if nobody reads it.
    fn ending_at<'a>(&'a self, graph: &'a Graph, id: NodeId) -> impl Iterator<Item = NodeId> + 'a {
        let node = graph.node(id);
        let mut roots: Vec<NodeId> = node.sources.iter().map(|&s| graph.root(s)).collect();
        if !node.op.is_alias() {
            roots.push(id);
        }
        roots.sort_unstable();
        roots.dedup();
        roots.into_iter().filter(move |&r| {
            !graph.node(r).op.is_leaf()
                && !self.is_output[r.index()]
                && (self.last_read[r.index()] == Some(id) || (r == id && self.readers[r.index()] == 0))
        })
    }
}

/// The source whose memory the node's result may take over: computed on the same device, as large, and read
/// by this node alone.
fn in_place(graph: &Graph, placed: &[DeviceId], lives: &Lives, id: NodeId) -> Option<NodeId> {
    let node = graph.node(id);
    node.op.in_place_sources().iter().find_map(|&i| {
        let root = graph.root(*node.sources.get(i)?);
        let owner = graph.node(root);
        let fits = !owner.op.is_leaf()
            && !matches!(owner.op, Op::State(_))
            && placed[root.index()] == placed[id.index()]
            && owner.bytes() == node.bytes()
            && lives.readers[root.index()] == 1
            && !lives.is_output[root.index()];
        fits.then_some(root)
    })
}

#[cfg(test)]
mod tests {
    use super::{SLOT_ALIGN, SlotId, Slots};

    #[test]
    fn the_smallest_free_slot_that_fits_is_taken_else_the_largest_grows_else_there_is_a_new_one() {
        let unit = SLOT_ALIGN;
        let mut slots = Slots::default();
        let all: Vec<SlotId> = [2, 8, 4, 5].map(|n| slots.fresh(n * unit)).into();
        slots.free = all.clone();
        // 4 fits exactly, 5 best after that, 8 last.
        assert_eq!(slots.take(3 * unit + 1), all[2]);
        assert_eq!(slots.take(4 * unit), all[3]);
        assert_eq!(slots.take(unit), all[0]);
        assert_eq!(
            (slots.free.as_slice(), slots.sizes.as_slice()),
            (&all[1..2], &[2, 8, 4, 5].map(|n| n * unit)[..])
        );
        // None fits: the largest of the free ones grows.
        slots.free = vec![all[0], all[2], all[1], all[3]];
        assert_eq!(slots.take(9 * unit - 1), all[1]);
        assert_eq!(slots.sizes, [2, 9, 4, 5].map(|n| n * unit));
        assert_eq!(slots.free.len(), 3);
        slots.free.clear();
        assert_eq!((slots.take(1), slots.sizes[4]), (SlotId(4), unit));
    }
}
