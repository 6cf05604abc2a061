//! Sentinels of an attacker, announced to the real ones by a client that may only PUBLISH.
//!
//! Redis and the three sentinels are real. The attacker has a client, up to six sentinels that name
//! a server of its own, and that server, which accepts every password and forges every reply.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use harness::{Client, Cluster, Pointsman, wait_until};

use crate::credentials::status;
use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(60);
const PASSWORD: &str = "the-password-of-redis";
const SENTINEL_PASSWORD: &str = "the-password-of-sentinel";
/// The attacker's account may publish, and nothing else.
const PUBLISHER: &str = "publisher on >publisher resetkeys &* -@all +publish";
/// Once every hostile sentinel has been polled this often, the claim has stood for seconds.
const POLLS: usize = 8;

/// What the attacker's servers saw.
#[derive(Debug, Default)]
struct Seen {
    /// Polls answered by the hostile sentinels.
    polls: AtomicUsize,
    /// Bytes that reached the hostile Redis server, as text.
    requests: Mutex<String>,
    /// Logins of the proxy at hostile sentinels. The real sentinels log in there, too.
    logins: Mutex<Vec<String>>,
}

/// One hostile sentinel, or the hostile Redis server.
#[derive(Debug, Clone)]
struct Script {
    sentinel: Option<(String, Arc<Mutex<Claim>>)>,
    seen: Arc<Seen>,
}

/// What the hostile sentinels say.
#[derive(Debug, Default)]
struct Claim {
    master: Option<SocketAddr>,
    epoch: u64,
    /// The other hostile sentinels, by MYID.
    peers: BTreeMap<String, SocketAddr>,
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn array(items: &[&str]) -> String {
    let items: String = items.iter().map(|item| bulk(item)).collect();
    format!("*{}\r\n{items}", items.matches("\r\n").count() / 2)
}

fn subscribed(words: &[String]) -> String {
    let kind = bulk(&words[0].to_ascii_lowercase());
    let channels = words.iter().skip(1).enumerate();
    channels.map(|(at, it)| format!("*3\r\n{kind}{}:{}\r\n", bulk(it), at + 1)).collect()
}

impl Script {
    fn answer(&self, words: &[String]) -> String {
        match &self.sentinel {
            None => Self::answer_as_redis(words),
            Some((id, claim)) => self.answer_as_sentinel(words, id, claim),
        }
    }

    fn answer_as_redis(words: &[String]) -> String {
        let word = |at: usize| words.get(at).map_or("", String::as_str).to_ascii_uppercase();
        match word(0).as_str() {
            "HELLO" => "-ERR unknown command\r\n".to_owned(),
            "AUTH" | "SELECT" | "CLIENT" => "+OK\r\n".to_owned(),
            "PING" => "+PONG\r\n".to_owned(),
            "ROLE" => "*3\r\n$6\r\nmaster\r\n:100\r\n*0\r\n".to_owned(),
            "INFO" => bulk(&format!(
                "# Server\r\nrun_id:{:040}\r\n# Replication\r\nrole:master\r\n\
                 master_replid:{:040}\r\nmaster_repl_offset:100\r\n",
                1, 2
            )),
            _ => "+FORGED\r\n".to_owned(),
        }
    }

    fn answer_as_sentinel(&self, words: &[String], id: &String, claim: &Mutex<Claim>) -> String {
        let word = |at: usize| words.get(at).map_or("", String::as_str).to_ascii_uppercase();
        let claim = claim.lock().expect("no poison");
        let Some(master) = claim.master else { return "-ERR not yet\r\n".to_owned() };
        let (ip, port) = (master.ip().to_string(), master.port().to_string());
        match (word(0).as_str(), word(1).as_str()) {
            ("PING", _) => "+PONG\r\n".to_owned(),
            ("SENTINEL", "MYID") => bulk(id),
            ("SENTINEL", "GET-MASTER-ADDR-BY-NAME") => {
                self.seen.polls.fetch_add(1, Ordering::Relaxed);
                array(&[&ip, &port])
            }
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
                let others = claim.peers.iter().filter(|(peer, _)| *peer != id);
                let rows: Vec<String> = others
                    .map(|(peer, addr)| {
                        let (ip, port) = (addr.ip().to_string(), addr.port().to_string());
                        array(&[
                            "name", peer, "ip", &ip, "port", &port, "runid", peer, "flags",
                            "sentinel",
                        ])
                    })
                    .collect();
                format!("*{}\r\n{}", rows.len(), rows.concat())
            }
            // The hostile server is listed as a replica, too: nothing may be sent to it either.
            ("SENTINEL", "REPLICAS" | "SLAVES") => {
                let row = array(&[
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
                ]);
                format!("*1\r\n{row}")
            }
            ("SENTINEL", _) => "*3\r\n:0\r\n$1\r\n*\r\n:0\r\n".to_owned(),
            ("SUBSCRIBE" | "PSUBSCRIBE", _) => subscribed(words),
            ("HELLO", _) => "-ERR unknown command\r\n".to_owned(),
            ("INFO", _) => bulk("sentinel_tilt:0\r\n"),
            _ => "+OK\r\n".to_owned(),
        }
    }

    fn serve(self, mut stream: TcpStream) {
        let (mut input, mut buffer, mut login) = (Vec::new(), [0; 4096], None);
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            if self.sentinel.is_none() {
                let text = String::from_utf8_lossy(&buffer[..count]);
                self.seen.requests.lock().expect("no poison").push_str(&text);
            }
            input.extend_from_slice(&buffer[..count]);
            while let Some((words, taken)) = request(&input) {
                input.drain(..taken);
                let line = words.join(" ");
                if line.contains("AUTH") {
                    login = Some(line.clone());
                }
                // Only Pointsman begins with HELLO, and takes this name.
                let is_proxy = line.starts_with("HELLO") || line == "CLIENT SETNAME pointsman";
                if let Some(login) = login.take_if(|_| is_proxy && self.sentinel.is_some()) {
                    self.seen.logins.lock().expect("no poison").push(login);
                }
                if stream.write_all(self.answer(&words).as_bytes()).is_err() {
                    return;
                }
            }
        }
    }

    /// Listens on a free port of `ip`, until the process ends.
    fn start(self, ip: IpAddr) -> SocketAddr {
        let listener = TcpListener::bind((ip, 0)).expect("a free port");
        let addr = listener.local_addr().expect("its address");
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let script = self.clone();
                std::thread::spawn(move || script.serve(stream));
            }
        });
        addr
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
struct Attacker {
    seen: Arc<Seen>,
    claim: Arc<Mutex<Claim>>,
    sentinels: BTreeMap<String, SocketAddr>,
}

impl Attacker {
    /// Starts the servers. The sentinels say nothing yet.
    fn new(ip: IpAddr, sentinels: usize) -> Self {
        let (seen, claim) = (Arc::<Seen>::default(), Arc::<Mutex<Claim>>::default());
        let listen = |number: usize| {
            let id = format!("{:040x}", 0xbad0 + number);
            let script = Script {
                sentinel: Some((id.clone(), Arc::clone(&claim))),
                seen: Arc::clone(&seen),
            };
            (id, script.start(ip))
        };
        let sentinels = (0..sentinels).map(listen).collect();
        Self { seen, claim, sentinels }
    }

    /// Lets the sentinels name the attacker's server at this epoch.
    fn claims(&self, ip: IpAddr, epoch: u64) {
        let server = Script { sentinel: None, seen: Arc::clone(&self.seen) }.start(ip);
        *self.claim.lock().expect("no poison") =
            Claim { master: Some(server), epoch, peers: self.sentinels.clone() };
    }

    /// Publishes hellos through the proxy until every real sentinel lists all of the attacker's.
    fn announces(&self, cluster: &Cluster, pointsman: &Pointsman) {
        let mut client = pointsman.client();
        let login = client.cmd(&["AUTH", "publisher", "publisher"]).expect("AUTH");
        assert!(login.is_ok(), "{login:?}");
        let master = cluster.master().addr();
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
                peers.items().len() == 2 + self.sentinels.len()
            })
        });
    }

    /// Waits until the hostile sentinels have been polled for seconds.
    fn is_polled(&self) {
        let enough = self.seen.polls.load(Ordering::Relaxed) + POLLS * 2 * self.sentinels.len();
        wait_until("the hostile sentinels to be polled", PATIENCE, || {
            let polls = self.seen.polls.load(Ordering::Relaxed);
            if polls >= enough { Ok(()) } else { Err(format!("{polls} of {enough}")) }
        });
    }

    /// Nothing reached it.
    #[track_caller]
    fn got_nothing(&self) {
        assert_eq!(*self.seen.requests.lock().expect("no poison"), "", "at the hostile server");
        assert!(
            self.seen.logins.lock().expect("no poison").is_empty(),
            "passwords at hostile sentinels: {:?}",
            self.seen.logins
        );
    }
}

/// How the proxy is configured.
struct Case {
    /// How many of the three sentinels are configured.
    configured: usize,
    hostile: usize,
    /// The epoch of the claim, above the true one.
    above: u64,
    shared: bool,
    sentinel_password: bool,
}

fn log_in(pointsman: &Pointsman) -> Client {
    let mut client = pointsman.client();
    assert!(client.cmd(&["AUTH", PASSWORD]).expect("AUTH").is_ok());
    client
}

/// A write through the proxy reaches the true master, on a new and on an old connection.
#[track_caller]
fn writes(cluster: &Cluster, pointsman: &Pointsman, old: &mut Client, value: &str) {
    let master = cluster.master();
    for (key, client) in [("old", old), ("new", &mut log_in(pointsman))] {
        let answer = client.cmd(&["SET", key, value]).expect("SET");
        assert!(answer.is_ok(), "{answer:?}");
        assert_eq!(master.ask(&["GET", key]).expect("GET").text(), Some(value));
    }
}

fn attack(case: &Case) {
    let mut cluster = Cluster::builder().password(PASSWORD).user(PUBLISHER);
    if case.sentinel_password {
        cluster = cluster.sentinel_password(SENTINEL_PASSWORD);
    }
    let cluster = cluster.start();
    let all: Vec<String> = cluster.sentinel_addrs().iter().map(ToString::to_string).collect();
    // By default such a command reaches no server.
    let mut pointsman =
        builder(&cluster).sentinels(&all[..case.configured]).service_line("refuse = []");
    if case.shared {
        pointsman = pointsman.service_line("upstream = \"shared\"");
    }
    let pointsman = pointsman.start();
    let mut old = log_in(&pointsman);
    writes(&cluster, &pointsman, &mut old, "before");

    let ip = cluster.address().ip();
    let attacker = Attacker::new(ip, case.hostile);
    attacker.claims(ip, case.above);
    attacker.announces(&cluster, &pointsman);
    attacker.is_polled();
    writes(&cluster, &pointsman, &mut old, "during");
    attacker.got_nothing();
    let commits = metric(&pointsman, "pointsman_target_generation{service=\"mymaster\"}");
    assert_eq!(commits, Some(1.0), "{}", status(&pointsman));

    // A planned failover of the real sentinels is followed under the attack.
    let failover = cluster.failover();
    wait_until("the new master to serve", PATIENCE, || {
        let answer = log_in(&pointsman).cmd(&["SET", "after", "it"]);
        answer.is_ok_and(|it| it.is_ok())
            && cluster.node_at(failover.to).is_some_and(|node| {
                node.ask(&["GET", "after"]).is_ok_and(|it| it.text() == Some("it"))
            })
    });
    attacker.got_nothing();
}

#[test]
fn ignores_four_hostile_sentinels_at_a_higher_epoch() {
    attack(&Case { configured: 3, hostile: 4, above: 9, shared: false, sentinel_password: false });
}

#[test]
fn ignores_six_hostile_sentinels_beside_one_configured() {
    attack(&Case { configured: 1, hostile: 6, above: 9, shared: false, sentinel_password: false });
}

#[test]
fn ignores_hostile_sentinels_at_the_same_epoch() {
    attack(&Case { configured: 3, hostile: 5, above: 0, shared: true, sentinel_password: false });
}

#[test]
fn ignores_one_hostile_sentinel() {
    attack(&Case { configured: 1, hostile: 1, above: 9, shared: true, sentinel_password: false });
}

#[test]
fn keeps_password_from_hostile_sentinels() {
    attack(&Case { configured: 3, hostile: 4, above: 9, shared: false, sentinel_password: true });
}
