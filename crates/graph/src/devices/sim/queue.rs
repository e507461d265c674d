//! Work in flight.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::{BoundOp, BufferId, Place, ProgramId};

/// A program: each operation compiled on its own, so that each can fail on its own.
#[derive(Debug)]
pub(super) struct Program {
    pub ops: Vec<(BoundOp, ProgramId)>,
}

impl Program {
    /// What it reads or writes.
    pub fn places(&self) -> impl Iterator<Item = Place> + '_ {
        self.ops.iter().flat_map(|(op, _)| op.sources.iter().chain([&op.result])).map(|o| o.place)
    }
}

pub(super) fn buffer(place: Place) -> Option<BufferId> {
    match place {
        Place::Buffer(buffer) => Some(buffer),
        Place::Weight(_) | Place::State(_) => None,
    }
}

/// A program that was handed over and has not run.
#[derive(Debug)]
pub(super) struct Pending {
    /// Its place in the order of all that was handed over, from 1.
    pub number: u64,
    pub program: Arc<Program>,
    /// How many of its operations have run.
    pub done: usize,
    /// When the device will have begun it.
    pub start: Duration,
    /// When the device will have finished each of its operations.
    pub ends: Vec<Duration>,
    /// Whether it uses addresses that no longer hold: then its results are poison.
    pub stale: bool,
}

impl Pending {
    /// When the device will have finished it.
    fn finish(&self) -> Duration {
        self.ends.last().copied().unwrap_or(self.start)
    }

    /// When the device begins and finishes the operation that is next.
    pub fn next_span(&self) -> (Duration, Duration) {
        let begin = self.done.checked_sub(1).map_or(self.start, |before| self.ends[before]);
        (begin, self.ends[self.done])
    }
}

/// What was handed over, in order.
#[derive(Debug, Default)]
pub(super) struct Queue {
    entries: VecDeque<Pending>,
    /// How many programs were ever handed over.
    pub submitted: u64,
    /// When the device will have finished them all.
    pub busy_until: Duration,
}

impl Queue {
    /// Hands over a program at a time; `takes` holds the time of each of its operations.
    pub fn push(
        &mut self,
        program: Arc<Program>,
        at: Duration,
        takes: impl Iterator<Item = Duration>,
        stale: bool,
    ) {
        self.submitted += 1;
        let start = self.busy_until.max(at);
        let mut end = start;
        let ends: Vec<Duration> = takes
            .map(|t| {
                end += t;
                end
            })
            .collect();
        self.busy_until = end;
        self.entries.push_back(Pending { number: self.submitted, program, done: 0, start, ends, stale });
    }

    /// When the work up to an event is done; `None` if it is already.
    pub fn finish_of(&self, event: u64) -> Option<Duration> {
        self.entries.iter().filter(|p| p.number <= event).map(Pending::finish).next_back()
    }

    /// The first program in flight, if it is part of the work up to an event.
    pub fn first(&mut self, event: u64) -> Option<&mut Pending> {
        self.entries.front_mut().filter(|p| p.number <= event)
    }

    pub fn pop(&mut self) {
        self.entries.pop_front();
    }

    /// Drops all that has not run.
    pub fn drain(&mut self) {
        self.entries.clear();
    }

    /// Whether something in flight writes there.
    pub fn writes(&self, place: Place) -> bool {
        self.operations().any(|op| op.result.place == place)
    }

    /// Whether something in flight reads or writes there.
    pub fn uses(&self, place: Place) -> bool {
        self.entries.iter().any(|p| p.program.places().any(|used| used == place))
    }

    fn operations(&self) -> impl Iterator<Item = &BoundOp> {
        self.entries.iter().flat_map(|p| p.program.ops[p.done..].iter().map(|o| &o.0))
    }
}
