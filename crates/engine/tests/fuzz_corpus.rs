//! Replays the fuzz corpora, and deterministic mutations of them, through the code of the fuzz targets.
//!
//! A failure names the file and the mutation, and leaves the input in a file for the fuzzer. The input being run is in a
//! file too, for what ends the whole process: a stack overflow, an allocation beyond all memory.

use std::any::Any;
use std::collections::BTreeSet;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use minfer_tokenizer::Kind;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

#[path = "../../../fuzz/src/lib.rs"]
mod targets;

/// Mutations of each file.
const MUTATIONS: u64 = 40;

/// No input may take longer; on an idle machine the slowest takes a small part of it.
const SLOWEST: Duration = Duration::from_secs(60);

/// The files of a target's corpus, by name.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut files: Vec<_> = entries
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&path).unwrap())
        })
        .collect();
    files.sort();
    files
}

fn scratch(target: &str, what: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{target}-{what}"))
}

/// Runs every file of a corpus, then mutations of it. What the files themselves reached; the first failure.
fn replay<R>(target: &str, corpus: &[(String, Vec<u8>)], run: impl Fn(&[u8]) -> R) -> Result<Vec<R>, String> {
    let running = scratch(target, "running");
    let try_one = |name: &str, input: &[u8]| {
        fs::write(&running, input).unwrap();
        let start = Instant::now();
        let result = panic::catch_unwind(AssertUnwindSafe(|| run(input)));
        let fail = |what: &str| {
            let kept = scratch(target, "failed");
            fs::write(&kept, input).unwrap();
            Err(format!("{target}: {name}: {what}; the input is in {}", kept.display()))
        };
        match result {
            Err(payload) => fail(&message(&*payload)),
            Ok(_) if start.elapsed() > SLOWEST => fail(&format!("took {:?}", start.elapsed())),
            Ok(reached) => Ok(reached),
        }
    };
    let mut reached = Vec::new();
    for (index, (name, input)) in corpus.iter().enumerate() {
        reached.push(try_one(name, input)?);
        let mut rng = Pcg64Mcg::seed_from_u64(index as u64);
        for n in 0..MUTATIONS {
            let other = &corpus[below(&mut rng, corpus.len())].1;
            try_one(&format!("{name}, mutation {n}"), &mutated(input, other, &mut rng))?;
        }
    }
    fs::remove_file(running).unwrap();
    Ok(reached)
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
}

fn below(rng: &mut Pcg64Mcg, n: usize) -> usize {
    (rng.next_u64() % n.max(1) as u64) as usize
}

/// Bit flips, cuts, extreme numbers, repetitions and splices with another file; one to four of them.
fn mutated(input: &[u8], other: &[u8], rng: &mut Pcg64Mcg) -> Vec<u8> {
    let mut out = input.to_vec();
    for _ in 0..=below(rng, 4) {
        let at = below(rng, out.len());
        match below(rng, 6) {
            0 => out.iter_mut().skip(at).take(1).for_each(|b| *b ^= 1 << below(rng, 8)),
            1 => out.truncate(at),
            2 => {
                let extreme =
                    [0u64, 1, u64::MAX, 1 << 63, i32::MAX as u64, 1 << 32][below(rng, 6)].to_le_bytes();
                let width = [1, 4, 8][below(rng, 3)];
                out.iter_mut().skip(at).zip(&extreme[..width]).for_each(|(b, e)| *b = *e);
            }
            3 => {
                let end = (at + below(rng, 64)).min(out.len());
                let piece = out[at..end].repeat(1 + below(rng, 8));
                out.splice(at..at, piece);
            }
            4 => drop(out.drain(at..(at + below(rng, 16)).min(out.len()))),
            _ => {
                let start = below(rng, other.len());
                let end = (start + below(rng, 200)).min(other.len());
                out.splice(at..at, other[start..end].iter().copied());
            }
        }
    }
    out
}

#[test]
fn gguf() {
    let corpus = corpus("gguf");
    let reached = replay("gguf", &corpus, targets::gguf::run).unwrap_or_else(|e| panic!("{e}"));
    // The corpus reaches what it is for.
    let ran: BTreeSet<_> =
        reached.iter().filter(|r| r.ran).filter_map(|r| r.architecture.as_deref()).collect();
    assert_eq!(ran, minfer_models::architectures().collect());
    for kind in [Kind::ByteLevelBpe, Kind::SentencePiece] {
        assert!(reached.iter().any(|r| r.vocabulary == Some(kind)), "{kind:?}");
    }
    assert!(reached.iter().any(|r| !r.parsed));
}

#[test]
fn tokenizer() {
    let corpus = corpus("tokenizer");
    let reached = replay("tokenizer", &corpus, targets::tokenizer::run).unwrap_or_else(|e| panic!("{e}"));
    let used: BTreeSet<_> = reached.into_iter().flatten().collect();
    assert_eq!(used.len(), targets::tokenizer::vocabularies(), "only {used:?}");
}

#[test]
fn template() {
    let corpus = corpus("template");
    let reached = replay("template", &corpus, targets::template::run).unwrap_or_else(|e| panic!("{e}"));
    assert!(reached.iter().filter(|r| r.rendered).count() >= 10, "{reached:?}");
    assert!(reached.iter().filter(|r| r.kept_apart).count() >= 3, "{reached:?}");
    assert!(reached.iter().any(|r| r.compiled && !r.rendered) && reached.iter().any(|r| !r.compiled));
}

/// Negative control: a target that fails is reported with the name of the file, and the input is kept.
#[test]
fn a_finding_is_reported_with_its_file() {
    let corpus = vec![("bad".to_owned(), b"xyz".to_vec()), ("good".to_owned(), b"aa".to_vec())];
    let error = replay("none", &corpus, |data| assert!(data != b"xyz", "found {data:?}")).unwrap_err();
    assert!(error.starts_with("none: bad: found [120, 121, 122]; the input is in "), "{error}");
    assert_eq!(fs::read(scratch("none", "failed")).unwrap(), b"xyz");
    // A mutation of a file is reported with its number.
    let error = replay("none", &corpus[1..], |data| assert_eq!(data, b"aa")).unwrap_err();
    assert!(error.starts_with("none: good, mutation "), "{error}");
    assert_ne!(fs::read(scratch("none", "failed")).unwrap(), b"aa");
    // Holding too much memory is a failure.
    let hog = |data: &[u8]| targets::memory::within(1000, "it", || vec![0u8; 400 * data.len()].len());
    let error = replay("none", &corpus[..1], hog).unwrap_err();
    assert!(error.contains("bad: it held 1200 bytes at once; 1000 were allowed"), "{error}");
}

/// The mutations change their input, each in its own way, and the same ones on every run.
#[test]
fn mutations_are_many_and_repeatable() {
    let input: Vec<u8> = (0..=255).collect();
    let all = || {
        let mut rng = Pcg64Mcg::seed_from_u64(1);
        (0..MUTATIONS).map(|_| mutated(&input, b"other", &mut rng)).collect::<Vec<_>>()
    };
    let distinct: BTreeSet<_> = all().into_iter().filter(|m| *m != input).collect();
    assert!(distinct.len() as u64 >= MUTATIONS - 2, "{}", distinct.len());
    assert_eq!(all(), all());
}
