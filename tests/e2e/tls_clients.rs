//! Clients with TLS: versions, ciphers, names and client certificates, with redis-cli and openssl.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use harness::{
    Authority, Client, Cluster, Ending, Pointsman, TLS12, TLS13, Tls, Value, find_in_path,
};

use crate::builder;

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// A name of the certificates.
pub(crate) const NAME: &str = "redis.test";

/// A pointsman with an address for TLS, and what its clients need.
pub(crate) struct Secured {
    pub(crate) pointsman: Pointsman,
    pub(crate) addr: SocketAddr,
    pub(crate) authority: Authority,
}

impl Secured {
    /// With a certificate for [`NAME`], further lines of `[service.tls]`, and lines at the end.
    pub(crate) fn start(cluster: &Cluster, tls: &str, lines: &str) -> Self {
        let authority = Authority::new("Test CA");
        let ip = cluster.address().ip().to_string();
        let paths = authority.issue(&[NAME, &ip]).write(&folder(cluster));
        let section = section(&[(&paths.chain, &paths.key)], tls);
        Self::start_with(cluster, authority, &section, lines)
    }

    pub(crate) fn start_with(
        cluster: &Cluster,
        authority: Authority,
        section: &str,
        lines: &str,
    ) -> Self {
        let addr = cluster.address().port();
        let pointsman = builder(cluster)
            .service_line("hold_timeout = \"30s\"")
            .service_line(&format!("tls_listen = [\"{addr}\"]"))
            .service_line(section)
            .lines(lines)
            .start();
        Self { pointsman, addr, authority }
    }

    pub(crate) fn tls(&self) -> Tls {
        Tls::new(&self.authority, NAME)
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect_tls(self.addr, &self.tls(), PATIENCE).expect("a connection")
    }
}

/// A folder of this test for certificates; each call has a new one.
pub(crate) fn folder(cluster: &Cluster) -> PathBuf {
    let number = (0..).find(|it| !cluster.folder().join(format!("tls-{it}")).exists());
    cluster.folder().join(format!("tls-{}", number.expect("a number")))
}

/// `[service.tls]` with certificates and their keys.
pub(crate) fn section(files: &[(&PathBuf, &PathBuf)], more: &str) -> String {
    let (chains, keys): (Vec<_>, Vec<_>) = files.iter().copied().unzip();
    format!("[service.tls]\ncertificate_files = {chains:?}\nkey_files = {keys:?}\n{more}")
}

pub(crate) fn small() -> Cluster {
    Cluster::builder().replicas(0).sentinels(1).start()
}

/// The answer to PING on a new connection.
pub(crate) fn ping(addr: SocketAddr, tls: &Tls) -> io::Result<Value> {
    Client::connect_tls(addr, tls, PATIENCE)?.cmd(&["PING"])
}

#[track_caller]
pub(crate) fn assert_served(addr: SocketAddr, tls: &Tls) {
    assert_eq!(ping(addr, tls).expect("an answer").text(), Some("PONG"));
}

#[track_caller]
fn assert_refused(addr: SocketAddr, tls: &Tls, why: &str) {
    let error = ping(addr, tls).expect_err("a refusal").to_string();
    assert!(error.contains(why), "{error}");
}

fn run(program: &str, args: &[&str]) -> Output {
    let path = find_in_path(program).unwrap_or_else(|| panic!("{program} is not installed"));
    let output = Command::new(path).args(args).stdin(Stdio::null()).output();
    output.expect("an output")
}

fn redis_cli(addr: SocketAddr, ca: &Path, args: &[&str]) -> String {
    let (host, port) = (addr.ip().to_string(), addr.port().to_string());
    let ca = ca.to_str().expect("a path");
    let own = ["--tls", "--cacert", ca, "--sni", NAME, "-h", &host, "-p", &port];
    let output = run("redis-cli", &[&own[..], args].concat());
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// The version and cipher that openssl agrees on, such as `TLSv1.3 TLS_AES_128_GCM_SHA256`;
/// `(NONE) (NONE)` if the server refuses.
#[track_caller]
fn agreed(addr: SocketAddr, args: &[&str]) -> String {
    let connect = addr.to_string();
    let own = ["s_client", "-connect", &connect, "-servername", NAME];
    let output = run("openssl", &[&own[..], args].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("New, "));
    let Some(line) = line else {
        panic!("{text}{}", String::from_utf8_lossy(&output.stderr));
    };
    line.replace(", Cipher is", "")
}

#[test]
fn serves_redis_cli_with_each_version() {
    let cluster = small();
    for (rule, version) in
        [("max_version = \"1.2\"", "TLSv1.2"), ("min_version = \"1.3\"", "TLSv1.3")]
    {
        let secured = Secured::start(&cluster, rule, "");
        let ca = secured.authority.write(cluster.folder(), "ca.crt");
        assert_eq!(redis_cli(secured.addr, &ca, &["SET", "version", version]).trim(), "OK");
        assert_eq!(redis_cli(secured.addr, &ca, &["GET", "version"]).trim(), version);
        // Another authority than that of the certificate.
        let other = Authority::new("Other CA").write(cluster.folder(), "other.crt");
        let refused = redis_cli(secured.addr, &other, &["PING"]);
        assert!(refused.contains("certificate verify failed"), "{refused}");
        let negotiated = agreed(secured.addr, &[]);
        assert!(negotiated.starts_with(version), "{negotiated}");
        // The plain address is served beside it.
        let plain = secured.pointsman.client().cmd(&["GET", "version"]).expect("GET");
        assert_eq!(plain.text(), Some(version));
    }
}

#[test]
fn refuses_versions_and_ciphers_not_configured() {
    let cluster = small();
    let rule = "ciphers = [\"TLS_AES_128_GCM_SHA256\", \"ECDHE-ECDSA-AES128-GCM-SHA256\"]";
    let secured = Secured::start(&cluster, rule, "");
    let addr = secured.addr;
    // Debian's openssl itself offers old versions at this level only.
    const WEAK: &str = "DEFAULT@SECLEVEL=0";
    const NONE: &str = "(NONE) (NONE)";
    let cases: [(&[&str], &str); 7] = [
        (&["-tls1_3"], "TLSv1.3 TLS_AES_128_GCM_SHA256"),
        (&["-tls1_2"], "TLSv1.2 ECDHE-ECDSA-AES128-GCM-SHA256"),
        (&["-tls1_1", "-cipher", WEAK], NONE),
        (&["-tls1", "-cipher", WEAK], NONE),
        (&["-tls1_3", "-ciphersuites", "TLS_AES_256_GCM_SHA384"], NONE),
        (&["-tls1_2", "-cipher", "ECDHE-ECDSA-AES256-GCM-SHA384"], NONE),
        // Without forward secrecy, or with CBC.
        (&["-tls1_2", "-cipher", "AES128-SHA:AES128-GCM-SHA256:ECDHE-ECDSA-AES128-SHA"], NONE),
    ];
    for (args, expected) in cases {
        assert_eq!(agreed(addr, args), expected, "{args:?}");
    }
    assert_served(addr, &secured.tls());
}

#[test]
fn selects_certificate_by_name() {
    let cluster = small();
    let authority = Authority::new("Test CA");
    let one = authority.issue(&["one.test"]).write(&folder(&cluster));
    let two = authority.issue(&["two.test", "*.two.test"]).write(&folder(&cluster));
    let files = [(&one.chain, &one.key), (&two.chain, &two.key)];
    let secured = Secured::start_with(&cluster, authority, &section(&files, ""), "");
    for name in ["one.test", "two.test", "a.two.test"] {
        assert_served(secured.addr, &Tls::new(&secured.authority, name));
    }
    // The first one is shown for any other name, and the client decides.
    let other = Tls::new(&secured.authority, "three.test");
    assert_refused(secured.addr, &other, "not valid for name");
}

#[test]
fn verifies_client_certificates_as_configured() {
    let cluster = small();
    let clients = Authority::new("Clients CA");
    let ca = clients.write(cluster.folder(), "clients.crt");
    let (known, foreign) = (clients.issue(&["app"]), Authority::new("Foreign CA").issue(&["app"]));
    let expired = clients.issue_until(&["app"], 2021);
    for (rule, without) in [("required", false), ("optional", true)] {
        let rule = format!("client_certificates = \"{rule}\"\nclient_ca_file = {ca:?}");
        let secured = Secured::start(&cluster, &rule, "");
        let addr = secured.addr;
        for version in [&TLS12, &TLS13] {
            let tls = |own| Tls::with(&secured.authority, NAME, own, &[version]);
            assert_served(addr, &tls(Some(&known)));
            for other in [&foreign, &expired] {
                ping(addr, &tls(Some(other))).expect_err("a refusal");
            }
            assert_eq!(ping(addr, &tls(None)).is_ok(), without, "{rule} {version:?}");
        }
        let log = secured.pointsman.process().log();
        assert!(
            log.contains("TLS handshake failed") && log.contains("client_certificate"),
            "{log}"
        );
        assert!(!log.contains("PRIVATE KEY"));
    }
}

#[test]
fn answers_plain_client_on_tls_address() {
    let cluster = small();
    let secured = Secured::start(&cluster, "", "");
    let mut plain = Client::connect(secured.addr).expect("a connection");
    let reply = plain.cmd(&["PING"]).expect("a reply");
    let error = reply.error().expect("an error");
    assert!(error.contains("this port accepts TLS connections only"), "{error}");
    let (rest, ending) = plain.read_to_end().expect("the end");
    assert_eq!((rest.len(), ending), (0, Ending::Fin));
    assert_served(secured.addr, &secured.tls());
}

#[test]
fn transfers_large_values_and_pipelines() {
    let cluster = small();
    let secured = Secured::start(&cluster, "", "");
    for version in [&TLS12, &TLS13] {
        let tls = Tls::with(&secured.authority, NAME, None, &[version]);
        let mut client = Client::connect_tls(secured.addr, &tls, PATIENCE).expect("a connection");
        // More than a record, than all buffers, and than the size from which plain sessions splice.
        for size in [16_383, 16_385, 100_000, 3_000_000] {
            let value: Vec<u8> = (0_u32..size).map(|at| (at % 251) as u8).collect();
            assert!(client.cmd(&[&b"SET"[..], b"large", &value]).expect("SET").is_ok());
            let back = client.cmd(&["GET", "large"]).expect("GET");
            assert!(matches!(&back, Value::Bulk(bytes) if *bytes == value), "{size}");
        }
        let commands: Vec<Vec<String>> =
            (0..1000).map(|it| vec!["ECHO".to_owned(), it.to_string()]).collect();
        let replies = client.pipeline(&commands).expect("replies");
        let order = replies.iter().enumerate();
        assert!(order.into_iter().all(|(it, reply)| reply.text() == Some(&it.to_string())));
    }
}
