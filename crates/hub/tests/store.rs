//! What is in the store, without any network.

mod common;

use std::fs;
use std::time::UNIX_EPOCH;

use common::{Log, content, entry, files_below, no_pip, quick, sha256};
use minfer_hub::{Error, ModelRef, Silent, Store};

fn offline(dir: &std::path::Path) -> Store {
    Store::new(dir).with_hub(quick("http://127.0.0.1:1")).with_pip(no_pip())
}

/// The stamp that the Python fetch tool of the tests writes beside a model.
fn foreign_stamp(model: &std::path::Path, sha256: &str) {
    let metadata = fs::metadata(model).unwrap();
    let ns = metadata.modified().unwrap().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let json = format!(r#"{{"sha256": "{sha256}", "size": {}, "mtime_ns": {ns}}}"#, metadata.len());
    fs::write(format!("{}.verified", model.display()), json).unwrap();
}

#[test]
fn a_stamped_file_is_not_hashed() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = content(1000);
    let model = ModelRef::Catalog(entry("m", &bytes, vec![]));
    let path = dir.path().join("m.gguf");
    // Another content with the right stamp: only hashing could tell, so this shows that it is not done.
    fs::write(&path, content(999)).unwrap();
    foreign_stamp(&path, &sha256(&bytes));
    let mut log = Log::default();
    assert_eq!(offline(dir.path()).path_if_present(&model, &mut log).unwrap(), Some(path.clone()));
    assert!(log.notices.is_empty());
    // Once the file changes, the stamp no longer counts.
    fs::write(&path, content(998)).unwrap();
    assert_eq!(offline(dir.path()).path_if_present(&model, &mut log).unwrap(), None);
    assert_eq!(log.notices, ["m.gguf: the file already there has another size"]);
}

#[test]
fn an_unstamped_file_is_hashed_once() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = content(1000);
    let model = ModelRef::Catalog(entry("m", &bytes, vec![]));
    let path = dir.path().join("m.gguf");
    fs::write(&path, &bytes).unwrap();
    let mut log = Log::default();
    for _ in 0..2 {
        assert_eq!(offline(dir.path()).pull(&model, &mut log).unwrap(), path);
    }
    assert_eq!(log.notices, ["m.gguf: checking the file already there"]);
    let stamp: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.path().join("m.gguf.verified")).unwrap()).unwrap();
    let ns = fs::metadata(&path).unwrap().modified().unwrap().duration_since(UNIX_EPOCH).unwrap().as_nanos()
        as u64;
    assert_eq!(stamp, serde_json::json!({ "sha256": sha256(&bytes), "size": 1000, "mtime_ns": ns }));
}

#[test]
fn a_wrong_file_is_no_model_and_no_reason_to_stop() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = content(1000);
    let model = ModelRef::Catalog(entry("m", &bytes, vec![]));
    let mut wrong = bytes.clone();
    wrong[0] ^= 1;
    fs::write(dir.path().join("m.gguf"), wrong).unwrap();
    let mut log = Log::default();
    assert_eq!(offline(dir.path()).path_if_present(&model, &mut log).unwrap(), None);
    assert_eq!(log.notices[1], "m.gguf: the file already there has another SHA-256");
    assert!(
        matches!(offline(dir.path()).pull(&model, &mut log), Err(Error::NoSource { tried, .. }) if tried.is_empty())
    );
}

#[test]
fn looking_creates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = offline(&dir.path().join("none"));
    assert_eq!(store.path_if_present(&ModelRef::default_model(), &mut Silent).unwrap(), None);
    assert_eq!(store.path_if_present(&ModelRef::parse("hf:a/b").unwrap(), &mut Silent).unwrap(), None);
    assert!(store.list().unwrap().is_empty());
    assert!(files_below(dir.path()).is_empty() && !store.dir().exists());
}

#[test]
fn a_path_is_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("own.gguf");
    let model = ModelRef::Path(path.clone());
    let store = offline(&dir.path().join("store"));
    assert!(matches!(store.pull(&model, &mut Silent), Err(Error::NoSuchFile(p)) if p == path));
    fs::write(&path, "x").unwrap();
    assert_eq!(store.pull(&model, &mut Silent).unwrap(), path);
    fs::create_dir(store.dir()).unwrap();
    assert!(matches!(store.remove(&model, &mut Silent), Err(Error::NotInStore { .. })));
    assert!(path.exists());
}

#[test]
fn list_and_remove() {
    let dir = tempfile::tempdir().unwrap();
    let store = offline(dir.path());
    let repo = dir.path().join("hf/org/repo");
    fs::create_dir_all(repo.join("sub")).unwrap();
    for (name, len) in [
        ("smollm2-135m.gguf", 10),
        (".smollm2-135m.gguf.0123456789abcdef.part", 10),
        ("mine.gguf", 20),
        ("notes.txt", 1),
        ("hf/org/repo/sub/a-00001-of-00002.gguf", 3),
        ("hf/org/repo/sub/a-00002-of-00002.gguf", 4),
        ("hf/org/repo/b.gguf", 5),
    ] {
        fs::write(dir.path().join(name), content(len)).unwrap();
    }
    let smollm = ModelRef::default_model();
    let ModelRef::Catalog(entry) = &smollm else { panic!() };
    foreign_stamp(&dir.path().join("smollm2-135m.gguf"), entry.sha256);
    let mine = dir.path().join("mine.gguf").display().to_string();
    let listed: Vec<_> = store.list().unwrap().into_iter().map(|m| (m.name, m.bytes, m.verified)).collect();
    let expected = [
        ("smollm2-135m", 10, true),
        ("hf:org/repo:b.gguf", 5, false),
        ("hf:org/repo:sub/a-00001-of-00002.gguf", 7, false),
        (mine.as_str(), 20, false),
    ];
    assert_eq!(listed, expected.map(|(name, bytes, verified)| (name.to_owned(), bytes, verified)));
    for (name, bytes, _) in &listed {
        assert_eq!(store.remove(&ModelRef::parse(name).unwrap(), &mut Silent).unwrap(), *bytes, "{name}");
        assert!(matches!(
            store.remove(&ModelRef::parse(name).unwrap(), &mut Silent),
            Err(Error::NotInstalled(_))
        ));
    }
    assert_eq!(files_below(dir.path()), ["notes.txt"]);
}

#[cfg(unix)]
#[test]
fn a_store_that_cannot_be_written_still_serves_and_says_why_it_cannot_fetch() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = content(10);
    let blocked = dir.path().join("file");
    fs::write(&blocked, "").unwrap();
    let model = ModelRef::Catalog(entry("m", &bytes, vec![]));
    let error = offline(&blocked.join("store")).pull(&model, &mut Silent).unwrap_err();
    assert!(matches!(error, Error::Io(_)) && error.to_string().contains("file/store"), "{error}");
}
