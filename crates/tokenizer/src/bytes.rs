//! Spellings of bytes in a vocabulary: the byte-level alphabet and `<0xXX>`.

use std::sync::LazyLock;

/// Whether a byte stands for itself in the byte-level alphabet: the printable ones of Latin-1.
const fn is_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The characters that stand for the bytes; those that are not printable follow from U+0100.
pub(crate) static ALPHABET: [char; 256] = {
    let mut table = ['\0'; 256];
    let (mut byte, mut next) = (0, 0x100);
    while byte < 256 {
        table[byte] = if is_itself(byte as u8) {
            byte as u8 as char
        } else {
            next += 1;
            match char::from_u32(next - 1) {
                Some(c) => c,
                None => panic!("the alphabet lies below the surrogates"),
            }
        };
        byte += 1;
    }
    table
};

static BYTES: LazyLock<[Option<u8>; 0x144]> = LazyLock::new(|| {
    let mut table = [None; 0x144];
    for (byte, &c) in ALPHABET.iter().enumerate() {
        table[c as usize] = Some(byte as u8);
    }
    table
});

/// The byte that a character of the byte-level alphabet stands for.
pub(crate) fn from_alphabet(c: char) -> Option<u8> {
    BYTES.get(c as usize).copied().flatten()
}

/// Replaces `out` by the bytes that `text` spells in the byte-level alphabet; `None` if it is not spelled in it.
pub(crate) fn decode_alphabet(text: &str, out: &mut Vec<u8>) -> Option<()> {
    out.clear();
    for c in text.chars() {
        out.push(from_alphabet(c)?);
    }
    Some(())
}

/// The byte of a byte token's spelling `<0xXX>`.
pub(crate) fn from_hex(text: &[u8]) -> Option<u8> {
    let [b'<', b'0', b'x', high, low, b'>'] = *text else { return None };
    let digit = |c: u8| char::from(c).to_digit(16).map(|d| d as u8);
    Some(digit(high)? << 4 | digit(low)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphabet_is_a_bijection_with_known_letters() {
        for byte in 0..=255u8 {
            assert_eq!(from_alphabet(ALPHABET[byte as usize]), Some(byte));
        }
        assert_eq!(ALPHABET[b' ' as usize], 'Ġ');
        assert_eq!(ALPHABET[b'\n' as usize], 'Ċ');
        assert_eq!(ALPHABET[0], 'Ā');
        assert_eq!(ALPHABET[0xAD], 'Ń');
        assert_eq!(from_alphabet(' '), None);
        assert_eq!(from_alphabet('▁'), None);
    }

    #[test]
    fn hex_spelling() {
        assert_eq!(from_hex(b"<0x0A>"), Some(10));
        assert_eq!(from_hex(b"<0xff>"), Some(255));
        for bad in [&b"<0xG0>"[..], b"<0x0>", b"0x0A", b"<0x0A> ", b""] {
            assert_eq!(from_hex(bad), None);
        }
    }
}
