//! The negative control: each ordering of `state.rs` is weakened in turn, and some check must fail.
//!
//! A failed check can leave loom's threads in pieces, so every attempt is a process of its own.

use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::sync::checked::{Half, Weakening};

const SOURCE: &str = include_str!("../state.rs");

/// The checks of each machine, the quickest first.
const CHECKS: &[(&str, &[&str])] = &[
    ("Mailbox", &["one_job_is_handed_over_and_back"]),
    ("Completion", &["one_job_is_handed_over_and_back", "completion_of_two_workers_shows_both_writes"]),
    (
        "Barrier",
        &[
            "inv19_a_thread_that_leaves_or_fails_releases_one_that_waits",
            "barrier_of_two_shows_all_writes_round_after_round",
            "barrier_of_three_shows_all_writes",
        ],
    ),
];

/// What no check needs: the line, and the half that could go. It stays, since it costs nothing that can be measured.
const SPARE: &[(&str, Half)] = &[
    // Who wakes a worker reads nothing that the worker wrote.
    ("self.state.swap(POSTED, Ordering::AcqRel) == SLEEPING", Half::Acquire),
    // A closed mailbox comes with no data.
    ("self.state.swap(CLOSED, Ordering::AcqRel) == SLEEPING", Half::Acquire),
    ("self.state.swap(CLOSED, Ordering::AcqRel) == SLEEPING", Half::Release),
    // Who goes to sleep publishes nothing, and reads the word again before it acts.
    ("self.state.compare_exchange(EMPTY, SLEEPING, Ordering::AcqRel, Ordering::Acquire);", Half::Acquire),
    ("self.state.compare_exchange(EMPTY, SLEEPING, Ordering::AcqRel, Ordering::Acquire);", Half::Release),
    ("self.state.compare_exchange(EMPTY, SLEEPING, Ordering::AcqRel, Ordering::Acquire);", Half::Acquire),
    ("if self.word.fetch_or(Self::WAITING, Ordering::AcqRel) == 0 {", Half::Release),
    // The loop around this one loads the word once more.
    ("while self.word.load(Ordering::Acquire) != 0 {", Half::Acquire),
    (
        "|| self.word.0.compare_exchange(word, asleep, Ordering::AcqRel, Ordering::Relaxed).is_ok()",
        Half::Acquire,
    ),
    (
        "|| self.word.0.compare_exchange(word, asleep, Ordering::AcqRel, Ordering::Relaxed).is_ok()",
        Half::Release,
    ),
    // The last to arrive has seen the others' writes through `arrived`.
    (
        "match self.word.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {",
        Half::Acquire,
    ),
    // Who leaves reads nothing more.
    ("if self.word.0.fetch_or(bit, Ordering::AcqRel) & Self::SLEEPERS != 0 {", Half::Acquire),
];

/// One ordering of `state.rs` to weaken.
struct Attempt {
    weakening: Weakening,
    text: &'static str,
    checks: &'static [&'static str],
}

/// Every half of every ordering that `state.rs` asks for.
fn attempts() -> Vec<Attempt> {
    let code = SOURCE.split("#[cfg(all(test").next().unwrap();
    let mut all = Vec::new();
    let mut checks = None;
    for (line, text) in (1..).zip(code.lines()) {
        if let Some(machine) = text.strip_prefix("impl ").and_then(|rest| rest.strip_suffix(" {")) {
            checks = CHECKS.iter().find(|(name, _)| *name == machine).map(|(_, checks)| *checks);
        }
        for (slot, order) in (0..).zip(text.split("Ordering::").skip(1)) {
            let halves: &[Half] = match order.split([')', ',']).next().unwrap() {
                "Acquire" => &[Half::Acquire],
                "Release" => &[Half::Release],
                "AcqRel" => &[Half::Acquire, Half::Release],
                "Relaxed" => &[],
                other => panic!("Ordering::{other} in line {line}"),
            };
            let checks = checks.unwrap_or_else(|| panic!("no checks for line {line}"));
            all.extend(halves.iter().map(|&half| Attempt {
                weakening: Weakening { line, slot, half },
                text: text.trim(),
                checks,
            }));
        }
    }
    all
}

/// The first check that fails.
fn caught_by(Attempt { weakening, checks, .. }: &Attempt) -> Option<&'static str> {
    let program = std::env::current_exe().unwrap();
    checks.iter().copied().find(|check| {
        let output = Command::new(&program)
            .args(["--exact", &format!("pool::model::machines::{check}")])
            .env(Weakening::VARIABLE, weakening.to_string())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("running 1 test"), "no check {check}: {text}");
        assert!(!text.contains("asks for a half"), "{weakening}: {text}");
        !output.status.success()
    })
}

#[test]
fn weakening_any_ordering_is_noticed() {
    let attempts = attempts();
    let next = AtomicUsize::new(0);
    let unnoticed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(attempt) = attempts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match caught_by(attempt) {
                        Some(check) => println!("{} ({}): {check}", attempt.weakening, attempt.text),
                        None => unnoticed.lock().unwrap().push(attempt),
                    }
                }
            });
        }
    });
    let mut unnoticed = unnoticed.into_inner().unwrap();
    unnoticed.sort_by_key(|attempt| attempt.weakening.line);
    let unnoticed: Vec<_> = unnoticed.iter().map(|attempt| (attempt.text, attempt.weakening.half)).collect();
    assert_eq!(unnoticed, SPARE);
    assert!(attempts.len() > 2 * SPARE.len(), "{} attempts", attempts.len());
}
