//! Vocabularies that contradict themselves or lack something.

use super::{CONTROL, NORMAL, UNKNOWN, bpe, build, pieces, spm, vocab};
use crate::{Error, Special, SpecialIds, Strings, Tokenizer, VocabModel, Warning};

#[test]
fn bytes_without_a_token_are_replaced_and_reported() {
    let mut lacking = bpe("gpt-2", &[], &[]);
    lacking.types.as_mut().unwrap()[4] = CONTROL;
    let tokenizer = build(lacking);
    assert_eq!(tokenizer.warnings(), [Warning::MissingBytes { bytes: vec![4] }]);
    let ids = tokenizer.encode("a\u{4}b", Special::AsText);
    assert_eq!(tokenizer.decode(&ids, true), "a\u{FFFD}b".as_bytes());

    let tokens = [("a", NORMAL), ("<unk>", UNKNOWN)].map(|(t, k)| (t.to_owned(), k));
    let mut tiny =
        vocab(VocabModel::SentencePiece { scores: vec![0.0; 2], add_space_prefix: Some(false) }, &tokens);
    tiny.ids.unknown = Some(1);
    assert_eq!(build(tiny).encode("aéa", Special::AsText), [0, 1, 0]);
}

#[test]
fn g26_ids_beyond_the_vocabulary_are_reported_and_not_used() {
    let mut bad = bpe("gpt-2", &[], &[]);
    bad.ids = SpecialIds {
        bos: Some(256),
        eos: Some(-1),
        eot: Some(i64::MAX),
        unknown: Some(1 << 32),
        padding: Some(255),
        ..SpecialIds::default()
    };
    (bad.add_bos, bad.add_eos) = (Some(true), Some(true));
    let tokenizer = build(bad);
    let roles = (tokenizer.bos(), tokenizer.eos(), tokenizer.unknown(), tokenizer.padding());
    assert_eq!(roles, (None, None, None, Some(255)));
    assert_eq!((tokenizer.add_bos(), tokenizer.add_eos(), tokenizer.eog()), (false, false, &[][..]));
    let out = |role: &str, id| Warning::IdOutOfRange {
        key: format!("tokenizer.ggml.{role}_token_id"),
        id,
        vocab_size: 256,
    };
    let nothing = |key| Warning::NothingToAdd { key };
    let expected = [
        out("bos", 256),
        out("eos", -1),
        out("unknown", 1 << 32),
        out("eot", i64::MAX),
        nothing("tokenizer.ggml.add_bos_token"),
        nothing("tokenizer.ggml.add_eos_token"),
    ];
    assert_eq!(tokenizer.warnings(), expected);
    assert_eq!(
        tokenizer.warnings()[0].to_string(),
        "tokenizer.ggml.bos_token_id = 256 is outside of the vocabulary of 256 tokens; ignored"
    );

    // The ids SentencePiece has by default are not assumed to exist either.
    let one = VocabModel::SentencePiece { scores: vec![0.0], add_space_prefix: None };
    let tokenizer = build(vocab(one, &[("a".to_owned(), NORMAL)]));
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.unknown()), (None, None, Some(0)));
    assert_eq!(tokenizer.decode(&[5, u32::MAX, 0], true), b"a");
    assert_eq!((tokenizer.token_bytes(1), tokenizer.token_kind(1), tokenizer.is_eog(1)), (None, None, false));
}

#[test]
fn g26_arrays_of_the_wrong_length() {
    let mut short = bpe("gpt-2", &[], &[]);
    short.types = Some(vec![NORMAL; 255]);
    let error = Tokenizer::new(short).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tokenizer.ggml.token_type has 255 entries but tokenizer.ggml.tokens has 256"
    );

    let mut short = spm(None, &[("a", NORMAL, 0.0)]);
    short.model = VocabModel::SentencePiece { scores: vec![0.0; 259], add_space_prefix: None };
    let error = Tokenizer::new(short).unwrap_err();
    assert_eq!(error.to_string(), "tokenizer.ggml.scores has 259 entries but tokenizer.ggml.tokens has 260");

    let mut nan = spm(None, &[("a", NORMAL, f32::NAN)]);
    assert!(matches!(Tokenizer::new(nan.clone()), Err(Error::ScoreNan { index: 259 })));
    nan.model = VocabModel::SentencePiece { scores: vec![f32::INFINITY; 300], add_space_prefix: None };
    nan.types.as_mut().unwrap().push(7);
    let expected = [("tokenizer.ggml.token_type", 261), ("tokenizer.ggml.scores", 300)];
    let expected = expected.map(|(key, len)| Warning::ExtraEntries { key, len, tokens: 260 });
    assert_eq!(build(nan).warnings(), expected);

    let empty = VocabModel::ByteLevelBpe { pre: None, merges: Strings::default() };
    assert!(matches!(Tokenizer::new(vocab(empty, &[])), Err(Error::VocabularySize { len: 0, .. })));
}

#[test]
fn g26_merges_and_tokens_that_make_no_sense() {
    let mut odd = bpe("gpt-2", &["a b", "a zz", "nospace", "", " ", "zz a", "b c"], &[]);
    // Only the first and the last make a token of known pieces.
    odd.tokens = odd.tokens.iter().take(257).chain([&b"bc"[..], b"", b"", b"a", b"x"]).collect();
    odd.types = Some([vec![NORMAL; 261], vec![9]].concat());
    let tokenizer = build(odd);
    let expected = [
        // `x` is spelled a second time as well.
        Warning::DuplicateTokens { count: 2, first: 260 },
        Warning::EmptyTokens { count: 2, first: 258 },
        Warning::UnknownTokenTypes { count: 1, first: 261 },
        Warning::UnusableMerges { count: 5, first: 1 },
    ];
    assert_eq!(tokenizer.warnings(), expected);
    assert_eq!(tokenizer.encode("abc", Special::Parse), [256, u32::from(b'c')]);
    assert_eq!(tokenizer.encode("bc", Special::Parse), [257]);

    let mut broken = bpe("gpt-2", &[], &[]);
    broken.tokens = broken.tokens.iter().take(255).chain([&b"\xC3"[..]]).collect();
    assert!(matches!(
        Tokenizer::new(broken),
        Err(Error::NotUtf8 { key: "tokenizer.ggml.tokens", index: 255 })
    ));
    // Two halves of a character are UTF-8 together, but neither is.
    let mut halves = bpe("gpt-2", &[], &[]);
    halves.tokens = halves.tokens.iter().take(254).chain([&b"\xC3"[..], b"\xA9"]).collect();
    assert!(matches!(
        Tokenizer::new(halves),
        Err(Error::NotUtf8 { key: "tokenizer.ggml.tokens", index: 254 })
    ));
}

#[test]
fn pre_tokenizers_that_are_unknown_or_missing() {
    let error = Tokenizer::new(bpe("superbpe", &[], &[])).unwrap_err();
    assert_eq!(error.to_string(), "tokenizer.ggml.pre = \"superbpe\" names no pre-tokenizer that is known");
    let mut none = bpe("gpt-2", &["1 2", "3 4"], &[]);
    none.model = VocabModel::ByteLevelBpe { pre: None, merges: ["1 2", "3 4"].iter().collect() };
    let tokenizer = build(none);
    assert_eq!(tokenizer.warnings(), [Warning::NoPreTokenizer]);
    assert_eq!(pieces(&tokenizer, "1234", Special::AsText), ["12", "3", "4"]);
}

#[test]
fn missing_types_are_guessed_from_roles_and_spelling() {
    let mut old = spm(None, &[("a", NORMAL, -1.0)]);
    old.types = None;
    let tokenizer = build(old);
    assert_eq!(tokenizer.warnings(), [Warning::NoTokenTypes]);
    assert!(
        tokenizer.is_control(1) && tokenizer.is_control(2) && tokenizer.is_eog(2) && !tokenizer.is_eog(1)
    );
    assert_eq!(tokenizer.token_bytes(3 + 0x0A), Some(&b"\n"[..]));
    assert!(!tokenizer.encode("<s>", Special::AsText).contains(&1));
}
