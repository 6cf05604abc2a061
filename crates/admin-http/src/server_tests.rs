//! The server as a client on a socket sees it: paths, methods, headers and addresses.

use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;

use crate::testing::{PATIENCE, ask, connect, fake, get, loopback, receive, serve, until_closed};
use crate::{BindError, Handler, Method, Reply, Request, Server, Settings};

#[test]
fn every_path_answers_and_every_answer_is_guarded() {
    let handle = serve(Settings::default(), fake());
    let text = "text/plain; charset=utf-8";
    let cases = [
        ("/alive", 200, text, "ok\n"),
        ("/livez", 200, text, "ok\n"),
        ("/healthz", 200, text, "ok\n"),
        ("/ready", 503, text, "no master\ntwo lines\n"),
        ("/readyz?verbose", 503, text, "no master\ntwo lines\n"),
        ("/startup", 200, text, "ok\n"),
        ("/metrics", 200, "text/plain; version=0.0.4; charset=utf-8", "# Prometheus\n"),
        ("/status", 200, "application/json", "{\"ok\":true}"),
    ];
    for (path, status, content_type, body) in cases {
        let got = get(&handle, path);
        assert_eq!((got.status, got.body.as_str()), (status, body), "{path}");
        assert_eq!(got.header("content-type"), Some(content_type), "{path}");
        assert_eq!(got.header("cache-control"), Some("no-store"), "{path}");
        assert_eq!(got.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(
            got.header("content-security-policy"),
            Some("default-src 'none'; frame-ancestors 'none'")
        );
    }
    let lost = get(&handle, "/elsewhere/%3Cb%3E");
    assert_eq!((lost.status, lost.header("content-type")), (404, Some(text)));
    for path in ["/alive", "/ready", "/startup", "/metrics", "/status"] {
        assert!(lost.body.contains(path), "{}", lost.body);
    }
    assert_eq!(handle.stats().counted().requests, 9);
}

#[test]
fn the_page_has_a_fresh_nonce_that_its_policy_names() {
    let handle = serve(Settings::default(), fake());
    let nonces: Vec<String> = (0..2)
        .map(|_| {
            let page = get(&handle, "/");
            assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
            let policy = page.header("content-security-policy").unwrap();
            let nonce = policy
                .split("script-src 'nonce-")
                .nth(1)
                .unwrap()
                .split('\'')
                .next()
                .unwrap()
                .to_owned();
            assert!(
                nonce.len() == 32 && page.body.contains(&format!("<script nonce=\"{nonce}\">")),
                "{page:?}"
            );
            assert!(
                policy.starts_with("default-src 'none';") && !policy.contains("unsafe"),
                "{policy}"
            );
            nonce
        })
        .collect();
    assert_ne!(nonces[0], nonces[1]);
}

#[test]
fn metrics_come_in_the_form_the_scraper_prefers() {
    let handle = serve(Settings::default(), fake());
    let accept =
        "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    let got = ask(
        &mut connect(&handle),
        &format!("GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: {accept}\r\n\r\n"),
    );
    assert_eq!(got.body, "# OpenMetrics\n");
    assert_eq!(
        got.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
}

#[test]
fn head_has_everything_but_the_body_and_other_methods_are_told_what_is_allowed() {
    let handle = serve(Settings::default(), fake());
    let mut stream = connect(&handle);
    let head = ask(&mut stream, "HEAD /alive HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((head.status, head.header("content-length")), (200, Some("3")));
    // Had a body come, the next answer would not be found where it is.
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"] {
        let got = ask(
            &mut stream,
            &format!("{method} /ready HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"),
        );
        assert_eq!((got.status, got.header("allow")), (405, Some("get, head")), "{method}");
    }
    let old = ask(&mut connect(&handle), "GET /alive HTTP/1.0\r\n\r\n");
    assert_eq!((old.status, old.body.as_str()), (200, "ok\n"));
}

struct Echo;

impl Handler for Echo {
    fn methods(&self) -> &'static [Method] {
        &[Method::Post]
    }

    fn answer(&self, request: &Request<'_>) -> Reply {
        assert_eq!(request.method, Method::Post);
        Reply::text(
            202,
            format!("{} {:?} {:?}", request.path(), request.query(), request.header("x-a")),
        )
    }
}

#[test]
fn paths_can_be_added_with_their_own_methods() {
    let server =
        Server::bind(&loopback(), Settings::default()).unwrap().route("/control", Arc::new(Echo));
    let handle = server.serve(fake()).unwrap();
    let mut stream = connect(&handle);
    let got = ask(
        &mut stream,
        "POST /control?b=1 HTTP/1.1\r\nHost: a\r\nX-A: c\r\nContent-Length: 4\r\n\r\nbody",
    );
    assert_eq!((got.status, got.body.as_str()), (202, "/control Some(\"b=1\") Some(\"c\")"));
    let got = ask(&mut stream, "GET /control HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((got.status, got.header("allow")), (405, Some("post")));
    assert!(get(&handle, "/nothing").body.contains("/control"));
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let handle = serve(Settings::default(), fake());
    let mut stream = connect(&handle);
    let paths = ["/alive", "/ready", "/nothing", "/status", "/alive"];
    let requests: String =
        paths.iter().map(|path| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
    stream.write_all(requests.as_bytes()).unwrap();
    // A client that says nothing more still gets its answers.
    stream.shutdown(Shutdown::Write).unwrap();
    let statuses: Vec<u16> = paths.iter().map(|_| receive(&mut stream, false).status).collect();
    assert_eq!(statuses, [200, 503, 404, 200, 200]);
    until_closed(&mut stream);
}

#[test]
fn whoever_comes_between_binding_and_serving_waits() {
    let server = Server::bind(&loopback(), Settings::default()).unwrap();
    let mut early = TcpStream::connect(server.addresses()[0]).unwrap();
    early.set_read_timeout(Some(PATIENCE)).unwrap();
    early.write_all(b"GET /startup HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let _handle = server.serve(fake()).unwrap();
    assert_eq!(receive(&mut early, false).status, 200);
}

#[test]
fn an_address_in_use_is_named_with_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let Err(error) = Server::bind(&[address], Settings::default()) else { panic!("bound twice") };
    assert!(matches!(error, BindError::InUse { .. }));
    assert!(
        error.to_string().starts_with(&format!("admin address {address} is already in use")),
        "{error}"
    );
    assert!(std::error::Error::source(&error).is_some());
    let elsewhere = "192.0.2.1:0".parse().unwrap();
    assert!(matches!(
        Server::bind(&[elsewhere], Settings::default()),
        Err(BindError::NotHere { .. })
    ));
}

#[test]
fn several_addresses_are_served_and_listeners_can_be_handed_over() {
    let handed = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = TcpListener::bind("127.0.0.2:0").unwrap();
    let expected = [handed.local_addr().unwrap(), other.local_addr().unwrap()];
    let server = Server::from_listeners(vec![handed, other], Settings::default()).unwrap();
    let handle = server.serve(fake()).unwrap();
    assert_eq!(handle.addresses(), expected);
    for address in expected {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(ask(&mut stream, "GET /alive HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    }
}

#[test]
fn leaves_ipv4_to_another_address_of_the_process() {
    let other = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let settings = Settings { ipv4_ports: vec![port], ..Settings::default() };
    let server = Server::bind(&[format!("[::]:{port}").parse().unwrap()], settings).unwrap();
    assert_eq!(server.addresses()[0].port(), port);
}
