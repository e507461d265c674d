use std::collections::BTreeMap;

use super::*;
use crate::work;

fn words<'t>(pre: &str, text: &'t str) -> Vec<&'t str> {
    let profile = PreProfile::by_name(pre).expect(pre);
    let words = profile.pre_tokenizer.words(text.as_bytes());
    words.map(|word| std::str::from_utf8(word).unwrap()).collect()
}

/// The published regular expressions, run by the `tokenizers` package (Oniguruma) over written and random texts.
#[test]
fn words_equal_those_of_the_regular_expressions() {
    #[derive(serde::Deserialize)]
    struct Vectors {
        texts: Vec<String>,
        #[serde(flatten)]
        lengths: BTreeMap<String, Vec<Vec<usize>>>,
    }
    let vectors: Vectors = serde_json::from_str(include_str!("../../tests/data/pretokenize.json")).unwrap();
    let names =
        ["deepseek-v3", "default", "gpt-2", "gpt-4o", "llama-bpe", "qwen2", "qwen35", "smollm", "tekken"];
    assert_eq!(vectors.lengths.keys().collect::<Vec<_>>(), names);
    let mut wrong = Vec::new();
    for (pre, lengths) in &vectors.lengths {
        assert_eq!(vectors.texts.len(), lengths.len());
        for (text, lengths) in vectors.texts.iter().zip(lengths) {
            let ours: Vec<_> = words(pre, text).iter().map(|word| word.chars().count()).collect();
            if ours != *lengths {
                wrong.push(format!("{pre} {text:?}\n  want {lengths:?}\n  have {ours:?}"));
            }
        }
    }
    assert!(vectors.texts.len() > 400);
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn t07_digits_are_grouped_as_each_model_does() {
    assert_eq!(words("qwen2", "1234567"), ["1", "2", "3", "4", "5", "6", "7"]);
    assert_eq!(words("llama-bpe", "1234567"), ["123", "456", "7"]);
    assert_eq!(words("gpt-2", "1234567"), ["1234567"]);
    assert_eq!(words("smollm", "1234567"), ["1", "2", "3", "4", "5", "6", "7"]);
    assert_eq!(words("qwen2", "3.14"), ["3", ".", "1", "4"]);
    assert_eq!(words("llama-bpe", "3.14"), ["3", ".", "14"]);
    assert_eq!(words("qwen2", "²½"), ["²", "½"]);
    assert_eq!(words("llama-bpe", "²½"), ["²½"]);
}

/// Every pre-tokenizer looks at each character of the worst texts at most a few times.
#[test]
fn t02_every_pre_tokenizer_is_linear() {
    let all =
        ["deepseek-v3", "default", "gpt-2", "gpt-4o", "llama-bpe", "qwen2", "qwen35", "smollm", "tekken"];
    let units = [
        "A", "a", "1", " ", "\n", "'", "日", "カ", "\u{301}", "!", "/", "Aa", "A\u{301}", "日A", " \n",
        "  a", "\0", "'s", " 1", "½2", "\u{301}A", "\0a", "ǅ",
    ];
    for pre in all {
        let pre_tokenizer = PreProfile::by_name(pre).unwrap().pre_tokenizer;
        for unit in units {
            for (count, tail) in [(26_000, ""), (26_000, "x"), (26_000, "A"), (26_000, "\0")] {
                let text = unit.repeat(count) + tail;
                let chars = text.chars().count() as u64;
                let looks = work::of(|| {
                    let total: usize = pre_tokenizer.words(text.as_bytes()).map(<[u8]>::len).sum();
                    assert_eq!(total, text.len());
                });
                assert!(
                    looks <= 8 * chars + 8,
                    "{pre}: {looks} looks at {chars} characters of {unit:?}… {tail:?}"
                );
            }
        }
    }
}

#[test]
fn names_that_are_not_known_are_not_guessed() {
    for name in ["", "qwen", "Qwen2", "llama", "gemma4", "superbpe"] {
        assert_eq!(PreProfile::by_name(name), None, "{name:?}");
    }
}
