//! `minfer inspect`: what a model file holds.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::Args;
use minfer_gguf::{Gguf, Value as Entry};
use minfer_models::Model;
use minfer_tokenizer::{Kind, Tokenizer};
use serde_json::{Map, Value, json};

use crate::args::{Globals, SubjectArgs};
use crate::config::{Config, Flags};
use crate::exit::Failure;
use crate::{model, output};

/// Longer arrays of metadata are shown by type and length.
const SHOWN_ELEMENTS: usize = 16;
const TEMPLATE_KEY: &str = "tokenizer.chat_template";

/// Show what a model file holds: metadata, tensors, sizes, tokenizer, chat template
///
/// No weights are loaded. A model that cannot be run can be inspected all the same; why it cannot is shown.
#[derive(Debug, Args)]
pub struct InspectArgs {
    #[command(flatten)]
    model: SubjectArgs,
    /// Print one JSON object: file, model, tokenizer, chat_template, metadata, tensors
    #[arg(long)]
    json: bool,
}

pub fn run(args: InspectArgs, globals: &Globals) -> Result<(), Failure> {
    let name = args.model.name();
    let config = Config::load(globals, Flags { model: name, ..Flags::default() })?;
    let gguf = model::open(&config.model, &config)?;
    let document = json!({
        "file": file(&gguf, &config)?,
        "model": architecture(&gguf),
        "tokenizer": tokenizer(&gguf),
        "chat_template": gguf.metadata().get_str(TEMPLATE_KEY).ok().flatten(),
        "metadata": gguf.metadata().iter().map(|(key, value)| (key.to_owned(), metadata(value))).collect::<Map<_, _>>(),
        "tensors": gguf.tensors().map(|t| json!({
            "name": t.name, "type": t.ty.name(), "shape": t.shape, "bytes": t.data.len(), "offset": t.file_offset(),
        })).collect::<Vec<_>>(),
    });
    if args.json { output::json(&document) } else { output::text(&for_people(&gguf, &document)) }
}

fn file(gguf: &Gguf, config: &Config) -> Result<Value, Failure> {
    let mut types: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for tensor in gguf.tensors() {
        let (tensors, bytes) = types.entry(tensor.ty.name()).or_default();
        *tensors += 1;
        *bytes += tensor.data.len() as u64;
    }
    let types = types
        .into_iter()
        .map(|(ty, (tensors, bytes))| (ty.to_owned(), json!({"tensors": tensors, "bytes": bytes})));
    Ok(json!({
        "path": model::path(&config.model, config)?,
        "version": gguf.version(),
        "files": gguf.n_shards(),
        "bytes": gguf.file_bytes(),
        "alignment": gguf.alignment(),
        "n_tensors": gguf.n_tensors(),
        "parameters": gguf.tensors().map(|t| t.n_elements()).sum::<u64>(),
        "types": types.collect::<Map<_, _>>(),
    }))
}

/// The hyper-parameters, or why the model cannot be run.
fn architecture(gguf: &Gguf) -> Value {
    match Model::from_gguf(gguf) {
        Err(error) => json!({"error": error.to_string()}),
        Ok(model) => {
            let info = model.info();
            json!({
                "architecture": info.architecture,
                "name": info.name,
                "n_layer": info.n_layer,
                "n_embd": info.n_embd,
                "n_head": per_layer(&info.n_head),
                "n_kv_head": per_layer(&info.n_kv_head),
                "head_dim": info.head_dim,
                "n_ff": per_layer(&info.n_ff),
                "vocab_size": info.vocab_size,
                "context_length": info.context_length,
                "sliding_window": info.sliding_window,
                "tied_embeddings": info.tied_embeddings,
            })
        }
    }
}

/// One number where all layers agree.
fn per_layer(values: &[usize]) -> Value {
    match values {
        [first, rest @ ..] if rest.iter().all(|v| v == first) => json!(first),
        values => json!(values),
    }
}

/// The vocabulary, or why it cannot be used.
fn tokenizer(gguf: &Gguf) -> Value {
    let tokenizer = match Tokenizer::from_metadata(gguf.metadata()) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return json!({"error": error.to_string()}),
    };
    let token = |id: Option<u32>| id.map(|id| json!({"id": id, "text": tokenizer.token_text(id)}));
    let kind = match tokenizer.kind() {
        Kind::ByteLevelBpe => "byte-level BPE",
        Kind::SentencePiece => "SentencePiece",
        _ => "another",
    };
    json!({
        "kind": kind,
        "pre": gguf.metadata().get_str("tokenizer.ggml.pre").ok().flatten(),
        "vocab_size": tokenizer.vocab_size(),
        "bos": token(tokenizer.bos()),
        "eos": token(tokenizer.eos()),
        "unknown": token(tokenizer.unknown()),
        "padding": token(tokenizer.padding()),
        "end_of_generation": tokenizer.eog().iter().map(|&id| token(Some(id))).collect::<Vec<_>>(),
        "add_bos": tokenizer.add_bos(),
        "add_eos": tokenizer.add_eos(),
        "warnings": tokenizer.warnings().iter().map(|w| w.to_string()).collect::<Vec<_>>(),
    })
}

fn metadata(value: Entry<'_>) -> Value {
    match value {
        Entry::String(bytes) => String::from_utf8_lossy(bytes).into(),
        Entry::Bool(v) => v.into(),
        // As the shortest decimal that is this f32.
        Entry::F32(v) => v.to_string().parse::<f64>().map_or(Value::Null, Into::into),
        Entry::F64(v) => v.into(),
        Entry::Array(array) if array.len() <= SHOWN_ELEMENTS => array.iter().map(metadata).collect(),
        Entry::Array(array) => json!({"array_of": array.element_type().to_string(), "length": array.len()}),
        value => match value.as_integer() {
            Some(v) => i64::try_from(v).map_or_else(|_| (v as u64).into(), Into::into),
            None => Value::Null,
        },
    }
}

fn for_people(gguf: &Gguf, document: &Value) -> String {
    let mut text = String::new();
    let file = &document["file"];
    let bytes = |value: &Value| output::human_bytes(value.as_u64().unwrap_or(0));
    section(&mut text, "file");
    for (key, value) in file.as_object().into_iter().flatten() {
        match key.as_str() {
            "types" => {
                for (ty, sum) in value.as_object().into_iter().flatten() {
                    let sizes = format!("{} tensors, {}", sum["tensors"], bytes(&sum["bytes"]));
                    line(&mut text, &format!("type {ty}"), &sizes);
                }
            }
            "bytes" => line(&mut text, key, &format!("{value} ({})", bytes(value))),
            _ => line(&mut text, key, &plain(value)),
        }
    }
    for part in ["model", "tokenizer"] {
        section(&mut text, part);
        for (key, value) in document[part].as_object().into_iter().flatten() {
            line(&mut text, key, &plain(value));
        }
    }
    section(&mut text, "metadata");
    for (key, value) in gguf.metadata().iter() {
        line(&mut text, key, &value.to_string());
    }
    section(&mut text, "tensors");
    for tensor in gguf.tensors() {
        let shape = tensor.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(" × ");
        line(&mut text, tensor.name, &format!("{:8} {shape}", tensor.ty.name()));
    }
    section(&mut text, "chat template");
    match document["chat_template"].as_str() {
        None => text.push_str("none: this is a base model\n"),
        Some(template) => {
            for template_line in template.lines() {
                text.push_str(&safe(template_line));
                text.push('\n');
            }
        }
    }
    text
}

fn section(text: &mut String, name: &str) {
    let gap = if text.is_empty() { "" } else { "\n" };
    let _ = writeln!(text, "{gap}== {name}");
}

fn line(text: &mut String, key: &str, value: &str) {
    let _ = writeln!(text, "{:<36} {}", safe(key), safe(value));
}

/// Texts from the file must not write to the terminal as they like.
fn safe(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// JSON without the marks around texts and objects of tokens.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Object(token) => format!("{} {:?}", token["id"], token["text"].as_str().unwrap_or_default()),
        value => value.to_string(),
    }
}
