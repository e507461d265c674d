//! The KV cache of one layer: where a row is, and how it is written.

use half::f16;

use crate::simd::{Isa, LANES, Simd, WithSimd};

/// How the cache keeps its elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvType {
    /// IEEE half precision.
    F16,
    /// Single precision.
    F32,
}

impl KvType {
    /// Bytes of `elements` elements.
    pub fn bytes(self, elements: usize) -> usize {
        match self {
            Self::F16 => 2 * elements,
            Self::F32 => 4 * elements,
        }
    }
}

/// One layer's K and V, each rows `[slot][kv_head][head_dim]`. This is the only place that says so.
#[derive(Debug, Clone, Copy)]
pub struct KvCache {
    k: *mut u8,
    v: *mut u8,
    kv_type: KvType,
    slots: usize,
    kv_heads: usize,
    head_dim: usize,
}

// SAFETY: a cache is an address with sizes. Its accessors are unsafe, and their callers rule out data races.
unsafe impl Send for KvCache {}
// SAFETY: as above.
unsafe impl Sync for KvCache {}

impl KvCache {
    /// Describes memory that holds a cache.
    ///
    /// # Safety
    /// `k` and `v` are aligned to an element and each valid for reads and writes of
    /// `kv_type.bytes(slots · kv_heads · head_dim)` bytes for as long as the value or a copy of it is used.
    pub unsafe fn new(
        k: *mut u8,
        v: *mut u8,
        kv_type: KvType,
        [slots, kv_heads, head_dim]: [usize; 3],
    ) -> Self {
        Self { k, v, kv_type, slots, kv_heads, head_dim }
    }

    /// How elements are kept.
    pub fn kv_type(&self) -> KvType {
        self.kv_type
    }

    /// Rows in each of K and V.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Heads in a row.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Elements in a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Bytes from a row to the next, in K and in V.
    pub(super) fn row_bytes(&self) -> usize {
        self.kv_type.bytes(self.head_dim) * self.kv_heads
    }

    /// Where one head of row 0 begins, in K and in V.
    pub(super) fn head(&self, head: usize) -> (*const u8, *const u8) {
        let at = self.kv_type.bytes(self.head_dim) * head;
        (self.k.wrapping_add(at), self.v.wrapping_add(at))
    }
}

/// A slot that the cache does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("token {token} has KV slot {slot}, outside the cache's 0..{slots}")]
pub struct SlotError {
    /// Index of the token in the step.
    pub token: usize,
    /// Its slot.
    pub slot: i32,
    /// Rows of the cache.
    pub slots: usize,
}

/// Checked slots for the rows of one step.
#[derive(Debug, Clone, Copy)]
pub struct KvStore<'a> {
    cache: KvCache,
    slots: &'a [i32],
}

impl<'a> KvStore<'a> {
    /// Checks every slot, so that a bad one is found before anything is written, whichever thread it belongs to.
    ///
    /// # Errors
    /// [`SlotError`] for the first slot outside the cache.
    pub fn new(cache: KvCache, slots: &'a [i32]) -> Result<Self, SlotError> {
        for (token, &slot) in slots.iter().enumerate() {
            if usize::try_from(slot).map_or(true, |s| s >= cache.slots) {
                return Err(SlotError { token, slot, slots: cache.slots });
            }
        }
        Ok(Self { cache, slots })
    }

    /// Converts and writes the rows of `tokens`, a range of the step's tokens. `k` and `v` are the whole step's, each
    /// `[tokens][kv_heads][head_dim]`.
    ///
    /// # Safety
    /// `k` and `v` are valid for reads of all the step's rows; nobody else accesses the slots of `tokens` meanwhile.
    ///
    /// # Panics
    /// If `tokens` is not a range of the step's tokens.
    pub unsafe fn run(&self, isa: Isa, tokens: std::ops::Range<usize>, k: *const f32, v: *const f32) {
        let width = self.cache.kv_heads * self.cache.head_dim;
        let row_bytes = self.cache.row_bytes();
        for (i, &slot) in self.slots[tokens.clone()].iter().enumerate() {
            let from = (tokens.start + i) * width;
            let to = slot as usize * row_bytes;
            for (cache, rows) in [(self.cache.k, k), (self.cache.v, v)] {
                // SAFETY: the slot was checked, so the row is within the cache; the source row is the caller's.
                let (out, x) = unsafe { (cache.add(to), rows.add(from)) };
                isa.run(StoreRow { kv_type: self.cache.kv_type, out, x, width });
            }
        }
    }
}

struct StoreRow {
    kv_type: KvType,
    out: *mut u8,
    x: *const f32,
    width: usize,
}

impl WithSimd for StoreRow {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let Self { kv_type, out, x, width } = self;
        // SAFETY: one row of `width` elements on both sides.
        unsafe {
            match kv_type {
                KvType::F16 => store_row::<S, f16>(s, out.cast(), x, width),
                KvType::F32 => store_row::<S, f32>(s, out.cast(), x, width),
            }
        }
    }
}

/// # Safety
/// `x` is valid for `width` reads, `out` for `width` writes.
#[inline(always)]
unsafe fn store_row<S: Simd, E: Element>(s: S, out: *mut E, x: *const f32, width: usize) {
    for i in (0..width).step_by(LANES) {
        let n = LANES.min(width - i);
        // SAFETY: `n` elements from `i` are within the row.
        unsafe {
            if n == LANES {
                E::store(s, out.add(i), s.load(x.add(i)));
            } else {
                E::store_part(s, out.add(i), s.load_part(x.add(i), n), n);
            }
        }
    }
}

/// An element as it lies in memory.
pub(super) trait Element: Copy + Default {
    /// # Safety
    /// `p` is valid for 16 reads.
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::F;

    /// # Safety
    /// `p` is valid for 16 writes.
    unsafe fn store<S: Simd>(s: S, p: *mut Self, v: S::F);

    /// Loads 16 elements of each of 16 rows and stores the transpose of that matrix, its rows `stride` apart.
    ///
    /// # Safety
    /// Each of `rows` is valid for 16 reads; `out` is valid for 16 writes at each of 16 multiples of `stride`.
    #[inline(always)]
    unsafe fn transpose<S: Simd>(s: S, rows: &[*const Self; LANES], out: *mut f32, stride: usize) {
        let mut square = [s.splat(0.0); LANES];
        // SAFETY: as the caller vouches.
        unsafe {
            for (lanes, row) in square.iter_mut().zip(rows) {
                *lanes = Self::load(s, *row);
            }
            s.transpose(&mut square);
            for (i, column) in square.iter().enumerate() {
                s.store(out.add(i * stride), *column);
            }
        }
    }

    /// Loads `n < 16` elements; the other lanes are 0.
    ///
    /// # Safety
    /// `p` is valid for `n` reads.
    #[inline(always)]
    unsafe fn load_part<S: Simd>(s: S, p: *const Self, n: usize) -> S::F {
        let mut a = [Self::default(); LANES];
        // SAFETY: the caller vouches for `n` reads; `a` has room for 16.
        unsafe {
            std::ptr::copy_nonoverlapping(p.cast::<u8>(), a.as_mut_ptr().cast(), n * size_of::<Self>());
            Self::load(s, a.as_ptr())
        }
    }

    /// Stores the first `n < 16` lanes.
    ///
    /// # Safety
    /// `p` is valid for `n` writes.
    #[inline(always)]
    unsafe fn store_part<S: Simd>(s: S, p: *mut Self, v: S::F, n: usize) {
        let mut a = [Self::default(); LANES];
        // SAFETY: the caller vouches for `n` writes; `a` has room for 16.
        unsafe {
            Self::store(s, a.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(a.as_ptr().cast::<u8>(), p.cast(), n * size_of::<Self>());
        }
    }
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::F {
        // SAFETY: as the caller vouches.
        unsafe { s.load(p) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(s: S, p: *mut Self, v: S::F) {
        // SAFETY: as the caller vouches.
        unsafe { s.store(p, v) }
    }
}

impl Element for f16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::F {
        // SAFETY: as the caller vouches; an `f16` is its bits.
        unsafe { s.load_f16(p.cast()) }
    }

    #[inline(always)]
    unsafe fn transpose<S: Simd>(s: S, rows: &[*const Self; LANES], out: *mut f32, stride: usize) {
        // SAFETY: as the caller vouches; an `f16` is its bits.
        unsafe { s.transpose_f16(&rows.map(<*const f16>::cast), out, stride) }
    }

    #[inline(always)]
    unsafe fn store<S: Simd>(s: S, p: *mut Self, v: S::F) {
        // SAFETY: as the caller vouches; an `f16` is its bits.
        unsafe { s.store_f16(p.cast(), v) }
    }
}
