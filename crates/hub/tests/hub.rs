//! The hub client against a local server.

mod common;

use std::time::{Duration, Instant};

use common::{
    COMMIT, Log, Reply, Server, content, entry, files_below, hub, leak, listing, no_pip, quick, sha256,
};
use minfer_hub::{Error, HubConfig, HubError, ModelRef, SelectError, Silent, Source, Store};

const MIB: usize = 1 << 20;

fn parse(name: &str) -> ModelRef {
    ModelRef::parse(name).unwrap()
}

/// A catalog model whose only source is the file `m.gguf` of `o/r`.
fn catalog_model(content: &[u8]) -> ModelRef {
    let source = Source::Hub { repo: "o/r", revision: leak(COMMIT), file: "m.gguf" };
    ModelRef::Catalog(entry("m", content, vec![source]))
}

fn pull(server: &Server, model: &ModelRef) -> (tempfile::TempDir, Result<std::path::PathBuf, Error>) {
    let dir = tempfile::tempdir().unwrap();
    let result = server.store(dir.path()).pull(model, &mut Silent);
    (dir, result)
}

/// The hub's error, for a reference that has no other source.
fn hub_error(server: &Server, name: &str) -> HubError {
    match pull(server, &parse(name)).1 {
        Err(Error::Hub(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// The hub's error, as the only source of a catalog model.
fn source_error(result: Result<std::path::PathBuf, Error>) -> HubError {
    match result {
        Err(Error::NoSource { mut tried, .. }) => match tried.remove(0).1 {
            Error::Hub(error) => error,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_model_comes_checked_and_is_not_fetched_twice() {
    let data = content(MIB);
    let server =
        hub(vec![("README.md", b"hi".to_vec()), ("m-Q4_0.gguf", data.clone()), ("m-F16.gguf", vec![1])]);
    let dir = tempfile::tempdir().unwrap();
    let store = server.store(dir.path());
    let mut log = Log::default();
    let path = store.pull(&parse("hf:o/r:q4_0"), &mut log).unwrap();
    assert_eq!(path, dir.path().join("hf/o/r/m-Q4_0.gguf"));
    assert_eq!(std::fs::read(&path).unwrap(), data);
    assert_eq!(log.transfers, [("m-Q4_0.gguf".to_owned(), MIB as u64, MIB as u64)]);
    assert_eq!((log.open, log.notices.len()), (0, 0));
    let paths: Vec<String> = server.requests().iter().map(|r| r.path.clone()).collect();
    let file = format!("/o/r/resolve/{COMMIT}/m-Q4_0.gguf");
    assert_eq!(paths, ["/api/models/o/r/revision/main?blobs=true", &file]);
    assert_eq!(
        files_below(dir.path()),
        ["hf/o/r/.resolved.json", "hf/o/r/m-Q4_0.gguf", "hf/o/r/m-Q4_0.gguf.verified"]
    );
    // The same words, in any case, mean the same file without asking again; so does its name.
    for name in ["hf:o/r:Q4_0", "hf:o/r:m-Q4_0.gguf"] {
        assert_eq!(store.pull(&parse(name), &mut log).unwrap(), path, "{name}");
    }
    assert_eq!(server.requests().len(), 2);
    // Other words do ask, and find the file already there.
    assert_eq!(store.pull(&parse("hf:o/r"), &mut log).unwrap(), path);
    assert_eq!(server.requests().len(), 3);
}

#[test]
fn all_shards_come_and_the_first_is_the_model() {
    let (one, two) = (content(1000), content(500));
    let names = ["q/m-Q8_0-00001-of-00002.gguf", "q/m-Q8_0-00002-of-00002.gguf"];
    let server = hub(vec![(names[0], one.clone()), (names[1], two.clone())]);
    let dir = tempfile::tempdir().unwrap();
    let store = server.store(dir.path());
    let mut log = Log::default();
    let path = store.pull(&parse("hf:o/r:Q8_0"), &mut log).unwrap();
    assert_eq!(path, dir.path().join("hf/o/r").join(names[0]));
    assert_eq!(std::fs::read(dir.path().join("hf/o/r").join(names[1])).unwrap(), two);
    assert_eq!(log.transfers[1], (format!("{} (2 of 2)", names[1]), 500, 500));
    let listed = store.list().unwrap();
    assert_eq!((listed.len(), listed[0].bytes, listed[0].verified), (1, 1500, true));
    assert_eq!(listed[0].name, format!("hf:o/r:{}", names[0]));
    assert_eq!(store.path_if_present(&parse(&listed[0].name), &mut log).unwrap(), Some(path));
    assert_eq!(store.remove(&parse("hf:o/r:Q8_0"), &mut log).unwrap(), 1500);
    assert!(store.list().unwrap().is_empty());
    assert_eq!(store.path_if_present(&parse("hf:o/r:Q8_0"), &mut log).unwrap(), None);
    assert!(files_below(dir.path()).is_empty());
}

#[test]
fn a_cut_connection_is_resumed_where_it_broke() {
    let data = content(3 * MIB);
    let served = data.clone();
    let server = Server::start(move |request, n| {
        let mut reply = Reply::file(request, &served);
        reply.cut = (n < 2).then_some(MIB);
        reply
    });
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::default();
    let path = server.store(dir.path()).pull(&catalog_model(&data), &mut log).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), data);
    let ranges: Vec<_> = server.requests().iter().map(|r| r.range()).collect();
    assert_eq!(ranges, [None, Some(MIB), Some(2 * MIB)]);
    assert_eq!(log.transfers, [("m".to_owned(), 3 * MIB as u64, 3 * MIB as u64)]);
    assert!(log.notices.is_empty());
}

#[test]
fn a_later_run_resumes_what_an_earlier_one_left() {
    let data = content(MIB);
    let served = data.clone();
    let server = Server::start(move |request, n| {
        let mut reply = Reply::file(request, &served);
        reply.cut = (n == 0).then_some(MIB / 4);
        reply
    });
    let dir = tempfile::tempdir().unwrap();
    let model = catalog_model(&data);
    let once = server.store(dir.path()).with_hub(HubConfig { retries: 0, ..server.config() });
    let error = source_error(once.pull(&model, &mut Silent));
    let quarter = MIB as u64 / 4;
    assert!(matches!(error, HubError::Interrupted { got, .. } if got == quarter), "{error}");
    assert_eq!(files_below(dir.path()), [format!(".m.gguf.{}.part", &sha256(&data)[..16])]);
    assert_eq!(once.path_if_present(&model, &mut Silent).unwrap(), None);
    assert!(once.list().unwrap().is_empty(), "a part is no model");

    let path = once.pull(&model, &mut Silent).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), data);
    assert_eq!(server.requests()[1].range(), Some(MIB / 4));
    assert_eq!(files_below(dir.path()), ["m.gguf", "m.gguf.verified"]);
}

#[test]
fn a_spoilt_part_is_fetched_again_from_the_start() {
    let data = content(MIB);
    let served = data.clone();
    let server = Server::start(move |request, _| Reply::file(request, &served));
    let dir = tempfile::tempdir().unwrap();
    let part = dir.path().join(format!(".m.gguf.{}.part", &sha256(&data)[..16]));
    for spoilt in [vec![0; MIB / 2], vec![0; MIB], vec![0; MIB + 1]] {
        std::fs::write(&part, spoilt).unwrap();
        let path = server.store(dir.path()).pull(&catalog_model(&data), &mut Silent).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), data);
        std::fs::remove_file(path).unwrap();
    }
    let ranges: Vec<_> = server.requests().iter().map(|r| r.range()).collect();
    assert_eq!(ranges, [Some(MIB / 2), None, None, None]);
}

#[test]
fn a_server_without_ranges_starts_over() {
    let data = content(MIB);
    let served = data.clone();
    let server = Server::start(move |_, n| {
        let mut reply = Reply::new(200, &served[..]);
        reply.cut = (n == 0).then_some(MIB / 2);
        reply
    });
    let (_dir, path) = pull(&server, &catalog_model(&data));
    assert_eq!(std::fs::read(path.unwrap()).unwrap(), data);
    assert_eq!(server.requests()[1].range(), Some(MIB / 2));
}

#[test]
fn a_server_that_always_breaks_off_is_given_up_on() {
    let data = content(MIB);
    let served = data.clone();
    let server = Server::start(move |_, _| {
        let mut reply = Reply::new(200, &served[..]); // without ranges: no try gets further than the one before
        reply.cut = Some(MIB / 2);
        reply
    });
    let error = source_error(pull(&server, &catalog_model(&data)).1);
    assert!(matches!(error, HubError::Interrupted { .. }), "{error}");
    assert_eq!(server.requests().len(), 3, "one that got somewhere, and two that got no further");
}

#[test]
fn a_lying_range_is_refused() {
    let data = content(MIB);
    for range in ["bytes 0-9/1048576", "bytes 524288-1048575/9", "bytes x", "bytes 524288-/-1", ""] {
        let served = data.clone();
        let server = Server::start(move |request, n| {
            let mut reply = Reply::file(request, &served);
            if n == 0 {
                reply.cut = Some(MIB / 2);
            } else {
                reply.headers = vec![("Content-Range".into(), range.into())];
            }
            reply
        });
        let error = source_error(pull(&server, &catalog_model(&data)).1);
        assert!(matches!(error, HubError::BadAnswer { .. } | HubError::WrongSize { .. }), "{range}: {error}");
    }
}

#[test]
fn a_wrong_checksum_never_becomes_a_model() {
    let data = content(MIB);
    let mut other = data.clone();
    other[MIB / 2] ^= 1;
    let server = Server::start(move |request, _| Reply::file(request, &other));
    let model = catalog_model(&data);
    let dir = tempfile::tempdir().unwrap();
    let store = server.store(dir.path());
    let mut log = Log::default();
    let error = source_error(store.pull(&model, &mut log));
    assert!(matches!(&error, HubError::Checksum { expected, .. } if *expected == sha256(&data)), "{error}");
    assert_eq!(store.path_if_present(&model, &mut log).unwrap(), None);
    assert!(!dir.path().join("m.gguf").exists() && !dir.path().join("m.gguf.verified").exists());
    assert_eq!(log.notices.len(), 1, "{:?}", log.notices);
    assert_eq!(server.requests().len(), 1, "the same bytes would come again");
}

#[test]
fn statuses_say_what_they_mean() {
    let with_status = |status: u16| Server::start(move |_, _| Reply::new(status, "{}"));
    let error = hub_error(&with_status(404), "hf:o/r");
    assert!(matches!(error, HubError::NotFound { .. }), "{error}");
    for status in [401, 403] {
        let error = hub_error(&with_status(status), "hf:o/r");
        let text = error.to_string();
        assert!(matches!(error, HubError::Denied { .. }) && text.contains("set HF_TOKEN"), "{text}");
    }
    let server = with_status(403);
    let dir = tempfile::tempdir().unwrap();
    let store =
        server.store(dir.path()).with_hub(HubConfig { token: Some("secret".into()), ..server.config() });
    let text = store.pull(&parse("hf:o/r"), &mut Silent).unwrap_err().to_string();
    assert!(text.contains("token in HF_TOKEN may not") && !text.contains("secret"), "{text}");
    assert_eq!(server.requests()[0].header("authorization"), Some("Bearer secret"));
    let server = with_status(418);
    assert!(matches!(hub_error(&server, "hf:o/r"), HubError::Status { status: 418, .. }));
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn a_server_error_is_retried_and_not_forever() {
    let data = content(1000);
    let served = data.clone();
    let server = Server::start(move |request, n| match (n % 2, request.path.starts_with("/api/")) {
        (0, _) => Reply::new(503, "busy"),
        (_, true) => Reply::new(200, listing(&[("m.gguf", &served)])),
        (_, false) => Reply::file(request, &served),
    });
    let (_dir, path) = pull(&server, &parse("hf:o/r"));
    assert_eq!(std::fs::read(path.unwrap()).unwrap(), data);
    assert_eq!(server.requests().len(), 4);

    let server = Server::start(|_, _| Reply::new(500, "dead"));
    assert!(matches!(hub_error(&server, "hf:o/r"), HubError::Status { status: 500, .. }));
    assert_eq!(server.requests().len(), 3, "one try, two retries");
}

#[test]
fn a_redirect_keeps_the_range_and_drops_the_token() {
    let data = content(MIB);
    let served = data.clone();
    let store_server = Server::start(move |request, n| {
        let mut reply = Reply::file(request, &served);
        reply.cut = (n == 0).then_some(MIB / 2);
        reply
    });
    let to = format!("{}/blob?signature=x", store_server.url);
    let front = Server::start(move |_, _| Reply::new(302, "").with("Location", &to));
    let dir = tempfile::tempdir().unwrap();
    let store =
        front.store(dir.path()).with_hub(HubConfig { token: Some("secret".into()), ..front.config() });
    let path = store.pull(&catalog_model(&data), &mut Silent).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), data);
    assert_eq!(front.requests()[0].header("authorization"), Some("Bearer secret"));
    let requests = store_server.requests();
    assert_eq!((requests[0].range(), requests[1].range()), (None, Some(MIB / 2)));
    assert!(requests.iter().all(|r| r.header("authorization").is_none()), "the token left its host");
    assert!(requests.iter().all(|r| r.path == "/blob?signature=x"));

    // A redirect within the hub, as for a repository that was renamed, keeps the token.
    let served = data.clone();
    let front = Server::start(move |request, n| match n {
        0 => Reply::new(307, "").with("Location", "/new/name"),
        _ => Reply::file(request, &served),
    });
    let dir = tempfile::tempdir().unwrap();
    let store =
        front.store(dir.path()).with_hub(HubConfig { token: Some("secret".into()), ..front.config() });
    store.pull(&catalog_model(&data), &mut Silent).unwrap();
    assert_eq!(front.requests()[1].path, "/new/name");
    assert_eq!(front.requests()[1].header("authorization"), Some("Bearer secret"));
}

#[test]
fn a_redirect_that_leads_nowhere_is_refused() {
    for location in ["/again", "relative", "ftp://127.0.0.1/x", ""] {
        let server = Server::start(move |_, _| Reply::new(302, "").with("Location", location));
        let error = hub_error(&server, "hf:o/r");
        assert!(matches!(error, HubError::BadAnswer { .. }), "{location}: {error}");
        assert!(server.requests().len() <= 11);
    }
    let server = Server::start(|_, _| Reply::new(302, ""));
    assert!(matches!(hub_error(&server, "hf:o/r"), HubError::BadAnswer { .. }));
}

#[test]
fn a_stalled_server_is_left_in_time() {
    let data = content(MIB);
    let served = data.clone();
    let stalls = Server::start(move |request, n| {
        let mut reply = Reply::file(request, &served);
        if n == 0 {
            (reply.cut, reply.hang) = (Some(MIB / 2), Duration::from_secs(60));
        }
        reply
    });
    let mute = Server::start(|_, _| {
        let mut reply = Reply::new(200, "{}");
        reply.delay = Duration::from_secs(60);
        reply
    });
    let dir = tempfile::tempdir().unwrap();
    let hasty = |server: &Server| {
        let hub = HubConfig { stall_timeout: Duration::from_millis(300), ..server.config() };
        server.store(dir.path()).with_hub(hub)
    };
    let start = Instant::now();
    let path = hasty(&stalls).pull(&catalog_model(&data), &mut Silent).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), data);
    let error = hasty(&mute).pull(&parse("hf:o/r"), &mut Silent).unwrap_err();
    assert!(matches!(error, Error::Hub(HubError::BadAnswer { .. })), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

#[test]
fn a_slow_server_that_keeps_sending_is_not_cut() {
    // Longer in all than the stall timeout, with no single pause nearly that long.
    let data = content(1000);
    let served = data.clone();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n").unwrap();
        for piece in served.chunks(100) {
            std::thread::sleep(Duration::from_millis(170));
            stream.write_all(piece).unwrap();
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let hub = HubConfig { retries: 0, stall_timeout: Duration::from_millis(1500), ..quick(&url) };
    let store = Store::new(dir.path()).with_hub(hub).with_pip(no_pip());
    let path = store.pull(&catalog_model(&data), &mut Silent).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), data);
}

#[test]
fn a_listing_that_is_none_is_refused() {
    let wrong_commit = String::from_utf8(listing(&[("m.gguf", b"x")])).unwrap().replace(COMMIT, "../../etc");
    let negative = r#"{"sha":"0123456789abcdef0123456789abcdef01234567","siblings":[
        {"rfilename":"m.gguf","lfs":{"sha256":"aa","size":-1}}]}"#;
    for body in ["", "<html>login</html>", "[]", "{\"siblings\":3}", "\u{0}", &wrong_commit, negative] {
        let body = body.to_owned();
        let server = Server::start(move |_, _| Reply::new(200, body.as_bytes()));
        let error = hub_error(&server, "hf:o/r");
        assert!(matches!(error, HubError::BadAnswer { .. }), "{error:?}");
    }
}

#[test]
fn a_file_without_a_checksum_is_refused() {
    let file = format!(r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"m.gguf","size":9}}]}}"#);
    let server = Server::start(move |_, _| Reply::new(200, file.as_bytes()));
    let error = hub_error(&server, "hf:o/r");
    assert!(matches!(&error, HubError::NoChecksum { file } if file == "m.gguf"), "{error}");
}

#[test]
fn lengths_that_lie_are_refused() {
    let data = content(1000);
    for length in ["-1", "18446744073709551616", "99999999999999", "999", "x", "1001"] {
        let served = data.clone();
        let server = Server::start(move |_, _| {
            let mut reply = Reply::new(200, &served[..]).with("Content-Length", length);
            reply.length = false;
            reply
        });
        let (dir, result) = pull(&server, &catalog_model(&data));
        let error = source_error(result);
        assert!(
            matches!(error, HubError::BadAnswer { .. } | HubError::WrongSize { .. }),
            "{length}: {error:?}"
        );
        assert!(!dir.path().join("m.gguf").exists());
    }
    // No length at all, and too many bytes.
    let mut longer = data.clone();
    longer.push(0);
    let server = Server::start(move |_, _| {
        let mut reply = Reply::new(200, &longer[..]);
        reply.length = false;
        reply
    });
    let error = source_error(pull(&server, &catalog_model(&data)).1);
    assert!(matches!(error, HubError::WrongSize { expected: 1000, .. }), "{error:?}");
}

#[test]
fn more_than_the_disk_holds_is_not_begun() {
    let body = format!(
        r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"m.gguf","lfs":{{"sha256":"{}","size":{}}}}}]}}"#,
        sha256(b""),
        u64::MAX
    );
    let server = Server::start(move |_, _| Reply::new(200, body.as_bytes()));
    let (_dir, result) = pull(&server, &parse("hf:o/r"));
    assert!(matches!(result, Err(Error::NoSpace { .. })), "{result:?}");
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn hostile_file_names_stay_out() {
    for name in [
        "../../escape-Q4_0.gguf",
        "/tmp/escape-Q4_0.gguf",
        "a/../../../../escape-Q4_0.gguf",
        "..\\escape.gguf",
    ] {
        let server = hub(vec![(name, content(10))]);
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("store");
        let error = server.store(&inner).pull(&parse("hf:o/r"), &mut Silent).unwrap_err();
        assert!(matches!(error, Error::Hub(HubError::Select(SelectError::UnsafeName { .. }))), "{error}");
        assert!(files_below(dir.path()).is_empty());
    }
}

#[test]
fn an_ambiguous_quantization_lists_the_candidates() {
    let server = hub(vec![("a-Q4_0.gguf", content(10)), ("b-Q4_0.gguf", content(11))]);
    let error = hub_error(&server, "hf:o/r:q4_0").to_string();
    assert!(error.contains("a-Q4_0.gguf, b-Q4_0.gguf") && error.contains("hf:o/r:FILE"), "{error}");
    let (_dir, path) = pull(&server, &parse("hf:o/r:b-Q4_0.gguf"));
    assert_eq!(std::fs::read(path.unwrap()).unwrap(), content(11));
}

#[test]
fn an_unreachable_hub_is_said_at_once_in_one_line() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port(); // closed again
    let endpoint = format!("http://127.0.0.1:{port}");
    let patient = HubConfig { retries: 9, retry_delay: Duration::from_secs(9), ..quick(&endpoint) };
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path()).with_hub(patient).with_pip(no_pip());
    let start = Instant::now();
    let mut log = Log::default();
    let error = source_error(store.pull(&catalog_model(b"x"), &mut log));
    assert!(matches!(error, HubError::Unreachable { .. }), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(log.notices.len(), 1);
    let expected = format!("m: Hugging Face hub o/r: cannot reach {endpoint}: ");
    assert!(log.notices[0].starts_with(&expected), "{:?}", log.notices);
}

#[test]
fn a_configuration_that_makes_no_sense_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    for (endpoint, token) in
        [("", None), ("hub", None), ("ftp://127.0.0.1", None), ("http://127.0.0.1:1", Some("a\nb"))]
    {
        let hub = HubConfig { token: token.map(str::to_owned), ..quick(endpoint) };
        let error = Store::new(dir.path()).with_hub(hub).pull(&parse("hf:o/r"), &mut Silent).unwrap_err();
        assert!(
            matches!(error, Error::Hub(HubError::BadAnswer { .. } | HubError::Unreachable { .. })),
            "{error:?}"
        );
    }
}

#[test]
fn two_who_want_the_same_model_fetch_it_once() {
    let data = content(MIB);
    let served = data.clone();
    let server = Server::start(move |request, _| {
        let mut reply = Reply::file(request, &served);
        reply.delay = Duration::from_millis(150);
        reply
    });
    let dir = tempfile::tempdir().unwrap();
    let model = catalog_model(&data);
    let waits: Vec<usize> = std::thread::scope(|scope| {
        let start = || {
            let mut log = Log::default();
            let path = server.store(dir.path()).pull(&model, &mut log).unwrap();
            assert_eq!(std::fs::read(path).unwrap(), data);
            log.notices.iter().filter(|line| line.contains("another process is fetching it")).count()
        };
        let both = [scope.spawn(start), scope.spawn(start)];
        both.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(server.requests().len(), 1);
    assert_eq!(waits.iter().sum::<usize>(), 1, "one waited and was told so");
}
