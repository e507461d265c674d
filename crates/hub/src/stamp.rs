//! The `.verified` file beside a model: which content it was found to have, and when the file last changed.
//!
//! Hashing gigabytes at every start would cost more than loading them, so a file whose size and modification time are
//! those of its stamp is taken to have the stamp's SHA-256.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::error::{IoContext, IoError};
use crate::staging::write_atomically;

/// What is remembered of a checked file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    pub(crate) sha256: String,
    pub(crate) size: u64,
    pub(crate) mtime_ns: u64,
}

/// `MODEL.gguf.verified`.
pub(crate) fn stamp_path(model: &Path) -> PathBuf {
    let mut name = model.as_os_str().to_owned();
    name.push(".verified");
    PathBuf::from(name)
}

impl Stamp {
    /// The stamp `model` would get now, if its content were `sha256`.
    pub(crate) fn of(model: &Path, sha256: &str) -> Result<Self, IoError> {
        let metadata = fs::metadata(model).context("examine", model)?;
        let modified = metadata.modified().context("examine", model)?;
        // Before 1970 or after 2554 there is no such number; 0 then never equals a real stamp of the other tool.
        let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mtime_ns = u64::try_from(since.as_nanos()).unwrap_or(0);
        Ok(Self { sha256: sha256.to_owned(), size: metadata.len(), mtime_ns })
    }

    /// The stamp of `model`, whether it still holds or not.
    pub(crate) fn read(model: &Path) -> Option<Self> {
        let text = fs::read(stamp_path(model)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// The SHA-256 that `model` was found to have, if it has not changed since.
    pub(crate) fn known_sha256(model: &Path) -> Option<String> {
        let stamp = Self::read(model)?;
        (Self::of(model, &stamp.sha256).ok()? == stamp).then_some(stamp.sha256)
    }

    /// Remembers that `model` has the content `sha256`.
    pub(crate) fn write(model: &Path, sha256: &str) -> Result<(), IoError> {
        let stamp = Self::of(model, sha256)?;
        let text = format!(
            r#"{{"sha256": "{}", "size": {}, "mtime_ns": {}}}"#,
            stamp.sha256, stamp.size, stamp.mtime_ns
        );
        write_atomically(&stamp_path(model), text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_holds_until_the_file_changes() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("m.gguf");
        fs::write(&model, "one").unwrap();
        assert_eq!(Stamp::known_sha256(&model), None);
        Stamp::write(&model, "aa").unwrap();
        assert_eq!(Stamp::known_sha256(&model).as_deref(), Some("aa"));
        fs::write(&model, "three").unwrap();
        assert_eq!(Stamp::known_sha256(&model), None);
        fs::write(stamp_path(&model), "{\"sha256\": 7}").unwrap();
        assert_eq!(Stamp::known_sha256(&model), None);
    }

    #[test]
    fn reads_the_stamp_another_tool_wrote() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("m.gguf");
        fs::write(&model, "content").unwrap();
        let ns = fs::metadata(&model).unwrap().modified().unwrap().duration_since(UNIX_EPOCH).unwrap();
        let json = format!("{{\"mtime_ns\": {}, \"size\": 7, \"sha256\": \"beef\"}}", ns.as_nanos());
        fs::write(stamp_path(&model), json).unwrap();
        assert_eq!(Stamp::known_sha256(&model).as_deref(), Some("beef"));
    }
}
