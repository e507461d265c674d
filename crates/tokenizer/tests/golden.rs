//! Tokenizations of real vocabularies, as llama.cpp makes them.

mod common;

use common::{MODELS, tokenizer};
use minfer_tokenizer::{Kind, Special, Tokenizer};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    text: String,
    parse_special: bool,
    ids: Vec<u32>,
}

fn cases(model: &str) -> Vec<Case> {
    let path = format!("{}/tests/data/{model}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn check(model: &str) {
    let tokenizer = tokenizer(model);
    let cases = cases(model);
    assert_eq!(cases.len(), 70);
    let mut wrong = Vec::new();
    for Case { text, parse_special, ids } in &cases {
        let special = if *parse_special { Special::Parse } else { Special::AsText };
        let ours = tokenizer.encode(text, special);
        if ours != *ids {
            wrong.push(format!("{text:?} special={parse_special}\n  want {ids:?}\n  have {ours:?}"));
        }
        // A vocabulary of SentencePiece cannot tell its space mark from a space.
        let expected = match tokenizer.kind() {
            Kind::SentencePiece => text.replace('▁', " "),
            _ => text.clone(),
        };
        assert_eq!(String::from_utf8_lossy(&tokenizer.decode(ids, false)), expected);
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn smollm2_135m() {
    check(MODELS[0]);
}

#[test]
fn gemma3_270m() {
    check(MODELS[1]);
}

#[test]
fn qwen2_5_coder_0_5b() {
    check(MODELS[2]);
}

#[test]
fn qwen2_5_coder_1_5b() {
    check(MODELS[3]);
}

/// Written and random texts, encoded by the `tokenizers` package from the same merges, and for gemma3 by merging
/// the best-scored pair again and again without any data structure.
#[test]
fn other_encoders_agree() {
    #[derive(Deserialize)]
    struct Vectors {
        texts: Vec<String>,
        #[serde(flatten)]
        ids: std::collections::BTreeMap<String, Vec<Vec<u32>>>,
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/encode.json");
    let vectors: Vectors = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(vectors.ids.keys().collect::<Vec<_>>(), ["gemma3-270m", "qwen2.5-coder-0.5b", "smollm2-135m"]);
    for (model, ids) in &vectors.ids {
        let tokenizer = tokenizer(model);
        assert_eq!(ids.len(), vectors.texts.len());
        for (text, ids) in vectors.texts.iter().zip(ids) {
            assert_eq!(tokenizer.encode(text, Special::AsText), *ids, "{model}: {text:?}");
        }
    }
}

fn eog_texts(tokenizer: &Tokenizer) -> Vec<&str> {
    tokenizer.eog().iter().map(|&id| tokenizer.token_text(id).unwrap()).collect()
}

#[test]
fn roles_of_real_vocabularies() {
    let smollm = tokenizer("smollm2-135m");
    assert_eq!(
        (smollm.bos(), smollm.eos(), smollm.add_bos(), smollm.add_eos()),
        (Some(1), Some(2), false, false)
    );
    assert_eq!(eog_texts(smollm), ["<|endoftext|>", "<|im_end|>", "<reponame>"]);
    assert_eq!((smollm.vocab_size(), smollm.kind()), (49152, Kind::ByteLevelBpe));

    let gemma = tokenizer("gemma3-270m");
    assert_eq!((gemma.bos(), gemma.eos(), gemma.add_bos(), gemma.add_eos()), (Some(2), Some(1), true, false));
    assert_eq!(eog_texts(gemma), ["<eos>", "<end_of_turn>", "</s>"]);
    assert_eq!((gemma.vocab_size(), gemma.kind()), (262_144, Kind::SentencePiece));

    let qwen = tokenizer("qwen2.5-coder-0.5b");
    assert_eq!((qwen.bos(), qwen.eos(), qwen.add_bos()), (Some(151_643), Some(151_645), false));
    let ends = ["</s>", "<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"];
    assert_eq!(eog_texts(qwen), ends);
    assert!(qwen.is_control(151_644) && !qwen.is_eog(151_644) && !qwen.is_control(0));
    assert_eq!((qwen.token_bytes(151_645), qwen.token_bytes(220)), (Some(&b""[..]), Some(&b" "[..])));
    assert_eq!(qwen.token_bytes_with_special(151_645), Some(&b"<|im_end|>"[..]));
    assert_eq!((qwen.token_text(220), qwen.token_id("Ġ")), (Some("Ġ"), Some(220)));
    assert_eq!((qwen.token_bytes(151_936), qwen.token_text(u32::MAX)), (None, None));
}
