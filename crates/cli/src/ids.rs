//! Token ids as people write them, and as `minfer tokenize` prints them.

use minfer_tokenizer::TokenId;

use crate::exit::Failure;

/// Reads ids separated by commas or blanks, or a JSON array of them.
pub fn parse(text: &str) -> Result<Vec<TokenId>, Failure> {
    let text = text.trim();
    let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let words = inner.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    words
        .map(|word| word.parse().map_err(|_| Failure::Input(format!("{word:?} is not a token id"))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_in_every_spelling() {
        for text in ["1 2 3", "1,2,3", "[1, 2, 3]\n", " 1, 2 3 "] {
            assert_eq!(parse(text).unwrap(), [1, 2, 3], "{text:?}");
        }
        assert!(parse("[]").unwrap().is_empty());
        for text in ["1 x", "-1", "4294967296", "[1"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
