//! The quantization against its definition, and equal bytes from every instruction set.

use super::*;

fn quantize(isa: Isa, x: &[f32], rows: usize, k: usize, stride: usize) -> (QuantizedLayout, Vec<u8>) {
    let layout = QuantizedLayout::new(rows, k).unwrap();
    let mut out = vec![0x77; layout.bytes()];
    layout.quantize(isa, x, stride, &mut out).unwrap();
    (layout, out)
}

/// A value that depends on its place.
fn wave(t: usize, i: usize) -> f32 {
    ((t * 131 + i * 17) as f32 * 0.37).sin() * (1.0 + (i / 32 + t) as f32)
}

#[test]
fn every_value_is_within_half_a_step_and_the_sums_are_of_the_quants() {
    let (k, stride) = (96, 100);
    for rows in [1, 3, 12, 13, 29] {
        let x: Vec<f32> = (0..rows * stride).map(|i| wave(i / stride, i % stride)).collect();
        let (layout, data) = quantize(Isa::detect(), &x, rows, k, stride);
        let q = QuantizedRows::new(layout, &data).unwrap();
        let mut back = vec![0.0; k];
        for t in 0..rows {
            q.dequantize_row(t, &mut back);
            let (tile, lane) = (q.tile(t / TILE_ROWS), t % TILE_ROWS);
            for b in 0..k / 32 {
                let x = &x[t * stride + b * 32..][..32];
                let top = x.iter().fold(0f32, |m, v| m.max(v.abs()));
                let at = |p: *const f32| {
                    // SAFETY: within the tile.
                    unsafe { p.add(b * tile.n + lane).read() }
                };
                let d = at(tile.d);
                assert!((d - top / 127.0).abs() <= top * 1e-8 && d.to_bits() & 3 == 0);
                // Exact, as the kernels need.
                assert_eq!(f64::from(at(tile.c)), -1.5 * f64::from(1 << 23) * f64::from(d));
                let mut halves = [0, 0];
                for (i, (x, y)) in x.iter().zip(&back[b * 32..]).enumerate() {
                    assert!((x - y).abs() <= d * 0.500_01, "row {t} block {b}: {x} became {y}, scale {d}");
                    halves[i / 16] += (y / d).round() as i32;
                }
                for (half, want) in halves.into_iter().enumerate() {
                    // SAFETY: within the tile.
                    assert_eq!(unsafe { tile.halves.add((b * 2 + half) * tile.n + lane).read() }, want);
                }
                // SAFETY: within the tile.
                assert_eq!(unsafe { tile.sums.add(b * tile.n + lane).read() }, halves[0] + halves[1]);
                assert_eq!(at(tile.ds), d * (halves[0] + halves[1]) as f32);
            }
        }
    }
}

#[test]
fn every_isa_writes_the_same_bytes() {
    let (rows, k) = (17, 160);
    let x: Vec<f32> = (0..rows * k).map(|i| wave(i / k, i % k)).collect();
    let want = quantize(Isa::Scalar, &x, rows, k, k).1;
    for isa in Isa::available() {
        assert!(quantize(isa, &x, rows, k, k).1 == want, "{isa}");
    }
}

#[test]
fn zeros_and_tiny_values_become_zero_and_the_rest_of_the_range_is_kept() {
    for (value, want) in [(0.0, 0.0), (-0.0, 0.0), (1e-38, 0.0), (-1e-31, 0.0), (1e-29, 1e-29), (1e33, 1e33)]
    {
        let (layout, data) = quantize(Isa::detect(), &[value; 32], 1, 32, 32);
        let mut back = vec![1.0; 32];
        QuantizedRows::new(layout, &data).unwrap().dequantize_row(0, &mut back);
        for y in back {
            assert!((y - want).abs() <= want * 1e-6, "{value} became {y}");
        }
    }
}

#[test]
fn nan_and_infinity_poison_their_block_only() {
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 2e33, -3e38] {
        for isa in Isa::available() {
            let mut x = vec![1.0; 96];
            x[40] = bad;
            let (layout, data) = quantize(isa, &x, 1, 96, 96);
            let mut back = vec![0.0; 96];
            QuantizedRows::new(layout, &data).unwrap().dequantize_row(0, &mut back);
            assert!(back[32..64].iter().all(|y| y.is_nan()), "{isa}: {bad}");
            assert!(back[..32].iter().chain(&back[64..]).all(|y| (y - 1.0).abs() < 1e-6), "{isa}: {bad}");
        }
    }
}

#[test]
fn wrong_sizes_are_refused() {
    assert_eq!(QuantizedLayout::new(1, 33), Err(QuantizeError::PartialBlock { k: 33 }));
    let layout = QuantizedLayout::new(13, 32).unwrap();
    assert_eq!(layout.tiles(), 2);
    let mut out = vec![0; layout.bytes()];
    let length = |what, got, expected| Err(QuantizeError::Length { what, got, expected });
    assert_eq!(layout.quantize(Isa::Scalar, &[0.0; 12 * 32], 32, &mut out), length("the activation", 0, 32));
    assert_eq!(layout.quantize(Isa::Scalar, &[0.0; 380], 32, &mut out), length("the activation", 380, 384));
    let n = layout.bytes();
    assert_eq!(
        layout.quantize(Isa::Scalar, &[0.0; 416], 32, &mut out[1..]),
        length("the quantized rows", n - 1, n)
    );
    let empty = QuantizedLayout::new(0, 32).unwrap();
    assert_eq!((empty.tiles(), empty.bytes()), (0, 0));
    assert_eq!(empty.quantize(Isa::Scalar, &[], 32, &mut []), Ok(()));
}
