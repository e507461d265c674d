//! From a download to a model: the lock, the room it needs, the working files, the move into place.
//!
//! Beside `MODEL.gguf` lie, hidden: `.MODEL.gguf.lock` (held while somebody pulls it), `.MODEL.gguf.HASH.part` (bytes of a
//! broken-off download, to go on from) and `.MODEL.gguf.pip` (pip's working folder). The last two are only touched by
//! the holder of the lock, so whatever of them a new holder finds was left by a process that is gone.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::error::{Error, IoContext, IoError};
use crate::progress::Progress;
use crate::stamp::Stamp;

/// Free space that a download must leave.
const RESERVE: u64 = 64 << 20;
/// A partial download nobody went on with for so long is removed.
const PARTIAL_MAX_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// The place where one model file is made, locked against other processes until dropped.
pub(crate) struct Slot {
    dir: PathBuf,
    file: String,
    lock: Option<File>,
}

impl Slot {
    /// Locks `dir/file` for making; waits, with a notice, while another process makes it. Creates `dir`. Clears what
    /// dead processes left.
    pub(crate) fn acquire(dir: &Path, file: &str, progress: &mut dyn Progress) -> Result<Self, Error> {
        fs::create_dir_all(dir).context("create the folder", dir)?;
        let path = dir.join(format!(".{file}.lock"));
        let lock = loop {
            let lock = open_lock(&path)?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    progress.notice(&format!("{file}: another process is fetching it; waiting"));
                    lock.lock().context("lock", &path)?;
                }
                Err(TryLockError::Error(e)) if e.kind() == ErrorKind::Unsupported => {
                    progress.notice(&format!("{}: this file system has no locks", dir.display()));
                    break None;
                }
                Err(TryLockError::Error(e)) => {
                    return Err(Err::<(), _>(e).context("lock", &path).unwrap_err().into());
                }
            }
            // Whoever held it may have removed the file: a lock on what nobody finds any more locks nobody out.
            if is_still_at(&lock, &path) {
                break Some(lock);
            }
        };
        let slot = Slot { dir: dir.to_owned(), file: file.to_owned(), lock };
        slot.sweep();
        Ok(slot)
    }

    /// Where the finished model goes.
    pub(crate) fn target(&self) -> PathBuf {
        self.dir.join(&self.file)
    }

    /// Where a resumable download of the content `sha256` grows.
    pub(crate) fn partial(&self, sha256: &str) -> PathBuf {
        self.dir.join(format!(".{}.{}.part", self.file, &sha256[..16]))
    }

    /// An empty working folder on the same file system.
    pub(crate) fn work_dir(&self) -> Result<WorkDir, IoError> {
        let path = self.dir.join(format!(".{}.pip", self.file));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).context("create the folder", &path)?;
        Ok(WorkDir(path))
    }

    /// Fails unless `need` bytes fit, with some to spare.
    pub(crate) fn require_space(&self, need: u64) -> Result<(), Error> {
        let free = fs4::available_space(&self.dir).context("measure", &self.dir)?;
        let need = need.saturating_add(RESERVE);
        if free < need { Err(Error::NoSpace { path: self.dir.clone(), need, free }) } else { Ok(()) }
    }

    /// Moves `made`, whose content was checked to be `sha256` and synced, into place. Readers see the old file or the
    /// whole new one.
    pub(crate) fn install(&self, made: &Path, sha256: &str) -> Result<PathBuf, IoError> {
        let target = self.target();
        fs::rename(made, &target).context("move into place", &target)?;
        sync_dir(&self.dir);
        Stamp::write(&target, sha256)?;
        Ok(target)
    }

    /// Gives the place up for good, with its lock file where that is safe.
    pub(crate) fn remove_lock(self) {
        if cfg!(unix) && self.lock.is_some() {
            // Held to the end; one that waits for it finds out and makes a new one.
            let _ = fs::remove_file(self.dir.join(format!(".{}.lock", self.file)));
        }
    }

    /// Removes this slot's working folder and every partial download that is old and not being made.
    fn sweep(&self) {
        let _ = fs::remove_dir_all(self.dir.join(format!(".{}.pip", self.file)));
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(owner) = name.to_str().and_then(owner_of_leftover) else { continue };
            let old = entry.metadata().and_then(|m| m.modified()).is_ok_and(|modified| {
                SystemTime::now().duration_since(modified).is_ok_and(|age| age > PARTIAL_MAX_AGE)
            });
            if old && (owner == self.file || is_idle(&self.dir, owner)) {
                let path = entry.path();
                let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            }
        }
    }

    /// Removes the partial downloads of this slot, whatever their age.
    pub(crate) fn discard_partials(&self) -> Result<(), IoError> {
        let Ok(entries) = fs::read_dir(&self.dir) else { return Ok(()) };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let owner = name.to_str().filter(|name| name.ends_with(".part")).and_then(owner_of_leftover);
            if owner == Some(&self.file) {
                fs::remove_file(entry.path()).context("remove", &entry.path())?;
            }
        }
        Ok(())
    }
}

/// A folder that is removed when dropped.
pub(crate) struct WorkDir(PathBuf);

impl WorkDir {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn open_lock(path: &Path) -> Result<File, IoError> {
    File::options().create(true).truncate(false).write(true).open(path).context("open", path)
}

/// Whether `file` is what is found at `path`.
#[cfg(unix)]
fn is_still_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |m: fs::Metadata| (m.dev(), m.ino());
    let there = fs::metadata(path).map(id);
    there.is_ok_and(|there| file.metadata().map(id).is_ok_and(|held| held == there))
}

/// Nobody removes lock files here.
#[cfg(not(unix))]
fn is_still_at(_file: &File, _path: &Path) -> bool {
    true
}

/// Whether nobody is making `dir/file`.
fn is_idle(dir: &Path, file: &str) -> bool {
    open_lock(&dir.join(format!(".{file}.lock"))).is_ok_and(|lock| lock.try_lock().is_ok())
}

/// The model file a working file belongs to.
fn owner_of_leftover(name: &str) -> Option<&str> {
    let name = name.strip_prefix('.')?;
    if let Some(file) = name.strip_suffix(".pip") {
        return Some(file);
    }
    let (file, hash) = name.strip_suffix(".part")?.rsplit_once('.')?;
    (hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit())).then_some(file)
}

/// Makes a rename survive a power cut, where the system can.
fn sync_dir(dir: &Path) {
    if let Ok(handle) = File::open(dir) {
        // Windows cannot sync a folder; the file itself is synced on every system.
        let _ = handle.sync_all();
    }
}

/// Replaces the file at `path` whole.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), IoError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write()
        .inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })
        .context("write", path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;

    #[test]
    fn leftovers_name_their_model() {
        assert_eq!(owner_of_leftover(".m.gguf.0123456789abcdef.part"), Some("m.gguf"));
        assert_eq!(owner_of_leftover(".m.gguf.pip"), Some("m.gguf"));
        for name in
            ["m.gguf", ".m.gguf.lock", ".x.part", "m.gguf.0123456789abcdef.part", ".m.0123456789abcdeg.part"]
        {
            assert_eq!(owner_of_leftover(name), None, "{name}");
        }
    }

    #[test]
    fn leftovers_of_dead_processes_go_and_fresh_or_busy_ones_stay() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, days: u64| {
            let path = dir.path().join(name);
            fs::write(&path, "x").unwrap();
            let time = SystemTime::now() - Duration::from_secs(days * 24 * 3600);
            File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
            path
        };
        let old = make(".a.gguf.0123456789abcdef.part", 8);
        let fresh = make(".b.gguf.0123456789abcdef.part", 6);
        let busy = make(".c.gguf.0123456789abcdef.part", 8);
        let model = make("d.gguf", 99);
        let own = dir.path().join(".e.gguf.pip");
        fs::create_dir(&own).unwrap();
        let lock = open_lock(&dir.path().join(".c.gguf.lock")).unwrap();
        lock.lock().unwrap();
        let _slot = Slot::acquire(dir.path(), "e.gguf", &mut Silent).unwrap();
        let left: Vec<bool> = [&old, &fresh, &busy, &model, &own].iter().map(|p| p.exists()).collect();
        assert_eq!(left, [false, true, true, true, false]);
    }

    #[cfg(unix)]
    #[test]
    fn one_who_waited_for_a_lock_file_that_was_removed_shares_the_new_one() {
        struct Waiting(std::sync::mpsc::Sender<()>);
        impl Progress for Waiting {
            fn start(&mut self, _label: &str, _total: u64) {}
            fn advance(&mut self, _bytes: u64) {}
            fn finish(&mut self) {}
            fn notice(&mut self, _line: &str) {
                self.0.send(()).unwrap();
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".m.gguf.lock");
        let first = Slot::acquire(dir.path(), "m.gguf", &mut Silent).unwrap();
        let (sender, waits) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| Slot::acquire(dir.path(), "m.gguf", &mut Waiting(sender)).unwrap());
            waits.recv().unwrap();
            first.remove_lock();
            let second = second.join().unwrap();
            // Whoever comes now is locked out.
            let third = open_lock(&path).unwrap();
            assert!(matches!(third.try_lock(), Err(TryLockError::WouldBlock)));
            second.remove_lock();
            assert!(!path.exists());
        });
    }

    #[test]
    fn no_space_is_said_before_anything_is_fetched() {
        let dir = tempfile::tempdir().unwrap();
        let slot = Slot::acquire(dir.path(), "m.gguf", &mut Silent).unwrap();
        slot.require_space(1).unwrap();
        for need in [1 << 60, u64::MAX] {
            assert!(matches!(slot.require_space(need), Err(Error::NoSpace { .. })));
        }
    }
}
