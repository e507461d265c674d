//! The pages of the KV cache and who owns them.

use std::sync::{Arc, Mutex, PoisonError};

use crate::EngineError;

/// The free pages, shared by the engine and its sequences. The lowest numbers are handed out first, so that a single
/// sequence fills the cache from its start.
#[derive(Debug)]
pub(crate) struct PagePool {
    free: Mutex<Vec<u32>>,
    page: usize,
    total: usize,
}

impl PagePool {
    /// All `total` pages of `page` positions, free.
    pub fn new(total: usize, page: usize) -> Arc<Self> {
        let free = (0..total as u32).rev().collect();
        Arc::new(Self { free: Mutex::new(free), page, total })
    }

    fn take(&self) -> Option<u32> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn give_back(&self, pages: impl DoubleEndedIterator<Item = u32>) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).extend(pages.rev());
    }

    /// Pages nobody owns.
    pub fn available(&self) -> usize {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// The pages of one sequence, in the order of its positions. Dropping it frees them.
#[derive(Debug)]
pub(crate) struct Pages {
    pool: Arc<PagePool>,
    pages: Vec<u32>,
}

impl Pages {
    pub fn new(pool: &Arc<PagePool>) -> Self {
        Self { pool: Arc::clone(pool), pages: Vec::new() }
    }

    /// Makes room for `positions` positions in all; takes nothing if that many cannot be had.
    pub fn grow_to(&mut self, positions: usize) -> Result<(), EngineError> {
        let wanted = positions.div_ceil(self.pool.page);
        let before = self.pages.len();
        while self.pages.len() < wanted {
            match self.pool.take() {
                Some(page) => self.pages.push(page),
                None => {
                    self.keep(before);
                    let (page, total) = (self.pool.page, self.pool.total);
                    return Err(EngineError::KvFull { wanted: positions, slots: total * page });
                }
            }
        }
        Ok(())
    }

    /// Frees the pages past `positions` positions.
    pub fn shrink_to(&mut self, positions: usize) {
        self.keep(positions.div_ceil(self.pool.page));
    }

    fn keep(&mut self, pages: usize) {
        if pages < self.pages.len() {
            self.pool.give_back(self.pages.drain(pages..));
        }
    }

    /// The cache row of a position that [`Pages::grow_to`] made room for.
    pub fn slot(&self, position: usize) -> i32 {
        (self.pages[position / self.pool.page] as usize * self.pool.page + position % self.pool.page) as i32
    }

    /// Page numbers in order of position.
    pub fn table(&self) -> &[u32] {
        &self.pages
    }

    /// Whether the pages are of this pool.
    pub fn belongs_to(&self, pool: &Arc<PagePool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.keep(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_takes_pages_as_it_grows_and_gives_them_back() {
        let pool = PagePool::new(4, 16);
        let mut a = Pages::new(&pool);
        let mut b = Pages::new(&pool);
        a.grow_to(17).unwrap();
        b.grow_to(16).unwrap();
        assert_eq!((a.table(), b.table()), (&[0, 1][..], &[2][..]));
        assert_eq!((a.slot(16), b.slot(15)), (16, 47));
        a.shrink_to(16);
        b.grow_to(33).unwrap();
        assert_eq!(b.table(), [2, 1, 3]);
        assert_eq!(b.slot(16), 16);
        drop(b);
        assert_eq!(pool.available(), 3);
    }

    #[test]
    fn a_full_pool_is_an_error_that_takes_nothing() {
        let pool = PagePool::new(2, 16);
        let mut a = Pages::new(&pool);
        a.grow_to(1).unwrap();
        let error = a.grow_to(33).unwrap_err();
        assert_eq!(error.to_string(), "the KV cache of 32 positions has no room for 33");
        assert_eq!((a.table().len(), pool.available()), (1, 1));
    }
}
