//! Reading vocabularies from GGUF metadata.

use minfer_gguf::{Gguf, MetaValue, Writer};
use minfer_tokenizer::{Error, Kind, Special, Tokenizer};

fn load(writer: &Writer<'_>) -> Result<Tokenizer, Error> {
    let file = Gguf::from_bytes(writer.to_bytes().unwrap()).unwrap();
    Tokenizer::from_metadata(file.metadata())
}

/// A small byte-level vocabulary, without the key `leave_out` and with `replace` instead of what it holds.
fn bpe(leave_out: &str, replace: Option<MetaValue>) -> Writer<'static> {
    let keys: [(&str, MetaValue); 8] = [
        ("tokenizer.ggml.model", "gpt2".into()),
        ("tokenizer.ggml.pre", "gpt-2".into()),
        ("tokenizer.ggml.tokens", ["a", "b", "ab", "<s>"].into()),
        ("tokenizer.ggml.token_type", vec![1i32, 1, 1, 3].into()),
        ("tokenizer.ggml.merges", ["a b"].into()),
        ("tokenizer.ggml.bos_token_id", 3u32.into()),
        ("tokenizer.ggml.eos_token_id", 3u32.into()),
        ("tokenizer.ggml.add_bos_token", true.into()),
    ];
    let mut writer = Writer::new();
    for (key, value) in keys {
        if key != leave_out {
            writer = writer.meta(key, value);
        } else if let Some(value) = &replace {
            writer = writer.meta(key, value.clone());
        }
    }
    writer
}

#[test]
fn both_kinds_are_read() {
    let tokenizer = load(&bpe("", None)).unwrap();
    assert_eq!((tokenizer.kind(), tokenizer.vocab_size()), (Kind::ByteLevelBpe, 4));
    assert_eq!((tokenizer.bos(), tokenizer.add_bos(), tokenizer.add_eos()), (Some(3), true, false));
    assert_eq!(tokenizer.encode("aab<s>", Special::Parse), [0, 2, 3]);
    assert!(tokenizer.is_eog(3));

    let writer = Writer::new()
        .meta("tokenizer.ggml.model", "llama")
        .meta("tokenizer.ggml.tokens", ["<unk>", "<s>", "</s>", "▁", "a", "▁a"])
        .meta("tokenizer.ggml.scores", vec![0.0f32, 0.0, 0.0, -1.0, -1.0, -2.0])
        .meta("tokenizer.ggml.token_type", vec![2i32, 3, 3, 1, 1, 1]);
    let tokenizer = load(&writer).unwrap();
    assert_eq!((tokenizer.kind(), tokenizer.bos(), tokenizer.eos()), (Kind::SentencePiece, Some(1), Some(2)));
    assert_eq!(tokenizer.encode("a<s>a", Special::Parse), [5, 1, 5]);
    let tokenizer = load(&writer.meta("tokenizer.ggml.add_space_prefix", false)).unwrap();
    assert_eq!(tokenizer.encode("a<s> a", Special::Parse), [4, 1, 5]);
}

fn message(leave_out: &str, replace: Option<MetaValue>) -> String {
    load(&bpe(leave_out, replace)).unwrap_err().to_string()
}

#[test]
fn g26_keys_that_are_missing_or_wrong_are_named() {
    for key in ["tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"] {
        let message = message(key, None);
        assert!(message.contains(key) && message.contains("missing"), "{message}");
    }
    for key in ["tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.bos_token_id"] {
        let message = message(key, Some("x".into()));
        assert!(message.contains(key) && message.contains("string"), "{message}");
    }
    let wordpiece = message("tokenizer.ggml.model", Some("bert".into()));
    assert_eq!(wordpiece, "tokenizer.ggml.model = \"bert\" is not supported (supported: gpt2, llama)");
    let pre = message("tokenizer.ggml.pre", Some("nobody".into()));
    assert_eq!(pre, "tokenizer.ggml.pre = \"nobody\" names no pre-tokenizer that is known");
    let types = message("tokenizer.ggml.token_type", Some(vec![1i32, 1].into()));
    assert_eq!(types, "tokenizer.ggml.token_type has 2 entries but tokenizer.ggml.tokens has 4");

    let scoreless = Writer::new()
        .meta("tokenizer.ggml.model", "llama")
        .meta("tokenizer.ggml.tokens", ["<unk>", "<s>", "</s>"])
        .meta("tokenizer.ggml.token_type", vec![2i32, 3, 3]);
    let message = load(&scoreless).unwrap_err().to_string();
    assert!(message.contains("tokenizer.ggml.scores") && message.contains("missing"), "{message}");
}

#[test]
fn g26_special_ids_beyond_the_vocabulary_are_reported() {
    let ids: [MetaValue; 3] = [4u32.into(), u64::MAX.into(), (-1i32).into()];
    for id in ids {
        match load(&bpe("tokenizer.ggml.bos_token_id", Some(id.clone()))) {
            Ok(tokenizer) => {
                assert_eq!((tokenizer.bos(), tokenizer.add_bos()), (None, false));
                let warnings: Vec<_> = tokenizer.warnings().iter().map(ToString::to_string).collect();
                assert!(
                    warnings.iter().any(|w| w.starts_with("tokenizer.ggml.bos_token_id = ")),
                    "{warnings:?}"
                );
            }
            Err(error) => {
                assert_eq!(id, MetaValue::U64(u64::MAX));
                assert!(error.to_string().contains("tokenizer.ggml.bos_token_id"), "{error}");
            }
        }
    }
}
