//! Arbitrary bytes through small vocabularies of every kind.

use std::sync::LazyLock;

use minfer_engine::text::TextStream;
use minfer_tokenizer::{Kind, Special, SpecialIds, TokenId, TokenKind, Tokenizer, Vocab, VocabModel};

use super::memory;

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

/// What decoding gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundTrip {
    /// The text.
    Exact,
    /// The text with `▁` turned to spaces.
    Spaces,
    /// That, where no special token is recognized: a space is put after each.
    SpacesInPlainText,
    /// Not always the text: the vocabulary lacks bytes, or a token takes the space behind it.
    Lossy,
}

struct Case {
    name: &'static str,
    tokenizer: Tokenizer,
    round_trip: RoundTrip,
}

/// Enough merges for words, numbers and runs of every length, and a path to the spelling of a control token.
const MERGES: &[&str] = &[
    "Ġ Ġ",
    "ĠĠ ĠĠ",
    "a a",
    "aa aa",
    "aaaa aaaa",
    "A A",
    "1 2",
    "12 3",
    "Ċ Ċ",
    "č Ċ",
    "Ġ t",
    "h e",
    "Ġt he",
    "t he",
    "i n",
    "' s",
    "' S",
    "Ã ©",
    "ä ½",
    "ð Ł",
    "ðŁ ĺ",
    "âĸ ģ",
    "â ĸ",
    "< |",
    "<| i",
    "<|i m",
    "<|im _",
    "<|im_ e",
    "<|im_e n",
    "<|im_en d",
    "<|im_end |",
    "<|im_end| >",
    "< s",
    "<s >",
    "| >",
];

/// The spellings of bytes in a byte-level vocabulary, in the order of the bytes.
fn alphabet() -> impl Iterator<Item = char> {
    let is_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut others = '\u{100}'..;
    (0..=255)
        .map(move |byte| if is_itself(byte) { byte.into() } else { others.next().expect("68 are needed") })
}

fn vocab(model: VocabModel, tokens: Vec<(String, i32)>) -> Vocab {
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

fn bpe(pre: &str, bytes: impl Iterator<Item = char>) -> Vocab {
    let more = [("<|im_end|>", CONTROL), ("<s>", CONTROL), ("<unk>", UNKNOWN), ("[X]", USER_DEFINED)];
    let mut tokens: Vec<_> = bytes.map(|c| (c.to_string(), NORMAL)).collect();
    let merged = MERGES.iter().map(|merge| merge.replace(' ', ""));
    tokens.extend(merged.filter(|text| more.iter().all(|m| m.0 != text)).map(|text| (text, NORMAL)));
    tokens.extend(more.map(|(text, kind)| (text.to_owned(), kind)));
    vocab(VocabModel::ByteLevelBpe { pre: Some(pre.to_owned()), merges: MERGES.iter().collect() }, tokens)
}

fn spm(prefix: bool, bytes: bool, more: &[(&str, i32)]) -> Vocab {
    let pieces = [
        "▁",
        "▁▁",
        "▁▁▁▁",
        "▁t",
        "▁the",
        "the",
        "he",
        "t",
        "h",
        "e",
        "a",
        "aa",
        "aaaa",
        "i",
        "in",
        "1",
        "2",
        "12",
        "é",
        "你",
        "好",
        "你好",
        "<",
        "|",
        "s",
        ">",
        "<s",
        "\n",
        "<|",
        "|>",
        "<0x",
        "0",
    ];
    let mut tokens: Vec<_> =
        [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)].map(|(t, k)| (t.to_owned(), k)).into();
    if bytes {
        tokens.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), BYTE)));
    }
    tokens.extend(more.iter().map(|(text, kind)| (text.to_string(), *kind)));
    tokens.extend(pieces.map(|text| (text.to_owned(), NORMAL)));
    // Longer pieces first, some of the same score.
    let scores = tokens.iter().map(|(text, _)| text.len() as f32).collect();
    vocab(VocabModel::SentencePiece { scores, add_space_prefix: Some(prefix) }, tokens)
}

static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
    use RoundTrip::{Exact, Lossy, Spaces, SpacesInPlainText};
    let case = |name, vocab: Vocab, round_trip| {
        let tokenizer = Tokenizer::new(vocab).unwrap_or_else(|e| panic!("vocabulary {name}: {e}"));
        Case { name, tokenizer, round_trip }
    };
    let pre_tokenizers =
        ["gpt-2", "smollm", "qwen2", "qwen35", "llama-bpe", "gpt-4o", "tekken", "deepseek-v3", "default"];
    let mut cases: Vec<_> =
        pre_tokenizers.iter().map(|pre| case(*pre, bpe(pre, alphabet()), Exact)).collect();
    let user_defined = [("[X]", USER_DEFINED), ("  ", USER_DEFINED)];
    let phi3 = Vocab { name: Some("Phi-3".to_owned()), ..bpe("gpt-2", alphabet()) };
    cases.extend([
        case("spm", spm(false, true, &user_defined), Spaces),
        case("spm with prefix", spm(true, true, &[]), SpacesInPlainText),
        case("spm with prefix and user-defined tokens", spm(true, true, &user_defined), Lossy),
        case("spm without bytes", spm(true, false, &user_defined), Lossy),
        case("ascii", bpe("qwen2", alphabet().filter(char::is_ascii)), Lossy),
        case("phi-3", phi3, Lossy),
    ]);
    cases
});

/// The number of vocabularies; the first byte of the input, modulo this, picks one.
pub fn vocabularies() -> usize {
    CASES.len()
}

/// Encodes `data` but its first byte, and checks what comes of it. The name of the vocabulary used.
pub fn run(data: &[u8]) -> Option<&'static str> {
    let (&choice, text) = data.split_first()?;
    let Case { name, tokenizer, round_trip } = &CASES[usize::from(choice) % CASES.len()];
    let limit = (1 << 20) + 256 * text.len();
    let [plain, parsed] = memory::within(limit, "encoding", || check(tokenizer, text));

    let has_all_bytes = *round_trip != RoundTrip::Lossy || *name == "phi-3";
    if has_all_bytes {
        let unknown = plain.iter().find(|&&id| tokenizer.token_kind(id) == Some(TokenKind::Unknown));
        assert_eq!(unknown, None, "{name}: every byte has a token");
    }
    let decoded = |ids: &[TokenId]| tokenizer.decode(ids, false);
    match round_trip {
        RoundTrip::Exact => {
            assert_eq!(decoded(&plain), text, "{name}, as text");
            assert_eq!(decoded(&parsed), text, "{name}, parsed");
        }
        RoundTrip::Spaces => {
            assert_eq!(decoded(&plain), with_spaces(text), "{name}, as text");
            assert_eq!(decoded(&parsed), with_spaces(text), "{name}, parsed");
        }
        RoundTrip::SpacesInPlainText => assert_eq!(decoded(&plain), with_spaces(text), "{name}, as text"),
        RoundTrip::Lossy => {}
    }
    // Tokens that no encoder made: any bytes taken for ids, some beyond the vocabulary.
    let ids: Vec<_> = text.chunks(2).map(|c| c.iter().fold(0, |id, &b| id << 8 | TokenId::from(b))).collect();
    check_decoding(tokenizer, &ids.iter().map(|id| id % 320).collect::<Vec<_>>());
    check_decoding(tokenizer, &ids);
    Some(name)
}

/// What holds for every vocabulary. The tokens of `text` as text, and with special tokens parsed.
pub fn check(tokenizer: &Tokenizer, text: &[u8]) -> [Vec<TokenId>; 2] {
    let plain = tokenizer.encode_bytes(text, Special::AsText);
    let parsed = tokenizer.encode_bytes(text, Special::Parse);
    for ids in [&plain, &parsed] {
        // At worst a byte becomes the three of a stand-in, and a special token for every byte puts such a space first.
        assert!(ids.len() <= 6 * text.len() + 3, "{} tokens for {} bytes", ids.len(), text.len());
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
        check_decoding(tokenizer, ids);
    }
    let control = plain.iter().find(|&&id| tokenizer.is_control(id));
    assert_eq!(control, None, "text became a control token");
    let special =
        |&id: &TokenId| tokenizer.is_control(id) || tokenizer.token_kind(id) == Some(TokenKind::Unknown);
    if !parsed.iter().any(special) {
        assert_eq!(parsed, plain, "nothing special, yet the two ways differ");
    }
    if let Ok(text) = std::str::from_utf8(text) {
        assert_eq!(tokenizer.encode(text, Special::AsText), plain);
    }
    [plain, parsed]
}

/// Decoding at once and token by token agree.
fn check_decoding(tokenizer: &Tokenizer, ids: &[TokenId]) {
    let whole = tokenizer.decode(ids, true);
    let pieces: Vec<u8> = ids.iter().filter_map(|&id| tokenizer.token_bytes(id)).flatten().copied().collect();
    let without_prefix = pieces.strip_prefix(b" ").filter(|_| tokenizer.kind() == Kind::SentencePiece);
    assert!(whole == pieces || Some(&*whole) == without_prefix, "{whole:?} at once, {pieces:?} in pieces");
    assert!(tokenizer.decode(ids, false).len() >= whole.len());

    let mut stream = TextStream::new::<&str>(&[]).expect("no stop strings");
    let mut streamed = String::new();
    for &id in ids {
        streamed += stream.push(tokenizer.token_bytes(id).unwrap_or_default()).text;
    }
    streamed += stream.finish().text;
    assert_eq!(streamed, String::from_utf8_lossy(&pieces), "text as it arrives and at once");
}

fn with_spaces(text: &[u8]) -> Vec<u8> {
    let mark = "▁".as_bytes();
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let behind = rest.strip_prefix(mark);
        out.push(if behind.is_some() { b' ' } else { first });
        rest = behind.unwrap_or(tail);
    }
    out
}
