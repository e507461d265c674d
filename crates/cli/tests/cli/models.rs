//! `inspect`, `graph`, `list`, `pull`, `rm`.

use serde_json::json;

use crate::support::{bare, fails, minfer, models, prints, prints_json, run, tiny, tiny_minfer};

#[test]
fn inspect_shows_all_that_a_file_holds() {
    let mut command = bare();
    command.args(["inspect", &tiny("llama"), "--json"]);
    let json = prints_json(command);
    assert_eq!(json["file"]["n_tensors"], 20);
    assert_eq!(json["file"]["types"], json!({"F32": {"tensors": 20, "bytes": 155_040 * 4}}));
    assert_eq!((&json["model"]["n_head"], &json["model"]["n_kv_head"]), (&json!(6), &json!(3)));
    assert_eq!(json["tokenizer"]["eos"], json!({"id": 265, "text": "<|im_end|>"}));
    assert_eq!(json["metadata"]["llama.block_count"], 2);
    assert_eq!(json["metadata"]["llama.attention.layer_norm_rms_epsilon"], 1e-6);
    assert_eq!(json["metadata"]["tokenizer.ggml.tokens"], json!({"array_of": "string", "length": 266}));
    assert_eq!(json["chat_template"], json!(null));
    let tensors = json["tensors"].as_array().unwrap();
    let norm = tensors.iter().find(|t| t["name"] == "output_norm.weight").unwrap();
    assert_eq!((&norm["type"], &norm["shape"], &norm["bytes"]), (&json!("F32"), &json!([96]), &json!(384)));
    let text = prints(tiny_minfer("inspect", "llama", &[]));
    for part in
        ["== file", "== model", "== tokenizer", "== metadata", "== tensors", "none: this is a base model"]
    {
        assert!(text.contains(part), "{part}");
    }
}

#[test]
fn a_model_that_cannot_be_run_can_be_inspected() {
    let mut bytes = std::fs::read(tiny("llama")).unwrap();
    let at = bytes.windows(5).position(|w| w == b"llama").unwrap();
    bytes[at..at + 5].copy_from_slice(b"mamba");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::write(&path, bytes).unwrap();
    let mut command = bare();
    command.args(["inspect", "--json"]).arg(&path);
    let json = prints_json(command);
    assert!(json["model"]["error"].as_str().unwrap().contains("\"mamba\""), "{}", json["model"]);
    assert_eq!(json["metadata"]["general.architecture"], "mamba");
    assert_eq!(json["file"]["n_tensors"], 20);
}

#[test]
fn inspect_shows_the_default_models_template() {
    let json = prints_json(minfer(&["inspect", "--json"]));
    assert!(json["chat_template"].as_str().unwrap().contains("add_generation_prompt"));
    assert_eq!(json["model"]["vocab_size"], 49_152);
}

#[test]
fn graph_in_three_forms() {
    let graph = |format| prints(tiny_minfer("graph", "llama", &["--tokens", "4", "--format", format]));
    assert!(graph("dot").starts_with("digraph"));
    let text = graph("text");
    assert!(text.contains("mat_mul") && text.contains("1 split"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&graph("json")).unwrap();
    let nodes = json["nodes"].as_array().unwrap();
    assert!(nodes.len() > 50);
    let logits = nodes.iter().rfind(|n| n["op"] == "mat_mul").unwrap();
    assert_eq!(logits["shape"], json!([1, 266]), "{logits}");
    // The model without a flag.
    let mut command = bare();
    command.args(["graph", &tiny("llama"), "--tokens", "4", "--format", "dot"]);
    assert_eq!(prints(command), graph("dot"));
}

#[test]
fn list_and_pull_find_what_is_here() {
    let list = prints_json(minfer(&["list", "--json"]));
    let default = list.as_array().unwrap().iter().find(|m| m["name"] == "smollm2-135m").unwrap();
    assert_eq!((&default["installed"], &default["bytes"]), (&json!(true), &json!(98_362_432)));
    let path = models().join("smollm2-135m.gguf");
    let ran = run(minfer(&["pull", "smollm2-135m"]));
    assert_eq!((ran.code, ran.stdout), (0, format!("{}\n", path.display())));
}

#[test]
fn an_empty_store_lists_the_catalog_and_a_file_put_there_can_be_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = |arguments: &[&str]| {
        let mut command = bare();
        command.arg("--models").arg(dir.path()).args(arguments);
        command
    };
    let list = prints_json(store(&["list", "--json"]));
    assert!(list.as_array().unwrap().iter().all(|m| m["installed"] == false), "{list}");
    assert!(prints(store(&["list"])).contains("can be pulled"));
    let file = dir.path().join("mine.gguf");
    std::fs::copy(tiny("llama"), &file).unwrap();
    let name = file.to_str().unwrap();
    let list = prints_json(store(&["list", "--json"]));
    assert!(list.as_array().unwrap().iter().any(|m| m["name"] == name && m["verified"] == false), "{list}");
    let ran = run(store(&["rm", name]));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.starts_with("note: removed "), "{}", ran.stderr);
    assert!(!file.exists());
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.is_empty() || !cfg!(unix), "{left:?}");
    fails(store(&["rm", name]), 3, "mine.gguf is not in the model store");
    fails(store(&["rm", "smollm2-135m"]), 3, "smollm2-135m is not in the model store");
    fails(store(&["rm", &tiny("llama")]), 3, "is not in the model store");
    fails(store(&["pull", "hf:nosuch"]), 3, "hf:org/repo");
}

#[test]
fn a_folder_of_models_that_has_to_be_made_is_mentioned() {
    let dir = tempfile::tempdir().unwrap();
    let models = dir.path().join("models");
    let pull = || {
        let mut command = bare();
        // Nobody listens there.
        command.env("HF_ENDPOINT", "http://127.0.0.1:1").arg("--models").arg(&models);
        command.args(["pull", "hf:org/repo"]);
        let ran = run(command);
        assert_eq!((ran.code, ran.stdout.as_str()), (3, ""));
        ran.stderr
    };
    let note =
        format!("note: the folder of models {} does not exist yet, it will be made\n", models.display());
    let said = pull();
    assert!(said.starts_with(&note) && said.contains("\nerror: cannot reach http://127.0.0.1:1"), "{said}");
    std::fs::create_dir(&models).unwrap();
    let said = pull();
    assert!(said.starts_with("error: cannot reach "), "{said}");
}

#[test]
fn a_model_that_several_sources_have_is_announced_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = bare();
    command.env("HF_ENDPOINT", "http://127.0.0.1:1").env("PATH", "/nowhere").arg("--models").arg(dir.path());
    command.args(["pull", "smollm2-135m"]);
    let ran = run(command);
    assert_eq!(ran.code, 3);
    let count = |text: &str| ran.stderr.matches(text).count();
    assert_eq!(
        (count("note: fetching smollm2-135m (93.81 MiB)\n"), count("note: fetching")),
        (1, 1),
        "{}",
        ran.stderr
    );
    assert!(count("; trying ") > 0, "{}", ran.stderr);
}
