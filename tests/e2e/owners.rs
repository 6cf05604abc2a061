//! Clients that own keys: each writes and reads its own and checks every reply.
//!
//! They send only requests that can be shared, in pipelines. A reply of another client is
//! recognised by its content, one of another user by its permissions, one of another database by
//! its count, and one of another protocol version by its type. Before each pipeline a client checks
//! whether its connection has ended, like a connection pool. No request is repeated.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use harness::{Builder, Client, Cluster, Ending, Node, Value, encode, wait_until};

/// Longer than any client is held here.
const PATIENCE: Duration = Duration::from_secs(40);
/// Users that may touch only keys with their own name.
const USERS: [&str; 2] = ["ann", "bob"];
/// A client sends a pipeline about ten times per second.
const BETWEEN: Duration = Duration::from_millis(100);

/// A cluster that has the users of the clients.
pub(crate) fn cluster() -> Builder {
    let rules = USERS.map(|user| format!("{user} on >pw ~{user}:* &* +@all"));
    rules.iter().fold(Cluster::builder(), |cluster, rules| cluster.user(rules))
}

/// What a client was not supposed to see.
#[derive(Debug, PartialEq)]
pub(crate) struct Incident {
    pub(crate) client: usize,
    /// When its previous pipeline was answered.
    pub(crate) before: Instant,
    pub(crate) sent: Instant,
    pub(crate) at: Instant,
    pub(crate) text: String,
}

/// The results of all clients.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Pipelines that were answered.
    pub(crate) answered: u64,
    /// Connections that ended between two pipelines, with FIN and without a byte.
    pub(crate) left: usize,
    /// Pipelines without a complete answer, and failed connections.
    pub(crate) unanswered: Vec<Incident>,
    /// Replies that no direct connection would have received.
    pub(crate) wrong: Vec<Incident>,
    /// Acknowledged writes that are missing.
    pub(crate) lost: Vec<Incident>,
    pub(crate) longest: Duration,
}

impl Seen {
    /// Fails unless every reply was right and every acknowledged write exists.
    #[track_caller]
    pub(crate) fn assert_flawless(&self) {
        assert_eq!((&self.wrong, &self.lost, &self.unanswered), (&vec![], &vec![], &vec![]));
    }
}

/// What the clients and the test share.
#[derive(Debug, Default)]
struct Common {
    seen: Mutex<Seen>,
    over: AtomicBool,
    /// Clients whose connection ends do not connect again.
    stay_away: AtomicBool,
    /// Pipelines that were sent and not answered.
    in_flight: AtomicUsize,
}

impl Common {
    fn with<T>(&self, change: impl FnOnce(&mut Seen) -> T) -> T {
        change(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Running clients.
pub(crate) struct Owners {
    common: Arc<Common>,
    threads: Vec<JoinHandle<Owner>>,
}

impl Owners {
    /// Connects clients with these numbers. They have eight states: two users, two databases and
    /// both protocol versions.
    pub(crate) fn gather(addr: SocketAddr, numbers: Range<usize>) -> Self {
        let common = Arc::<Common>::default();
        let size = numbers.len();
        let threads = numbers.map(|number| {
            let common = Arc::clone(&common);
            let body = move || {
                let mut owner = Owner::new(addr, number);
                owner.run(&common, BETWEEN.mul_f64((number % size) as f64 / size as f64));
                owner
            };
            std::thread::Builder::new().stack_size(256 * 1024).spawn(body).unwrap()
        });
        let threads = threads.collect();
        Self { common, threads }
    }

    pub(crate) fn answered(&self) -> u64 {
        self.common.with(|seen| seen.answered)
    }

    pub(crate) fn left(&self) -> usize {
        self.common.with(|seen| seen.left)
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.common.in_flight.load(Ordering::Acquire)
    }

    /// Waits until each client has received this number of further answers on average.
    #[track_caller]
    pub(crate) fn wait_for(&self, rounds: u64) {
        let goal = self.answered() + rounds * self.threads.len() as u64;
        wait_until("answers", PATIENCE, || {
            self.common.with(|seen| {
                assert_eq!(seen.wrong, []);
                if seen.answered >= goal { Ok(()) } else { Err(format!("{seen:?}")) }
            })
        });
    }

    /// Clients whose connection ends from now on stop.
    pub(crate) fn stay_away(&self) {
        self.common.stay_away.store(true, Ordering::Release);
    }

    /// Stops the clients and looks for every acknowledged write on the master.
    #[track_caller]
    pub(crate) fn end(self, master: &Node) -> Seen {
        self.common.over.store(true, Ordering::Release);
        let owners: Vec<Owner> = self.threads.into_iter().map(|it| it.join().unwrap()).collect();
        let mut seen = self.common.with(std::mem::take);
        for owner in &owners {
            if let Err(text) = owner.verify(master) {
                let Owner { number: client, before, .. } = *owner;
                let now = Instant::now();
                seen.lost.push(Incident { client, before, sent: now, at: now, text });
            }
        }
        seen
    }
}

/// What went wrong in a pipeline.
enum Fault {
    Unanswered(String),
    Wrong(String),
    /// The count that the server has.
    Lost(u64),
}

/// One client.
struct Owner {
    number: usize,
    addr: SocketAddr,
    user: &'static str,
    database: &'static str,
    resp3: bool,
    client: Option<Client>,
    /// Pipelines that were answered, and those since then whose outcome is unknown.
    acknowledged: u64,
    unknown: u64,
    before: Instant,
}

impl Owner {
    fn new(addr: SocketAddr, number: usize) -> Self {
        Self {
            number,
            addr,
            user: USERS[number % 2],
            database: ["0", "5"][number / 2 % 2],
            resp3: number / 4 % 2 == 1,
            client: None,
            acknowledged: 0,
            unknown: 0,
            before: Instant::now(),
        }
    }

    fn key(&self, kind: &str) -> String {
        format!("{}:{kind}:{}", self.user, self.number)
    }

    fn run(&mut self, common: &Common, offset: Duration) {
        harness::pause(offset);
        while !common.over.load(Ordering::Acquire) {
            if self.client.as_ref().is_some_and(|it| it.has_ended().expect("a socket")) {
                let end = self.client.take().map(|mut it| it.read_to_end());
                match end {
                    Some(Ok((bytes, Ending::Fin))) if bytes.is_empty() => {
                        common.with(|seen| seen.left += 1);
                    }
                    other => {
                        let incident = self.incident(Instant::now(), format!("unasked: {other:?}"));
                        common.with(|seen| seen.wrong.push(incident));
                    }
                }
                if common.stay_away.load(Ordering::Acquire) {
                    return;
                }
            }
            let sent = Instant::now();
            match self.round(&common.in_flight) {
                Ok(()) => {
                    let took = sent.elapsed();
                    common.with(|seen| {
                        seen.answered += 1;
                        seen.longest = seen.longest.max(took);
                    });
                }
                Err(fault) => {
                    self.client = None;
                    self.record(common, sent, fault);
                    if common.stay_away.load(Ordering::Acquire) {
                        return;
                    }
                }
            }
            self.before = Instant::now();
            harness::pause(BETWEEN);
        }
    }

    fn incident(&self, sent: Instant, text: String) -> Incident {
        Incident { client: self.number, before: self.before, sent, at: Instant::now(), text }
    }

    fn record(&mut self, common: &Common, sent: Instant, fault: Fault) {
        match fault {
            Fault::Unanswered(text) => {
                let incident = self.incident(sent, text);
                common.with(|seen| seen.unanswered.push(incident));
            }
            Fault::Wrong(text) => {
                let incident = self.incident(sent, text);
                common.with(|seen| seen.wrong.push(incident));
            }
            Fault::Lost(count) => {
                let text = format!("{} of {}", count, self.acknowledged);
                let incident = self.incident(sent, text);
                common.with(|seen| seen.lost.push(incident));
                (self.acknowledged, self.unknown) = (count, 0);
            }
        }
    }

    /// One pipeline.
    fn round(&mut self, in_flight: &AtomicUsize) -> Result<(), Fault> {
        let broken = |error: io::Error| Fault::Unanswered(error.to_string());
        let mut client = match self.client.take() {
            Some(client) => client,
            None => self.connect()?,
        };
        let value = format!("{}.{}.{}", self.number, self.acknowledged, self.unknown);
        let [count, key, hash] = ["count", "value", "hash"].map(|kind| self.key(kind));
        let commands: [&[&str]; 6] = [
            &["INCR", &count],
            &["SET", &key, &value],
            &["ECHO", &value],
            &["HSET", &hash, "owner", &value],
            &["HGETALL", &hash],
            &["GET", &key],
        ];
        let wire: Vec<u8> = commands.iter().flat_map(|command| encode(command)).collect();
        self.unknown += 1;
        in_flight.fetch_add(1, Ordering::AcqRel);
        let replies = client
            .send(&wire)
            .and_then(|()| commands.iter().map(|_| client.read_value()).collect());
        in_flight.fetch_sub(1, Ordering::AcqRel);
        let replies: Vec<Value> = replies.map_err(broken)?;
        self.check(&replies, &value)?;
        self.client = Some(client);
        Ok(())
    }

    fn connect(&self) -> Result<Client, Fault> {
        let begin = |()| -> io::Result<(Client, [Value; 2])> {
            let mut client = Client::connect_within(self.addr, PATIENCE)?;
            let auth: &[&str] = if self.resp3 {
                &["HELLO", "3", "AUTH", self.user, "pw"]
            } else {
                &["AUTH", self.user, "pw"]
            };
            let select = encode(&["SELECT", self.database]);
            client.send(&[encode(auth), select].concat())?;
            let replies = [client.read_value()?, client.read_value()?];
            Ok((client, replies))
        };
        let (client, replies) = begin(()).map_err(|it| Fault::Unanswered(it.to_string()))?;
        if replies.iter().any(Value::is_error) {
            return Err(Fault::Wrong(format!("{replies:?}")));
        }
        Ok(client)
    }

    /// Compares the replies with what this client has written.
    fn check(&mut self, replies: &[Value], value: &str) -> Result<(), Fault> {
        let [count, set, echo, hset, all, get] = replies else {
            return Err(Fault::Wrong(format!("{replies:?}")));
        };
        let is_map = matches!(all, Value::Map(_));
        let own = [Some(echo), all.field("owner"), Some(get)];
        let mut wrong = String::new();
        if !set.is_ok() || hset.int().is_none() || is_map != self.resp3 {
            let _ = write!(wrong, "{set:?} {hset:?} {all:?}; ");
        }
        if own.iter().any(|it| it.and_then(Value::text) != Some(value)) {
            let _ = write!(wrong, "{value}: {own:?}; ");
        }
        let counted = count.int().and_then(|it| u64::try_from(it).ok());
        let possible = self.acknowledged + 1..=self.acknowledged + self.unknown;
        match counted {
            Some(counted) if wrong.is_empty() && counted < *possible.start() => {
                return Err(Fault::Lost(counted));
            }
            Some(counted) if possible.contains(&counted) => self.acknowledged = counted,
            _ => drop(write!(wrong, "{count:?} instead of {possible:?}")),
        }
        self.unknown = 0;
        if wrong.is_empty() { Ok(()) } else { Err(Fault::Wrong(wrong)) }
    }

    /// Whether the acknowledged writes exist, and no other ones.
    fn verify(&self, master: &Node) -> Result<(), String> {
        let mut client = master.client();
        let mut ask = |words: &[&str]| client.cmd(words).map_err(|error| error.to_string());
        ask(&["SELECT", self.database])?;
        let count = ask(&["GET", &self.key("count")])?;
        let most = self.acknowledged + self.unknown;
        let counted = count.int().and_then(|it| u64::try_from(it).ok()).unwrap_or_default();
        if (self.acknowledged..=most).contains(&counted) {
            Ok(())
        } else {
            Err(format!("{counted} instead of {} to {most}", self.acknowledged))
        }
    }
}
