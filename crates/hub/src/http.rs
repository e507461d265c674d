//! The Hugging Face hub over HTTP: how it is addressed, what its answers mean, which failures may pass.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use ureq::http::header::{AUTHORIZATION, LOCATION, RANGE};
use ureq::{Agent, Body, http};

use crate::error::HubError;

/// Redirects followed for one request.
const MAX_REDIRECTS: u32 = 10;
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

/// A client of one hub.
pub(crate) struct Hub {
    pub(crate) config: HubConfig,
    agent: Agent,
}

impl Hub {
    pub(crate) fn new(config: HubConfig) -> Self {
        let builder = Agent::config_builder()
            .timeout_resolve(Some(config.connect_timeout))
            .timeout_connect(Some(config.connect_timeout))
            .timeout_recv_response(Some(config.stall_timeout))
            .timeout_per_read(Some(config.stall_timeout))
            .max_redirects(0)
            .http_status_as_error(false)
            .user_agent(concat!("minfer/", env!("CARGO_PKG_VERSION")));
        // A proxy from the environment cannot reach a server of this machine's own.
        let builder = if is_loopback(&config.endpoint) { builder.proxy(None) } else { builder };
        Hub { agent: builder.build().into(), config }
    }

    /// Asks for `url`, from byte `from` on, and follows redirects. The token goes to the endpoint's own origin only:
    /// the HTTP library would also send it to another port of the same host.
    pub(crate) fn get(&self, url: &str, from: Option<u64>) -> Result<http::Response<Body>, Failure> {
        let mut at = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.agent.get(&at);
            if let Some(token) =
                self.config.token.as_ref().filter(|_| origin(&at) == origin(&self.config.endpoint))
            {
                request = request.header(AUTHORIZATION, format!("Bearer {token}"));
            }
            if let Some(from) = from {
                request = request.header(RANGE, format!("bytes={from}-"));
            }
            let answer = request.call().map_err(|error| classify(&at, error))?;
            if !matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(answer);
            }
            let location = header(&answer, LOCATION.as_str()).unwrap_or_default();
            at = redirected(&at, location).ok_or_else(|| {
                let reason = format!("it redirects to {location:?}");
                HubError::BadAnswer { url: url.to_owned(), reason }
            })?;
        }
        Err(HubError::BadAnswer {
            url: url.to_owned(),
            reason: format!("more than {MAX_REDIRECTS} redirects"),
        }
        .into())
    }

    /// The failure that a status other than success means.
    pub(crate) fn refused(&self, url: &str, status: u16) -> Failure {
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

    pub(crate) fn wait_or_give_up(&self, failures: &mut u32, error: HubError) -> Result<(), HubError> {
        if *failures >= self.config.retries {
            return Err(error);
        }
        std::thread::sleep(self.config.retry_delay.saturating_mul(1 << (*failures).min(6)));
        *failures += 1;
        Ok(())
    }
}

/// An error, and whether the same request may well succeed in a moment.
pub(crate) struct Failure {
    pub(crate) error: HubError,
    pub(crate) transient: bool,
}

impl Failure {
    pub(crate) fn transient(error: HubError) -> Self {
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
    let unreachable = |reason: String| {
        HubError::Unreachable { origin: origin(url).unwrap_or_else(|| url.to_owned()), reason }.into()
    };
    let reason = error.to_string();
    let url = url.to_owned();
    match error {
        // The connection was there and broke. Whatever else the system says (a name that cannot be looked up, no
        // route, refused) means that there is none.
        ureq::Error::Io(e) if is_broken_connection(e.kind()) => {
            Failure::transient(HubError::BadAnswer { url, reason: e.to_string() })
        }
        ureq::Error::Io(e) => unreachable(e.to_string()),
        ureq::Error::Timeout(Resolve | Connect)
        | ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed
        | ureq::Error::Tls(_)
        | ureq::Error::Rustls(_) => unreachable(reason),
        ureq::Error::Timeout(_) => Failure::transient(HubError::BadAnswer { url, reason }),
        _ => HubError::BadAnswer { url, reason }.into(),
    }
}

fn is_broken_connection(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, Interrupted, TimedOut, UnexpectedEof, WouldBlock,
    };
    matches!(
        kind,
        BrokenPipe
            | ConnectionAborted
            | ConnectionReset
            | Interrupted
            | TimedOut
            | UnexpectedEof
            | WouldBlock
    )
}

pub(crate) fn header<'a>(answer: &'a http::Response<Body>, name: &str) -> Option<&'a str> {
    answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::trim)
}

/// Scheme and authority of an absolute URL; hosts are compared in lower case.
fn origin(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    Some(format!("{scheme}://{authority}").to_ascii_lowercase())
}

/// Where `Location: location` leads from `url`: an http(s) address, never from https to http.
fn redirected(url: &str, location: &str) -> Option<String> {
    let here = origin(url)?;
    let (scheme, _) = here.split_once(':')?;
    let target = if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{here}{location}")
    } else {
        location.to_owned()
    };
    let lower = target.to_ascii_lowercase();
    let allowed = lower.starts_with("https://") || (scheme == "http" && lower.starts_with("http://"));
    allowed.then_some(target)
}

/// Percent-encodes one path segment.
pub(crate) fn encode(segment: &str) -> String {
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
    let origin = origin(endpoint).unwrap_or_default();
    let authority = origin.split_once("://").map_or("", |(_, authority)| authority);
    let host = authority.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
    let host = host.map_or(authority, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_resolve_and_never_lose_encryption() {
        let from = |url, location| redirected(url, location);
        assert_eq!(from("https://a/x?y", "/z").as_deref(), Some("https://a/z"));
        assert_eq!(from("https://a/x", "//b/z").as_deref(), Some("https://b/z"));
        assert_eq!(from("http://a:1/x", "HTTPS://b/z").as_deref(), Some("HTTPS://b/z"));
        assert_eq!(from("http://a:1/x", "http://b").as_deref(), Some("http://b"));
        for location in ["http://a/x", "file:///etc/passwd", "z", ""] {
            assert_eq!(from("https://a/x", location), None, "{location}");
        }
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        assert_eq!(origin("HTTPS://Hub.co/a"), origin("https://hub.co"));
        assert_eq!(origin("https://hub.co?x"), origin("https://hub.co/y#z"));
        for other in ["http://hub.co", "https://hub.co:444", "https://hub.co.evil/", "https://hub.co@evil/"] {
            assert_ne!(origin(other), origin("https://hub.co"), "{other}");
        }
    }

    #[test]
    fn loopback_endpoints() {
        for own in [
            "http://127.0.0.1:80",
            "http://127.9.9.9",
            "http://localhost/x",
            "http://[::1]:1",
            "http://[::1]",
        ] {
            assert!(is_loopback(own), "{own}");
        }
        for other in
            [PUBLIC_HUB, "http://localhost.example", "http://127.0.0.1.example:80", "http://10.0.0.1", "x"]
        {
            assert!(!is_loopback(other), "{other}");
        }
    }

    #[test]
    fn no_connection_is_told_from_a_broken_one() {
        use std::io::{Error, ErrorKind};
        let of = |error: Error| classify("https://hub.co/a/b", ureq::Error::Io(error));
        let lookup = of(Error::other("failed to lookup address information"));
        assert!(!lookup.transient);
        let text = lookup.error.to_string();
        assert_eq!(text, "cannot reach https://hub.co: failed to lookup address information");
        for kind in [ErrorKind::ConnectionRefused, ErrorKind::NetworkUnreachable, ErrorKind::InvalidData] {
            assert!(matches!(of(kind.into()).error, HubError::Unreachable { .. }), "{kind:?}");
        }
        for kind in [ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof, ErrorKind::TimedOut] {
            assert!(of(kind.into()).transient, "{kind:?}");
        }
    }
}
