//! Standard error: notices, and bars where a terminal shows them.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work that is done sooner than this shows no bar.
const PATIENCE: Duration = Duration::from_millis(400);

/// Prints lines. Where standard error cannot be written to, nobody is there to tell.
pub fn say(text: impl Display) {
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Says one line.
pub fn notice(line: &str) {
    say(format_args!("note: {}", one_line(line)));
}

/// Longest line that [`one_line`] makes, in characters, but for the mark where something was left out.
const LINE: usize = 1000;

/// A text as one line that a terminal can be given: without line breaks and control characters, and without the
/// middle of one that is too long. File names, and what files hold, may be anything.
pub fn one_line(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    let mut line = String::new();
    for c in words.join(" ").chars() {
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    let n = line.chars().count();
    if n > LINE {
        let head: String = line.chars().take(LINE / 2).collect();
        let tail: String = line.chars().skip(n - LINE / 2).collect();
        line = format!("{head} [… {} characters …] {tail}", n - LINE / 2 * 2);
    }
    line
}

/// A bar that appears once the work takes long enough to be worth one, and only on a terminal.
pub struct Bar {
    label: &'static str,
    style: &'static str,
    started: Instant,
    patience: Duration,
    bar: Option<ProgressBar>,
    allowed: bool,
}

const TRANSFER: &str = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
const BYTES: &str = "{msg} {wide_bar} {bytes}/{total_bytes}";
const COUNT: &str = "{msg} {wide_bar} {pos}/{len} {eta}";

impl Bar {
    /// A bar over bytes.
    pub fn bytes(label: &'static str) -> Self {
        Self::new(label, BYTES)
    }

    /// A bar over things that are counted.
    pub fn count(label: &'static str) -> Self {
        Self::new(label, COUNT)
    }

    fn new(label: &'static str, style: &'static str) -> Self {
        let allowed = std::io::stderr().is_terminal();
        Self { label, style, started: Instant::now(), patience: PATIENCE, bar: None, allowed }
    }

    /// The same bar, for work that is known to take long.
    pub fn at_once(mut self) -> Self {
        self.patience = Duration::ZERO;
        self
    }

    /// So much of the total is done.
    pub fn set(&mut self, done: u64, total: u64) {
        if !self.allowed || (self.bar.is_none() && (self.started.elapsed() < self.patience || done >= total))
        {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| make_bar(self.label.to_owned(), total, self.style));
        bar.set_position(done);
        if done >= total {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Shows transfers of the model store.
#[derive(Default)]
pub struct Transfers {
    bar: Option<ProgressBar>,
    /// What was said to be on its way; of another source of the same nothing needs to be said.
    announced: Option<String>,
}

impl minfer_hub::Progress for Transfers {
    fn start(&mut self, label: &str, total: u64) {
        if std::io::stderr().is_terminal() {
            self.bar = Some(make_bar(label.to_owned(), total, TRANSFER));
        } else if self.announced.as_deref() != Some(label) {
            notice(&format!("fetching {label} ({})", crate::output::human_bytes(total)));
            self.announced = Some(label.to_owned());
        }
    }

    fn advance(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
        }
    }

    fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn notice(&mut self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| notice(line)),
            None => notice(line),
        }
    }
}

fn make_bar(label: String, total: u64, style: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    // The templates are constants that parse.
    bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(label);
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_has_no_control_characters_and_an_end() {
        assert_eq!(one_line(" a\n  b\t\u{a0}c "), "a b c");
        assert_eq!(one_line("\u{1b}[31mred\u{7f}\u{9b}"), r"\u{1b}[31mred\u{7f}\u{9b}");
        let just = "é".repeat(LINE);
        assert_eq!(one_line(&just), just);
        let long = format!("{}{}", "a".repeat(LINE), "b".repeat(LINE));
        let half = LINE / 2;
        let wanted = format!("{} [… 1000 characters …] {}", "a".repeat(half), "b".repeat(half));
        assert_eq!(one_line(&long), wanted);
    }
}
