//! Who may ask what: the host that a request names, read-only addresses, and the guard.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::testing::{ask, connect, fake_reporter, loopback};
use crate::{Handle, HostNames, Method, Reply, Request, Server, ServerSettings};

/// Counts the commands that it executes.
#[derive(Default)]
struct Commands(AtomicUsize);

impl Commands {
    fn answer(&self, request: &Request<'_>) -> Reply {
        assert!(request.origin.peer.is_some_and(|peer| peer.is_loopback()));
        self.0.fetch_add(1, Ordering::SeqCst);
        Reply::text(200, "done\n")
    }
}

fn server() -> (Server, Arc<Commands>) {
    let commands = Arc::new(Commands::default());
    let server = Server::bind(&loopback(), ServerSettings::default()).unwrap();
    let own = Arc::clone(&commands);
    (server.route("/order", Method::Post, move |request| Ok(own.answer(request))), commands)
}

fn status(handle: &Handle, request: &str) -> u16 {
    ask(&mut connect(handle), request).status
}

const PROBES: [&str; 7] =
    ["/alive", "/livez", "/healthz", "/ready", "/readyz", "/startup", "/metrics"];

#[test]
fn refuses_foreign_host_except_on_probes_and_metrics() {
    let (server, commands) = server();
    let hosts = HostNames::new(["proxy.example.com".to_owned()]);
    let handle = server.hosts(hosts.clone()).serve(fake_reporter()).unwrap();
    let get = |path: &str, host: &str| {
        status(&handle, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
    };
    for path in PROBES {
        assert_ne!(get(path, "rebind.example"), 421, "{path}");
    }
    for path in ["/", "/status"] {
        assert_eq!(get(path, "rebind.example"), 421, "{path}");
        for host in ["127.0.0.1:8888", "localhost", "pointsman.redis.svc", "proxy.example.com"] {
            assert_eq!(get(path, host), 200, "{path} {host}");
        }
    }
    let post = |host: &str| {
        let command = format!("POST /order HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
        status(&handle, &command)
    };
    assert_eq!((post("rebind.example"), commands.0.load(Ordering::SeqCst)), (421, 0));
    assert_eq!((post("localhost"), commands.0.load(Ordering::SeqCst)), (200, 1));
    // Every place where a request can name a host counts, and two names are no name.
    assert_eq!(
        status(&handle, "GET http://rebind.example/status HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        421
    );
    assert_eq!(
        status(&handle, "GET /status HTTP/1.1\r\nHost: localhost\r\nHost: rebind.example\r\n\r\n"),
        421
    );
    assert_eq!(status(&handle, "GET /status HTTP/1.0\r\n\r\n"), 200, "no browser");
    let refused = ask(&mut connect(&handle), "GET / HTTP/1.1\r\nHost: rebind.example\r\n\r\n");
    assert!(refused.body.contains("admin.hosts"), "{}", refused.body);
    hosts.set([]);
    assert_eq!(get("/", "proxy.example.com"), 421);
}

#[test]
fn executes_no_command_at_read_only_address() {
    let commands = Arc::new(Commands::default());
    let own = Arc::clone(&commands);
    let addresses = [loopback()[0], loopback()[0]];
    let server = Server::bind(&addresses, ServerSettings::default()).unwrap();
    let read_only = server.addresses[1];
    let handle = server
        .route("/order", Method::Post, move |request| Ok(own.answer(request)))
        .read_only([read_only])
        .serve(fake_reporter())
        .unwrap();
    let command = "POST /order HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    let at = |address| {
        let stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(crate::testing::TEST_TIMEOUT)).unwrap();
        stream
    };
    assert_eq!(ask(&mut at(read_only), command).status, 403);
    assert_eq!(commands.0.load(Ordering::SeqCst), 0);
    assert_eq!(ask(&mut at(read_only), "GET /status HTTP/1.1\r\nHost: a\r\n\r\n").status, 200);
    assert_eq!(ask(&mut connect(&handle), command).status, 200);
    assert_eq!(commands.0.load(Ordering::SeqCst), 1);
}

/// Permits what has the header `X-Pass`.
fn pass(request: &Request<'_>) -> Result<(), Reply> {
    let refusal = || Reply::text(401, "no\n").ask_for_password();
    request.header("x-pass").map(drop).ok_or_else(refusal)
}

#[test]
fn asks_guard_for_everything_but_probes() {
    let (server, commands) = server();
    let handle = server.guard(pass).serve(fake_reporter()).unwrap();
    let get = |path: &str, pass: &str| {
        ask(&mut connect(&handle), &format!("GET {path} HTTP/1.1\r\nHost: a\r\n{pass}\r\n"))
    };
    for path in PROBES.iter().filter(|path| **path != "/metrics") {
        assert_ne!(get(path, "").status, 401, "{path}");
    }
    for path in ["/", "/status", "/metrics"] {
        let refused = get(path, "");
        assert_eq!(
            (refused.status, refused.header("www-authenticate")),
            (401, Some("basic realm=\"pointsman\", charset=\"utf-8\"")),
            "{path}"
        );
        assert_eq!(get(path, "X-Pass: 1\r\n").status, 200, "{path}");
    }
    let command = "POST /order HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    assert_eq!((status(&handle, command), commands.0.load(Ordering::SeqCst)), (401, 0));
}
