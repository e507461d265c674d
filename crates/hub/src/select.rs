//! Which files of a hub repository make the model that was asked for.

use crate::error::SelectError;
use crate::model_ref::{Selector, has_gguf_ending, is_safe_relative};

/// Tried in this order when no quantization is named: first the common 4-bit ones, then outwards.
const PREFERENCE: &[&str] = &[
    "Q4_K_M", "Q4_0", "Q4_K_S", "Q4_1", "IQ4_NL", "IQ4_XS", "Q5_K_M", "Q5_K_S", "Q5_0", "Q5_1", "Q8_0",
    "Q6_K", "Q3_K_M", "Q2_K", "BF16", "F16", "F32",
];

/// One model of a repository: a file, or all shards of one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Candidate<'a> {
    files: Vec<&'a str>,
    /// Shards it should have; 0 for a whole file.
    total: u32,
}

/// The files, in shard order, of the one model in `files` that `selector` means.
pub(crate) fn select<'a>(
    repo: &str,
    files: impl Iterator<Item = &'a str>,
    selector: &Selector,
) -> Result<Vec<&'a str>, SelectError> {
    let candidates = group(repo, files.filter(|name| has_gguf_ending(name)))?;
    if candidates.is_empty() {
        return Err(SelectError::NoGguf { repo: repo.to_owned() });
    }
    // Projectors and importance matrices are GGUF files too, but only when named are they what is wanted.
    let models = || candidates.iter().filter(|c| !is_companion(c.files[0]));
    let chosen = match selector {
        Selector::File(file) => {
            let exact: Vec<_> = candidates.iter().filter(|c| c.files.contains(&file.as_str())).collect();
            let by_name =
                || candidates.iter().filter(|c| c.files.iter().any(|f| base_name(f) == file)).collect();
            let found = if exact.is_empty() { by_name() } else { exact };
            only(repo, file, found, &candidates)?
        }
        Selector::Quant(quant) => {
            let found = models().filter(|c| has_quant(c.files[0], quant)).collect();
            only(repo, quant, found, &candidates)?
        }
        Selector::Default => {
            let preferred = PREFERENCE.iter().find_map(|quant| {
                let found: Vec<_> = models().filter(|c| has_quant(c.files[0], quant)).collect();
                (!found.is_empty()).then_some((*quant, found))
            });
            let (what, found) = preferred.unwrap_or_else(|| ("the default", models().collect()));
            only(repo, what, found, &candidates)?
        }
    };
    complete(repo, chosen)
}

fn only<'c, 'a>(
    repo: &str,
    selector: &str,
    found: Vec<&'c Candidate<'a>>,
    all: &[Candidate<'a>],
) -> Result<&'c Candidate<'a>, SelectError> {
    let names =
        |list: &mut dyn Iterator<Item = &Candidate<'a>>| list.map(|c| c.files[0].to_owned()).collect();
    let (repo, selector) = (repo.to_owned(), selector.to_owned());
    match found[..] {
        [one] => Ok(one),
        [] => Err(SelectError::NoMatch { repo, selector, candidates: names(&mut all.iter()) }),
        _ => Err(SelectError::Ambiguous { repo, selector, candidates: names(&mut found.iter().copied()) }),
    }
}

fn complete<'a>(repo: &str, candidate: &Candidate<'a>) -> Result<Vec<&'a str>, SelectError> {
    for number in 1..=candidate.total {
        // A lying total does no harm: the first number without a file ends the loop.
        let there = candidate.files.get(number as usize - 1).and_then(|name| shard_of(name));
        if there.is_none_or(|(_, at, _)| at != number) {
            return Err(SelectError::MissingShard {
                repo: repo.to_owned(),
                model: candidate.files[0].to_owned(),
                total: candidate.total,
                missing: number,
            });
        }
    }
    Ok(candidate.files.clone())
}

/// Gathers shards; every name is checked before it can become a path.
fn group<'a>(repo: &str, files: impl Iterator<Item = &'a str>) -> Result<Vec<Candidate<'a>>, SelectError> {
    let mut sorted: Vec<&str> = files.collect();
    sorted.sort_unstable();
    sorted.dedup();
    let mut candidates: Vec<Candidate<'a>> = Vec::new();
    for name in sorted {
        if !is_safe_relative(name) {
            return Err(SelectError::UnsafeName { repo: repo.to_owned(), file: name.to_owned() });
        }
        match shard_of(name) {
            None => candidates.push(Candidate { files: vec![name], total: 0 }),
            Some((stem, _, total)) => {
                // Sorted names keep the shards of a model together and in order.
                let last = candidates.last_mut().filter(|c| {
                    shard_of(c.files[0]).is_some_and(|(other, _, of)| (other, of) == (stem, total))
                });
                match last {
                    Some(candidate) => candidate.files.push(name),
                    None => candidates.push(Candidate { files: vec![name], total }),
                }
            }
        }
    }
    Ok(candidates)
}

/// `(stem, number, total)` of `stem-00001-of-00003.gguf`.
pub(crate) fn shard_of(name: &str) -> Option<(&str, u32, u32)> {
    let stem = has_gguf_ending(name).then(|| &name[..name.len() - 5])?;
    let (rest, total) = stem.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| {
        let plain = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| text.parse().ok()).flatten()
    };
    Some((stem, digits(number)?, digits(total).filter(|total| *total > 0)?))
}

/// All files of the model that `name` is a file of, by the naming of shards alone.
pub(crate) fn shards_of(name: &str) -> Vec<String> {
    match shard_of(name) {
        Some((stem, _, total)) => (1..=total).map(|n| format!("{stem}-{n:05}-of-{total:05}.gguf")).collect(),
        None => vec![name.to_owned()],
    }
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn is_companion(path: &str) -> bool {
    let name = base_name(path).to_ascii_lowercase();
    name.contains("mmproj") || name.contains("imatrix")
}

/// Whether `path` names the quantization `quant`, as a whole word: `Q4_K` is not in `…-Q4_K_M.gguf`, nor `Q4_XS` in
/// `…-IQ4_XS.gguf`.
fn has_quant(path: &str, quant: &str) -> bool {
    let (path, quant) = (path.to_ascii_lowercase(), quant.to_ascii_lowercase());
    path.match_indices(&quant).any(|(at, _)| {
        let before = path[..at].chars().next_back();
        let after = path[at + quant.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pick<'a>(files: &[&'a str], selector: Selector) -> Result<Vec<&'a str>, SelectError> {
        select("o/r", files.iter().copied(), &selector)
    }

    fn quant(text: &str) -> Selector {
        Selector::Quant(text.into())
    }

    fn file(text: &str) -> Selector {
        Selector::File(text.into())
    }

    const PLAIN: &[&str] = &[
        "README.md",
        "m-IQ4_XS.gguf",
        "m-Q4_0.gguf",
        "m-Q4_0_4_4.gguf",
        "m-Q4_K_M.gguf",
        "m-Q8_0.gguf",
        "mmproj-m-Q8_0.gguf",
    ];

    #[test]
    fn a_quantization_is_a_whole_word_in_any_case() {
        assert_eq!(pick(PLAIN, quant("q4_k_m")).unwrap(), ["m-Q4_K_M.gguf"]);
        assert_eq!(pick(PLAIN, quant("Q4_0")).unwrap(), ["m-Q4_0.gguf"]);
        assert_eq!(pick(PLAIN, quant("q8_0")).unwrap(), ["m-Q8_0.gguf"]);
        for none in ["Q4_K", "Q4_XS", "Q4", "gguf9"] {
            assert!(matches!(pick(PLAIN, quant(none)), Err(SelectError::NoMatch { .. })), "{none}");
        }
        assert_eq!(pick(&["a.Q4_1.gguf", "a_q5_0.gguf"], quant("Q5_0")).unwrap(), ["a_q5_0.gguf"]);
    }

    #[test]
    fn without_a_quantization_the_preference_decides() {
        assert_eq!(pick(PLAIN, Selector::Default).unwrap(), ["m-Q4_K_M.gguf"]);
        assert_eq!(pick(&["m-F16.gguf", "m-Q8_0.gguf"], Selector::Default).unwrap(), ["m-Q8_0.gguf"]);
        assert_eq!(pick(&["strange.gguf"], Selector::Default).unwrap(), ["strange.gguf"]);
        let two = pick(&["a.gguf", "b.gguf"], Selector::Default);
        assert!(matches!(two, Err(SelectError::Ambiguous { .. })), "{two:?}");
        assert!(matches!(pick(&["README.md"], Selector::Default), Err(SelectError::NoGguf { .. })));
        assert!(pick(&["mmproj.gguf"], Selector::Default).is_err());
    }

    #[test]
    fn two_that_fit_are_listed() {
        let files = ["m-Q4_K_M.gguf", "m-UD-Q4_K_M.gguf"];
        let error = pick(&files, quant("Q4_K_M")).unwrap_err();
        let SelectError::Ambiguous { candidates, .. } = &error else { panic!("{error:?}") };
        assert_eq!(candidates, &files);
        assert_eq!(pick(&files, quant("UD-Q4_K_M")).unwrap(), ["m-UD-Q4_K_M.gguf"]);
    }

    #[test]
    fn a_file_is_found_by_path_or_by_unique_name() {
        let files = ["a/x.gguf", "b/x.gguf", "b/y.gguf", "mmproj.gguf"];
        assert_eq!(pick(&files, file("b/x.gguf")).unwrap(), ["b/x.gguf"]);
        assert_eq!(pick(&files, file("y.gguf")).unwrap(), ["b/y.gguf"]);
        assert_eq!(pick(&files, file("mmproj.gguf")).unwrap(), ["mmproj.gguf"]);
        assert!(matches!(pick(&files, file("x.gguf")), Err(SelectError::Ambiguous { .. })));
        assert!(matches!(pick(&files, file("z.gguf")), Err(SelectError::NoMatch { .. })));
    }

    #[test]
    fn shards_come_together_or_the_missing_one_is_named() {
        let files =
            ["Q8_0/m-00002-of-00002.gguf", "Q8_0/m-00001-of-00002.gguf", "q-Q4_0-00001-of-00003.gguf"];
        let both = ["Q8_0/m-00001-of-00002.gguf", "Q8_0/m-00002-of-00002.gguf"];
        assert_eq!(pick(&files, quant("Q8_0")).unwrap(), both);
        assert_eq!(pick(&files, file("m-00002-of-00002.gguf")).unwrap(), both);
        let error = pick(&files, quant("Q4_0")).unwrap_err();
        assert!(matches!(error, SelectError::MissingShard { missing: 2, total: 3, .. }), "{error:?}");
        let late = pick(&["m-00002-of-00002.gguf"], Selector::Default).unwrap_err();
        assert!(matches!(late, SelectError::MissingShard { missing: 1, .. }), "{late:?}");
        assert!(pick(&["m-00001-of-99999.gguf"], Selector::Default).is_err());
        assert_eq!(shard_of("m-00001-of-00000.gguf"), None);
        assert_eq!(shard_of("m-1-of-2.gguf"), None);
    }

    #[test]
    fn a_name_that_would_leave_the_folder_is_refused() {
        for name in [
            "../m.gguf",
            "/etc/m.gguf",
            "a/../../m.gguf",
            "a\\..\\m.gguf",
            "C:m.gguf",
            "a//m.gguf",
            "m\n.gguf",
            "./m.gguf",
        ] {
            let error = pick(&["ok-Q4_0.gguf", name], Selector::Default).unwrap_err();
            assert!(matches!(error, SelectError::UnsafeName { .. }), "{name:?}: {error:?}");
        }
        assert_eq!(pick(&["ok-Q4_0.gguf", "../README.md"], Selector::Default).unwrap(), ["ok-Q4_0.gguf"]);
    }
}
