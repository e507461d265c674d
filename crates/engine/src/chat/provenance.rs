//! Which characters of a prompt came from the messages.
//!
//! A template may trim, slice, search, replace or quote what it is given, so the place of a message in the prompt cannot
//! be known from outside, and delimiters around it would change what the template does (`trim`, `startswith`, `==`).
//! So the template is run twice. The second time, characters of the messages that could take part in a control token are
//! exchanged one for one for private-use characters that occur nowhere else, their twins. The length of every string and
//! all whitespace stay the same. If the second prompt, with the twins changed back, equals the first, then the exchange
//! did not change the template's course, and each twin is at the place of a character that came from a message.
//!
//! If it does not equal the first, the template looked at an exchanged character, and fewer are exchanged:
//!
//! 1. all first and last characters of control tokens, wherever they stand in the messages. This holds even where a template
//!    edits messages so that a control token only then comes about.
//! 2. only control tokens that are spelled out, and beginnings or ends of one at the edges of a string.
//! 3. one after the other those control tokens whose exchange changes nothing. What remains is a control token that the
//!    template itself searches for. In the model's own replies that is how templates take reasoning apart, and
//!    it is left to the template. Anywhere else the conversation is refused.
//!
//! Conversations in which no message has a first or last character of a control token take one run only.
//!
//! Not covered: a template that prints both ends of a control token around a piece of a message (`'<|' + role + '|>'`)
//! makes a control token of it, as it means to; roles are to be checked before they come here.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde_json::{Map, Value};

use super::control::ControlTokens;
use super::{Rendered, TemplateError};

/// How many control tokens step 3 tries before it gives up.
const MAX_TRIES: usize = 64;

/// Supplementary Private Use Area-B: never assigned, never whitespace, without upper or lower case.
const TWINS: std::ops::RangeInclusive<char> = '\u{100000}'..='\u{10fffd}';

/// Finds the parts of `plain`, the prompt that `run` makes of `context`, to be tokenized as plain text.
pub(super) fn locate(
    control: &ControlTokens,
    context: &Map<String, Value>,
    plain: String,
    run: impl Fn(&Map<String, Value>) -> Result<String, TemplateError>,
) -> Result<Rendered, TemplateError> {
    let mut used: BTreeSet<char> = plain.chars().filter(|c| TWINS.contains(c)).collect();
    let mut suspicious = false;
    exchange(context, &mut |text, _| {
        suspicious |= text.chars().any(|c| control.is_edge(c));
        used.extend(text.chars().filter(|c| TWINS.contains(c)));
        Cow::Borrowed(text)
    });
    if !suspicious {
        return Ok(Rendered::new(plain, Vec::new()));
    }
    let twins = Twins::new(control.alphabet(), &used);
    let attempt = |mark: &mut dyn FnMut(&str, Speaker) -> String| -> Option<Vec<Range<usize>>> {
        let marked = run(&exchange(context, &mut |text, speaker| Cow::Owned(mark(text, speaker)))).ok()?;
        let (text, marks) = twins.undo(&marked);
        (text == plain).then_some(marks)
    };
    let found = |text: &str, wanted: &dyn Fn(usize) -> bool| -> Vec<Range<usize>> {
        let all = control.occurrences(text).chain(control.partial_ends(text));
        all.filter(|(token, _)| wanted(*token)).map(|(_, range)| range).collect()
    };
    let marks = attempt(&mut |text, _| twins.mark(text, |_, c| control.is_edge(c)))
        .or_else(|| attempt(&mut |text, _| twins.mark_ranges(text, &found(text, &|_| true))));
    let marks = match marks {
        Some(marks) => marks,
        None => {
            let mut open = BTreeSet::new();
            exchange(context, &mut |text, speaker| {
                let all = control.occurrences(text).chain(control.partial_ends(text));
                open.extend(all.map(|(token, _)| (speaker, token)));
                Cow::Borrowed(text)
            });
            let mut marked = BTreeSet::new();
            let mut marks = Vec::new();
            for (tries, &group) in open.iter().enumerate() {
                marked.insert(group);
                let done = (tries < MAX_TRIES)
                    .then(|| {
                        attempt(&mut |text, speaker| {
                            twins.mark_ranges(text, &found(text, &|token| marked.contains(&(speaker, token))))
                        })
                    })
                    .flatten();
                match done {
                    Some(found) => marks = found,
                    None if group.0 == Speaker::Model => _ = marked.remove(&group),
                    None => {
                        return Err(TemplateError::ControlText { token: control.text(group.1).to_owned() });
                    }
                }
            }
            marks
        }
    };
    let content = plain_runs(control, &plain, &marks);
    Ok(Rendered::new(plain, content))
}

/// Who wrote a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Speaker {
    Anyone,
    /// Content of an earlier reply of the model.
    Model,
}

/// Copies `context` with every string replaced by what `f` makes of it, except the field names of messages.
fn exchange(
    context: &Map<String, Value>,
    f: &mut impl FnMut(&str, Speaker) -> Cow<'_, str>,
) -> Map<String, Value> {
    let mut out = Map::new();
    for (name, value) in context {
        let value = match value {
            Value::Array(messages) if name == "messages" => messages
                .iter()
                .map(|message| match message {
                    Value::Object(fields) => {
                        let model = fields.get("role").and_then(Value::as_str) == Some("assistant");
                        let speaker = if model { Speaker::Model } else { Speaker::Anyone };
                        let fields = fields.iter().map(|(k, v)| (k.clone(), exchange_value(v, speaker, f)));
                        Value::Object(fields.collect())
                    }
                    other => exchange_value(other, Speaker::Anyone, f),
                })
                .collect(),
            other => exchange_value(other, Speaker::Anyone, f),
        };
        out.insert(name.clone(), value);
    }
    out
}

fn exchange_value(
    value: &Value,
    speaker: Speaker,
    f: &mut impl FnMut(&str, Speaker) -> Cow<'_, str>,
) -> Value {
    match value {
        Value::String(text) => Value::String(f(text, speaker).into_owned()),
        Value::Array(items) => items.iter().map(|item| exchange_value(item, speaker, f)).collect(),
        Value::Object(fields) => Value::Object(
            fields.iter().map(|(k, v)| (f(k, speaker).into_owned(), exchange_value(v, speaker, f))).collect(),
        ),
        other => other.clone(),
    }
}

/// A private-use character for each character of a control token.
struct Twins {
    to: BTreeMap<char, char>,
    back: BTreeMap<char, char>,
}

impl Twins {
    /// Characters for which no twin is left (the text would have to use nearly all of 65,534) stay unmarked.
    fn new(alphabet: BTreeSet<char>, used: &BTreeSet<char>) -> Self {
        let free = TWINS.filter(|c| !used.contains(c));
        let to: BTreeMap<char, char> = alphabet.into_iter().zip(free).collect();
        let back = to.iter().map(|(&c, &twin)| (twin, c)).collect();
        Self { to, back }
    }

    fn mark(&self, text: &str, marked: impl Fn(usize, char) -> bool) -> String {
        let twin = |(at, c)| if marked(at, c) { self.to.get(&c).copied().unwrap_or(c) } else { c };
        text.char_indices().map(twin).collect()
    }

    fn mark_ranges(&self, text: &str, ranges: &[Range<usize>]) -> String {
        // How many ranges begin minus how many end, per byte: linear, however many there are.
        let mut depth = vec![0i32; text.len() + 1];
        for range in ranges {
            depth[range.start] += 1;
            depth[range.end] -= 1;
        }
        let mut open = 0;
        depth.iter_mut().for_each(|d| {
            open += *d;
            *d = open;
        });
        self.mark(text, |at, _| depth[at] > 0)
    }

    /// The text with twins changed back, and where they were.
    fn undo(&self, marked: &str) -> (String, Vec<Range<usize>>) {
        let mut text = String::with_capacity(marked.len());
        let mut marks: Vec<Range<usize>> = Vec::new();
        for c in marked.chars() {
            let Some(&original) = self.back.get(&c) else {
                text.push(c);
                continue;
            };
            let start = text.len();
            text.push(original);
            match marks.last_mut() {
                Some(last) if last.end == start => last.end = text.len(),
                _ => marks.push(start..text.len()),
            }
        }
        (text, marks)
    }
}

/// The stretches between the template's control tokens in which a message spells one.
fn plain_runs(control: &ControlTokens, text: &str, marks: &[Range<usize>]) -> Vec<Range<usize>> {
    let is_marked = |range: &Range<usize>| {
        let next = marks.partition_point(|m| m.end <= range.start);
        marks.get(next).is_some_and(|m| m.start < range.end)
    };
    let (foreign, mut own): (Vec<_>, Vec<_>) = control.occurrences(text).map(|(_, r)| r).partition(is_marked);
    // As the tokenizer finds them: leftmost, then longest.
    own.sort_by_key(|r| (r.start, std::cmp::Reverse(r.end)));
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut pos = 0;
    for token in own.into_iter().chain(std::iter::once(text.len()..text.len())) {
        if token.start >= pos {
            runs.push(pos..token.start);
            pos = token.end;
        }
    }
    let mut foreign = foreign;
    foreign.sort_by_key(|r| r.start);
    let mut plain = vec![false; runs.len()];
    for range in &foreign {
        let first = runs.partition_point(|run| run.end <= range.start);
        for (run, plain) in runs[first..].iter().zip(&mut plain[first..]) {
            if run.start >= range.end {
                break;
            }
            *plain = true;
        }
    }
    runs.into_iter().zip(plain).filter(|(run, plain)| *plain && !run.is_empty()).map(|(run, _)| run).collect()
}
