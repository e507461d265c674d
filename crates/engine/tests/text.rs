//! Streaming text: partial characters, stop strings, and that streaming changes nothing.

use minfer_engine::text::{Delta, EmptyStop, StopMatcher, TextStream, Utf8Stream};
use proptest::prelude::*;

fn stream(stops: &[&str], pieces: &[&[u8]]) -> (Vec<String>, Option<usize>) {
    let mut stream = TextStream::new(stops).unwrap();
    let mut texts = Vec::new();
    let mut stopped = None;
    for piece in pieces {
        let delta = stream.push(piece);
        texts.push(delta.text.to_owned());
        stopped = delta.stopped;
        if stopped.is_some() {
            break;
        }
    }
    let last = stream.finish();
    texts.push(last.text.to_owned());
    (texts, stopped.or(last.stopped))
}

/// What a reader of the whole output would see: cut before the stop string that ends first, the longest on a tie.
fn whole(stops: &[&str], bytes: &[u8]) -> (String, Option<usize>) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let ends = |i: usize| text.find(stops[i]).map(|at| (at + stops[i].len(), at, i));
    match (0..stops.len()).filter_map(ends).min() {
        Some((_, at, index)) => (text[..at].to_owned(), Some(index)),
        None => (text, None),
    }
}

#[test]
fn u01_character_split_over_tokens_comes_whole() {
    let (texts, _) = stream(&[], &[b"\xf0\x9f", b"\xa6\x99", b"!"]);
    assert_eq!(texts, ["", "🦙", "!", ""]);
    let (texts, _) = stream(&[], &[b"a\xf0", b"\x9f", b"\xa6", b"\x99\xe2\x82", b"\xac"]);
    assert_eq!(texts, ["a", "", "", "🦙", "€", ""]);
    let mut utf8 = Utf8Stream::new();
    let mut out = String::new();
    utf8.push(b"\xe2\x82", &mut out);
    assert!(utf8.is_pending() && out.is_empty());
}

#[test]
fn u02_invalid_bytes_become_replacement_characters_and_the_stream_ends() {
    // A continuation byte on its own, a start byte followed by none, bytes that are never valid.
    let (texts, stopped) = stream(&[], &[b"a\x80", b"\xc3", b"(", b"\xff\xfe", b"z"]);
    assert_eq!((texts.concat().as_str(), stopped), ("a\u{fffd}\u{fffd}(\u{fffd}\u{fffd}z", None));
    // The end inside a character: one mark for what is unfinished.
    let (texts, _) = stream(&[], &[b"ok\xf0\x9f", b"\xa6"]);
    assert_eq!(texts, ["ok", "", "\u{fffd}"]);
    // Surrogates, overlong forms and code points above U+10FFFF.
    for bytes in [&b"\xed\xa0\x80"[..], b"\xc0\xaf", b"\xf4\x90\x80\x80"] {
        let pieces: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(stream(&[], &pieces).0.concat(), String::from_utf8_lossy(bytes));
    }
}

#[test]
fn u03_stop_string_spanning_tokens_never_leaks() {
    let (texts, stopped) = stream(&["\n\nUser"], &[b"Hi.", b"\n", b"\nUs", b"er", b" more"]);
    assert_eq!((texts, stopped), (["Hi.", "", "", "", ""].map(String::from).to_vec(), Some(0)));
    // Not a stop string in the end: what was held comes out whole.
    let (texts, stopped) = stream(&["\n\nUser"], &[b"Hi.", b"\n", b"\nUs", b"ing"]);
    assert_eq!((texts, stopped), (["Hi.", "", "", "\n\nUsing", ""].map(String::from).to_vec(), None));
    // The end of the text releases an unfinished stop string.
    let (texts, stopped) = stream(&["\n\nUser"], &[b"Hi.\n\nUs"]);
    assert_eq!((texts, stopped), (["Hi.", "\n\nUs"].map(String::from).to_vec(), None));
    // Only what can still become one is held: of "aab", "aaa" can keep two.
    let (texts, _) = stream(&["aab"], &[b"a", b"a", b"a", b"c"]);
    assert_eq!(texts, ["", "", "a", "aac", ""]);
    // Several: the first to end; the longest of those that end together.
    let (texts, stopped) = stream(&["xyz", "User", "\nUser"], &[b"a\nUs", b"er xyz"]);
    assert_eq!((texts.concat().as_str(), stopped), ("a", Some(2)));
    let (texts, stopped) = stream(&["bcdX", "cd"], &[b"ab", b"c", b"dX"]);
    assert_eq!((texts.concat().as_str(), stopped), ("ab", Some(1)));
    // Stop strings of several bytes per character, cut inside a character.
    let (texts, stopped) = stream(&["終了"], &[b"\xe7\xb5", b"\x82\xe4", b"\xba\x86!"]);
    assert_eq!((texts.concat().as_str(), stopped), ("", Some(0)));
    // A stop string may itself be the mark of an invalid byte, found only at the end.
    let (texts, stopped) = stream(&["\u{fffd}"], &[b"ok\xf0\x9f"]);
    assert_eq!((texts.concat().as_str(), stopped), ("ok", Some(0)));
}

#[test]
fn u03_matching_is_linear_and_holds_little() {
    // The worst case of a naive matcher: 20,000 repeats checked at each of 2,000,000 bytes.
    let stop = "a".repeat(20_000) + "b";
    let mut matcher = StopMatcher::new(&[&stop]).unwrap();
    let text = "a".repeat(2_000_000);
    let mut out = String::new();
    for piece in text.as_bytes().chunks(7) {
        assert_eq!(matcher.push(std::str::from_utf8(piece).unwrap(), &mut out), None);
    }
    assert_eq!(out.len(), 2_000_000 - 20_000);
    assert_eq!(matcher.push("b", &mut out), Some(0));
    assert_eq!((out.len(), matcher.stopped()), (2_000_000 - 20_000, Some(0)));
    matcher.finish(&mut out);
    assert_eq!(matcher.push("later", &mut out), Some(0));
    assert_eq!(out.len(), 2_000_000 - 20_000);
}

#[test]
fn empty_stop_string_is_refused() {
    assert_eq!(TextStream::new(&["a", ""]).unwrap_err(), EmptyStop { index: 1 });
    assert_eq!(TextStream::default().push(b"x"), Delta { text: "x", stopped: None });
}

/// Bytes over a small alphabet, so that stop strings and broken characters are common.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let part = prop::sample::select(vec![
        &b"a"[..],
        b"b",
        b"\n",
        b"ab",
        "é".as_bytes(),
        "🦙".as_bytes(),
        b"\xf0\x9f",
        b"\xa6\x99",
        b"\xc3",
        b"\xff",
    ]);
    prop::collection::vec(part, 0..40).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn u07_concatenated_deltas_equal_the_whole(
        bytes in bytes(),
        cuts in prop::collection::vec(0usize..8, 1..60),
        stops in prop::collection::vec("[ab\né🦙]{1,5}", 0..4),
    ) {
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let mut pieces: Vec<&[u8]> = Vec::new();
        let mut rest = bytes.as_slice();
        for cut in cuts.iter().cycle().take(bytes.len() * 8 + 8) {
            let (piece, after) = rest.split_at((*cut).min(rest.len()));
            pieces.push(piece);
            rest = after;
        }
        pieces.push(rest);
        let (texts, stopped) = stream(&stops, &pieces);
        prop_assert_eq!((texts.concat(), stopped), whole(&stops, &bytes));
    }
}
