//! The Hugging Face hub over HTTP: what a repository holds, and one file of it, resumable and checked.
//!
//! Two requests of the hub's API are used: `/api/models/REPO/revision/REV?blobs=true` (the commit, and each file's size and
//! SHA-256) and `/REPO/resolve/REV/FILE` (the bytes, by way of redirects, with `Range`).

use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use ureq::config::RedirectAuthHeaders;
use ureq::http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, RANGE};
use ureq::{Agent, Body, http};

use crate::digest::{CHUNK, is_sha256};
use crate::error::HubError;
use crate::partial::Partial;
use crate::progress::Meter;

/// The longest file listing read.
const MAX_LISTING: u64 = 32 << 20;
/// Fewer new bytes than this from a connection do not count as getting on.
const LEAST_GAIN: u64 = 64 << 10;
/// The address of the hub.
const PUBLIC_HUB: &str = "https://huggingface.co";

/// How to talk to the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubConfig {
    /// Scheme, host and port, without a slash at the end.
    pub endpoint: String,
    /// Sent as a bearer token to the endpoint, never to another host it redirects to.
    pub token: Option<String>,
    /// For finding the host and, again, for connecting to it.
    pub connect_timeout: Duration,
    /// For the answer to begin and, again, between two pieces of it.
    pub stall_timeout: Duration,
    /// Tries after the first one that get nowhere, before giving up.
    pub retries: u32,
    /// Wait before the first of them; doubled for each further one.
    pub retry_delay: Duration,
}

impl Default for HubConfig {
    fn default() -> Self {
        HubConfig {
            endpoint: PUBLIC_HUB.to_owned(),
            token: None,
            connect_timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(30),
            retries: 4,
            retry_delay: Duration::from_millis(500),
        }
    }
}

impl HubConfig {
    /// The defaults with the hub's own variables: `HF_ENDPOINT` and `HF_TOKEN`, where set and not empty.
    pub fn from_env() -> Self {
        let variable = |name| std::env::var(name).ok().map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        let mut config = HubConfig { token: variable("HF_TOKEN"), ..HubConfig::default() };
        if let Some(endpoint) = variable("HF_ENDPOINT") {
            endpoint.trim_end_matches('/').clone_into(&mut config.endpoint);
        }
        config
    }
}

/// One file of a repository, fixed by its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemoteFile {
    pub(crate) repo: String,
    pub(crate) revision: String,
    pub(crate) file: String,
    pub(crate) size: u64,
    pub(crate) sha256: String,
}

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

/// A client of one hub.
pub(crate) struct Hub {
    config: HubConfig,
    agent: Agent,
}

impl Hub {
    pub(crate) fn new(config: HubConfig) -> Self {
        let builder = Agent::config_builder()
            .timeout_resolve(Some(config.connect_timeout))
            .timeout_connect(Some(config.connect_timeout))
            .timeout_recv_response(Some(config.stall_timeout))
            .timeout_per_read(Some(config.stall_timeout))
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .http_status_as_error(false)
            .user_agent(concat!("minfer/", env!("CARGO_PKG_VERSION")));
        // A proxy from the environment cannot reach a server of this machine's own.
        let builder = if is_loopback(&config.endpoint) { builder.proxy(None) } else { builder };
        Hub { agent: builder.build().into(), config }
    }

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

    /// Brings the whole of `file` to `partial`, going on from what is there. On success the content is checked and
    /// synced; `done` is what the meter shows before the first byte.
    pub(crate) fn fetch(
        &self,
        file: &RemoteFile,
        partial: &Path,
        meter: &mut Meter<'_>,
        done: u64,
    ) -> Result<(), HubError> {
        let url = self.file_url(file);
        let mut out = Partial::open(partial, file.size)?;
        let mut resumed = out.len() > 0;
        meter.set(done + out.len());
        let (mut best, mut failures) = (out.len(), 0);
        loop {
            if out.len() < file.size {
                match self.fetch_once(&url, file, &mut out, meter, done) {
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
        done: u64,
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
        if let Some(announced) = header(&answer, CONTENT_LENGTH.as_str()).and_then(|v| v.parse::<u64>().ok())
        {
            if announced != wanted {
                return Err(wrong_size(out.len().saturating_add(announced)).into());
            }
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
            meter.set(done + out.len());
        }
    }

    fn file_url(&self, file: &RemoteFile) -> String {
        let path = file.file.split('/').map(encode).collect::<Vec<_>>().join("/");
        format!("{}/{}/resolve/{}/{path}", self.config.endpoint, file.repo, file.revision)
    }

    fn get(&self, url: &str, from: Option<u64>) -> Result<http::Response<Body>, Failure> {
        let mut request = self.agent.get(url);
        if let Some(token) = &self.config.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some(from) = from {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        request.call().map_err(|error| classify(url, error))
    }

    /// The failure that a status other than success means.
    fn refused(&self, url: &str, status: u16) -> Failure {
        let url = url.to_owned();
        match status {
            401 | 403 => {
                let hint = match self.config.token {
                    None => {
                        "no such repository, or a private or gated one: accept its licence on the hub and set HF_TOKEN"
                    }
                    Some(_) => {
                        "the token in HF_TOKEN may not read it: accept the licence on the hub, or check the token"
                    }
                };
                HubError::Denied { url, status, hint }.into()
            }
            404 => HubError::NotFound { url }.into(),
            408 | 429 | 500.. => Failure::transient(HubError::Status { url, status }),
            _ => HubError::Status { url, status }.into(),
        }
    }

    fn wait_or_give_up(&self, failures: &mut u32, error: HubError) -> Result<(), HubError> {
        if *failures >= self.config.retries {
            return Err(error);
        }
        std::thread::sleep(self.config.retry_delay.saturating_mul(1 << (*failures).min(6)));
        *failures += 1;
        Ok(())
    }
}

/// An error, and whether the same request may well succeed in a moment.
struct Failure {
    error: HubError,
    transient: bool,
}

impl Failure {
    fn transient(error: HubError) -> Self {
        Failure { error, transient: true }
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        Failure { error, transient: false }
    }
}

fn classify(url: &str, error: ureq::Error) -> Failure {
    use ureq::Timeout::{Connect, Resolve};
    let (url, reason) = (url.to_owned(), error.to_string());
    match error {
        ureq::Error::Timeout(Resolve | Connect)
        | ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed => HubError::Unreachable { url, reason }.into(),
        ureq::Error::Io(e) if is_no_connection(e.kind()) => HubError::Unreachable { url, reason }.into(),
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) => HubError::Unreachable { url, reason }.into(),
        ureq::Error::Io(_) | ureq::Error::Timeout(_) => {
            Failure::transient(HubError::BadAnswer { url, reason })
        }
        _ => HubError::BadAnswer { url, reason }.into(),
    }
}

fn is_no_connection(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind::{
        AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable,
        PermissionDenied,
    };
    matches!(
        kind,
        ConnectionRefused
            | HostUnreachable
            | NetworkUnreachable
            | NetworkDown
            | AddrNotAvailable
            | PermissionDenied
    )
}

fn header<'a>(answer: &'a http::Response<Body>, name: &str) -> Option<&'a str> {
    answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::trim)
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

/// Percent-encodes one path segment.
fn encode(segment: &str) -> String {
    segment.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(byte as char);
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

fn is_loopback(endpoint: &str) -> bool {
    let authority = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    ["127.", "localhost", "[::1]"].iter().any(|host| authority.starts_with(host))
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn loopback_endpoints() {
        assert!(
            is_loopback("http://127.0.0.1:80")
                && is_loopback("http://localhost")
                && is_loopback("http://[::1]:1")
        );
        assert!(!is_loopback(PUBLIC_HUB));
    }
}
