use std::fmt;

/// The size of a value in each dimension, outermost first: activations are `[tokens, width]` or
/// `[tokens, heads, head_dim]`, a weight matrix is `[rows, columns]`. Storage is row-major and dense,
/// so the last dimension is contiguous. At most [`Shape::MAX_RANK`] dimensions; a scalar has none.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [usize; Self::MAX_RANK],
    rank: u8,
}

impl Shape {
    /// The largest number of dimensions.
    pub const MAX_RANK: usize = 4;

    /// A shape from its dimensions. Panics if there are more than [`Shape::MAX_RANK`]; ranks come from code,
    /// never from a file.
    pub fn new(dims: &[usize]) -> Self {
        assert!(dims.len() <= Self::MAX_RANK, "a shape has at most {} dimensions", Self::MAX_RANK);
        let mut all = [1; Self::MAX_RANK];
        all[..dims.len()].copy_from_slice(dims);
        Self { dims: all, rank: dims.len() as u8 }
    }

    /// The dimensions, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// The number of elements, or `None` if it does not fit `usize`.
    pub fn checked_len(&self) -> Option<usize> {
        self.dims().iter().try_fold(1usize, |n, &d| n.checked_mul(d))
    }

    /// The number of elements of a shape that a graph was built with (the builder checks that it fits).
    pub fn len(&self) -> usize {
        self.dims().iter().product()
    }

    /// Whether a dimension is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The contiguous dimension; 1 for a scalar.
    pub fn width(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    /// The number of contiguous rows: the product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        self.dims().iter().rev().skip(1).product()
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Self::new(dims)
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Self::new(&dims)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.dims().iter().enumerate() {
            if i > 0 {
                f.write_str("×")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
