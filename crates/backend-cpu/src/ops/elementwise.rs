//! Operations that treat every element alike.

use std::f32::consts::{FRAC_2_SQRT_PI, SQRT_2};

use crate::simd::{Isa, LANES, Simd, WithSimd};

/// An elementwise function of one value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Unary {
    /// `x · factor`.
    Scale(f32),
    /// `cap · tanh(x / cap)`.
    Softcap(f32),
    /// `x · sigmoid(x)`.
    Silu,
    /// GELU, tanh approximation: `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`.
    Gelu,
}

/// An elementwise function of two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    /// `a + b`.
    Add,
    /// `a · b`.
    Mul,
    /// `silu(a) · b` (SwiGLU).
    SiluMul,
    /// `gelu(a) · b` (GeGLU).
    GeluMul,
}

/// `out[i] = op(x[i])`.
///
/// # Safety
/// `x` is valid for `len` reads and `out` for `len` writes; `out` is `x` or does not overlap it.
pub unsafe fn unary(isa: Isa, op: Unary, out: *mut f32, x: *const f32, len: usize) {
    isa.run(UnaryRun { op, out, x, len });
}

/// `out[i] = op(a[i], b[i])`.
///
/// # Safety
/// `a` and `b` are valid for `len` reads and `out` for `len` writes; `out` is `a`, or `b`, or overlaps neither.
pub unsafe fn binary(isa: Isa, op: Binary, out: *mut f32, a: *const f32, b: *const f32, len: usize) {
    isa.run(BinaryRun { op, out, a, b, rows: 1, width: len });
}

/// `out[r][i] = op(a[r][i], b[i])` for `rows` rows of `width` elements.
///
/// # Safety
/// `a` is valid for `rows · width` reads, `b` for `width`, `out` for `rows · width` writes; `out` is `a` or overlaps
/// neither.
pub unsafe fn binary_broadcast(
    isa: Isa,
    op: Binary,
    out: *mut f32,
    a: *const f32,
    b: *const f32,
    rows: usize,
    width: usize,
) {
    isa.run(BinaryRun { op, out, a, b, rows, width });
}

struct UnaryRun {
    op: Unary,
    out: *mut f32,
    x: *const f32,
    len: usize,
}

impl WithSimd for UnaryRun {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let Self { op, out, x, len } = self;
        // SAFETY: the pointers are those of `unary`.
        unsafe {
            match op {
                Unary::Scale(factor) => map(s, out, x, len, ScaleBy(s.splat(factor))),
                Unary::Softcap(cap) => map(s, out, x, len, Softcap::new(s, cap)),
                Unary::Silu => map(s, out, x, len, Silu),
                Unary::Gelu => map(s, out, x, len, Gelu),
            }
        }
    }
}

struct BinaryRun {
    op: Binary,
    out: *mut f32,
    a: *const f32,
    b: *const f32,
    rows: usize,
    width: usize,
}

impl WithSimd for BinaryRun {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        for row in 0..self.rows {
            let at = row * self.width;
            // SAFETY: row `row` of what `binary` or `binary_broadcast` were given.
            unsafe {
                let (out, a) = (self.out.add(at), self.a.add(at));
                match self.op {
                    Binary::Add => zip(s, out, a, self.b, self.width, Add),
                    Binary::Mul => zip(s, out, a, self.b, self.width, Mul),
                    Binary::SiluMul => zip(s, out, a, self.b, self.width, Gated(Silu)),
                    Binary::GeluMul => zip(s, out, a, self.b, self.width, Gated(Gelu)),
                }
            }
        }
    }
}

// Functions of vectors are types, not closures: a closure cannot be marked `#[inline(always)]`, and one that is not
// inlined is compiled without the vector instructions.

/// A function of one vector.
trait Map<S: Simd> {
    fn of(&self, s: S, x: S::F) -> S::F;
}

/// A function of two vectors.
trait Zip<S: Simd> {
    fn of(&self, s: S, a: S::F, b: S::F) -> S::F;
}

/// # Safety
/// As [`unary`].
#[inline(always)]
unsafe fn map<S: Simd>(s: S, out: *mut f32, x: *const f32, len: usize, f: impl Map<S>) {
    let whole = len - len % LANES;
    // SAFETY: all accesses are below `len`; each vector is read before it is written.
    unsafe {
        for i in (0..whole).step_by(LANES) {
            s.store(out.add(i), f.of(s, s.load(x.add(i))));
        }
        if whole < len {
            let part = len - whole;
            s.store_part(out.add(whole), f.of(s, s.load_part(x.add(whole), part)), part);
        }
    }
}

/// # Safety
/// As [`binary`].
#[inline(always)]
unsafe fn zip<S: Simd>(s: S, out: *mut f32, a: *const f32, b: *const f32, len: usize, f: impl Zip<S>) {
    let whole = len - len % LANES;
    // SAFETY: all accesses are below `len`; each vector is read before it is written.
    unsafe {
        for i in (0..whole).step_by(LANES) {
            s.store(out.add(i), f.of(s, s.load(a.add(i)), s.load(b.add(i))));
        }
        if whole < len {
            let part = len - whole;
            let v = f.of(s, s.load_part(a.add(whole), part), s.load_part(b.add(whole), part));
            s.store_part(out.add(whole), v, part);
        }
    }
}

struct Add;

impl<S: Simd> Zip<S> for Add {
    #[inline(always)]
    fn of(&self, s: S, a: S::F, b: S::F) -> S::F {
        s.add(a, b)
    }
}

struct Mul;

impl<S: Simd> Zip<S> for Mul {
    #[inline(always)]
    fn of(&self, s: S, a: S::F, b: S::F) -> S::F {
        s.mul(a, b)
    }
}

/// The function of `a`, times `b`.
struct Gated<M>(M);

impl<S: Simd, M: Map<S>> Zip<S> for Gated<M> {
    #[inline(always)]
    fn of(&self, s: S, a: S::F, b: S::F) -> S::F {
        s.mul(self.0.of(s, a), b)
    }
}

struct ScaleBy<F>(F);

impl<S: Simd> Map<S> for ScaleBy<S::F> {
    #[inline(always)]
    fn of(&self, s: S, x: S::F) -> S::F {
        s.mul(x, self.0)
    }
}

/// `x · sigmoid(x)`. An infinite exponential gives the right limit, 0.
struct Silu;

impl<S: Simd> Map<S> for Silu {
    #[inline(always)]
    fn of(&self, s: S, x: S::F) -> S::F {
        s.div(x, s.add(s.splat(1.0), s.exp(s.neg(x))))
    }
}

/// Since `(1 + tanh u)/2 = sigmoid(2u)`, GELU is `x · sigmoid(2u)`, which loses nothing where `tanh u` is near −1.
struct Gelu;

impl<S: Simd> Map<S> for Gelu {
    #[inline(always)]
    fn of(&self, s: S, x: S::F) -> S::F {
        // 2·√(2/π), and the same times 0.044715.
        const LINEAR: f32 = FRAC_2_SQRT_PI * SQRT_2;
        const CUBIC: f32 = LINEAR * 0.044715;
        let twice_u = s.mul(x, s.fma(s.mul(x, x), s.splat(CUBIC), s.splat(LINEAR)));
        s.div(x, s.add(s.splat(1.0), s.exp(s.neg(twice_u))))
    }
}

/// `x ↦ cap · tanh(x / cap)`.
#[derive(Clone, Copy)]
pub(crate) struct Softcap<F> {
    cap: F,
    inverse: F,
}

impl<F: Copy> Softcap<F> {
    #[inline(always)]
    pub(crate) fn new<S: Simd<F = F>>(s: S, cap: f32) -> Self {
        Self { cap: s.splat(cap), inverse: s.splat(1.0 / cap) }
    }

    #[inline(always)]
    pub(crate) fn apply<S: Simd<F = F>>(&self, s: S, x: F) -> F {
        s.mul(self.cap, tanh(s, s.mul(x, self.inverse)))
    }
}

impl<S: Simd> Map<S> for Softcap<S::F> {
    #[inline(always)]
    fn of(&self, s: S, x: S::F) -> S::F {
        self.apply(s, x)
    }
}

/// Hyperbolic tangent, within 3 units in the last place.
#[inline(always)]
fn tanh<S: Simd>(s: S, x: S::F) -> S::F {
    const SIGN: i32 = i32::MIN;
    let magnitude = s.abs(x);
    // Near zero 1 - 2/(e^2x + 1) cancels; there the Taylor series serves: x + x³·(-1/3 + 2/15 x² - …).
    let square = s.mul(x, x);
    let mut series = s.splat(3.592_128e-3);
    for c in [-8.863_235e-3, 2.186_949e-2, -5.396_825_4e-2, 1.333_333_4e-1, -3.333_333_4e-1] {
        series = s.fma(series, square, s.splat(c));
    }
    let small = s.fma(s.mul(magnitude, square), series, magnitude);
    let e = s.exp(s.add(magnitude, magnitude));
    let large = s.sub(s.splat(1.0), s.div(s.splat(2.0), s.add(e, s.splat(1.0))));
    let result = s.select_lt(magnitude, s.splat(0.4), small, large);
    s.bits_f(s.or_i(s.bits_i(result), s.and_i(s.bits_i(x), s.splat_i(SIGN))))
}
