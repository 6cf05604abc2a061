//! An attacker's servers: sentinels that make any claim, and Redis servers that ask for a password,
//! accept every one and forge every reply.
//!
//! They keep what reaches them. A Redis server of the attacker shows what it is given, also the
//! role, the replication history and the `run_id` of true nodes.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use harness::{Cluster, Pointsman, TlsServer, wait_until};

use crate::credentials::status;

const PATIENCE: Duration = Duration::from_secs(60);

/// What the attacker's servers saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Queries for the master's address that the hostile sentinels answered; two in each poll.
    queries: AtomicUsize,
    /// Requests to the hostile Redis servers.
    requests: Mutex<Vec<String>>,
    /// Logins of the proxy at hostile sentinels. The real sentinels log in there, too.
    logins: Mutex<Vec<String>>,
}

/// What the hostile sentinels say.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claim {
    pub(crate) master: Option<SocketAddr>,
    pub(crate) epoch: u64,
    /// The other sentinels, by MYID.
    pub(crate) peers: BTreeMap<String, SocketAddr>,
    pub(crate) replicas: Vec<SocketAddr>,
}

/// What a hostile Redis server shows.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    /// The master that it claims to follow; `None`: it claims to be one.
    pub(crate) follows: Option<SocketAddr>,
    pub(crate) run_id: String,
    pub(crate) replid: String,
    /// Whether it answers without a password.
    pub(crate) open: bool,
    /// Its replication offset, in bytes.
    pub(crate) offset: Arc<AtomicU64>,
}

impl Shown {
    /// A master that collects passwords.
    pub(crate) fn master() -> Self {
        Self {
            follows: None,
            run_id: "1".repeat(40),
            replid: "2".repeat(40),
            open: false,
            offset: Arc::default(),
        }
    }
}

/// One hostile server.
#[derive(Debug, Clone)]
struct Server {
    role: Role,
    seen: Arc<Seen>,
    tls: Option<TlsServer>,
}

#[derive(Debug, Clone)]
enum Role {
    Sentinel(String, Arc<Mutex<Claim>>),
    Redis(Arc<Mutex<Shown>>),
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn array(items: &[&str]) -> String {
    let items: String = items.iter().map(|item| bulk(item)).collect();
    format!("*{}\r\n{items}", items.matches("\r\n").count() / 2)
}

fn rows(rows: &[String]) -> String {
    format!("*{}\r\n{}", rows.len(), rows.concat())
}

fn subscribed(words: &[String]) -> String {
    let kind = bulk(&words[0].to_ascii_lowercase());
    let channels = words.iter().skip(1).enumerate();
    channels.map(|(at, it)| format!("*3\r\n{kind}{}:{}\r\n", bulk(it), at + 1)).collect()
}

fn word(words: &[String], at: usize) -> String {
    words.get(at).map_or("", String::as_str).to_ascii_uppercase()
}

fn answer_as_redis(words: &[String], shown: &Shown, logged_in: bool) -> String {
    let name = word(words, 0);
    if !shown.open && !logged_in && !matches!(name.as_str(), "AUTH" | "HELLO") {
        return "-NOAUTH Authentication required.\r\n".to_owned();
    }
    let offset = shown.offset.load(Ordering::Relaxed);
    let role = if shown.follows.is_some() { "slave" } else { "master" };
    match (name.as_str(), shown.follows) {
        ("HELLO", _) => "-ERR unknown command\r\n".to_owned(),
        ("AUTH" | "SELECT" | "CLIENT", _) => "+OK\r\n".to_owned(),
        ("PING", _) => "+PONG\r\n".to_owned(),
        ("ROLE", None) => format!("*3\r\n$6\r\nmaster\r\n:{offset}\r\n*0\r\n"),
        ("ROLE", Some(of)) => format!(
            "*5\r\n{}{}:{}\r\n{}:{offset}\r\n",
            bulk("slave"),
            bulk(&of.ip().to_string()),
            of.port(),
            bulk("connected")
        ),
        ("INFO", _) => bulk(&format!(
            "# Server\r\nrun_id:{}\r\n# Replication\r\nrole:{role}\r\nmaster_replid:{}\r\n\
             master_replid2:{:040}\r\nmaster_repl_offset:{offset}\r\nsecond_repl_offset:-1\r\n",
            shown.run_id, shown.replid, 0
        )),
        _ => "+FORGED\r\n".to_owned(),
    }
}

fn answer_as_sentinel(words: &[String], id: &str, claim: &Claim) -> String {
    let Some(master) = claim.master else { return "-ERR not yet\r\n".to_owned() };
    let (ip, port) = (master.ip().to_string(), master.port().to_string());
    match (word(words, 0).as_str(), word(words, 1).as_str()) {
        ("PING", _) => "+PONG\r\n".to_owned(),
        ("SENTINEL", "MYID") => bulk(id),
        ("SENTINEL", "GET-MASTER-ADDR-BY-NAME") => array(&[&ip, &port]),
        ("SENTINEL", "MASTER") => array(&[
            "name",
            "mymaster",
            "ip",
            &ip,
            "port",
            &port,
            "flags",
            "master",
            "runid",
            &"1".repeat(40),
            "config-epoch",
            &claim.epoch.to_string(),
            "quorum",
            "1",
        ]),
        ("SENTINEL", "SENTINELS") => {
            let others = claim.peers.iter().filter(|(peer, _)| **peer != id);
            let row = |(peer, addr): (&String, &SocketAddr)| {
                let (ip, port) = (addr.ip().to_string(), addr.port().to_string());
                array(&["name", peer, "ip", &ip, "port", &port, "runid", peer, "flags", "sentinel"])
            };
            rows(&others.map(row).collect::<Vec<_>>())
        }
        ("SENTINEL", "REPLICAS" | "SLAVES") => {
            let row = |addr: &SocketAddr| {
                let (ip, port) = (addr.ip().to_string(), addr.port().to_string());
                array(&[
                    "name",
                    "x",
                    "ip",
                    &ip,
                    "port",
                    &port,
                    "flags",
                    "slave",
                    "master-link-status",
                    "ok",
                    "slave-priority",
                    "100",
                ])
            };
            rows(&claim.replicas.iter().map(row).collect::<Vec<_>>())
        }
        ("SENTINEL", _) => "*3\r\n:0\r\n$1\r\n*\r\n:0\r\n".to_owned(),
        ("SUBSCRIBE" | "PSUBSCRIBE", _) => subscribed(words),
        ("HELLO", _) => "-ERR unknown command\r\n".to_owned(),
        ("INFO", _) => bulk("sentinel_tilt:0\r\n"),
        _ => "+OK\r\n".to_owned(),
    }
}

impl Server {
    /// Listens on a free port of `ip`, until the process ends.
    fn start(self, ip: IpAddr) -> SocketAddr {
        let listener = TcpListener::bind((ip, 0)).expect("a free port");
        let addr = listener.local_addr().expect("its address");
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = self.clone();
                std::thread::spawn(move || server.serve(stream));
            }
        });
        addr
    }

    fn serve(&self, stream: TcpStream) {
        match &self.tls {
            None => self.converse(stream),
            Some(tls) => {
                if let Ok(stream) = tls.accept(stream) {
                    self.converse(stream);
                }
            }
        }
    }

    fn converse(&self, mut stream: impl Read + Write) {
        let (mut input, mut buffer, mut login) = (Vec::new(), [0; 4096], None);
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            input.extend_from_slice(&buffer[..count]);
            while let Some((words, taken)) = request(&input) {
                input.drain(..taken);
                let answer = self.answer(&words, &mut login);
                if stream.write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
        }
    }

    /// `login`: the last password on this connection.
    fn answer(&self, words: &[String], login: &mut Option<String>) -> String {
        let line = words.join(" ");
        if line.contains("AUTH") {
            *login = Some(line.clone());
        }
        match &self.role {
            Role::Redis(shown) => {
                self.seen.requests.lock().expect("no poison").push(line);
                answer_as_redis(words, &shown.lock().expect("no poison"), login.is_some())
            }
            Role::Sentinel(id, claim) => {
                // Only Pointsman begins with HELLO, and takes this name.
                let is_proxy = line.starts_with("HELLO") || line == "CLIENT SETNAME pointsman";
                if let Some(login) = login.take_if(|_| is_proxy) {
                    self.seen.logins.lock().expect("no poison").push(login);
                }
                if word(words, 1) == "GET-MASTER-ADDR-BY-NAME" {
                    self.seen.queries.fetch_add(1, Ordering::Relaxed);
                }
                answer_as_sentinel(words, id, &claim.lock().expect("no poison"))
            }
        }
    }
}

/// The first complete request, and its length.
fn request(input: &[u8]) -> Option<(Vec<String>, usize)> {
    let line = |from: usize| {
        let end = input.get(from..)?.windows(2).position(|pair| pair == b"\r\n")?;
        let text = std::str::from_utf8(&input[from..from + end]).ok()?;
        Some((text.to_owned(), from + end + 2))
    };
    let (head, mut at) = line(0)?;
    let Some(count) = head.strip_prefix('*').and_then(|count| count.parse::<usize>().ok()) else {
        return Some((head.split(' ').map(str::to_owned).collect(), at));
    };
    let mut words = Vec::new();
    for _ in 0..count {
        let (head, from) = line(at)?;
        let size: usize = head.strip_prefix('$')?.parse().ok()?;
        let word = input.get(from..from + size)?;
        input.get(from + size..from + size + 2)?;
        words.push(String::from_utf8_lossy(word).into_owned());
        at = from + size + 2;
    }
    Some((words, at))
}

/// The attacker.
pub(crate) struct Attacker {
    ip: IpAddr,
    tls: Option<TlsServer>,
    pub(crate) seen: Arc<Seen>,
    claim: Arc<Mutex<Claim>>,
    pub(crate) sentinels: BTreeMap<String, SocketAddr>,
}

impl Attacker {
    /// Starts the sentinels, which say nothing yet.
    pub(crate) fn new(ip: IpAddr, sentinels: usize, tls: Option<TlsServer>) -> Self {
        let mut attacker = Self {
            ip,
            tls,
            seen: Arc::default(),
            claim: Arc::default(),
            sentinels: BTreeMap::new(),
        };
        for number in 0..sentinels {
            let id = format!("{:040x}", 0xbad0 + number);
            let addr = attacker.start(Role::Sentinel(id.clone(), Arc::clone(&attacker.claim)), ip);
            attacker.sentinels.insert(id, addr);
        }
        attacker
    }

    fn start(&self, role: Role, ip: IpAddr) -> SocketAddr {
        Server { role, seen: Arc::clone(&self.seen), tls: self.tls.clone() }.start(ip)
    }

    /// Starts a Redis server.
    pub(crate) fn redis(&self, shown: Shown) -> SocketAddr {
        self.redis_at(self.ip, shown)
    }

    pub(crate) fn redis_at(&self, ip: IpAddr, shown: Shown) -> SocketAddr {
        self.start(Role::Redis(Arc::new(Mutex::new(shown))), ip)
    }

    /// Lets all sentinels say this.
    pub(crate) fn says(&self, change: impl FnOnce(&mut Claim)) {
        change(&mut self.claim.lock().expect("no poison"));
    }

    /// Lets the sentinels name a server of the attacker at this epoch, and list it as a replica.
    pub(crate) fn claims(&self, epoch: u64) {
        let server = self.redis(Shown::master());
        let (peers, replicas) = (self.sentinels.clone(), vec![server]);
        self.says(|claim| *claim = Claim { master: Some(server), epoch, peers, replicas });
    }

    /// Publishes hellos through the proxy, as a user that may only publish, until every real
    /// sentinel lists all of the attacker's.
    pub(crate) fn announces(&self, cluster: &Cluster, pointsman: &Pointsman) {
        let mut client = pointsman.client();
        let login = client.cmd(&["AUTH", "publisher", "publisher"]).expect("AUTH");
        assert!(login.is_ok(), "{login:?}");
        let master = cluster.master().addr();
        let others = cluster.sentinels().len() - 1;
        wait_until("every real sentinel to list the attacker's", PATIENCE, || {
            for (id, addr) in &self.sentinels {
                let hello = format!(
                    "{},{},{id},0,mymaster,{},{},0",
                    addr.ip(),
                    addr.port(),
                    master.ip(),
                    master.port()
                );
                let answer =
                    client.cmd(&["PUBLISH", "__sentinel__:hello", &hello]).expect("PUBLISH");
                assert!(answer.int().is_some(), "{answer:?}");
            }
            cluster.sentinels().iter().all(|sentinel| {
                let peers = sentinel.ask(&["SENTINEL", "SENTINELS", "mymaster"]).expect("peers");
                peers.items().len() == others + self.sentinels.len()
            })
        });
    }

    /// Waits for this many more polls of each hostile sentinel by each of the proxies.
    #[track_caller]
    pub(crate) fn is_polled(&self, times: usize, proxies: &[&Pointsman]) {
        let queries = || self.seen.queries.load(Ordering::Relaxed);
        let enough = queries() + times * 2 * self.sentinels.len() * proxies.len();
        wait_until("the hostile sentinels to be polled", PATIENCE, || {
            let (queries, status) = (queries(), proxies.first().map(|it| status(it)));
            if queries >= enough {
                Ok(())
            } else {
                Err(format!("{queries} of {enough} {status:?}"))
            }
        });
    }

    /// The requests to the hostile Redis servers.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.seen.requests.lock().expect("no poison").clone()
    }

    /// No request and no password reached it.
    #[track_caller]
    pub(crate) fn got_nothing(&self) {
        assert_eq!(self.requests(), Vec::<String>::new(), "at a hostile server");
        self.got_no_sentinel_password();
    }

    /// Neither a password nor a request of a client reached it: nothing but a probe that shows what
    /// the server is.
    #[track_caller]
    pub(crate) fn got_no_more_than_probes(&self) {
        let probe = ["PING", "ROLE", "INFO server", "INFO replication", "CLIENT SETNAME pointsman"];
        let others: Vec<_> =
            self.requests().into_iter().filter(|it| !probe.contains(&it.as_str())).collect();
        assert_eq!(others, Vec::<String>::new(), "at a hostile server");
        self.got_no_sentinel_password();
    }

    #[track_caller]
    fn got_no_sentinel_password(&self) {
        let logins = self.seen.logins.lock().expect("no poison").clone();
        assert_eq!(logins, Vec::<String>::new(), "passwords at hostile sentinels");
    }
}
