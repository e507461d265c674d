//! NumPy's array files, version 1.0: a header in words, then the values.

/// An array of f32 of this shape, outermost first. There must be as many values as the shape says.
pub(super) fn f32s(shape: &[usize], values: &[f32]) -> Vec<u8> {
    debug_assert_eq!(shape.iter().product::<usize>(), values.len());
    // A tuple of one is written with a comma.
    let comma = if shape.len() == 1 { "," } else { "" };
    let dims = shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({dims}{comma}), }}");
    // Values begin at a multiple of 64: magic, version and length take 10 bytes, the line break one.
    let filled = (10 + header.len() + 1).next_multiple_of(64) - 11;
    header = format!("{header:filled$}\n");
    let mut bytes = Vec::with_capacity(10 + header.len() + size_of_val(values));
    bytes.extend(b"\x93NUMPY\x01\x00");
    // A shape of a few dimensions is far below the 65535 that fit.
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    bytes
}

#[cfg(test)]
mod tests {
    use super::f32s;

    #[test]
    fn the_bytes_are_those_that_numpy_writes() {
        // numpy.save of numpy.array([[1.0, -2.5, 0.0]], dtype="<f4").
        let bytes = f32s(&[1, 3], &[1.0, -2.5, 0.0]);
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3), }";
        assert_eq!(&bytes[..10], b"\x93NUMPY\x01\x00\x76\x00");
        assert_eq!(bytes[10..128], *format!("{header:117}\n").as_bytes());
        assert_eq!(bytes[128..], [0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc0, 0, 0, 0, 0]);
        for dims in [vec![7], vec![0, 123_456, 4096, 17], vec![1; 60], vec![]] {
            let len = dims.iter().product();
            let bytes = f32s(&dims, &vec![0.0; len]);
            let start = bytes.len() - 4 * len;
            assert!(start.is_multiple_of(64) && bytes[start - 1] == b'\n', "{dims:?}");
            assert_eq!(usize::from(u16::from_le_bytes([bytes[8], bytes[9]])), start - 10);
        }
    }
}
