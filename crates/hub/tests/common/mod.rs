//! What the tests share: a server that does as told, a progress log, made-up catalog entries.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use minfer_hub::{Entry, HubConfig, PipConfig, Progress, Source, Store};
use sha2::{Digest, Sha256};

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Request {
    pub path: String,
    pub headers: Vec<(String, String)>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// The start of `Range: bytes=START-`.
    pub fn range(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

/// What the server sends: a head, exactly as given, and a body.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Send `Content-Length` as the body's length.
    pub length: bool,
    /// Close the connection after so many bytes of the body.
    pub cut: Option<usize>,
    /// Wait before the head.
    pub delay: Duration,
    /// With `cut`: wait so long before closing.
    pub hang: Duration,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Reply {
            status,
            headers: Vec::new(),
            body: body.into(),
            length: true,
            cut: None,
            delay: Duration::ZERO,
            hang: Duration::ZERO,
        }
    }

    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    /// `content` as a server that knows `Range` serves it.
    pub fn file(request: &Request, content: &[u8]) -> Self {
        match request.range() {
            Some(from) if from < content.len() => {
                let range = format!("bytes {from}-{}/{}", content.len() - 1, content.len());
                Reply::new(206, &content[from..]).with("Content-Range", range)
            }
            Some(_) => Reply::new(416, ""),
            None => Reply::new(200, content),
        }
    }
}

/// An HTTP server on a port of its own; every connection carries one request.
pub struct Server {
    pub url: String,
    log: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// `handler` gets each request with its number, from 0.
    pub fn start(handler: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let log = Arc::new(Mutex::new(Vec::new()));
        let (handler, shared) = (Arc::new(handler), log.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (handler, log) = (handler.clone(), shared.clone());
                std::thread::spawn(move || answer(stream.unwrap(), &*handler, &log));
            }
        });
        Server { url, log }
    }

    pub fn requests(&self) -> Vec<Request> {
        self.log.lock().unwrap().clone()
    }

    /// Quick to give up, for tests.
    pub fn config(&self) -> HubConfig {
        quick(&self.url)
    }

    /// A store in `dir` that knows this hub and no pip.
    pub fn store(&self, dir: &Path) -> Store {
        Store::new(dir).with_hub(self.config()).with_pip(no_pip())
    }
}

pub fn quick(endpoint: &str) -> HubConfig {
    HubConfig {
        endpoint: endpoint.to_owned(),
        token: None,
        connect_timeout: Duration::from_secs(5),
        stall_timeout: Duration::from_secs(10),
        retries: 2,
        retry_delay: Duration::from_millis(1),
    }
}

pub fn no_pip() -> PipConfig {
    PipConfig { path: Some("/nonexistent".into()) }
}

fn answer(stream: TcpStream, handler: &dyn Fn(&Request, usize) -> Reply, log: &Mutex<Vec<Request>>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let Some(Ok(first)) = lines.next() else { return };
    let path = first.split(' ').nth(1).unwrap().to_owned();
    let head = lines.map_while(Result::ok).take_while(|line| !line.is_empty());
    let headers =
        head.filter_map(|l| l.split_once(": ").map(|(n, v)| (n.to_lowercase(), v.to_owned()))).collect();
    let request = Request { path, headers };
    let number = {
        let mut log = log.lock().unwrap();
        log.push(request.clone());
        log.len() - 1
    };
    let reply = handler(&request, number);
    std::thread::sleep(reply.delay);
    let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", reply.status);
    if reply.length {
        head += &format!("Content-Length: {}\r\n", reply.body.len());
    }
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    let mut stream = stream;
    let sent = reply.cut.unwrap_or(reply.body.len());
    // The client may have hung up; that is its right.
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(b"\r\n");
    let _ = stream.write_all(&reply.body[..sent]);
    let _ = stream.flush();
    std::thread::sleep(reply.hang);
}

/// A progress that remembers.
#[derive(Debug, Default)]
pub struct Log {
    pub notices: Vec<String>,
    pub transfers: Vec<(String, u64, u64)>,
    pub open: u32,
}

impl Progress for Log {
    fn start(&mut self, label: &str, total: u64) {
        self.transfers.push((label.to_owned(), total, 0));
        self.open += 1;
    }
    fn advance(&mut self, bytes: u64) {
        self.transfers.last_mut().unwrap().2 += bytes;
    }
    fn finish(&mut self) {
        self.open -= 1;
    }
    fn notice(&mut self, line: &str) {
        assert!(!line.contains('\n'), "{line:?}");
        self.notices.push(line.to_owned());
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// `len` bytes that do not repeat soon.
pub fn content(len: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A catalog entry of the test's own, with `content` as its file.
pub fn entry(name: &str, content: &[u8], sources: Vec<Source>) -> &'static Entry {
    Box::leak(Box::new(Entry {
        name: leak(name),
        description: "a test",
        bytes: content.len() as u64,
        sha256: leak(&sha256(content)),
        license: "none",
        sources: sources.leak(),
    }))
}

pub fn leak(text: &str) -> &'static str {
    text.to_owned().leak()
}

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The hub's answer for a repository with `files`.
pub fn listing(files: &[(&str, &[u8])]) -> Vec<u8> {
    let sibling = |(name, content): &(&str, &[u8])| {
        serde_json::json!({
            "rfilename": name,
            "size": content.len(),
            "lfs": { "sha256": sha256(content), "size": content.len(), "pointerSize": 130 },
        })
    };
    let siblings: Vec<_> = files.iter().map(sibling).collect();
    serde_json::json!({ "id": "o/r", "sha": COMMIT, "siblings": siblings }).to_string().into_bytes()
}

/// A well-behaved hub with one repository, `o/r`.
pub fn hub(files: Vec<(&'static str, Vec<u8>)>) -> Server {
    Server::start(move |request, _| {
        if request.path.starts_with("/api/") {
            let borrowed: Vec<_> = files.iter().map(|(name, content)| (*name, content.as_slice())).collect();
            return Reply::new(200, listing(&borrowed));
        }
        let file = request.path.strip_prefix(&format!("/o/r/resolve/{COMMIT}/"));
        match files.iter().find(|(name, _)| Some(*name) == file) {
            Some((_, content)) => Reply::file(request, content),
            None => Reply::new(404, "no"),
        }
    })
}

/// Names of all files below `dir`, hidden ones too, without locks.
pub fn files_below(dir: &Path) -> Vec<String> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { walk(&path, found) } else { found.push(path) }
        }
    }
    let mut found = Vec::new();
    walk(dir, &mut found);
    let name = |path: &PathBuf| path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
    let mut names: Vec<String> = found.iter().map(name).filter(|name| !name.ends_with(".lock")).collect();
    names.sort();
    names
}
