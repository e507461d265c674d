//! Merging neighbouring symbols, best pair first: the core of byte-pair and SentencePiece encoding.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A stretch of the word: at first a byte or a character, in the end a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Symbol {
    /// Offset into the word, in bytes.
    pub(crate) start: u32,
    /// Length in bytes.
    pub(crate) len: u32,
    /// The token that it is, or [`NO_TOKEN`].
    pub(crate) id: u32,
}

/// Marks a symbol that no token stands for, or for which none has been looked up.
pub(crate) const NO_TOKEN: u32 = u32::MAX;

/// What two neighbours can become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Merge {
    /// Lower merges first; below [`u32::MAX`]. Of equals, the leftmost merges first.
    pub(crate) rank: u32,
    /// The token that results.
    pub(crate) id: u32,
}

/// The largest number of bytes that one call of [`Merger::merge`] takes, since offsets are 32 bits wide.
pub(crate) const MAX_WORD: usize = 1 << 30;

/// Up to this many symbols the best pair is found by looking at all, which needs no heap and is quicker.
const SMALL: usize = 24;

/// No merge is possible. Also the rank at which [`Merger::small`] stops.
const NO_MERGE: Merge = Merge { rank: u32::MAX, id: NO_TOKEN };

const NONE: u32 = u32::MAX;

/// Working memory for merging, to be used again for the next word.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    /// The symbols: set before, read after [`Merger::merge`].
    pub(crate) symbols: Vec<Symbol>,
    ranks: Vec<u32>,
    ids: Vec<u32>,
    links: Vec<Link>,
    heap: BinaryHeap<Reverse<Candidate>>,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    prev: u32,
    next: u32,
}

/// A possible merge of two symbols that were neighbours when it was entered. Ordered by rank, then position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: u32,
    right: u32,
    /// Combined length; tells whether either has grown since.
    len: u32,
    id: u32,
}

impl Merger {
    /// Merges [`Merger::symbols`] until no two neighbours can be merged. `find` says what two neighbours become.
    ///
    /// Takes O(n log n) time for n symbols: each merge enters at most two new candidates.
    pub(crate) fn merge(&mut self, find: impl FnMut(Symbol, Symbol) -> Option<Merge>) {
        match self.symbols.len() {
            0 | 1 => {}
            2..=SMALL => self.small(find),
            _ => self.large(find),
        }
    }

    fn small(&mut self, mut find: impl FnMut(Symbol, Symbol) -> Option<Merge>) {
        let Self { symbols, ranks, ids, .. } = self;
        ranks.clear();
        ids.clear();
        for pair in symbols.windows(2) {
            let merge = find(pair[0], pair[1]).unwrap_or(NO_MERGE);
            ranks.push(merge.rank);
            ids.push(merge.id);
        }
        loop {
            let (mut best, mut at) = (u32::MAX, 0);
            for (i, &rank) in ranks.iter().enumerate() {
                #[cfg(test)]
                crate::work::count();
                if rank < best {
                    (best, at) = (rank, i);
                }
            }
            if best == u32::MAX {
                return;
            }
            symbols[at].len += symbols[at + 1].len;
            symbols[at].id = ids[at];
            symbols.remove(at + 1);
            ranks.remove(at);
            ids.remove(at);
            for i in [at.wrapping_sub(1), at] {
                if i < ranks.len() {
                    let merge = find(symbols[i], symbols[i + 1]).unwrap_or(NO_MERGE);
                    (ranks[i], ids[i]) = (merge.rank, merge.id);
                }
            }
        }
    }

    fn large(&mut self, mut find: impl FnMut(Symbol, Symbol) -> Option<Merge>) {
        let Self { symbols, links, heap, .. } = self;
        let count = symbols.len() as u32;
        links.clear();
        links.extend(
            (0..count)
                .map(|i| Link { prev: i.wrapping_sub(1), next: if i + 1 == count { NONE } else { i + 1 } }),
        );
        heap.clear();
        let mut enter = |heap: &mut BinaryHeap<_>, symbols: &[Symbol], left: u32, right: u32| {
            let (l, r) = (symbols[left as usize], symbols[right as usize]);
            if let Some(Merge { rank, id }) = find(l, r) {
                heap.push(Reverse(Candidate { rank, left, right, len: l.len + r.len, id }));
            }
        };
        for left in 0..count - 1 {
            enter(heap, symbols, left, left + 1);
        }
        while let Some(Reverse(Candidate { left, right, len, id, .. })) = heap.pop() {
            #[cfg(test)]
            crate::work::count();
            let (l, r) = (symbols[left as usize], symbols[right as usize]);
            // A symbol that was merged away has length 0.
            if l.len == 0 || r.len == 0 || l.len + r.len != len {
                continue;
            }
            symbols[left as usize] = Symbol { start: l.start, len, id };
            symbols[right as usize].len = 0;
            let next = links[right as usize].next;
            links[left as usize].next = next;
            if next != NONE {
                links[next as usize].prev = left;
                enter(heap, symbols, left, next);
            }
            let prev = links[left as usize].prev;
            if prev != NONE {
                enter(heap, symbols, prev, left);
            }
        }
        symbols.retain(|s| s.len != 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols(n: u32) -> Vec<Symbol> {
        (0..n).map(|start| Symbol { start, len: 1, id: 0 }).collect()
    }

    /// Tokens are runs of 2^k equal letters; id k. Shorter ones merge first.
    fn doubling(l: Symbol, r: Symbol) -> Option<Merge> {
        (l.id == r.id && l.id < 4).then_some(Merge { rank: l.id, id: l.id + 1 })
    }

    #[test]
    fn both_ways_agree() {
        // A fixed pseudo-random rule over ids, so that ties, chains and dead ends all occur.
        let rule = |l: Symbol, r: Symbol| {
            let x = (l.id.wrapping_mul(31) ^ r.id.wrapping_mul(17)).wrapping_mul(0x9E37_79B9) >> 24;
            (!x.is_multiple_of(3)).then_some(Merge { rank: x % 7, id: x })
        };
        for n in 2..200u32 {
            let start: Vec<_> = (0..n).map(|i| Symbol { start: i, len: 1, id: (i * i + n) % 11 }).collect();
            let mut small = Merger { symbols: start.clone(), ..Merger::default() };
            let mut large = Merger { symbols: start, ..Merger::default() };
            small.small(rule);
            large.large(rule);
            assert_eq!(small.symbols, large.symbols, "n = {n}");
        }
    }

    #[test]
    fn work_grows_with_length_not_with_its_square() {
        let work = |n: u32| {
            let mut calls = 0u64;
            let mut merger = Merger { symbols: symbols(n), ..Merger::default() };
            merger.merge(|l, r| {
                calls += 1;
                doubling(l, r)
            });
            assert_eq!(merger.symbols.iter().map(|s| s.len).sum::<u32>(), n);
            calls
        };
        let (one, ten) = (work(43_000), work(430_000));
        assert!(one <= 3 * 43_000, "{one}");
        assert!(ten <= 3 * 430_000, "{ten}");
    }
}
