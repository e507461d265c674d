//! Spellings of bytes in a vocabulary: the byte-level alphabet and `<0xXX>`.

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

/// The byte that each character below U+0144 stands for; -1 for those outside of the alphabet.
static BYTES: [i16; 0x144] = {
    let mut table = [-1; 0x144];
    let mut byte = 0;
    while byte < 256 {
        table[ALPHABET[byte] as usize] = byte as i16;
        byte += 1;
    }
    table
};

/// Replaces `out` by the bytes that `text` spells in the byte-level alphabet; `None` if it is not spelled in it.
pub(crate) fn decode_alphabet(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    out.clear();
    let mut rest = text;
    // No character of the alphabet takes more than two bytes.
    while let Some((&first, mut tail)) = rest.split_first() {
        let mut code = usize::from(first);
        if first >= 0x80 {
            let (&second, behind) = tail.split_first()?;
            (code, tail) = ((usize::from(first) & 0x1F) << 6 | usize::from(second) & 0x3F, behind);
            if first >= 0xE0 {
                return None;
            }
        }
        out.push(u8::try_from(*BYTES.get(code)?).ok()?);
        rest = tail;
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
        let decode = |text: &str| {
            let mut out = Vec::new();
            decode_alphabet(text.as_bytes(), &mut out).map(|()| out)
        };
        let all: String = ALPHABET.iter().collect();
        assert_eq!(decode(&all), Some((0..=255).collect()));
        assert_eq!(decode("ĠaĊĀŃé"), Some(vec![b' ', b'a', b'\n', 0, 0xAD, 0xE9]));
        for outside in [" ", "▁", "a▁", "\u{144}", "\u{7f}", "\u{ad}", "🦙", "x\u{800}"] {
            assert_eq!(decode(outside), None, "{outside:?}");
        }
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
