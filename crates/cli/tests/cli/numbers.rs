//! `logits`, `perplexity`, `bench`, `tokenize`: what machines compare.

use serde_json::{Value, json};

use crate::support::{
    golden, golden_json, minfer, prints, prints_json, run, run_with_input, tiny, tiny_minfer,
};

#[test]
fn logits_of_the_tiny_models_equal_the_reference() {
    for model in ["llama", "llama31", "qwen2", "qwen3", "gemma3"] {
        let golden = golden_json(&format!("tiny/tiny-{model}.json"));
        for case in golden["prompts"].as_array().unwrap() {
            let ids =
                case["ids"].as_array().unwrap().iter().map(Value::to_string).collect::<Vec<_>>().join(",");
            let ours =
                prints_json(tiny_minfer("logits", model, &["--ids", &ids, "--kv-type", "f32", "--json"]));
            assert_eq!(ours["argmax"], case["argmax"], "{model} {ids}");
            let numbers =
                |v: &Value| v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>();
            let (ours, theirs) = (numbers(&ours["logits"]), numbers(&case["logits"]));
            assert_eq!(ours.len(), theirs.len());
            let worst = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(worst <= 0.01, "{model} {ids}: {worst}");
        }
    }
}

/// The table of `tests/golden/README.md`, within 0.5 %.
#[test]
fn perplexity_of_every_model_equals_the_reference() {
    let text = golden().join("gpl-3.txt");
    for (model, theirs) in [
        ("smollm2-135m", 18.3914),
        ("gemma3-270m", 13.9062),
        ("qwen2.5-coder-0.5b", 5.3184),
        ("qwen2.5-coder-1.5b", 1.7606),
    ] {
        let arguments = ["perplexity", "--json", "-m", model, "-f", text.to_str().unwrap()];
        let json = prints_json(minfer(&arguments));
        let ours = json["perplexity"].as_f64().unwrap();
        println!("{model}: {ours:.4}, reference {theirs}");
        assert!((ours / theirs - 1.0).abs() <= 0.005, "{model}: {ours} for {theirs}");
        // All four vocabularies make 14 whole chunks of 512 of the text; each scores 255 predictions.
        assert_eq!((&json["chunks"], &json["tokens"]), (&json!(14), &json!(14 * 255)), "{model}");
        assert!(json["stderr"].as_f64().unwrap() > 0.0, "{json}");
    }
}

#[test]
fn perplexity_of_certainty_is_that_of_the_vocabulary_at_most_and_text_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.txt");
    std::fs::write(&path, "the ".repeat(100)).unwrap();
    let arguments = ["-f", path.to_str().unwrap(), "-c", "32"];
    let line = prints(tiny_minfer("perplexity", "llama", &arguments));
    assert!(line.starts_with("perplexity ") && line.ends_with(" chunks)\n"), "{line}");
    let json = prints_json(tiny_minfer("perplexity", "llama", &[&arguments[..], &["--json"]].concat()));
    let chunks = json["chunks"].as_u64().unwrap();
    assert!(chunks >= 3, "{json}");
    assert_eq!(json["tokens"], chunks * 15);
}

#[test]
fn tokenizations_equal_the_reference() {
    let golden = golden_json("smollm2-135m.json");
    let cases = golden["tokenize"].as_array().unwrap();
    assert!(cases.len() >= 70);
    for case in cases {
        let mut arguments = vec!["tokenize", "--stdin", "--json"];
        if case["parse_special"].as_bool().unwrap() {
            arguments.push("--parse-special");
        }
        let text = case["text"].as_str().unwrap();
        let ran = run_with_input(minfer(&arguments), text.as_bytes());
        assert_eq!(ran.json(), case["ids"], "{text:?}");
    }
}

#[test]
fn tokens_become_the_text_again() {
    let text = "Grüße, 🦙\n  x = 1;<|im_end|>";
    let ids = prints(tiny_minfer("tokenize", "llama", &["--parse-special", text]));
    assert!(ids.trim_end().ends_with(",265]"), "{ids}");
    // All spellings of a list, and from standard input; the bytes are printed and nothing else.
    assert_eq!(prints(tiny_minfer("detokenize", "llama", &[ids.trim()])), text);
    assert_eq!(run_with_input(tiny_minfer("detokenize", "llama", &[]), ids.as_bytes()).stdout, text);
    let plain = text.trim_end_matches("<|im_end|>");
    assert_eq!(prints(tiny_minfer("detokenize", "llama", &["--skip-special", ids.trim()])), plain);
    assert_eq!(prints_json(tiny_minfer("detokenize", "llama", &["--json", "104,101"])), json!("he"));
    assert_eq!(prints(tiny_minfer("tokenize", "llama", &[""])), "[]\n");
    // Without a text, standard input is it; the null device is an empty one.
    assert_eq!(run_with_input(tiny_minfer("tokenize", "llama", &[]), b"he\n").stdout, "[104,101,10]\n");
    assert_eq!(prints(tiny_minfer("tokenize", "llama", &[])), "[]\n");
}

#[test]
fn logits_take_what_tokenize_prints() {
    let array = prints(tiny_minfer("tokenize", "llama", &["hey"]));
    assert_eq!(array, "[104,101,121]\n");
    let argmax = |ids: &[&str]| {
        let arguments = [&["--json", "--ids"], ids, &["--kv-type", "f32"]].concat();
        prints_json(tiny_minfer("logits", "llama", &arguments))["argmax"].clone()
    };
    let wanted = argmax(&["104,101,121"]);
    assert_eq!(wanted.as_array().unwrap().len(), 3);
    for ids in [&[array.trim()][..], &["104 101 121"], &["104", "101", "121"], &["[104,", "101,", "121]"]] {
        assert_eq!(argmax(ids), wanted, "{ids:?}");
    }
}

#[test]
fn bos_is_added_where_the_model_asks_for_it() {
    assert_eq!(prints(minfer(&["tokenize", "--add-bos", "Hello"])), "[19556]\n");
    let gemma = prints_json(tiny_minfer("tokenize", "gemma3", &["--add-bos", "a"]));
    let without = prints_json(tiny_minfer("tokenize", "gemma3", &["a"]));
    let asks =
        prints_json(tiny_minfer("inspect", "gemma3", &["--json"]))["tokenizer"]["add_bos"] == json!(true);
    let added = gemma.as_array().unwrap().len() - without.as_array().unwrap().len();
    assert_eq!(added, usize::from(asks));
}

#[test]
fn bench_prints_what_llama_bench_does() {
    // As scripts call it: the model without a flag.
    let mut command = crate::support::bare();
    let arguments =
        ["bench", &tiny("llama"), "-p", "16", "-n", "4", "-d", "8", "-t", "1", "-r", "2", "-o", "json"];
    command.args(arguments);
    let rows = prints_json(command);
    let rows = rows.as_array().unwrap();
    let tests: Vec<_> = rows.iter().map(|r| json!([r["n_prompt"], r["n_gen"], r["n_depth"]])).collect();
    assert_eq!(tests, [json!([16, 0, 8]), json!([0, 4, 8])]);
    for row in rows {
        let samples: Vec<f64> =
            row["samples_ts"].as_array().unwrap().iter().map(|s| s.as_f64().unwrap()).collect();
        assert_eq!(samples.len(), 2);
        assert!(samples.iter().all(|&s| s > 0.0));
        let mean = (samples[0] + samples[1]) / 2.0;
        assert!((row["avg_ts"].as_f64().unwrap() / mean - 1.0).abs() < 1e-9, "{row}");
        let deviation = (samples[0] - samples[1]).abs() / 2f64.sqrt();
        assert!((row["stddev_ts"].as_f64().unwrap() - deviation).abs() <= 1e-6 * mean, "{row}");
        assert_eq!(
            (&row["n_threads"], &row["backend"], &row["type_kv"]),
            (&json!(1), &json!("cpu"), &json!("f16"))
        );
        assert!(row["isa"].is_string() && row["model_n_params"] == 155_040, "{row}");
    }
    // A test of no tokens is left out.
    let only = prints_json(tiny_minfer("bench", "llama", &["-p", "0", "-n", "2", "-r", "1", "-o", "json"]));
    assert_eq!((only.as_array().unwrap().len(), &only[0]["n_gen"]), (1, &json!(2)));
}

#[test]
fn bench_tables() {
    let bench = |format| {
        let arguments = ["-p", "8", "-n", "2", "-r", "1", "-tb", "1", "-o", format];
        let ran = run(tiny_minfer("bench", "llama", &arguments));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran.stdout.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let md = bench("md");
    assert_eq!(md.len(), 4);
    assert!(md[0].starts_with("| model") && md[2].contains(" pp8 ") && md[3].contains(" tg2 "), "{md:#?}");
    let columns = |line: &str| line.matches('|').count();
    assert!(md.iter().all(|line| columns(line) == columns(&md[0])));
    let csv = bench("csv");
    assert_eq!(csv.len(), 3);
    let names: Vec<_> = csv[0].split(',').collect();
    let at = |name| names.iter().position(|n| *n == name).unwrap();
    let cells: Vec<_> = csv[1].split("\",\"").collect();
    assert_eq!(cells.len(), names.len());
    assert_eq!((cells[at("n_prompt")], cells[at("n_gen")], cells[at("n_threads")]), ("8", "0", "1"));
}
