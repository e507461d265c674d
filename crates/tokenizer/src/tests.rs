//! Small vocabularies made in memory, one per property.

use std::sync::LazyLock;

use crate::work;
use crate::{Special, SpecialIds, Tokenizer, Vocab, VocabModel, Warning};

mod broken;
use proptest::prelude::*;

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

fn vocab(model: VocabModel, tokens: &[(String, i32)]) -> Vocab {
    Vocab {
        model,
        tokens: tokens.iter().map(|(text, _)| text).collect(),
        types: Some(tokens.iter().map(|(_, kind)| *kind).collect()),
        ids: SpecialIds::default(),
        add_bos: None,
        add_eos: None,
        name: None,
    }
}

/// All bytes, then `more`.
fn bpe(pre: &str, merges: &[&str], more: &[(&str, i32)]) -> Vocab {
    let mut tokens: Vec<_> = crate::bytes::ALPHABET.iter().map(|c| (c.to_string(), NORMAL)).collect();
    tokens.extend(merges.iter().map(|merge| (merge.replace(' ', ""), NORMAL)));
    tokens.extend(more.iter().map(|(text, kind)| (text.to_string(), *kind)));
    vocab(VocabModel::ByteLevelBpe { pre: Some(pre.into()), merges: merges.iter().collect() }, &tokens)
}

/// `<unk>`, `<s>`, `</s>`, all bytes, then `more` with their scores.
fn spm(prefix: Option<bool>, more: &[(&str, i32, f32)]) -> Vocab {
    let mut tokens: Vec<_> =
        [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)].map(|(t, k)| (t.to_owned(), k)).into();
    tokens.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), BYTE)));
    tokens.extend(more.iter().map(|(text, kind, _)| (text.to_string(), *kind)));
    let mut scores = vec![0.0; 259];
    scores.extend(more.iter().map(|(_, _, score)| score));
    vocab(VocabModel::SentencePiece { scores, add_space_prefix: prefix }, &tokens)
}

fn build(vocab: Vocab) -> Tokenizer {
    Tokenizer::new(vocab).unwrap()
}

fn pieces(tokenizer: &Tokenizer, text: &str, special: Special) -> Vec<String> {
    tokenizer.encode(text, special).iter().map(|&id| tokenizer.token_text(id).unwrap().to_owned()).collect()
}

#[test]
fn best_rank_merges_first_and_of_equals_the_leftmost() {
    let tokenizer = build(bpe("gpt-2", &["b c", "a b", "a a"], &[]));
    assert_eq!(pieces(&tokenizer, "abc", Special::AsText), ["a", "bc"]);
    assert_eq!(pieces(&tokenizer, "aaab", Special::AsText), ["aa", "ab"]);
    assert_eq!(pieces(&tokenizer, "aaa", Special::AsText), ["aa", "a"]);
}

#[test]
fn best_score_merges_first_and_of_equals_the_leftmost() {
    let more = [("a", NORMAL, -9.0), ("b", NORMAL, -9.0), ("c", NORMAL, -9.0)];
    let pairs = [("bc", NORMAL, -1.0), ("ab", NORMAL, -2.0), ("aa", NORMAL, -3.0)];
    let tokenizer = build(spm(Some(false), &[&more[..], &pairs[..]].concat()));
    assert_eq!(pieces(&tokenizer, "abc", Special::AsText), ["a", "bc"]);
    assert_eq!(pieces(&tokenizer, "aaab", Special::AsText), ["aa", "ab"]);
    assert_eq!(pieces(&tokenizer, "aaa", Special::AsText), ["aa", "a"]);
    assert_eq!(pieces(&tokenizer, "aé", Special::AsText), ["a", "<0xC3>", "<0xA9>"]);
}

#[test]
fn words_that_are_tokens_need_no_merges_where_the_model_says_so() {
    let more = [("hey", NORMAL), ("<|x|>", CONTROL)];
    assert_eq!(pieces(&build(bpe("llama-bpe", &[], &more)), "hey", Special::AsText), ["hey"]);
    assert_eq!(pieces(&build(bpe("qwen2", &[], &more)), "hey", Special::AsText), ["h", "e", "y"]);
}

/// Steps that `text` repeated costs, per byte.
fn steps_per_byte(tokenizer: &Tokenizer, unit: &str, count: usize) -> f64 {
    let text = unit.repeat(count);
    let steps = work::of(|| {
        let ids = tokenizer.encode(&text, Special::Parse);
        assert_eq!(tokenizer.decode(&ids, false), text.as_bytes());
    });
    steps as f64 / text.len() as f64
}

#[test]
fn t01_steps_grow_in_proportion_to_the_text() {
    let doubling = ["A A", "AA AA", "AAAA AAAA", "AAAAAAAA AAAAAAAA", "Ġ Ġ", "ĠĠ ĠĠ"];
    let pieces = ["A", "AA", "AAAA", "AAAAAAAA", "▁", "▁▁", "▁▁▁▁"].map(|t| (t, NORMAL, t.len() as f32));
    let mut tokenizers = vec![build(spm(Some(false), &pieces))];
    tokenizers.extend(["qwen2", "llama-bpe", "gpt-4o", "smollm"].map(|pre| build(bpe(pre, &doubling, &[]))));
    for tokenizer in &tokenizers {
        for unit in ["A", " ", "A ", "\n", "é"] {
            let (one, ten) =
                (steps_per_byte(tokenizer, unit, 43_000), steps_per_byte(tokenizer, unit, 430_000));
            assert!(one < 12.0 && ten < one * 1.01, "{unit:?}: {one} then {ten} steps per byte");
        }
    }
}

#[test]
fn t02_a_run_too_long_for_recursion_on_a_small_stack() {
    let vocabs = ["gpt-4o", "llama-bpe", "tekken"].map(|pre| bpe(pre, &["a a", "A A"], &[]));
    for tokenizer in vocabs.map(build) {
        let run = move || {
            let text = "Aa".repeat(13_000) + &"a".repeat(26_000) + &"A".repeat(26_000);
            tokenizer.decode(&tokenizer.encode(&text, Special::Parse), false) == text.as_bytes()
        };
        let thread = std::thread::Builder::new().stack_size(64 << 10).spawn(run).unwrap();
        assert!(thread.join().unwrap());
    }
}

#[test]
fn t09_space_around_special_tokens() {
    let more = [("▁", NORMAL, -5.0), ("h", NORMAL, -5.0), ("i", NORMAL, -5.0), ("hi", NORMAL, -1.0)];
    let more =
        [&more[..], &[("▁hi", NORMAL, -2.0), ("▁▁", NORMAL, -3.0), ("[X]", USER_DEFINED, 0.0)]].concat();
    // With a prefix, every text after a special token begins with one, as with the original tokenizer.
    let with = build(spm(None, &more));
    assert_eq!(pieces(&with, "<s>hi", Special::Parse), ["<s>", "▁hi"]);
    assert_eq!(pieces(&with, "<s> hi", Special::Parse), ["<s>", "▁", "▁hi"]);
    assert_eq!(pieces(&with, "hi<s>hi", Special::Parse), ["▁hi", "<s>", "▁hi"]);
    assert_eq!(with.decode(&with.encode("<s>hi", Special::Parse), true), b"hi");
    assert_eq!(with.decode(&with.encode(" hi", Special::Parse), true), b" hi");
    let without = build(spm(Some(false), &more));
    assert_eq!(pieces(&without, "<s> hi", Special::Parse), ["<s>", "▁hi"]);
    assert_eq!(pieces(&without, "<s>hi[X] hi", Special::Parse), ["<s>", "hi", "[X]", "▁hi"]);

    let chat = [("<|user|>", CONTROL), ("<|endoftext|>", CONTROL)];
    let mut phi3 = bpe("gpt-2", &[], &chat);
    phi3.name = Some("Phi-3 Mini".into());
    let phi3 = build(phi3);
    assert_eq!(pieces(&phi3, "a <|user|>\n\u{2003}b", Special::Parse), ["a", "Ġ", "<|user|>", "b"]);
    assert_eq!(pieces(&phi3, "<|endoftext|> b", Special::Parse), ["<|endoftext|>", "Ġ", "b"]);
    assert_eq!(pieces(&phi3, "<|user|>  ", Special::Parse), ["<|user|>"]);
    // A token that is white space can be eaten by the one before it.
    let mut odd = bpe("gpt-2", &[], &[("<|user|>", CONTROL), ("  ", USER_DEFINED)]);
    odd.name = Some("phi3".into());
    assert_eq!(pieces(&build(odd), "<|user|>   a  b", Special::Parse), ["<|user|>", "a", "  ", "b"]);

    let mut other = bpe("gpt-2", &[], &[("<mask>", CONTROL)]);
    other.name = Some("any".into());
    assert_eq!(pieces(&build(other), "a <mask> b", Special::Parse), ["a", "Ġ", "<mask>", "Ġ", "b"]);
}

#[test]
fn t10_the_space_mark_is_a_space_to_sentencepiece_and_text_to_bytes() {
    let more = [("a", NORMAL, -1.0), ("b", NORMAL, -1.0), ("▁", NORMAL, -1.0), ("▁b", NORMAL, -1.0)];
    let tokenizer = build(spm(Some(false), &more));
    assert_eq!(pieces(&tokenizer, "a▁b", Special::AsText), ["a", "▁b"]);
    assert_eq!(tokenizer.encode("a▁b", Special::AsText), tokenizer.encode("a b", Special::AsText));
    assert_eq!(tokenizer.decode(&tokenizer.encode("a▁b", Special::AsText), false), b"a b");
    let tokenizer = build(bpe("gpt-2", &[], &[]));
    let ids = tokenizer.encode("a▁b", Special::AsText);
    assert_eq!(tokenizer.decode(&ids, false), "a▁b".as_bytes());
}

#[test]
fn t11_empty_text_has_no_tokens() {
    for tokenizer in [build(bpe("gpt-2", &[], &[])), build(spm(None, &[])), build(spm(Some(false), &[]))] {
        assert!(tokenizer.encode("", Special::Parse).is_empty());
        assert!(tokenizer.encode("", Special::AsText).is_empty());
        assert_eq!(tokenizer.decode(&[], false), b"");
    }
}

/// Every way by which text could become a control token: matched as a whole, merged together, a word that is
/// one, a single byte or character that is one, the stand-in for what cannot be expressed.
#[test]
fn t12_text_becomes_no_control_token_by_any_way() {
    let merges = ["< /", "</ s", "</s >", "x y"];
    let mut llama = bpe("llama-bpe", &merges, &[("<|im_end|>", CONTROL), ("hey", CONTROL)]);
    let types = llama.types.as_mut().unwrap();
    types[usize::from(b'q')] = CONTROL;
    llama.ids.unknown = Some(i64::from(b'q'));
    let id_of = |tokenizer: &Tokenizer, text| tokenizer.token_id(text).unwrap();
    let tokenizer = build(llama);
    let controls = ["<|im_end|>", "hey", "</s>", "q"].map(|text| id_of(&tokenizer, text));
    assert!(controls.iter().all(|&id| tokenizer.is_control(id)));
    for text in ["<|im_end|>", "hey", "</s>", "q", "hey q", "a</s>b"] {
        let ids = tokenizer.encode(text, Special::AsText);
        assert!(ids.iter().all(|id| !controls.contains(id)), "{text:?}: {ids:?}");
        let shown = String::from_utf8(tokenizer.decode(&ids, true)).unwrap();
        assert_eq!(shown, text.replace('q', "\u{FFFD}"));
        // They can be had when asked for.
        assert!(tokenizer.encode(text, Special::Parse).iter().any(|id| controls.contains(id)), "{text:?}");
    }

    let more = ["<", "s", ">", "<s", "q", "/", "</", "</s"].map(|t| (t, NORMAL, -1.0));
    let more = [&more[..], &[("[C]", CONTROL, 0.0), ("w", CONTROL, 0.0)]].concat();
    let tokenizer = build(spm(Some(false), &more));
    for text in ["<s>", "</s>", "[C]", "w", "<unk>", "<0x41>"] {
        let ids = tokenizer.encode(text, Special::AsText);
        assert!(ids.iter().all(|&id| !tokenizer.is_control(id) && id != 0), "{text:?}: {ids:?}");
        assert_eq!(tokenizer.decode(&ids, true), text.as_bytes());
        let parsed = tokenizer.encode(text, Special::Parse);
        assert_eq!(
            parsed.len() == 1 && (parsed[0] == 0 || tokenizer.is_control(parsed[0])),
            text != "<0x41>"
        );
    }
}

#[test]
fn user_defined_tokens_are_found_in_text_and_the_longest_wins() {
    let more = [("  ", USER_DEFINED), ("    ", USER_DEFINED), ("<tool>", USER_DEFINED), ("<tool>x", CONTROL)];
    let tokenizer = build(bpe("gpt-2", &[], &more));
    assert_eq!(pieces(&tokenizer, "       a", Special::AsText), ["    ", "  ", "Ġ", "a"]);
    assert_eq!(pieces(&tokenizer, "<tool>x", Special::AsText), ["<tool>", "x"]);
    assert_eq!(pieces(&tokenizer, "<tool>x", Special::Parse), ["<tool>x"]);
}

#[test]
fn t15_bytes_that_are_not_utf8() {
    let text = b"\xFF\xFEA";
    let tokenizer = build(bpe("qwen2", &[], &[]));
    assert_eq!(tokenizer.encode_bytes(text, Special::AsText), [0xFF, 0xFE, 0x41]);
    let tokenizer = build(spm(Some(false), &[("A", NORMAL, -1.0)]));
    assert_eq!(tokenizer.encode_bytes(text, Special::AsText), [3 + 0xFF, 3 + 0xFE, 259]);
    assert_eq!(tokenizer.decode(&[3 + 0xFF, 3 + 0xFE, 259], true), text);
}

#[test]
fn ends_by_name_and_by_id() {
    let more = ["<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|start|>"].map(|text| (text, CONTROL));
    let mut harmony = bpe("gpt-4o", &[], &more);
    harmony.ids.eot = Some(65);
    assert_eq!(build(harmony).eog(), [65, 256, 258, 259]);
    let tokenizer = build(bpe("gpt-2", &[], &[("<|end|>", NORMAL), ("<|eot|>", CONTROL)]));
    assert_eq!(tokenizer.eog(), [256]);
    assert!(tokenizer.is_control(256));
    assert_eq!(tokenizer.warnings(), [Warning::ControlByName { id: 256, text: "<|end|>".into() }]);
}

#[test]
fn defaults_for_adding_the_begin_of_text() {
    let with_bos = |pre: &str, add: Option<bool>| {
        let mut vocab = bpe(pre, &[], &[("<s>", CONTROL)]);
        (vocab.ids.bos, vocab.add_bos) = (Some(256), add);
        build(vocab).add_bos()
    };
    assert!(with_bos("llama-bpe", None) && with_bos("tekken", None) && with_bos("gpt-2", Some(true)));
    assert!(!with_bos("llama-bpe", Some(false)) && !with_bos("gpt-2", None) && !with_bos("qwen2", None));
    assert!(build(spm(None, &[])).add_bos());
}

fn texts() -> impl Strategy<Value = Vec<u8>> {
    let bits = prop_oneof![
        any::<u8>().prop_map(|byte| vec![byte]),
        any::<char>().prop_map(|c| c.to_string().into_bytes()),
        proptest::sample::select(vec![
            " ", "  ", "\n", "'s", "ab", "▁", "<s>", "</s>", "12", "日", "<|x|>", "é"
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
    ];
    proptest::collection::vec(bits, 0..60).prop_map(|bits| bits.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn t06_any_bytes_come_back_from_a_byte_level_vocabulary(text in texts(), parse: bool) {
        static TOKENIZERS: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
            let merges = ["a b", "Ġ a", "Ġ Ġ", "Ã ©", "æ Ĺ", "æĹ ¥", "< s", "1 2"];
            let more = [("<|x|>", CONTROL), ("[U]", USER_DEFINED), ("  ", USER_DEFINED)];
            ["gpt-2", "smollm", "qwen2", "qwen35", "llama-bpe", "gpt-4o", "tekken", "deepseek-v3", "default"]
                .iter()
                .map(|pre| build(bpe(pre, &merges, &more)))
                .collect()
        });
        let special = if parse { Special::Parse } else { Special::AsText };
        for tokenizer in TOKENIZERS.iter() {
            let ids = tokenizer.encode_bytes(&text, special);
            prop_assert_eq!(&tokenizer.decode(&ids, false), &text);
            let pieces: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.token_bytes_with_special(id).unwrap()).copied().collect();
            prop_assert_eq!(&pieces, &text);
        }
    }

    #[test]
    fn any_bytes_come_back_from_sentencepiece_but_for_space_marks(text in texts()) {
        static TOKENIZERS: LazyLock<[Tokenizer; 2]> = LazyLock::new(|| {
            let more = ["a", "b", "ab", "▁", "▁▁", "▁a", "é", ">▁<", "日", "1", "2", "12"];
            let more = more.map(|text| (text, NORMAL, -(text.len() as f32)));
            let more = [&more[..], &[("[U]", USER_DEFINED, 0.0), ("\n", USER_DEFINED, 0.0)]].concat();
            [Some(false), Some(true)].map(|prefix| build(spm(prefix, &more)))
        });
        let expected = String::from_utf8_lossy(&text).replace('▁', " ");
        let [without, with] = &*TOKENIZERS;
        let decoded = without.decode(&without.encode_bytes(&text, Special::AsText), true);
        prop_assert_eq!(String::from_utf8_lossy(&decoded), &*expected);
        // A space also goes behind each user-defined token, from where it is not taken off.
        if !expected.contains('\n') {
            let decoded = with.decode(&with.encode_bytes(&text, Special::AsText), true);
            prop_assert_eq!(String::from_utf8_lossy(&decoded), &*expected);
        }
    }
}
