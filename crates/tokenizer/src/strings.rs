//! Many short strings in one allocation, and a hash index over them.

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use std::hash::{BuildHasher, Hasher};

/// Many byte strings, back to back in one buffer of at most 4 GiB.
#[derive(Debug, Clone)]
pub struct Strings {
    data: Vec<u8>,
    // One more than there are strings; string i is data[starts[i]..starts[i + 1]].
    starts: Vec<u32>,
}

impl Default for Strings {
    fn default() -> Self {
        Self::with_capacity(0, 0)
    }
}

impl Strings {
    /// An empty table with room for `count` strings of `bytes` bytes in total.
    pub fn with_capacity(count: usize, bytes: usize) -> Self {
        let mut starts = Vec::with_capacity(count + 1);
        starts.push(0);
        Self { data: Vec::with_capacity(bytes), starts }
    }

    /// Appends a string. Returns `false`, changing nothing, if the table would exceed 4 GiB.
    #[must_use]
    pub fn push(&mut self, s: &[u8]) -> bool {
        let Ok(end) = u32::try_from(self.data.len() + s.len()) else { return false };
        self.data.extend_from_slice(s);
        self.starts.push(end);
        true
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Whether there is no string.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// String `i`, if there is one.
    pub fn get(&self, i: usize) -> Option<&[u8]> {
        let (&start, &end) = (self.starts.get(i)?, self.starts.get(i.checked_add(1)?)?);
        Some(&self.data[start as usize..end as usize])
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.starts.windows(2).map(|w| &self.data[w[0] as usize..w[1] as usize])
    }

    /// The first string that is not UTF-8.
    pub(crate) fn find_non_utf8(&self) -> Option<usize> {
        // All at once is many times quicker than one by one; then only a string's start can be inside a character.
        let is_start = |&start: &u32| self.data.get(start as usize).is_none_or(|&byte| byte & 0xC0 != 0x80);
        if std::str::from_utf8(&self.data).is_ok() && self.starts.iter().all(is_start) {
            return None;
        }
        self.iter().position(|s| std::str::from_utf8(s).is_err())
    }

    /// Total length of all strings in bytes.
    pub fn byte_len(&self) -> usize {
        self.data.len()
    }
}

impl<S: AsRef<[u8]>> FromIterator<S> for Strings {
    /// # Panics
    /// If the strings exceed 4 GiB together; for data that is not the program's own use [`Strings::push`].
    fn from_iter<I: IntoIterator<Item = S>>(iter: I) -> Self {
        let mut strings = Self::default();
        for s in iter {
            assert!(strings.push(s.as_ref()), "more than 4 GiB of strings");
        }
        strings
    }
}

/// Finds strings of a [`Strings`] table by content.
///
/// Seeded at random: vocabularies come from strangers, and must not be able to choose collisions.
#[derive(Debug)]
pub(crate) struct Index {
    table: HashTable<u32>,
    state: RandomState,
}

impl Index {
    pub(crate) fn with_capacity(count: usize) -> Self {
        Self { table: HashTable::with_capacity(count), state: RandomState::default() }
    }

    fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.state.build_hasher();
        // Not `key.hash()`: that would mix in the length a second time.
        hasher.write(key);
        hasher.finish()
    }

    /// Enters string `id` of `strings`. Returns `false`, changing nothing, if an equal string is present.
    pub(crate) fn insert(&mut self, id: u32, strings: &Strings) -> bool {
        let text = |id: u32| strings.get(id as usize).unwrap_or_default();
        let hash = self.hash(text(id));
        let state = &self.state;
        let rehash = |&id: &u32| {
            let mut hasher = state.build_hasher();
            hasher.write(text(id));
            hasher.finish()
        };
        match self.table.entry(hash, |&other| text(other) == text(id), rehash) {
            hashbrown::hash_table::Entry::Occupied(_) => false,
            hashbrown::hash_table::Entry::Vacant(slot) => {
                slot.insert(id);
                true
            }
        }
    }

    /// The string of `strings` that equals `key`.
    pub(crate) fn get(&self, key: &[u8], strings: &Strings) -> Option<u32> {
        #[cfg(test)]
        crate::work::count();
        self.table.find(self.hash(key), |&id| strings.get(id as usize) == Some(key)).copied()
    }
}

/// Maps a pair of ids to a value; the table of merges.
#[derive(Debug)]
pub(crate) struct PairMap<V> {
    table: HashTable<(u64, V)>,
    state: RandomState,
}

impl<V: Copy> PairMap<V> {
    pub(crate) fn with_capacity(count: usize) -> Self {
        Self { table: HashTable::with_capacity(count), state: RandomState::default() }
    }

    fn key(left: u32, right: u32) -> u64 {
        (u64::from(left) << 32) | u64::from(right)
    }

    /// Enters a value unless the pair has one already.
    pub(crate) fn insert(&mut self, left: u32, right: u32, value: V) {
        let key = Self::key(left, right);
        let state = &self.state;
        self.table
            .entry(state.hash_one(key), |entry| entry.0 == key, |entry| state.hash_one(entry.0))
            .or_insert((key, value));
    }

    pub(crate) fn get(&self, left: u32, right: u32) -> Option<V> {
        #[cfg(test)]
        crate::work::count();
        let key = Self::key(left, right);
        self.table.find(self.state.hash_one(key), |entry| entry.0 == key).map(|entry| entry.1)
    }
}
