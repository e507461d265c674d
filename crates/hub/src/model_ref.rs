//! What a person writes to name a model.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::catalog::{self, CATALOG, Entry};
use crate::error::Error;

/// A model by name: what `-m` and `pull` take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelRef {
    /// A file of the user's own.
    Path(PathBuf),
    /// An entry of the catalog.
    Catalog(&'static Entry),
    /// A model in a repository of the Hugging Face hub.
    Hub(HubRef),
}

/// `hf:org/repo[:quant|file]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubRef {
    /// `org/name`; both halves are plain names.
    pub repo: String,
    /// Which of its models.
    pub selector: Selector,
}

/// Which model of a repository is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// The first that the repository has of Q4_K_M, Q4_0, Q4_K_S, Q4_1, IQ4_NL, IQ4_XS, Q5_K_M, Q5_K_S, Q5_0, Q5_1,
    /// Q8_0, Q6_K, Q3_K_M, Q2_K, BF16, F16, F32; else its only model.
    Default,
    /// A quantization, such as `Q4_K_M`, in any case.
    Quant(String),
    /// A file; its path in the repository, or its bare name where that is unique.
    File(String),
}

impl ModelRef {
    /// Reads a model's name.
    ///
    /// An existing file, and anything with a path separator or the ending `.gguf`, is a path (whether it exists is found
    /// out when it is opened); then come `hf:` names and catalog names.
    ///
    /// # Errors
    /// [`Error::UnknownModel`] with similar names; [`Error::BadName`] for a name that is empty, holds control
    /// characters, or would leave the store's folder; [`Error::Meant`] for a repository or an address of the hub that is not
    /// written as `hf:…`.
    pub fn parse(name: &str) -> Result<Self, Error> {
        let bad = |reason| Err(Error::BadName { name: name.to_owned(), reason });
        if name.is_empty() {
            return bad("it is empty");
        }
        if let Some(rest) = name.strip_prefix("hf:") {
            return HubRef::parse(rest).map_or_else(bad, |hub| Ok(ModelRef::Hub(hub)));
        }
        if name.contains('\0') {
            return bad("it holds a NUL byte");
        }
        if Path::new(name).is_file() {
            return Ok(ModelRef::Path(PathBuf::from(name)));
        }
        if name.chars().any(char::is_control) {
            return bad("it holds a control character");
        }
        if let Some(entry) = catalog::find(name) {
            return Ok(ModelRef::Catalog(entry));
        }
        if let Some(meant) = meant_hub(name) {
            return Err(Error::Meant { name: name.to_owned(), meant });
        }
        if name.contains("://") {
            return bad(
                "it is an address; a model is a path, a name of the catalog, or hf:org/repo[:quant|file]",
            );
        }
        let separator = name.contains('/') || name.contains(std::path::MAIN_SEPARATOR);
        if separator || has_gguf_ending(name) || Path::new(name).exists() {
            return Ok(ModelRef::Path(PathBuf::from(name)));
        }
        let known = CATALOG.iter().map(|entry| entry.name).collect();
        Err(Error::UnknownModel { name: name.to_owned(), near: catalog::near(name), known })
    }

    /// The model used when none is named.
    pub fn default_model() -> Self {
        let entry = catalog::find(catalog::DEFAULT_MODEL).unwrap_or(&CATALOG[0]);
        ModelRef::Catalog(entry)
    }
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelRef::Path(path) => write!(f, "{}", path.display()),
            ModelRef::Catalog(entry) => f.write_str(entry.name),
            ModelRef::Hub(hub) => write!(f, "{hub}"),
        }
    }
}

impl HubRef {
    /// Reads what follows `hf:`; the error is the reason it is refused.
    fn parse(text: &str) -> Result<Self, &'static str> {
        let (repo, selector) = match text.split_once(':') {
            Some((repo, selector)) => (repo, Some(selector)),
            None => (text, None),
        };
        let Some((org, model)) = repo.split_once('/') else {
            return Err("expected hf:org/repo[:quant|file]");
        };
        if model.contains('/') {
            return Err("a repository is org/repo; a file in it follows a colon: hf:org/repo:file.gguf");
        }
        if !is_repo_part(org) || !is_repo_part(model) {
            return Err("organization and repository are made of letters, digits, '-', '_' and '.'");
        }
        let selector = match selector {
            None => Selector::Default,
            Some(file) if has_gguf_ending(file) => {
                if !is_safe_relative(file) {
                    return Err("the file's path would leave the model's folder");
                }
                Selector::File(file.to_owned())
            }
            Some(quant) if is_repo_part(quant) => Selector::Quant(quant.to_owned()),
            Some(_) => return Err("after the colon comes a quantization (Q4_K_M) or a file (….gguf)"),
        };
        Ok(HubRef { repo: repo.to_owned(), selector })
    }
}

impl fmt::Display for HubRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}", self.repo)?;
        match &self.selector {
            Selector::Default => Ok(()),
            Selector::Quant(text) | Selector::File(text) => write!(f, ":{text}"),
        }
    }
}

/// The `hf:` name of what is written as other programs write it: an address of the hub, `hf.co/org/repo[:quant]`, or a bare
/// `org/repo` where no such path is.
fn meant_hub(name: &str) -> Option<String> {
    const HOSTS: [&str; 3] = ["huggingface.co/", "www.huggingface.co/", "hf.co/"];
    let bare = name.strip_prefix("https://").or_else(|| name.strip_prefix("http://")).unwrap_or(name);
    let on_hub = HOSTS.iter().find_map(|host| bare.strip_prefix(host));
    let Some(path) = on_hub else {
        let hub = HubRef::parse(name).ok().filter(|_| !has_gguf_ending(name) && !Path::new(name).exists())?;
        return Some(hub.to_string());
    };
    let path = path.split(['?', '#']).next().unwrap_or(path);
    let mut parts = path.splitn(5, '/').filter(|part| !part.is_empty());
    let repo = format!("{}/{}", parts.next()?, parts.next()?);
    // org/repo/resolve/REVISION/FILE, also with blob or raw.
    let file = parts.nth(2).filter(|file| has_gguf_ending(file));
    let text = file.map_or_else(|| repo.clone(), |file| format!("{repo}:{file}"));
    HubRef::parse(&text).ok().map(|hub| hub.to_string())
}

pub(crate) fn has_gguf_ending(name: &str) -> bool {
    let tail = name.len().checked_sub(5).and_then(|at| name.get(at..));
    tail.is_some_and(|tail| tail.eq_ignore_ascii_case(".gguf"))
}

/// A plain name: one path component on every system, never hidden, never `..`.
fn is_repo_part(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 96
        && !text.starts_with(['.', '-'])
        && !text.ends_with('.')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

/// Whether joining `path` to a folder stays inside that folder, on every system, and touches no hidden file.
pub(crate) fn is_safe_relative(path: &str) -> bool {
    path.len() <= 512
        && path.split('/').all(|part| {
            !part.is_empty()
                && part.len() <= 200
                && !part.starts_with('.')
                && !part.ends_with(['.', ' '])
                && !part.chars().any(|c| c.is_control() || "\\:*?\"<>|".contains(c))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(repo: &str, selector: Selector) -> ModelRef {
        ModelRef::Hub(HubRef { repo: repo.into(), selector })
    }

    #[test]
    fn the_three_kinds() {
        let parse = |name: &str| ModelRef::parse(name).unwrap();
        assert_eq!(parse("smollm2-135m"), ModelRef::Catalog(&CATALOG[0]));
        assert_eq!(parse("no/such/dir"), ModelRef::Path("no/such/dir".into()));
        assert_eq!(parse("../up/model"), ModelRef::Path("../up/model".into()));
        assert_eq!(parse("model.GGUF"), ModelRef::Path("model.GGUF".into()));
        assert_eq!(parse("hf:a/b"), hub("a/b", Selector::Default));
        assert_eq!(parse("hf:a/b-1.5_x:q4_k_m"), hub("a/b-1.5_x", Selector::Quant("q4_k_m".into())));
        assert_eq!(parse("hf:a/b:sub/c.gguf"), hub("a/b", Selector::File("sub/c.gguf".into())));
        assert_eq!(ModelRef::default_model().to_string(), "smollm2-135m");
    }

    #[test]
    fn an_existing_file_is_a_path_whatever_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("odd\u{1}name");
        std::fs::write(&file, "x").unwrap();
        let name = file.to_str().unwrap();
        assert_eq!(ModelRef::parse(name).unwrap(), ModelRef::Path(file.clone()));
        std::fs::remove_file(&file).unwrap();
        assert!(matches!(ModelRef::parse(name), Err(Error::BadName { .. })));
    }

    #[test]
    fn names_round_trip() {
        for name in ["smollm2-135m", "x/y.gguf", "hf:a/b", "hf:a/b:Q4_0", "hf:a/b:c/d.gguf"] {
            assert_eq!(ModelRef::parse(name).unwrap().to_string(), name);
        }
    }

    #[test]
    fn hostile_and_malformed_names_are_refused() {
        let long = format!("hf:a/{}", "b".repeat(97));
        for name in [
            "",
            "a\nb",
            "a\0b",
            "hf:",
            "hf:a",
            "hf:a/",
            "hf:/b",
            "hf:../b",
            "hf:a/..",
            "hf:a/b/c",
            "hf:a/b:",
            "hf:a/.b",
            "hf:a/b:../c.gguf",
            "hf:a/b:/c.gguf",
            "hf:a/b:c/../../d.gguf",
            "hf:a/b:c\\d.gguf",
            "hf:a/b:.hidden.gguf",
            "hf:a/b:c\nd.gguf",
            "hf:a b/c",
            "hf:a/b:Q4 K",
            "hf:a/b:C:c.gguf",
            "hf:a/b?x=1",
            "hf:a/b#f",
            "hf:a@b/c",
            &long,
        ] {
            let result = ModelRef::parse(name);
            assert!(matches!(result, Err(Error::BadName { .. })), "{name:?}: {result:?}");
        }
    }

    #[test]
    fn what_other_programs_call_a_model_is_refused_with_its_name_here() {
        for (name, wanted) in [
            ("Qwen/Qwen2.5-0.5B-Instruct-GGUF", "hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF"),
            ("a/b:q4_0", "hf:a/b:q4_0"),
            ("hf.co/a/b:Q4_0", "hf:a/b:Q4_0"),
            ("https://huggingface.co/a/b", "hf:a/b"),
            ("https://huggingface.co/a/b/", "hf:a/b"),
            ("https://huggingface.co/a/b/tree/main", "hf:a/b"),
            ("https://huggingface.co/a/b/resolve/main/c/d.gguf?download=true", "hf:a/b:c/d.gguf"),
            ("http://huggingface.co/a/b/blob/main/d.gguf", "hf:a/b:d.gguf"),
        ] {
            let error = ModelRef::parse(name).unwrap_err();
            let Error::Meant { meant, .. } = &error else { panic!("{name}: {error:?}") };
            assert_eq!(meant, wanted, "{name}");
            assert_eq!(ModelRef::parse(meant).unwrap().to_string(), wanted);
        }
        let elsewhere = ModelRef::parse("https://example.org/a/b.gguf");
        assert!(matches!(elsewhere, Err(Error::BadName { .. })), "{elsewhere:?}");
        // A folder that is there is what its name says; opening it tells what is wrong with it.
        let dir = tempfile::tempdir_in(".").unwrap();
        std::fs::create_dir(dir.path().join("b")).unwrap();
        let name = format!("{}/b", dir.path().file_name().unwrap().to_str().unwrap());
        assert_eq!(ModelRef::parse(&name).unwrap(), ModelRef::Path(name.into()));
    }

    #[test]
    fn an_unknown_name_gets_suggestions_and_the_catalog() {
        let error = ModelRef::parse("smollm2-135").unwrap_err();
        let Error::UnknownModel { near, known, .. } = &error else { panic!("{error:?}") };
        assert_eq!(near[0], "smollm2-135m");
        assert_eq!(known.len(), CATALOG.len());
        let text = error.to_string();
        assert!(text.contains("did you mean smollm2-135m") && text.contains("qwen2.5-coder-1.5b"), "{text}");
    }
}
