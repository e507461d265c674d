//! The spellings that the argument parser cannot express.

use std::ffi::OsString;

/// Short options of several letters, with what they stand for.
const SPELLINGS: [(&str, &str); 2] = [("-tb", "--threads-batch"), ("-ngl", "--gpu-layers")];

/// Writes `-tb` as `--threads-batch` and the like: the parser knows single-letter short options only and would read `-t b`.
///
/// Nothing behind `--` is touched, nor is a text that is an option's value.
pub fn expand(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    const TAKE_TEXT: [&str; 5] = ["-p", "--prompt", "--system", "--stop", "--dry-sequence-breaker"];
    let mut plain = false;
    let mut is_value = false;
    let expand_one = |argument: OsString| {
        let Some(text) = argument.to_str() else { return argument };
        plain |= text == "--";
        let skip = plain || std::mem::replace(&mut is_value, TAKE_TEXT.contains(&text));
        let spelt = |&(short, long): &(&str, &str)| match text.strip_prefix(short)? {
            "" => Some(long.to_owned()),
            rest => rest.starts_with('=').then(|| format!("{long}{rest}")),
        };
        match SPELLINGS.iter().find_map(spelt).filter(|_| !skip) {
            Some(long) => long.into(),
            None => argument,
        }
    };
    arguments.into_iter().map(expand_one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(given: &str, wanted: &str) {
        let split = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(expand(split(given)), split(wanted));
    }

    #[test]
    fn tb_is_threads_batch() {
        check("minfer run -tb 4 -t 2", "minfer run --threads-batch 4 -t 2");
        check("minfer run -tb=4", "minfer run --threads-batch=4");
        check("minfer run -ngl 4 -n 2", "minfer run --gpu-layers 4 -n 2");
        check("minfer run -t 2 -tbx", "minfer run -t 2 -tbx");
    }

    #[test]
    fn texts_are_left_alone() {
        check("minfer run -- -tb", "minfer run -- -tb");
        check("minfer run -p -tb -tb 2", "minfer run -p -tb --threads-batch 2");
    }
}
