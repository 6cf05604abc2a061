//! The server with TLS: what needs it, client certificates, rotation, and hostile handshakes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tls::rustls::{ClientConnection, StreamOwned};
use tls::{
    CertificateFiles, ClientCertificates, ClientSettings, ClientTls, PemFile, Roots, ServerTls,
};

use crate::testing::{
    Response, ask, connect, fake_reporter, get, loopback, receive, until_closed, wait_for,
};
use crate::{AdminTls, Handle, Method, Reply, Request, Server, ServerSettings, TlsRules};

const PROBES: [&str; 6] = ["/alive", "/livez", "/healthz", "/ready", "/readyz", "/startup"];
const ORDER: &str = "POST /order HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";

/// An authority of a test.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn file(&self) -> PemFile {
        PemFile::new(PathBuf::from("ca.crt"), self.0.pem())
    }

    fn issue(&self, name: &str) -> CertificateFiles {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let file = |text| PemFile::new(PathBuf::from("tls"), text);
        CertificateFiles { chain: file(certificate.pem()), key: file(key.serialize_pem()) }
    }

    /// A client of a server that is called `name`.
    fn client(&self, own: Option<CertificateFiles>) -> ClientTls {
        let roots = Roots::Own(self.file());
        let settings = ClientSettings { roots, certificate: own, ..ClientSettings::default() };
        ClientTls::new(&settings).unwrap()
    }

    fn rules(&self, name: &str, clients: Option<&Self>) -> TlsRules {
        let settings = tls::ServerSettings {
            certificates: vec![self.issue(name)],
            client_certificates: match clients {
                Some(_) => ClientCertificates::Optional,
                None => ClientCertificates::None,
            },
            client_ca: clients.map(Self::file),
            without_resumption: true,
            ..tls::ServerSettings::default()
        };
        let server = ServerTls::new(&settings).unwrap();
        TlsRules { server, certificate_required: clients.is_some() }
    }
}

/// Counts the commands that it executes.
#[derive(Default)]
struct Commands(AtomicUsize);

impl Commands {
    fn answer(&self, _: &Request<'_>) -> Reply {
        self.0.fetch_add(1, Ordering::SeqCst);
        Reply::text(200, "done\n")
    }
}

fn serve_with(tls: &AdminTls, settings: ServerSettings) -> (Handle, Arc<Commands>) {
    let commands = Arc::new(Commands::default());
    let server = Server::bind(&loopback(), settings).unwrap().tls(tls.clone());
    let own = Arc::clone(&commands);
    let server = server.route("/order", Method::Post, move |request| Ok(own.answer(request)));
    (server.serve(fake_reporter()).unwrap(), commands)
}

fn serve(tls: &AdminTls) -> (Handle, Arc<Commands>) {
    serve_with(tls, ServerSettings::default())
}

type Secured = StreamOwned<ClientConnection, TcpStream>;

fn secure(handle: &Handle, client: &ClientTls, name: &str) -> Secured {
    let (config, name) = client.connect(name).unwrap();
    StreamOwned::new(ClientConnection::new(config, name).unwrap(), connect(handle))
}

/// Sends a request and reads the response with its body.
fn request(stream: &mut Secured, request: &str) -> std::io::Result<Response> {
    stream.write_all(request.as_bytes())?;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let mut response = Response { status: head[9..12].parse().unwrap(), head, body: String::new() };
    let mut body = vec![0; response.header("content-length").unwrap().parse().unwrap()];
    stream.read_exact(&mut body)?;
    response.body = String::from_utf8(body).unwrap();
    Ok(response)
}

fn get_over(stream: &mut Secured, path: &str) -> std::io::Result<Response> {
    request(stream, &format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"))
}

#[test]
fn serves_plain_clients_probes_only() {
    let authority = Authority::new();
    let tls = AdminTls::new(authority.rules("admin.test", None));
    let (handle, commands) = serve(&tls);
    let mut secured = secure(&handle, &authority.client(None), "admin.test");
    for path in ["/", "/status", "/metrics", "/alive"] {
        assert_eq!(get_over(&mut secured, path).unwrap().status, 200, "{path}");
    }
    assert_eq!(request(&mut secured, ORDER).unwrap().status, 200);
    for path in PROBES {
        assert_ne!(get(&handle, path).status, 400, "{path}");
    }
    for path in ["/", "/status", "/metrics", "/no-such-path"] {
        let refused = get(&handle, path);
        assert_eq!((refused.status, refused.header("connection")), (400, Some("close")), "{path}");
        assert!(refused.body.contains("https://"), "{}", refused.body);
    }
    assert_eq!(ask(&mut connect(&handle), ORDER).status, 400);
    assert_eq!(commands.0.load(Ordering::SeqCst), 1);
    let counts = handle.stats.counts();
    assert_eq!((counts.plaintext, counts.handshakes, counts.failed_handshakes), (5, 1, 0));
}

#[test]
fn requires_client_certificate_except_for_probes() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let tls = AdminTls::new(authority.rules("admin.test", Some(&clients)));
    let (handle, commands) = serve(&tls);
    let without = authority.client(None);
    for path in PROBES {
        let mut stream = secure(&handle, &without, "admin.test");
        assert_ne!(get_over(&mut stream, path).unwrap().status, 403, "{path}");
        assert_ne!(get(&handle, path).status, 403, "{path} without TLS");
    }
    for path in ["/", "/status", "/metrics"] {
        let mut stream = secure(&handle, &without, "admin.test");
        let refused = get_over(&mut stream, path).unwrap();
        assert_eq!((refused.status, refused.header("connection")), (403, Some("close")), "{path}");
        assert!(refused.body.contains("client certificate"), "{}", refused.body);
    }
    let mut stream = secure(&handle, &without, "admin.test");
    assert_eq!(request(&mut stream, ORDER).unwrap().status, 403);
    assert_eq!(commands.0.load(Ordering::SeqCst), 0);

    let known = authority.client(Some(clients.issue("operator")));
    let mut stream = secure(&handle, &known, "admin.test");
    assert_eq!(request(&mut stream, ORDER).unwrap().status, 200);
    assert_eq!(get_over(&mut stream, "/metrics").unwrap().status, 200);
    let foreign = authority.client(Some(Authority::new().issue("operator")));
    let mut stream = secure(&handle, &foreign, "admin.test");
    assert!(request(&mut stream, ORDER).is_err(), "refused in the handshake");
    assert_eq!(commands.0.load(Ordering::SeqCst), 1);
    assert_eq!(handle.stats.counts().uncertified, 4);
}

#[test]
fn verifies_certificate_again_at_each_request() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let tls = AdminTls::new(authority.rules("admin.test", Some(&clients)));
    let (handle, _) = serve(&tls);
    let known = authority.client(Some(clients.issue("operator")));
    let (mut one, mut other) =
        (secure(&handle, &known, "admin.test"), secure(&handle, &known, "admin.test"));
    for stream in [&mut one, &mut other] {
        assert_eq!(get_over(stream, "/status").unwrap().status, 200);
    }
    // Another certificate of the server: nothing fails, and the connection is closed in order.
    tls.set(authority.rules("admin.test", Some(&clients)));
    let last = get_over(&mut one, "/status").unwrap();
    assert_eq!((last.status, last.header("connection")), (200, Some("close")));
    assert_eq!(one.read(&mut [0]).unwrap(), 0, "closed with close_notify");
    // Another authority: a connection from before has no rights any more.
    tls.set(authority.rules("admin.test", Some(&Authority::new())));
    assert_eq!(get_over(&mut other, "/status").unwrap().status, 403);
}

#[test]
fn uses_replaced_certificate_for_new_connections() {
    let authority = Authority::new();
    let tls = AdminTls::new(authority.rules("old.test", None));
    let (handle, _) = serve(&tls);
    let client = authority.client(None);
    assert_eq!(get_over(&mut secure(&handle, &client, "old.test"), "/alive").unwrap().status, 200);
    tls.set(authority.rules("new.test", None));
    assert_eq!(get_over(&mut secure(&handle, &client, "new.test"), "/alive").unwrap().status, 200);
    assert!(get_over(&mut secure(&handle, &client, "old.test"), "/alive").is_err());
}

fn from_other_source(handle: &Handle) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&"127.0.66.8:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    socket.connect(&handle.addresses[0].into()).unwrap();
    socket.set_read_timeout(Some(crate::testing::TEST_TIMEOUT)).unwrap();
    socket.into()
}

#[test]
fn keeps_served_clients_beside_stalled_handshakes() {
    let authority = Authority::new();
    let tls = AdminTls::new(authority.rules("admin.test", None));
    let settings = ServerSettings { max_connections: 8, ..ServerSettings::default() };
    let (handle, _) = serve_with(&tls, settings);
    let client = authority.client(None);
    let mut served = secure(&handle, &client, "admin.test");
    assert_eq!(get_over(&mut served, "/alive").unwrap().status, 200);
    // A slow client of another source, in its handshake.
    let (config, name) = client.connect("admin.test").unwrap();
    let slow = from_other_source(&handle);
    let mut slow = StreamOwned::new(ClientConnection::new(config, name).unwrap(), slow);
    slow.conn.write_tls(&mut slow.sock).unwrap();
    let mut stalled = Vec::new();
    for number in 0..40 {
        let mut stream = connect(&handle);
        // Nothing, half a record, and records of no sense.
        let junk: [&[u8]; 4] =
            [b"", b"\x16\x03\x01\x02\x00\x01", b"\x16\x03\x01\x00\x02\x01\x00", b"GET / HT"];
        stream.write_all(junk[number % 4]).unwrap();
        stalled.push(stream);
    }
    assert_eq!(get(&handle, "/alive").status, 200);
    assert_eq!(
        get_over(&mut secure(&handle, &client, "admin.test"), "/alive").unwrap().status,
        200
    );
    assert_eq!(get_over(&mut served, "/alive").unwrap().status, 200, "it was not evicted");
    assert_eq!(get_over(&mut slow, "/alive").unwrap().status, 200, "nor was it");
    assert!(handle.stats.counts().evicted >= 20, "{:?}", handle.stats.counts());
}

#[test]
fn closes_stalled_handshake_at_header_timeout() {
    let authority = Authority::new();
    let tls = AdminTls::new(authority.rules("admin.test", None));
    let header_timeout = Duration::from_millis(200);
    let settings = ServerSettings { header_timeout, ..ServerSettings::default() };
    let (handle, _) = serve_with(&tls, settings);
    let (mut silent, mut stalled) = (connect(&handle), connect(&handle));
    stalled.write_all(b"\x16\x03\x01\x02\x00\x01").unwrap();
    for stream in [&mut silent, &mut stalled] {
        until_closed(stream);
    }
    // The socket is closed first.
    wait_for("the counts", || handle.stats.counts().failed_handshakes == 2);
    assert_eq!(handle.stats.counts().timed_out, 2);
    // A client that only connects is not a failure.
    drop(connect(&handle));
    wait_for("its end", || handle.stats.counts().open == 0);
    assert_eq!(handle.stats.counts().failed_handshakes, 2);
    let mut probe = connect(&handle);
    probe.write_all(b"GET /alive HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(receive(&mut probe, false).status, 200);
}
