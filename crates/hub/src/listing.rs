//! What a repository of the hub holds: `/api/models/REPO/revision/REV?blobs=true` tells the commit, and each file's size and
//! SHA-256.

use serde::Deserialize;

use crate::digest::is_sha256;
use crate::error::HubError;
use crate::http::{Failure, Hub};
use crate::transfer::RemoteFile;

/// The longest file listing read.
const MAX_LISTING: u64 = 32 << 20;

/// What a repository holds at one commit.
#[derive(Debug)]
pub(crate) struct Listing {
    repo: String,
    info: ModelInfo,
}

#[derive(Debug, Deserialize)]
struct ModelInfo {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Debug, Deserialize)]
struct Sibling {
    rfilename: String,
    lfs: Option<Lfs>,
}

#[derive(Debug, Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Listing {
    pub(crate) fn files(&self) -> impl Iterator<Item = &str> {
        self.info.siblings.iter().map(|sibling| sibling.rfilename.as_str())
    }

    /// `file` with its size and checksum. A file that the hub does not keep as a large one has no SHA-256.
    pub(crate) fn remote(&self, file: &str) -> Result<RemoteFile, HubError> {
        let lfs = self.info.siblings.iter().find(|s| s.rfilename == file).and_then(|s| s.lfs.as_ref());
        let lfs = lfs.filter(|lfs| is_sha256(&lfs.sha256));
        let lfs = lfs.ok_or_else(|| HubError::NoChecksum { file: file.to_owned() })?;
        Ok(RemoteFile {
            repo: self.repo.clone(),
            revision: self.info.sha.clone(),
            file: file.to_owned(),
            size: lfs.size,
            sha256: lfs.sha256.clone(),
        })
    }
}

impl Hub {
    /// Lists `repo` at its main branch.
    pub(crate) fn list(&self, repo: &str) -> Result<Listing, HubError> {
        let url = format!("{}/api/models/{repo}/revision/main?blobs=true", self.config.endpoint);
        let mut failures = 0;
        loop {
            match self.list_once(&url) {
                Ok(info) => return Ok(Listing { repo: repo.to_owned(), info }),
                Err(Failure { error, transient: false }) => return Err(error),
                Err(Failure { error, .. }) => self.wait_or_give_up(&mut failures, error)?,
            }
        }
    }

    fn list_once(&self, url: &str) -> Result<ModelInfo, Failure> {
        let mut answer = self.get(url, None)?;
        let bad = |reason: String| HubError::BadAnswer { url: url.to_owned(), reason };
        let status = answer.status().as_u16();
        if status != 200 {
            return Err(self.refused(url, status));
        }
        let body = answer.body_mut().with_config().limit(MAX_LISTING).read_to_vec();
        let body = body.map_err(|e| Failure::transient(bad(e.to_string())))?;
        let info: ModelInfo =
            serde_json::from_slice(&body).map_err(|e| bad(format!("not a repository listing: {e}")))?;
        if info.sha.len() != 40 || !info.sha.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad(format!("{:?} is not a commit", info.sha)).into());
        }
        Ok(info)
    }
}
