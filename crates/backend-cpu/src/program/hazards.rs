//! Where a program needs barriers: between steps that touch the same memory from different threads.

/// A range of memory by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Region {
    start: usize,
    bytes: usize,
}

impl Region {
    pub fn new(start: usize, bytes: usize) -> Self {
        Self { start, bytes }
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.start < other.start + other.bytes && other.start < self.start + self.bytes
    }
}

/// How a step's threads divide a region among themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// The region is so many equal rows, and each thread touches only its static share of them.
    Rows(usize),
    /// Any thread may touch any part.
    Any,
}

/// One step's use of a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub region: Region,
    pub writes: bool,
    pub share: Share,
}

impl Access {
    /// Whether two accesses, in either order, need a barrier in between.
    fn conflicts(&self, other: &Self) -> bool {
        let same_rows = self.region == other.region && self.share == other.share && self.share != Share::Any;
        (self.writes || other.writes) && !same_rows && self.region.overlaps(&other.region)
    }
}

/// Follows the steps of a program and says before which of them a barrier must stand.
#[derive(Debug, Default)]
pub(super) struct Hazards {
    since_barrier: Vec<Access>,
}

impl Hazards {
    /// Takes note of a step, which may insist on a barrier; true if one must stand before it.
    pub fn step(&mut self, accesses: &[Access], insist: bool) -> bool {
        let barrier = insist || self.conflict(accesses);
        if barrier {
            self.since_barrier.clear();
        }
        self.since_barrier.extend_from_slice(accesses);
        barrier
    }

    /// Takes note of accesses that shall need no barrier; false, and no note, if they do.
    pub fn join(&mut self, accesses: &[Access]) -> bool {
        let joins = !self.conflict(accesses);
        if joins {
            self.since_barrier.extend_from_slice(accesses);
        }
        joins
    }

    fn conflict(&self, accesses: &[Access]) -> bool {
        accesses.iter().any(|a| self.since_barrier.iter().any(|b| a.conflicts(b)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(start: usize, bytes: usize, share: Share) -> Access {
        Access { region: Region::new(start, bytes), writes: false, share }
    }

    fn write(start: usize, bytes: usize, share: Share) -> Access {
        Access { writes: true, ..read(start, bytes, share) }
    }

    #[test]
    fn reading_what_another_thread_wrote_needs_a_barrier() {
        let mut h = Hazards::default();
        assert!(!h.step(&[write(0, 64, Share::Any)], false));
        assert!(!h.step(&[read(64, 64, Share::Any)], false), "disjoint");
        assert!(h.step(&[read(32, 64, Share::Any)], false));
        assert!(!h.step(&[read(0, 64, Share::Any)], false), "the barrier covers all that came before");
        assert!(h.step(&[write(0, 1, Share::Any)], false), "and a write must wait for the readers");
    }

    #[test]
    fn rows_that_stay_with_their_thread_need_none() {
        let mut h = Hazards::default();
        assert!(!h.step(&[write(0, 64, Share::Rows(4))], false));
        assert!(!h.step(&[read(0, 64, Share::Rows(4)), write(64, 32, Share::Rows(4))], false));
        assert!(!h.step(&[read(64, 32, Share::Rows(4))], false));
    }

    #[test]
    fn rows_of_another_size_are_other_rows() {
        let mut h = Hazards::default();
        assert!(!h.step(&[write(0, 64, Share::Rows(4))], false));
        assert!(h.step(&[read(0, 64, Share::Rows(2))], false));
        assert!(h.step(&[write(0, 32, Share::Rows(2))], false), "the same memory with shorter rows");
    }
}
