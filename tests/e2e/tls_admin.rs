//! TLS of the admin server: probes, scrapes, orders, client certificates, rotation and junk.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{
    Authority, Certificate, Client, Cluster, HttpsClient, Launch, Pointsman, Process, Tls,
    http_get, wait_until,
};

use crate::credentials::write;
use crate::tls_clients::{PATIENCE, agreed, folder, small};
use crate::tls_rotation::Volume;
use crate::{PROGRAM, builder};

/// A name of the certificate.
pub(crate) const NAME: &str = "admin.test";
/// The source of junk.
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 66, 7);
const TOKEN: &str = "the-control-token-1";
const PROBES: [&str; 4] = ["/alive", "/ready", "/startup", "/healthz"];

/// A pointsman whose admin server has TLS, and what its clients need.
pub(crate) struct Scene {
    pub(crate) pointsman: Pointsman,
    read_only: SocketAddr,
    socket: PathBuf,
    pub(crate) authority: Authority,
    /// Its certificate, in the PEM format.
    pub(crate) ca: PathBuf,
}

impl Scene {
    /// With further lines of `[admin.tls]`.
    pub(crate) fn start(cluster: &Cluster, tls: &str) -> Self {
        let authority = Authority::new("Test CA");
        let ip = cluster.address().ip().to_string();
        let files = authority.issue(&[NAME, &ip]).write(&folder(cluster));
        let lines = format!("certificate_file = {:?}\nkey_file = {:?}", files.chain, files.key);
        Self::start_with(cluster, authority, &format!("{lines}\n{tls}"))
    }

    pub(crate) fn start_with(cluster: &Cluster, authority: Authority, section: &str) -> Self {
        let read_only = cluster.address().port();
        let socket = cluster.folder().join(format!("control-{}.sock", read_only.port()));
        let lines = format!(
            "read_only_listen = [\"{read_only}\"]\ncontrol = true\ncontrol_socket = {socket:?}\n\
             control_token_env = \"E2E_TOKEN\"\n[admin.tls]\n{section}"
        );
        // It waits for the readiness probe, without TLS.
        let pointsman = builder(cluster).lines(&lines).env("E2E_TOKEN", TOKEN).start();
        let ca = authority.write(cluster.folder(), "ca.crt");
        Self { pointsman, read_only, socket, authority, ca }
    }

    fn tls(&self) -> Tls {
        Tls::new(&self.authority, NAME)
    }

    fn connect(&self) -> HttpsClient {
        HttpsClient::connect(self.pointsman.admin(), &self.tls()).expect("a connection")
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        self.connect().get(path).expect("a response")
    }

    fn metric(&self, series: &str) -> Option<f64> {
        let (status, text) = self.get("/metrics");
        assert_eq!(status, 200);
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    /// `https://…` as an operator writes it.
    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.pointsman.admin())
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.pointsman.process().log_path().with_file_name("pointsman.toml")
    }
}

/// Runs a command of the program.
pub(crate) fn command(args: &[&str]) -> Output {
    Command::new(PROGRAM)
        .args(args)
        .env_clear()
        .env("POINTSMAN_CONTROL_TOKEN", TOKEN)
        .output()
        .expect("an output")
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[track_caller]
pub(crate) fn assert_fails(args: &[&str], why: &[&str]) {
    let output = command(args);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
    for part in why {
        assert!(text.contains(part), "{args:?}: {part} is missing in: {text}");
    }
}

#[track_caller]
pub(crate) fn assert_succeeds(args: &[&str]) -> String {
    let output = command(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output));
    text(&output)
}

pub(crate) fn path(path: &Path) -> &str {
    path.to_str().expect("a path")
}

#[test]
fn serves_https_and_probes_without_it() {
    let cluster = small();
    let scene = Scene::start(&cluster, "");
    let admin = scene.pointsman.admin();
    for addr in [admin, scene.read_only] {
        let mut secured = HttpsClient::connect(addr, &scene.tls()).expect("a connection");
        for path in PROBES.iter().chain(&["/", "/status", "/metrics"]) {
            assert_eq!(secured.get(path).expect("a response").0, 200, "{path}");
        }
        for path in PROBES {
            assert_eq!(http_get(addr, path).expect("a response").0, 200, "{path}");
        }
        for path in ["/", "/status", "/metrics", "/control/resume"] {
            let (status, body) = http_get(addr, path).expect("a response");
            assert!(status == 400 && body.contains("use https://"), "{path}: {status} {body}");
        }
    }
    // A browser at the name of a Service, and one at a foreign name.
    let mut browser = scene.connect();
    let mut at = |host| browser.request("GET /", &[("Host", host)]).expect("a response");
    let page = at("pointsman.redis.svc:8888");
    assert!(page.status == 200 && !page.body.contains("src=\"http:"), "{page:?}");
    assert_eq!(at("rebind.example").status, 421);
    let token = format!("Bearer {TOKEN}");
    let order = |addr| {
        let mut client = HttpsClient::connect(addr, &scene.tls()).expect("a connection");
        let headers = [("Authorization", token.as_str())];
        client.request("POST /control/resume", &headers).expect("a response").status
    };
    assert_eq!((order(admin), order(scene.read_only)), (200, 403));
    let until = format!(
        "pointsman_tls_certificate_not_after_seconds{{service=\"\",side=\"admin\",file={:?}}}",
        cluster.folder().join("tls-0/tls.crt")
    );
    assert_eq!(scene.metric(&until), Some(4_102_444_800.0), "2100-01-01");
    let refused = scene.metric("pointsman_admin_requests_refused_total{reason=\"plaintext\"}");
    assert_eq!(refused, Some(8.0));
    let (_, status) = scene.get("/status");
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(status["config"]["certificates"][0]["side"], "admin");
}

#[test]
fn requires_certificate_for_orders_not_probes() {
    let cluster = small();
    let clients = Authority::new("Clients CA");
    let client_ca = clients.write(cluster.folder(), "clients.crt");
    let rules = format!("client_certificates = \"required\"\nclient_ca_file = {client_ca:?}");
    let scene = Scene::start(&cluster, &rules);
    let admin = scene.pointsman.admin();
    let with = |own: Option<&Certificate>| {
        Tls::with(&scene.authority, NAME, own, &[&harness::TLS12, &harness::TLS13])
    };
    let mut without = HttpsClient::connect(admin, &with(None)).expect("a connection");
    for path in PROBES {
        assert_eq!(without.get(path).expect("a response").0, 200, "{path}");
        assert_eq!(http_get(admin, path).expect("a response").0, 200, "{path}");
    }
    let refused = without.request("GET /metrics", &[]).expect("a response");
    assert!(refused.status == 403 && refused.is_last, "{refused:?}");
    let (known, expired) = (clients.issue(&["operator"]), clients.issue_until(&["operator"], 2021));
    for foreign in [Authority::new("Foreign CA").issue(&["operator"]), expired] {
        let connected = HttpsClient::connect(admin, &with(Some(&foreign)));
        let answered = connected.and_then(|mut client| client.get("/alive"));
        answered.expect_err("a refusal in the handshake");
    }
    let mut client = HttpsClient::connect(admin, &with(Some(&known))).expect("a connection");
    assert_eq!(client.get("/metrics").expect("a response").0, 200);

    // The commands, with and without the certificate.
    let files = known.write(&folder(&cluster));
    let (url, ca) = (scene.url(), path(&scene.ca));
    let plain = ["--admin", &url, "--admin-ca", ca];
    let (chain, key) = (path(&files.chain), path(&files.key));
    let own = [&plain[..], &["--admin-certificate", chain, "--admin-key", key]].concat();
    for order in [&["pause", "--for", "1s"][..], &["resume"], &["sessions"], &["status"]] {
        assert_succeeds(&[order, &own[..]].concat());
        assert_fails(&[order, &plain[..]].concat(), &["a client certificate is required"]);
    }
    assert_succeeds(&[&["status", "--ready"], &plain[..]].concat());
    // A reload takes the right of the authority away from an open connection.
    write(&client_ca, &Authority::new("Next CA").pem());
    wait_until("the new authority", PATIENCE, || match client.get("/metrics") {
        Ok((status, _)) => status == 403,
        // The reload came while the last response was made.
        Err(_) => HttpsClient::connect(admin, &with(Some(&known)))
            .and_then(|mut next| next.get("/alive"))
            .is_err(),
    });
    assert_eq!(http_get(admin, "/alive").expect("a response").0, 200);
}

/// A section that is taken away takes its demand for certificates along at the restart only.
#[test]
fn demands_certificates_until_a_restart() {
    let cluster = small();
    let clients = Authority::new("Clients CA");
    let client_ca = clients.write(cluster.folder(), "clients.crt");
    let rules = format!("client_certificates = \"required\"\nclient_ca_file = {client_ca:?}");
    let scene = Scene::start(&cluster, &rules);
    let known = clients.issue(&["operator"]);
    let tls = Tls::with(&scene.authority, NAME, Some(&known), &[&harness::TLS13]);
    let connect = || HttpsClient::connect(scene.pointsman.admin(), &tls).expect("a connection");
    let file = std::fs::read_to_string(scene.config()).expect("the file");
    write(&scene.config(), file.split("[admin.tls]").next().expect("a part"));
    wait_until("the report", PATIENCE, || {
        let (_, status) = connect().get("/status").expect("a response");
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        let pending = status["config"]["pending_restart"].to_string();
        if pending.contains("admin.tls") { Ok(()) } else { Err(pending) }
    });
    assert_eq!(scene.get("/metrics").0, 403, "without a certificate");
}

#[test]
fn refuses_versions_of_admin_not_configured() {
    let cluster = small();
    const NONE: &str = "(NONE) (NONE)";
    for (rule, accepted, refused) in [
        ("max_version = \"1.2\"", ("-tls1_2", "TLSv1.2"), "-tls1_3"),
        ("min_version = \"1.3\"", ("-tls1_3", "TLSv1.3"), "-tls1_2"),
    ] {
        let scene = Scene::start(&cluster, rule);
        let admin = scene.pointsman.admin();
        assert!(agreed(admin, &[accepted.0]).starts_with(accepted.1), "{rule}");
        assert_eq!(agreed(admin, &[refused]), NONE, "{rule}");
        // Debian's openssl itself offers old versions at this level only.
        assert_eq!(agreed(admin, &["-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"]), NONE, "{rule}");
        assert_eq!(http_get(admin, "/alive").expect("a response").0, 200);
        wait_until("the log", PATIENCE, || {
            scene.pointsman.process().log().contains("TLS handshake with an admin client failed")
        });
    }
}

/// Scrapes on one connection until it is stopped, and opens another one after its last response.
/// Returns the number of scrapes and of connections, and the failures.
fn scrape(
    scene: &Scene,
    stop: &Arc<AtomicBool>,
) -> std::thread::JoinHandle<(usize, usize, Vec<String>)> {
    let (addr, tls, stop) = (scene.pointsman.admin(), scene.tls(), Arc::clone(stop));
    std::thread::spawn(move || {
        let (mut scrapes, mut connections, mut failures) = (0, 0, Vec::new());
        let mut client = None;
        while !stop.load(Ordering::Relaxed) {
            let connected = match client.take() {
                Some(client) => Ok(client),
                None => {
                    connections += 1;
                    HttpsClient::connect(addr, &tls)
                }
            };
            match connected.and_then(|mut it| Ok((it.request("GET /metrics", &[])?, it))) {
                Ok((response, connected)) if response.status == 200 => {
                    scrapes += 1;
                    client = Some(connected).filter(|_| !response.is_last);
                }
                other => failures.push(format!("{other:?}")),
            }
            harness::pause(Duration::from_millis(5));
        }
        (scrapes, connections, failures)
    })
}

#[test]
fn rotates_admin_certificate_without_failed_scrape() {
    let cluster = small();
    let authority = Authority::new("Test CA");
    let mut volume = Volume::new(folder(&cluster), &authority.issue(&[NAME, "first.test"]));
    let (chain, key) = (volume.folder.join("tls.crt"), volume.folder.join("tls.key"));
    let section = format!("certificate_file = {chain:?}\nkey_file = {key:?}");
    let scene = Scene::start_with(&cluster, authority, &section);
    let admin = scene.pointsman.admin();
    let stop = Arc::<AtomicBool>::default();
    let scrapers = [scrape(&scene, &stop), scrape(&scene, &stop)];
    let answers = |name: &str| {
        let tls = Tls::new(&scene.authority, name);
        HttpsClient::connect(admin, &tls).is_ok_and(|mut it| it.get("/alive").is_ok())
    };
    for name in ["second.test", "third.test", "fourth.test"] {
        assert!(!answers(name));
        volume.lay(&scene.authority.issue(&[NAME, name]));
        wait_until("the new certificate", PATIENCE, || answers(name));
    }
    // A certificate without its key: the pair before stays in use, and this is reported.
    let half = Certificate { key: String::new(), ..scene.authority.issue(&[NAME, "fifth.test"]) };
    volume.lay(&half);
    wait_until("the report", PATIENCE, || {
        let (_, status) = scene.get("/status");
        if status.contains("admin.tls.key_file") { Ok(()) } else { Err(status) }
    });
    assert!(answers("fourth.test") && !answers("fifth.test"));
    assert!(scene.metric("pointsman_config_secrets_unread") >= Some(1.0));
    volume.lay(&scene.authority.issue(&[NAME, "fifth.test"]));
    wait_until("the pair", PATIENCE, || answers("fifth.test"));
    stop.store(true, Ordering::Relaxed);
    for scraper in scrapers {
        let (scrapes, connections, failures) = scraper.join().expect("a scraper");
        assert_eq!(failures, Vec::<String>::new(), "of {scrapes}");
        // Connections are closed after a rotation, and only then.
        assert!(scrapes > 20 && (2..=5).contains(&connections), "{scrapes} {connections}");
    }
    let key = std::fs::read_to_string(&key).expect("the file");
    assert!(!scene.pointsman.process().log().contains(key.lines().nth(1).expect("a line")));
}

/// Opens connections, sends something to each and keeps some of them, until it is stopped.
fn junk(addr: SocketAddr, stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<usize> {
    let stop = Arc::clone(stop);
    const BEGINNINGS: [&[u8]; 5] = [
        b"",
        b"\x16",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
        b"\x16\xff\xff\xff\xff\xff\xff",
    ];
    std::thread::spawn(move || {
        let (mut kept, mut number) = (Vec::new(), 0);
        while !stop.load(Ordering::Relaxed) {
            if let Ok(stranger) = Client::connect_from(STRANGER, addr) {
                let _ = stranger.stream().write_all(BEGINNINGS[number % BEGINNINGS.len()]);
                kept.push(stranger);
            }
            number += 1;
            if kept.len() >= 200 {
                kept.drain(..100);
            }
            harness::pause(Duration::from_micros(500));
        }
        number
    })
}

#[test]
fn answers_probes_and_orders_beside_junk_handshakes() {
    let cluster = small();
    let scene = Scene::start(&cluster, "");
    let admin = scene.pointsman.admin();
    let mut scraper = scene.connect();
    assert_eq!(scraper.get("/metrics").expect("a scrape").0, 200);
    let stop = Arc::<AtomicBool>::default();
    let strangers = [junk(admin, &stop), junk(admin, &stop)];
    wait_until("evictions", PATIENCE, || {
        let page = scene.metric("pointsman_admin_closed_total{reason=\"evicted\"}");
        page > Some(200.0)
    });
    let mut longest = Duration::ZERO;
    for _ in 0..10 {
        for _ in 0..10 {
            let begin = Instant::now();
            assert_eq!(http_get(admin, "/alive").expect("a probe").0, 200);
            assert_eq!(scene.get("/ready").0, 200);
            longest = longest.max(begin.elapsed());
        }
        assert_eq!(scraper.get("/metrics").expect("a scrape").0, 200, "it is not evicted");
    }
    let (url, ca) = (scene.url(), path(&scene.ca));
    assert_succeeds(&["resume", "--admin", &url, "--admin-ca", ca]);
    stop.store(true, Ordering::Relaxed);
    let sent: usize = strangers.into_iter().map(|it| it.join().expect("a stranger")).sum();
    // The timeout of a liveness probe in the chart.
    assert!(longest < Duration::from_secs(5), "{longest:?} beside {sent} strangers");
    eprintln!("two probes took at most {longest:?} beside {sent} strangers");
}

#[test]
fn keeps_admin_tls_through_takeover() {
    let cluster = small();
    let state = cluster.folder();
    let more = format!("[process]\nstate_dir = {state:?}\n[shutdown]\naccept_min = \"0s\"\n");
    let scene = Scene::start(&cluster, &format!("{more}accept_quiet = \"0s\""));
    let order = || assert_succeeds(&["resume", "--socket", path(&scene.socket)]);
    order();
    let args = ["run", "--takeover", "--config", path(&scene.config())].map(Into::into);
    let launch = Launch {
        name: "takeover".to_owned(),
        program: PROGRAM.into(),
        args: Vec::from(args),
        env: vec![("E2E_TOKEN".to_owned(), TOKEN.to_owned())],
        folder: state.to_owned(),
    };
    let new = Process::start(&launch);
    assert_eq!(scene.pointsman.wait_exit(PATIENCE).code(), Some(0), "{}", new.tail());
    let admin = scene.pointsman.admin();
    assert_eq!(scene.get("/status").0, 200);
    assert_eq!(http_get(admin, "/alive").expect("a response").0, 200);
    assert_eq!(http_get(admin, "/status").expect("a response").0, 400);
    wait_until("the new socket", PATIENCE, || scene.socket.exists());
    order();
    assert!(new.is_running());
}
