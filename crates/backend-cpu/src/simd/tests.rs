//! Every operation of every instruction set against the scalar one, bit for bit.

use super::*;
use half::f16;

/// A small deterministic generator (xorshift).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as u32
    }
}

/// One round of every operation; all results as bits.
struct Everything<'a> {
    f: &'a [[f32; 16]; 3],
    i: &'a [[i32; 16]; 3],
    bytes: &'a [u8; 64],
    n: usize,
}

impl WithSimd for Everything<'_> {
    type Output = Vec<u32>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) -> Vec<u32> {
        let mut out = Vec::new();
        let mut push_f = |v: S::F| {
            let mut a = [0f32; 16];
            // SAFETY: `a` has 16 elements.
            unsafe { s.store(a.as_mut_ptr(), v) };
            // One NaN is as good as another.
            out.extend(a.map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }));
        };
        // SAFETY: every array holds 64 bytes.
        let [a, b, c] = self.f.map(|f| unsafe { s.load(f.as_ptr()) });
        push_f(s.splat(self.f[0][3]));
        push_f(s.add(a, b));
        push_f(s.sub(a, b));
        push_f(s.mul(a, b));
        push_f(s.div(a, b));
        push_f(s.fma(a, b, c));
        push_f(s.min(a, b));
        push_f(s.max(a, b));
        push_f(s.sqrt(s.abs(a)));
        push_f(s.neg(a));
        push_f(s.select_lt(a, b, c, a));
        push_f(s.exp(a));
        push_f(s.swap_adjacent(a));
        let mut square: [S::F; 16] =
            std::array::from_fn(|i| s.add(s.splat(i as f32), if i % 3 == 0 { a } else { b }));
        s.transpose(&mut square);
        square.into_iter().for_each(&mut push_f);
        push_f(s.splat(s.reduce_add(a)));
        push_f(s.splat(s.reduce_max(a)));
        // SAFETY: every array holds 64 bytes.
        let [x, y, z] = self.i.map(|i| unsafe { s.load_i(i.as_ptr().cast()) });
        push_f(s.to_f(x));
        // SAFETY: 64 bytes are 32 half floats; `n` is at most 16.
        unsafe {
            push_f(s.load_f16(self.bytes.as_ptr().cast()));
            push_f(s.load_bf16(self.bytes.as_ptr().cast()));
            push_f(s.load_part(self.f[1].as_ptr(), self.n));
            let mut h = [0u16; 32];
            s.store_f16(h.as_mut_ptr(), a);
            push_f(s.load_f16(h.as_ptr()));
            let mut part = [7f32; 16];
            s.store_part(part.as_mut_ptr(), b, self.n);
            push_f(s.load(part.as_ptr()));
        }
        let mut push_i = |v: S::I| {
            let mut a = [0u32; 16];
            // SAFETY: `a` has 64 bytes.
            unsafe { s.store_i(a.as_mut_ptr().cast(), v) };
            out.extend(a);
        };
        push_i(s.splat_i(self.i[0][5]));
        push_i(s.add_i(x, y));
        push_i(s.sub_i(x, y));
        push_i(s.mul_i(x, y));
        push_i(s.max_i(x, y));
        push_i(s.and_i(x, y));
        push_i(s.or_i(x, y));
        push_i(s.xor_i(x, y));
        push_i(s.shl_i::<5>(x));
        push_i(s.shr_i::<5>(x));
        push_i(s.sra_i::<5>(x));
        push_i(s.splat_i(s.reduce_add_i(x)));
        push_i(s.splat_i(s.reduce_max_i(x)));
        push_i(s.bits_i(a));
        // In the range of i32, and no NaN.
        push_i(s.round_i(s.min(s.max(b, s.splat(-1e9)), s.splat(1e9))));
        // SAFETY: the byte array holds 64 bytes.
        unsafe {
            push_i(s.load_u8(self.bytes.as_ptr()));
            push_i(s.load_i8(self.bytes.as_ptr().cast()));
            push_i(s.bcast4(self.bytes.as_ptr().cast()));
            let table = s.load_table(self.bytes.as_ptr().add(9));
            push_i(table);
            push_i(s.lookup(table, s.and_i(y, s.splat_i(0x0f0f_0f0f))));
            let mut low = [0i8; 16];
            s.store_i8(low.as_mut_ptr(), x);
            push_i(s.load_i8(low.as_ptr()));
        }
        // Activations are at least −127.
        let mut act = self.i[1].map(i32::to_le_bytes);
        act.as_flattened_mut().iter_mut().for_each(|b| *b = if *b == 0x80 { 0x81 } else { *b });
        // SAFETY: 64 bytes.
        let act = unsafe { s.load_i(act.as_ptr().cast()) };
        push_i(s.dot4(z, s.and_i(x, s.splat_i(0x7f7f_7f7f)), act));
        // The zero point as a correction of the accumulator, as the kernels do.
        let ones = s.splat_i(0x0101_0101);
        let sum = s.dot4(s.splat_i(0), ones, act);
        let mut acc = s.dot4_wide(z, x, act);
        for _ in 0..S::WIDE_ZERO {
            acc = s.add_i(acc, sum);
        }
        push_i(acc);
        out
    }
}

#[test]
fn every_isa_gives_the_scalar_bits() {
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
    let special =
        [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40, 88.7, -103.9, 65520.0];
    for round in 0..200 {
        let f = std::array::from_fn(|_| {
            std::array::from_fn(|_| match rng.next() % 4 {
                0 => special[rng.next() as usize % special.len()],
                1 => f32::from_bits(rng.next()),
                _ => (rng.next() as f32 / 4e9 - 0.5) * 200.0,
            })
        });
        let i = std::array::from_fn(|_| std::array::from_fn(|_| rng.next().cast_signed()));
        let bytes = std::array::from_fn(|_| rng.next() as u8);
        let run = |isa: Isa| isa.run(Everything { f: &f, i: &i, bytes: &bytes, n: round % 17 });
        let want = run(Isa::Scalar);
        for isa in Isa::available() {
            let got = run(isa);
            for (at, (g, w)) in got.iter().zip(&want).enumerate() {
                assert_eq!(g, w, "{isa}: round {round}, operation {}, lane {}", at / 16, at % 16);
            }
            assert_eq!(got.len(), want.len());
        }
    }
}

/// `exp` of a slice.
struct Exp<'a>(&'a mut [f32; 16]);

impl WithSimd for Exp<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        // SAFETY: 16 elements.
        unsafe { s.store(self.0.as_mut_ptr(), s.exp(s.load(self.0.as_ptr()))) }
    }
}

#[test]
fn exp_is_within_two_ulp_and_right_at_the_ends() {
    let exp = |x: f32| {
        let mut a = [x; 16];
        Isa::detect().run(Exp(&mut a));
        a[0]
    };
    let mut worst = 0.0f64;
    let mut x = -87.0f32;
    while x < 88.7 {
        let want = f64::from(x).exp();
        let ulp = f64::from(f32::from_bits((want as f32).to_bits() + 1)) - f64::from(want as f32);
        worst = worst.max((f64::from(exp(x)) - want).abs() / ulp);
        x += 0.001_37;
    }
    assert!(worst < 1.5, "worst error {worst} ulp");
    assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    assert_eq!(exp(-1e30), 0.0);
    assert_eq!(exp(0.0), 1.0);
    assert_eq!(exp(f32::INFINITY), f32::INFINITY);
    assert_eq!(exp(1e30), f32::INFINITY);
    assert_eq!(exp(89.0), f32::INFINITY);
    assert!(exp(f32::NAN).is_nan());
    // Subnormal results keep their value to within one unit.
    assert!((f64::from(exp(-100.0)) - (-100f64).exp()).abs() < 1.5e-45);
}

#[test]
fn isa_names_parse_and_print() {
    for isa in Isa::ALL {
        assert_eq!(isa.name().parse(), Ok(isa));
        assert_eq!(isa.to_string(), isa.name());
    }
    assert_eq!("sse9".parse::<Isa>(), Err(IsaError::Unknown { name: "sse9".into() }));
    assert!(Isa::Scalar.is_available() && Isa::detect().is_available());
    let missing = Isa::ALL.into_iter().find(|isa| !isa.is_available());
    if let Some(isa) = missing {
        assert_eq!(isa.checked(), Err(IsaError::Unavailable { isa }));
        assert!(isa.checked().unwrap_err().to_string().contains(isa.name()));
    }
}

/// The transpose of the matrix whose element (i, j) is 16 i + j, once more from half-precision rows.
struct Transposed;

impl WithSimd for Transposed {
    type Output = [[[f32; 16]; 16]; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) -> Self::Output {
        let mut m: [[f32; 16]; 16] = std::array::from_fn(|i| std::array::from_fn(|j| (16 * i + j) as f32));
        // SAFETY: every row has 16 elements.
        let mut rows = m.map(|row| unsafe { s.load(row.as_ptr()) });
        s.transpose(&mut rows);
        for (m, row) in m.iter_mut().zip(rows) {
            // SAFETY: as above.
            unsafe { s.store(m.as_mut_ptr(), row) };
        }
        let halves: [[u16; 16]; 16] =
            std::array::from_fn(|i| std::array::from_fn(|j| f16::from_f32((16 * i + j) as f32).to_bits()));
        let mut from_halves = [[0f32; 16]; 16];
        // SAFETY: 16 rows of 16 elements on both sides.
        unsafe {
            s.transpose_f16(&halves.each_ref().map(|r| r.as_ptr()), from_halves.as_mut_ptr().cast(), 16)
        };
        [m, from_halves]
    }
}

#[test]
fn transpose_exchanges_rows_and_columns() {
    for isa in Isa::available() {
        for m in isa.run(Transposed) {
            for (i, row) in m.iter().enumerate() {
                for (j, &x) in row.iter().enumerate() {
                    assert_eq!(x, (16 * j + i) as f32, "{isa}: ({i}, {j})");
                }
            }
        }
    }
}
