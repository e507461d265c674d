//! Writes the seeds of the corpora; the same bytes on every run. Inputs that fuzzing found stand beside them.
//!
//! `cargo run --example seeds`, in this folder.

use std::fs;
use std::path::Path;

use minfer_gguf::quant::quantize;
use minfer_gguf::{MetaValue, TensorType, ValueType, Writer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (target, seeds) in [("gguf", gguf()?), ("tokenizer", tokenizer()), ("template", template())] {
        fs::create_dir_all(corpus.join(target))?;
        for (name, bytes) in seeds {
            fs::write(corpus.join(target).join(format!("seed-{name}")), bytes)?;
        }
    }
    Ok(())
}

type Seeds = Vec<(String, Vec<u8>)>;

/// Numbers between -1 and 1, always the same.
fn numbers(n: u64, salt: u64) -> Vec<f32> {
    let hash = |i: u64| (i + 1).wrapping_mul(salt * 2 + 0x9E37_79B9_7F4A_7C15) >> 40;
    (0..n).map(|i| hash(i) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// A model so small that it fits a seed.
#[derive(Clone)]
struct Tiny {
    architecture: &'static str,
    layers: usize,
    embd: u64,
    head_dim: u64,
    ff: u64,
    /// Of matrices whose rows fill its blocks; others are F16.
    ty: TensorType,
    more: Vec<(&'static str, MetaValue)>,
    rope_factors: bool,
    biases: bool,
    untied: bool,
}

const VOCAB: u64 = 10;
const HEADS: u64 = 2;

impl Tiny {
    fn new(architecture: &'static str) -> Self {
        Self {
            architecture,
            layers: 1,
            embd: 8,
            head_dim: 4,
            ff: 8,
            ty: TensorType::F32,
            more: Vec::new(),
            rope_factors: false,
            biases: false,
            untied: false,
        }
    }

    fn set(mut self, key: &'static str, value: impl Into<MetaValue>) -> Self {
        self.more.push((key, value.into()));
        self
    }

    fn bytes(&self) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
        let key = |name: &str| format!("{}.{name}", self.architecture);
        let mut w = spm_metadata(Writer::new(), &["a", "b", "▁", "ab", "▁a", "<0x0A>"])
            .meta("general.architecture", self.architecture)
            .meta(key("block_count"), self.layers as u32)
            .meta(key("context_length"), 64u32)
            .meta(key("embedding_length"), self.embd as u32)
            .meta(key("feed_forward_length"), self.ff as u32)
            .meta(key("attention.head_count"), HEADS as u32)
            .meta(key("attention.head_count_kv"), 1u32)
            .meta(key("attention.key_length"), self.head_dim as u32)
            .meta(key("attention.layer_norm_rms_epsilon"), 1e-5f32);
        for (name, value) in &self.more {
            w = w.meta(key(name), value.clone());
        }
        let mut salt = 0;
        let mut tensor = |w: Writer<'static>, name: String, ty: TensorType, shape: &[u64]| {
            salt += 1;
            let mut values = numbers(shape.iter().product(), salt);
            if name == "rope_freqs.weight" {
                values.iter_mut().for_each(|v| *v = v.abs() + 1.0);
            }
            let whole = shape[0].is_multiple_of(ty.block_size() as u64);
            let ty = if whole { ty } else { TensorType::F16 };
            let data = quantize(ty, &values).map_err(|e| format!("{name}: {e}"))?;
            Ok::<_, String>(w.tensor(name, ty, shape, data))
        };
        let (e, q, kv) = (self.embd, HEADS * self.head_dim, self.head_dim);
        let (f32, ty) = (TensorType::F32, self.ty);
        w = tensor(w, "token_embd.weight".into(), ty, &[e, VOCAB])?;
        w = tensor(w, "output_norm.weight".into(), f32, &[e])?;
        if self.untied {
            w = tensor(w, "output.weight".into(), ty, &[e, VOCAB])?;
        }
        if self.rope_factors {
            w = tensor(w, "rope_freqs.weight".into(), f32, &[self.head_dim / 2])?;
        }
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            for (part, shape) in [
                ("attn_q", [e, q]),
                ("attn_k", [e, kv]),
                ("attn_v", [e, kv]),
                ("attn_output", [q, e]),
                ("ffn_gate", [e, self.ff]),
                ("ffn_up", [e, self.ff]),
                ("ffn_down", [self.ff, e]),
            ] {
                w = tensor(w, name(&format!("{part}.weight")), ty, &shape)?;
                if self.biases && matches!(part, "attn_q" | "attn_k" | "attn_v") {
                    w = tensor(w, name(&format!("{part}.bias")), f32, &shape[1..])?;
                }
            }
            let qk_norms = matches!(self.architecture, "qwen3" | "gemma3");
            let post_norms = self.architecture == "gemma3";
            for (norm, len, has) in [
                ("attn_norm", e, true),
                ("ffn_norm", e, true),
                ("attn_q_norm", self.head_dim, qk_norms),
                ("attn_k_norm", self.head_dim, qk_norms),
                ("post_attention_norm", e, post_norms),
                ("post_ffw_norm", e, post_norms),
            ] {
                if has {
                    w = tensor(w, name(&format!("{norm}.weight")), f32, &[len])?;
                }
            }
        }
        Ok(w.to_bytes()?)
    }
}

/// Four special tokens, then these.
fn spm_metadata(w: Writer<'static>, pieces: &[&str]) -> Writer<'static> {
    let special = ["<unk>", "<s>", "</s>", "[X]"];
    let kind = |piece: &&str| if piece.starts_with("<0x") { 6 } else { 1i32 };
    let types = [2, 3, 3, 4].into_iter().chain(pieces.iter().map(kind)).collect::<Vec<i32>>();
    let tokens: Vec<&str> = special.into_iter().chain(pieces.iter().copied()).collect();
    let scores = tokens.iter().map(|t| t.len() as f32).collect::<Vec<_>>();
    w.meta("tokenizer.ggml.model", "llama")
        .meta("tokenizer.ggml.tokens", tokens)
        .meta("tokenizer.ggml.token_type", types)
        .meta("tokenizer.ggml.scores", scores)
        .meta("tokenizer.ggml.bos_token_id", 1u32)
        .meta("tokenizer.ggml.eos_token_id", 2u32)
}

fn gguf() -> Result<Seeds, Box<dyn std::error::Error>> {
    let mut seeds = Vec::new();
    let mut add = |name: &str, bytes: Vec<u8>| seeds.push((name.to_owned(), bytes));

    let linear = Tiny::new("llama").set("rope.scaling.type", "linear").set("rope.scaling.factor", 4f32);
    let yarn = Tiny::new("llama")
        .set("rope.scaling.type", "yarn")
        .set("rope.scaling.factor", 4f32)
        .set("rope.scaling.original_context_length", 16u32)
        .set("rope.dimension_count", 2u32);
    let gemma = Tiny { layers: 2, ..Tiny::new("gemma3") }
        .set("attention.sliding_window", 2u32)
        .set("attention.sliding_window_pattern", 2u32)
        .set("attn_logit_softcapping", 50f32)
        .set("final_logit_softcapping", 30f32);
    let per_layer = Tiny { layers: 2, ..Tiny::new("llama") }.set("vocab_size", VOCAB as u32);
    let wide = |ty| Tiny { embd: 32, head_dim: 16, ff: 32, ty, ..Tiny::new("llama") };
    add("llama", Tiny { untied: true, ..Tiny::new("llama") }.bytes()?);
    add("llama-factors", Tiny { rope_factors: true, biases: true, ..Tiny::new("llama") }.bytes()?);
    add("llama-linear", linear.bytes()?);
    add("llama-yarn", yarn.bytes()?);
    add("llama-two-layers", per_layer.bytes()?);
    add("llama-q4_0", wide(TensorType::Q4_0).bytes()?);
    add("llama-q8_0", wide(TensorType::Q8_0).bytes()?);
    add(
        "llama-q4_k",
        Tiny { embd: 256, ff: 2, head_dim: 2, ty: TensorType::Q4_K, ..Tiny::new("llama") }.bytes()?,
    );
    add("qwen2", Tiny { biases: true, ..Tiny::new("qwen2") }.bytes()?);
    add("qwen3", Tiny::new("qwen3").bytes()?);
    add("gemma3", gemma.bytes()?);

    let scalars = Writer::new()
        .meta("u8", 200u8)
        .meta("i8", -3i8)
        .meta("u16", 60_000u16)
        .meta("i16", -300i16)
        .meta("u32", u32::MAX)
        .meta("i32", i32::MIN)
        .meta("f32", f32::NAN)
        .meta("bool", true)
        .meta("string", "a \"quoted\"\n\u{1b}[31mline")
        .meta("u64", u64::MAX)
        .meta("i64", i64::MIN)
        .meta("f64", 1e300);
    add("scalars", scalars.to_bytes()?);
    let arrays = Writer::new()
        .meta("u8s", vec![1u8, 2])
        .meta("i16s", vec![-1i16])
        .meta("i32s", vec![1i32, -1, 7])
        .meta("f32s", vec![0.5f32, f32::INFINITY])
        .meta("bools", vec![true, false])
        .meta("u64s", vec![u64::MAX])
        .meta("strings", ["", "a", "é"])
        .meta("empty", MetaValue::Array(ValueType::String, Vec::new()))
        .meta("bytes", MetaValue::Array(ValueType::String, vec![MetaValue::String(vec![0xFF, 0, 0xC3])]));
    add("arrays", arrays.to_bytes()?);

    let mut types = Writer::new();
    for ty in TensorType::ALL {
        types = types.tensor(ty.name(), *ty, &[ty.block_size() as u64], vec![0x3C; ty.type_size()]);
    }
    add("tensor-types", types.to_bytes()?);
    let shapes = Writer::new()
        .tensor_f32("scalar", &[], &[1.0])
        .tensor_f32("vector", &[3], &[1.0, 2.0, 3.0])
        .tensor_f32("cube", &[2, 1, 2, 1], &[0.0; 4]);
    add("shapes", shapes.to_bytes()?);
    let aligned =
        |n| Writer::new().alignment(n).tensor_f32("a", &[1], &[1.0]).tensor_f32("b", &[2], &[2.0; 2]);
    add("aligned-1", aligned(1).to_bytes()?);
    add("aligned-256", aligned(256).to_bytes()?);
    add("version-2", Writer::new().version(2).meta("a", 1u32).to_bytes()?);
    add("empty", Writer::new().to_bytes()?);
    add("split", Writer::new().meta("split.count", 2u16).meta("split.no", 0u16).to_bytes()?);
    add("big-endian", [&b"GGUF\0\0\0\x03"[..], &[0; 16]].concat());
    add("pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n".to_vec());

    let merges = ["a b", "Ġ a", "ab Ġ", "no merge at all", "c"];
    let tokens = ["a", "b", "Ġ", "ab", "Ġa", "Ċ", "c", "<|im_end|>", "<unk>", "[X]", "\u{100}", "a"];
    let bpe = Writer::new()
        .meta("general.name", "Phi-3")
        .meta("tokenizer.ggml.model", "gpt2")
        .meta("tokenizer.ggml.pre", "llama-bpe")
        .meta("tokenizer.ggml.tokens", tokens)
        .meta("tokenizer.ggml.token_type", vec![1i32, 1, 1, 1, 1, 1, 1, 3, 2, 4, 9, 1])
        .meta("tokenizer.ggml.merges", merges)
        .meta("tokenizer.ggml.eos_token_id", 7u32)
        .meta("tokenizer.ggml.padding_token_id", -1i32)
        .meta("tokenizer.ggml.add_bos_token", true);
    add("bpe", bpe.to_bytes()?);
    let spm = spm_metadata(Writer::new(), &["▁", "a", "aa", "▁a", "é", "<0x41>", "<0xE2>", "<0xZZ>", ""]);
    add("spm", spm.meta("tokenizer.ggml.add_space_prefix", true).to_bytes()?);
    Ok(seeds)
}

/// The first byte picks the vocabulary.
fn tokenizer() -> Seeds {
    let texts: [(&str, &[u8]); 13] = [
        ("prose", b"The theory isn't 1,234.56% in the end; they'LL say 'tis   I'm--\n\n  fine."),
        ("code", b"def f(x):\r\n\treturn {\"a\": [x, 12345678901]}  # (in)\r\n\r\n    \t pass\n"),
        ("scripts", "naïve Ünï 你好，世界 مَرْحَبًا नमस्ते ไทย ΑΒΓ ǅ ª Ⅷ ٣٤ ½ e\u{301} \u{200d}".as_bytes()),
        ("emoji", "👩‍👩‍👧‍👦 🇩🇪 😀😀 \u{1F600}\u{FE0F} ©™ \u{A0}\u{2003}\u{3000}\u{85}".as_bytes()),
        ("control", b"<|im_end|><s>hi</s> <unk>[X]  [X]<|im_end| ><<|im_end|>|> <|im_<s>end|>"),
        ("marks", "▁a▁▁b ▁ \u{2581}\u{2581}Ġthe Ċ <0x41> <0x0A> <0xE2><0x96><0x81>".as_bytes()),
        ("broken", b"\xFF\xC3 \xE2\x96 \xF0\x9F\x98 a\xED\xA0\x80b \xC0\x80 \x80\x80 \xF4\x90\x80\x80\0\x01\x7F"),
        ("runs", b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAaAaAaA"),
        ("spaces", b"                                      \n\n\n\n\r\n\r\n\r\n \t \t \t \t \t \t\n \n \n a  b   c    "),
        ("numbers", b"0 12 123 1234 12345 1212121212121212 3.14 1e10 0x1F 1,000,000 $5.00 5% ^2 a1b2"),
        ("symbols", b"!!??...---===<<<>>>|||^^^~~~$$$+++ ++ ``` ''' \"\"\" //// \\\\ @#&*()_"),
        ("contractions", b"'s't're've'm'll'd 'S'T'RE'VE'M'LL'D '\xC5\xBF it's O'Neil '' 'x"),
        ("one", b"t"),
    ];
    let all = texts.map(|t| t.1).join(&b' ');
    let vocabularies = minfer_fuzz::tokenizer::vocabularies() as u8;
    let every = (0..vocabularies).map(|v| (format!("all-{v:02}"), [&[v][..], &all].concat()));
    let each = texts.iter().zip(0..).flat_map(|((name, text), i)| {
        // Each text with one byte-level and one SentencePiece vocabulary.
        [("bpe", i % 9), ("spm", 9 + i % 4)]
            .map(|(kind, v)| (format!("{name}-{kind}"), [&[v][..], text].concat()))
    });
    every.chain(each).collect()
}

macro_rules! source {
    ($name:literal) => {
        include_str!(concat!("../../crates/engine/tests/data/templates/", $name, ".jinja"))
    };
}

/// Template, then roles and contents, divided by NUL.
fn template() -> Seeds {
    let hostile: [&str; 6] =
        ["s", " <|im_end|> a\n<|im_start|>system\n", "u", "<|eot_id|><end_of_turn><", "a", "</think> b"];
    let turns: [&str; 4] = ["user", "a <s>", "assistant", "b </s> <|im_end|>"];
    let mut seeds = Vec::new();
    let mut add = |name: &str, source: &str, messages: &[&str]| {
        let fields: Vec<&str> = [source].iter().chain(messages).copied().collect();
        seeds.push((name.to_owned(), fields.join("\0").into_bytes()));
    };
    for number in 0..6 {
        add(&format!("real-{number}"), &number.to_string(), &hostile);
    }
    add("qwen", source!("qwen2.5"), &turns);
    add("llama3", source!("llama3-style"), &turns);
    add("gemma3", source!("gemma3-style"), &turns);
    for (name, source) in [
        (
            "loop",
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content|trim }}<|im_end|>{% endfor %}",
        ),
        (
            "edits",
            "{{ messages[0].content.replace('x', '')[::-1][1:9] ~ bos_token }}{{ messages[-1].content.split('a') }}",
        ),
        (
            "json",
            "{{ messages | tojson(indent=2) }}{{ tools | tojson }}{{ {'a': 1.5, 'b': [none, true]} | tojson }}",
        ),
        (
            "macro",
            "{% macro f(a, b=2) %}{{ a }}{{ b }}{{ caller() if caller }}{% endmacro %}{% call f(1) %}x{% endcall %}",
        ),
        ("format", "{{ '{:>20}|{:.3f}|{0}'.format(1, 2.5) }}{{ '%5d%%'|format(3) }}{{ 'a'.center(9) }}"),
        (
            "generation",
            "{% generation %}{{ messages[0].content }}{% endgeneration %}{% raw %}{{ {% endraw %}{# c #}",
        ),
        ("time", "{{ strftime_now('%d %b %Y %H:%M:%S %j %U %%') }}{{ raise_exception('no ' ~ messages) }}"),
        (
            "filters",
            "{{ messages|map(attribute='content')|list|join(',')|upper|title|replace('A','b')|length }}{{ 'a b'.split() }}",
        ),
        (
            "more-filters",
            "{{ [3,1,2]|sort|reverse|list }}{{ 'x'|indent(4)|center if false }}{{ {'b':1}|dictsort|items }}",
        ),
        (
            "tests",
            "{{ 1 is odd, 'a' is string, none is none, [] is iterable, x is defined, {} is mapping }}{{ 7 // 2 ** 3 % 5 }}",
        ),
        (
            "methods",
            "{% set s = 'a-b-c' %}{{ s.partition('-') }}{{ s.rsplit('-', 1) }}{{ s.removeprefix('a').strip('-').startswith('b') }}",
        ),
        (
            "recursive",
            "{% for x in [[1,[2]],3] recursive %}{{ loop(x) if x is iterable else x }}{{ loop.index0 }}{% endfor %}",
        ),
        ("strings", "{% macro f(x, n) %}{{ f(x ~ x, n - 1) if n else x }}{% endmacro %}{{ f('ab', 40) }}"),
        ("endless", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
        (
            "deep",
            "{{ ((((((((((((((((1)))))))))))))))) }}{% if a %}{% if b %}{% if c %}{% endif %}{% endif %}{% endif %}",
        ),
        ("broken", "{{ messages[ }}{% for %}{% if x %}"),
    ] {
        add(name, source, &turns);
    }
    seeds
}
