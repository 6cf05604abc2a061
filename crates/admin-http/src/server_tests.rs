//! The server as a client sees it: paths, methods, headers and addresses.

use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};

use crate::testing::{
    TEST_TIMEOUT, ask, connect, fake_reporter, get, loopback, receive, serve, until_closed,
};
use crate::{Method, Reply, Request, Server, ServerSettings};

#[test]
fn answers_every_path_with_security_headers() {
    let handle = serve(ServerSettings::default(), fake_reporter());
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
        let response = get(&handle, path);
        assert_eq!((response.status, response.body.as_str()), (status, body), "{path}");
        assert_eq!(response.header("content-type"), Some(content_type), "{path}");
        assert_eq!(response.header("cache-control"), Some("no-store"), "{path}");
        assert_eq!(response.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(
            response.header("content-security-policy"),
            Some("default-src 'none'; frame-ancestors 'none'")
        );
    }
    let lost = get(&handle, "/elsewhere/%3Cb%3E");
    assert_eq!((lost.status, lost.header("content-type")), (404, Some(text)));
    for path in ["/alive", "/ready", "/startup", "/metrics", "/status"] {
        assert!(lost.body.contains(path), "{}", lost.body);
    }
    assert_eq!(handle.stats.counts().requests, 9);
}

#[test]
fn puts_fresh_nonce_into_page_and_policy() {
    let handle = serve(ServerSettings::default(), fake_reporter());
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
fn negotiates_metrics_format() {
    let handle = serve(ServerSettings::default(), fake_reporter());
    let accept =
        "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    let response = ask(
        &mut connect(&handle),
        &format!("GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: {accept}\r\n\r\n"),
    );
    assert_eq!(response.body, "# OpenMetrics\n");
    assert_eq!(
        response.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
}

#[test]
fn answers_head_without_body_and_lists_allowed_methods() {
    let handle = serve(ServerSettings::default(), fake_reporter());
    let mut stream = connect(&handle);
    let head = ask(&mut stream, "HEAD /alive HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((head.status, head.header("content-length")), (200, Some("3")));
    // If a body were sent, the next response would not be found at its position.
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"] {
        let response = ask(
            &mut stream,
            &format!("{method} /ready HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"),
        );
        assert_eq!(
            (response.status, response.header("allow")),
            (405, Some("get, head")),
            "{method}"
        );
    }
    let old = ask(&mut connect(&handle), "GET /alive HTTP/1.0\r\n\r\n");
    assert_eq!((old.status, old.body.as_str()), (200, "ok\n"));
}

fn echo(request: &Request<'_>) -> Reply {
    assert_eq!(request.method, Method::Post);
    Reply::text(
        202,
        format!("{} {:?} {:?}", request.path(), request.query(), request.header("x-a")),
    )
}

#[test]
fn adds_routes_with_their_own_methods() {
    let server = Server::bind(&loopback(), ServerSettings::default()).unwrap().route(
        "/control",
        Method::Post,
        |request| Ok(echo(request)),
    );
    let handle = server.serve(fake_reporter()).unwrap();
    let mut stream = connect(&handle);
    let response = ask(
        &mut stream,
        "POST /control?b=1 HTTP/1.1\r\nHost: a\r\nX-A: c\r\nContent-Length: 4\r\n\r\nbody",
    );
    assert_eq!(
        (response.status, response.body.as_str()),
        (202, "/control Some(\"b=1\") Some(\"c\")")
    );
    let response = ask(&mut stream, "GET /control HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((response.status, response.header("allow")), (405, Some("post")));
    assert!(get(&handle, "/nothing").body.contains("/control"));
}

#[test]
fn answers_pipelined_requests_in_order() {
    let handle = serve(ServerSettings::default(), fake_reporter());
    let mut stream = connect(&handle);
    let paths = ["/alive", "/ready", "/nothing", "/status", "/alive"];
    let requests: String =
        paths.iter().map(|path| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
    stream.write_all(requests.as_bytes()).unwrap();
    // A client that shuts down its write half still gets its responses.
    stream.shutdown(Shutdown::Write).unwrap();
    let statuses: Vec<u16> = paths.iter().map(|_| receive(&mut stream, false).status).collect();
    assert_eq!(statuses, [200, 503, 404, 200, 200]);
    until_closed(&mut stream);
}

#[test]
fn queues_connections_between_bind_and_serve() {
    let server = Server::bind(&loopback(), ServerSettings::default()).unwrap();
    let mut early = TcpStream::connect(server.addresses[0]).unwrap();
    early.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    early.write_all(b"GET /startup HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let _handle = server.serve(fake_reporter()).unwrap();
    assert_eq!(receive(&mut early, false).status, 200);
}

#[test]
fn reports_address_in_use_with_advice() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let Err(error) = Server::bind(&[address], ServerSettings::default()) else {
        panic!("bound twice")
    };
    assert!(error.is_in_use());
    assert!(
        error.to_string().starts_with(&format!("admin address {address} is already in use")),
        "{error}"
    );
    assert!(std::error::Error::source(&error).is_some());
    let elsewhere = "192.0.2.1:0".parse().unwrap();
    let Err(error) = Server::bind(&[elsewhere], ServerSettings::default()) else {
        panic!("bound elsewhere")
    };
    assert!(error.to_string().contains("does not belong to this machine"), "{error}");
}

#[test]
fn serves_several_inherited_listeners() {
    let handed = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = TcpListener::bind("127.0.0.2:0").unwrap();
    let expected = [handed.local_addr().unwrap(), other.local_addr().unwrap()];
    let server = Server::from_listeners(vec![handed, other], ServerSettings::default()).unwrap();
    let handle = server.serve(fake_reporter()).unwrap();
    assert_eq!(handle.addresses, expected);
    for address in expected {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        assert_eq!(ask(&mut stream, "GET /alive HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    }
}

#[test]
fn binds_ipv6_only_if_port_is_used_for_ipv4() {
    let other = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let settings = ServerSettings { ipv4_ports: vec![port], ..ServerSettings::default() };
    let server = Server::bind(&[format!("[::]:{port}").parse().unwrap()], settings).unwrap();
    assert_eq!(server.addresses[0].port(), port);
}
