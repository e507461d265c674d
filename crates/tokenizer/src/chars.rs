//! Characters of possibly invalid UTF-8 and the classes that pre-tokenizers tell apart.

use unicode_general_category::{GeneralCategory as Gc, get_general_category};

/// A set of character classes, one bit each.
pub(crate) type Class = u16;

/// Uppercase and titlecase letters (Lu, Lt).
pub(crate) const UPPER: Class = 1;
/// Lowercase letters (Ll).
pub(crate) const LOWER: Class = 1 << 1;
/// Letters without case (Lm, Lo).
pub(crate) const CASELESS: Class = 1 << 2;
/// Any letter (L).
pub(crate) const LETTER: Class = UPPER | LOWER | CASELESS;
/// Combining marks (M).
pub(crate) const MARK: Class = 1 << 3;
/// Numbers of any kind (N).
pub(crate) const NUMBER: Class = 1 << 4;
/// White space, line breaks included.
pub(crate) const SPACE: Class = 1 << 5;
/// Carriage return and line feed.
pub(crate) const NEWLINE: Class = 1 << 6;
/// Punctuation (P).
pub(crate) const PUNCT: Class = 1 << 7;
/// Symbols (S).
pub(crate) const SYMBOL: Class = 1 << 8;
/// There is no character here: the text, or the part of it under consideration, ends.
pub(crate) const END: Class = 1 << 9;

/// One character as a pre-tokenizer sees it. A byte that belongs to no valid character is one of its own,
/// without any class.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Char {
    pub(crate) class: Class,
    /// Length in bytes; 0 at the end of the text.
    pub(crate) len: usize,
    /// The scalar value, or [`NOT_A_CHAR`].
    pub(crate) code: u32,
}

/// The code of an invalid byte and of the end of the text.
pub(crate) const NOT_A_CHAR: u32 = u32::MAX;

impl Char {
    pub(crate) const END: Self = Self { class: END, len: 0, code: NOT_A_CHAR };

    pub(crate) fn is(self, class: Class) -> bool {
        self.class & class != 0
    }

    pub(crate) fn is_ascii(self, byte: u8) -> bool {
        self.code == u32::from(byte)
    }
}

/// Reads the character that starts at `pos`.
pub(crate) fn char_at(text: &[u8], pos: usize) -> Char {
    #[cfg(test)]
    crate::work::count();
    let Some(&first) = text.get(pos) else { return Char::END };
    if first < 0x80 {
        return Char { class: ASCII[first as usize], len: 1, code: u32::from(first) };
    }
    match decode(&text[pos..]) {
        Some(c) => Char { class: class_of(c), len: c.len_utf8(), code: u32::from(c) },
        None => Char { class: 0, len: 1, code: NOT_A_CHAR },
    }
}

/// The valid character at the start of `bytes`, if there is one.
pub(crate) fn decode(bytes: &[u8]) -> Option<char> {
    let len = match bytes.first()? {
        0..=0x7F => 1,
        0xC2..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF4 => 4,
        _ => return None,
    };
    std::str::from_utf8(bytes.get(..len)?).ok()?.chars().next()
}

static ASCII: [Class; 128] = {
    let mut table = [0; 128];
    let mut c = 0;
    while c < 128 {
        table[c] = match c as u8 {
            b'\r' | b'\n' => SPACE | NEWLINE,
            b'\t' | 0x0B | 0x0C | b' ' => SPACE,
            b'0'..=b'9' => NUMBER,
            b'A'..=b'Z' => UPPER,
            b'a'..=b'z' => LOWER,
            b'$' | b'+' | b'<' | b'=' | b'>' | b'^' | b'`' | b'|' | b'~' => SYMBOL,
            b'!'..=b'/' | b':' | b';' | b'?' | b'@' | b'['..=b']' | b'_' | b'{' | b'}' => PUNCT,
            _ => 0,
        };
        c += 1;
    }
    table
};

fn class_of(c: char) -> Class {
    match get_general_category(c) {
        Gc::UppercaseLetter | Gc::TitlecaseLetter => UPPER,
        Gc::LowercaseLetter => LOWER,
        Gc::ModifierLetter | Gc::OtherLetter => CASELESS,
        Gc::NonspacingMark | Gc::SpacingMark | Gc::EnclosingMark => MARK,
        Gc::DecimalNumber | Gc::LetterNumber | Gc::OtherNumber => NUMBER,
        Gc::ConnectorPunctuation
        | Gc::DashPunctuation
        | Gc::OpenPunctuation
        | Gc::ClosePunctuation
        | Gc::InitialPunctuation
        | Gc::FinalPunctuation
        | Gc::OtherPunctuation => PUNCT,
        Gc::MathSymbol | Gc::CurrencySymbol | Gc::ModifierSymbol | Gc::OtherSymbol => SYMBOL,
        _ if c.is_whitespace() => SPACE,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_classes_equal_the_unicode_ones() {
        for byte in 0..128u8 {
            let newline = if matches!(byte, b'\r' | b'\n') { NEWLINE } else { 0 };
            assert_eq!(ASCII[byte as usize], class_of(byte as char) | newline, "{byte:#x}");
        }
    }

    #[test]
    fn invalid_bytes_are_characters_of_their_own() {
        let text = b"\xFF\xC0\x80\xE2\x82\xED\xA0\x80\xF0\x9F\xA6\x99";
        let mut lens = Vec::new();
        let mut pos = 0;
        while pos < text.len() {
            let c = char_at(text, pos);
            lens.push((c.len, c.code != NOT_A_CHAR));
            pos += c.len;
        }
        assert_eq!(lens, [vec![(1, false); 8], vec![(4, true)]].concat());
    }
}
