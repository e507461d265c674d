//! One file of the hub, resumable and checked: `/REPO/resolve/REV/FILE`, by way of redirects, with `Range`.

use std::io::Read;
use std::path::Path;

use ureq::http::header::{CONTENT_LENGTH, CONTENT_RANGE};
use ureq::{Body, http};

use crate::digest::CHUNK;
use crate::error::HubError;
use crate::http::{Failure, Hub, encode, header};
use crate::partial::Partial;
use crate::progress::Meter;

/// Fewer new bytes than this from a connection do not count as getting on.
const LEAST_GAIN: u64 = 64 << 10;

/// One file of a repository, fixed by its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemoteFile {
    pub(crate) repo: String,
    pub(crate) revision: String,
    pub(crate) file: String,
    pub(crate) size: u64,
    pub(crate) sha256: String,
}

impl Hub {
    /// Brings the whole of `file` to `partial`, going on from what is there. On success the content is checked and
    /// synced.
    pub(crate) fn fetch(
        &self,
        file: &RemoteFile,
        partial: &Path,
        meter: &mut Meter<'_>,
    ) -> Result<(), HubError> {
        let url = self.file_url(file);
        let mut out = Partial::open(partial, file.size)?;
        let mut resumed = out.len() > 0;
        meter.set(out.len());
        let (mut best, mut failures) = (out.len(), 0);
        loop {
            if out.len() < file.size {
                match self.fetch_once(&url, file, &mut out, meter) {
                    Ok(()) => {}
                    // An unreachable host is passed over at once; one that was there a moment ago is waited for.
                    Err(f)
                        if f.transient || (best > 0 && matches!(f.error, HubError::Unreachable { .. })) =>
                    {
                        if out.len() >= best.saturating_add(LEAST_GAIN) {
                            failures = 0;
                        }
                        best = best.max(out.len());
                        self.wait_or_give_up(&mut failures, f.error)?;
                        continue;
                    }
                    Err(f) => return Err(f.error),
                }
            }
            out.sync()?;
            let got = out.sha256();
            if got == file.sha256 {
                return Ok(());
            }
            out.restart()?;
            if !resumed {
                return Err(HubError::Checksum { url, expected: file.sha256.clone(), got });
            }
            // What an earlier run left may have been torn by a crash: once more, from nothing.
            resumed = false;
        }
    }

    /// One connection's worth; `Ok` when the file is whole.
    fn fetch_once(
        &self,
        url: &str,
        file: &RemoteFile,
        out: &mut Partial,
        meter: &mut Meter<'_>,
    ) -> Result<(), Failure> {
        let mut answer = self.get(url, (out.len() > 0).then_some(out.len()))?;
        match answer.status().as_u16() {
            200 => out.restart().map_err(HubError::from)?,
            206 if out.len() > 0 => check_range(url, &answer, out.len(), file.size)?,
            416 if out.len() > 0 => {
                let reason = format!("the server refused to go on from byte {}", out.len());
                out.restart().map_err(HubError::from)?;
                return Err(Failure::transient(HubError::BadAnswer { url: url.to_owned(), reason }));
            }
            status => return Err(self.refused(url, status)),
        }
        let wanted = file.size - out.len();
        let wrong_size = |got| HubError::WrongSize { url: url.to_owned(), expected: file.size, got };
        let announced = header(&answer, CONTENT_LENGTH.as_str()).and_then(|v| v.parse::<u64>().ok());
        if let Some(announced) = announced.filter(|announced| *announced != wanted) {
            return Err(wrong_size(out.len().saturating_add(announced)).into());
        }
        let mut body = answer.body_mut().with_config().limit(u64::MAX).reader();
        let mut buffer = vec![0; CHUNK];
        let broken = |out: &Partial, reason: String| {
            Failure::transient(HubError::Interrupted {
                url: url.to_owned(),
                got: out.len(),
                size: file.size,
                reason,
            })
        };
        loop {
            match body.read(&mut buffer) {
                Ok(0) if out.len() == file.size => return Ok(()),
                Ok(0) => return Err(broken(out, "the connection was closed".to_owned())),
                Ok(n) if out.len() + n as u64 > file.size => {
                    return Err(wrong_size(out.len() + n as u64).into());
                }
                Ok(n) => out.append(&buffer[..n]).map_err(HubError::from)?,
                Err(e) => return Err(broken(out, e.to_string())),
            }
            meter.set(out.len());
        }
    }

    fn file_url(&self, file: &RemoteFile) -> String {
        let path = file.file.split('/').map(encode).collect::<Vec<_>>().join("/");
        format!("{}/{}/resolve/{}/{path}", self.config.endpoint, file.repo, file.revision)
    }
}

/// Checks `Content-Range: bytes FROM-TO/SIZE`.
fn check_range(url: &str, answer: &http::Response<Body>, from: u64, size: u64) -> Result<(), HubError> {
    let text = header(answer, CONTENT_RANGE.as_str()).unwrap_or_default();
    let parsed = text.strip_prefix("bytes ").and_then(|rest| {
        let (range, total) = rest.split_once('/')?;
        let (first, _) = range.split_once('-')?;
        Some((first.parse::<u64>().ok()?, total))
    });
    match parsed {
        Some((first, total)) if first == from => match total.parse::<u64>() {
            Ok(total) if total != size => {
                Err(HubError::WrongSize { url: url.to_owned(), expected: size, got: total })
            }
            Err(_) if total != "*" => Err(bad_range(url, text, from)),
            _ => Ok(()),
        },
        _ => Err(bad_range(url, text, from)),
    }
}

fn bad_range(url: &str, text: &str, from: u64) -> HubError {
    HubError::BadAnswer {
        url: url.to_owned(),
        reason: format!("asked for bytes from {from}, got range {text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::HubConfig;

    #[test]
    fn urls_are_encoded_by_segment() {
        let hub = Hub::new(HubConfig::default());
        let file = RemoteFile {
            repo: "o/r".into(),
            revision: "main".into(),
            file: "a b/ü#?%.gguf".into(),
            size: 1,
            sha256: String::new(),
        };
        let expected = "https://huggingface.co/o/r/resolve/main/a%20b/%C3%BC%23%3F%25.gguf";
        assert_eq!(hub.file_url(&file), expected);
    }
}
