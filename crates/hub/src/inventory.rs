//! What is in the store, and getting rid of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::catalog::CATALOG;
use crate::error::{Error, IoContext};
use crate::model_ref::{ModelRef, has_gguf_ending};
use crate::progress::Progress;
use crate::select::{shard_of, shards_of};
use crate::staging::Slot;
use crate::stamp::{Stamp, stamp_path};
use crate::store::{HUB_DIR, Store, file_name};

/// A model of the store, as [`Store::list`] shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// What to call it; [`ModelRef::parse`] takes it.
    pub name: String,
    /// The file, or the first shard.
    pub path: PathBuf,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Whether its content was checked and it has not changed since.
    pub verified: bool,
}

impl Store {
    /// The models that are here, catalog first, then the hub's, then other files a user put into the folder.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder cannot be read; one that does not exist is empty.
    pub fn list(&self) -> Result<Vec<Installed>, Error> {
        let mut all = Vec::new();
        let mut top = gguf_files(self.dir(), 0)?;
        for entry in CATALOG {
            let path = self.dir().join(file_name(entry));
            if let Some(at) = top.iter().position(|file| *file == path) {
                let verified = Stamp::known_sha256(&path).is_some_and(|sha256| sha256 == entry.sha256);
                all.push(installed(entry.name.to_owned(), vec![top.remove(at)], verified)?);
            }
        }
        let hub_dir = self.dir().join(HUB_DIR);
        let mut shards: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        for path in gguf_files(&hub_dir, 8)? {
            let relative =
                path.strip_prefix(&hub_dir).ok().and_then(|p| p.to_str()).map(|p| p.replace('\\', "/"));
            let Some(relative) = relative.filter(|p| p.matches('/').count() >= 2) else { continue };
            let (org_repo, file) =
                relative.match_indices('/').nth(1).map_or(("", ""), |(at, _)| relative.split_at(at));
            let name = format!("hf:{org_repo}:{}", &file[1..]);
            let key = match shard_of(&name) {
                Some(_) => shards_of(&name).swap_remove(0),
                None => name,
            };
            shards.entry(key).or_default().push(path);
        }
        for (name, paths) in shards {
            let verified = paths.iter().all(|path| Stamp::known_sha256(path).is_some());
            all.push(installed(name, paths, verified)?);
        }
        for path in top {
            let verified = Stamp::known_sha256(&path).is_some();
            all.push(installed(path.display().to_string(), vec![path], verified)?);
        }
        Ok(all)
    }

    /// Removes `model` with everything that belongs to it; returns the bytes freed.
    ///
    /// # Errors
    /// [`Error::NotInstalled`]; [`Error::NotInStore`] for a path outside the store's folder.
    pub fn remove(&self, model: &ModelRef, progress: &mut dyn Progress) -> Result<u64, Error> {
        let files: Vec<PathBuf> = match model {
            ModelRef::Catalog(entry) => vec![self.dir().join(file_name(entry))],
            ModelRef::Hub(hub) => {
                let files = self.resolved(hub).ok_or_else(|| Error::NotInstalled(model.to_string()))?;
                self.forget(hub, &files)?;
                files.iter().map(|file| self.repo_dir(hub).join(file)).collect()
            }
            ModelRef::Path(path) => vec![self.inside(path)?],
        };
        let (mut freed, mut removed) = (0, 0);
        for path in files.iter().filter(|path| path.is_file()) {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str()))
            else {
                continue;
            };
            let slot = Slot::acquire(parent, name, progress)?;
            freed += fs::metadata(path).context("examine", path)?.len();
            fs::remove_file(path).context("remove", path)?;
            let _ = fs::remove_file(stamp_path(path));
            slot.discard_partials()?;
            slot.remove_lock();
            removed += 1;
        }
        if removed == 0 {
            return Err(Error::NotInstalled(model.to_string()));
        }
        Ok(freed)
    }

    /// `path`, if it is a model file inside the store's folder.
    fn inside(&self, path: &Path) -> Result<PathBuf, Error> {
        let real = fs::canonicalize(path).map_err(|_| Error::NotInstalled(path.display().to_string()))?;
        let store = fs::canonicalize(self.dir()).context("open", self.dir())?;
        let is_model = real.to_str().is_some_and(has_gguf_ending);
        if is_model && real.starts_with(&store) {
            Ok(real)
        } else {
            Err(Error::NotInStore { path: path.to_owned(), store: self.dir().to_owned() })
        }
    }
}

/// The model files in `dir` and, to some `depth`, below, by name.
fn gguf_files(dir: &Path, depth: u32) -> Result<Vec<PathBuf>, Error> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.context("list", dir)?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.context("list", dir)?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
        let path = entry.path();
        if path.is_dir() {
            if depth > 0 {
                files.extend(gguf_files(&path, depth - 1)?);
            }
        } else if has_gguf_ending(name) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn installed(name: String, paths: Vec<PathBuf>, verified: bool) -> Result<Installed, Error> {
    let mut bytes = 0;
    for path in &paths {
        bytes += fs::metadata(path).context("examine", path)?.len();
    }
    let path = paths.into_iter().next().unwrap_or_default();
    Ok(Installed { name, path, bytes, verified })
}
