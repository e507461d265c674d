//! Items under small stable numbers.

/// A growable table whose free places are used again.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    items: Vec<Option<T>>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { items: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Stores an item and returns its number.
    pub fn insert(&mut self, item: T) -> u32 {
        let free = self.items.iter().position(Option::is_none).unwrap_or(self.items.len());
        if free == self.items.len() {
            self.items.push(None);
        }
        self.items[free] = Some(item);
        free as u32
    }

    /// The item of this number, if it is there.
    pub fn get(&self, id: u32) -> Option<&T> {
        self.items.get(id as usize)?.as_ref()
    }

    /// The item of this number, if it is there.
    pub fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.items.get_mut(id as usize)?.as_mut()
    }

    /// All items.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.items.iter_mut().flatten()
    }

    /// Takes an item out.
    pub fn remove(&mut self, id: u32) -> Option<T> {
        self.items.get_mut(id as usize)?.take()
    }
}
