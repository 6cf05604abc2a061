//! A fake server: what it says is decided by a value that a test may change at any time, and how it
//! says it by its [`Manner`].

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio_util::task::AbortOnDropHandle;

use crate::wire;

/// How a server behaves, whatever it has to say.
#[derive(Debug, Clone)]
pub(crate) enum Manner {
    /// As it should.
    Proper,
    /// One byte at a time, with a pause behind each.
    Dribble(Duration),
    /// Every answer comes this much later.
    Late(Duration),
    /// Does nothing at all until it behaves otherwise, as a server that is busy with a long
    /// command: then everything at once.
    Busy,
    /// Reads and never says a byte: no answer, no event, no end. A host that lost its power looks
    /// like that.
    Mute,
    /// Answers, but says nothing that was not asked for.
    NoEvents,
    /// Says this instead of any answer.
    Raw(Vec<u8>),
    /// Says this without end instead of any answer.
    Endless(Vec<u8>),
    /// Ends every connection as soon as it is made.
    Hangup,
}

/// What a connection has come to.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    pub resp3: bool,
    pub(crate) authenticated: bool,
    pub(crate) subscribed: bool,
    /// Commands answered so far.
    pub(crate) answered: usize,
    /// End it, without an answer.
    pub(crate) over: bool,
}

/// What a server knows.
pub(crate) trait Mind: Send + 'static {
    /// The answer to one command; may be several frames, or none.
    fn answer(&mut self, command: &[String], standing: &mut Standing) -> Vec<u8>;
}

struct Shared<M> {
    mind: Mutex<M>,
    manner: Mutex<Manner>,
    events: broadcast::Sender<(String, String)>,
    cut: broadcast::Sender<()>,
    accepted: AtomicUsize,
    /// The connections up to this number get nothing any more.
    stranded: AtomicUsize,
    /// Said to new connections before they are closed.
    refusal: Mutex<Option<Vec<u8>>>,
    open: AtomicUsize,
    heard: Mutex<VecDeque<String>>,
    commands: AtomicUsize,
}

/// A server on a port that the kernel chose.
pub(crate) struct Fake<M> {
    pub(crate) addr: SocketAddr,
    shared: Arc<Shared<M>>,
    _task: AbortOnDropHandle<()>,
}

impl<M: Mind> Fake<M> {
    pub(crate) async fn start(mind: M) -> Self {
        Self::start_at(IpAddr::V4(Ipv4Addr::LOCALHOST), 0, mind).await.expect("a free port")
    }

    pub(crate) async fn start_at(ip: IpAddr, port: u16, mind: M) -> std::io::Result<Self> {
        let listener = TcpListener::bind((ip, port)).await?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            mind: Mutex::new(mind),
            manner: Mutex::new(Manner::Proper),
            events: broadcast::channel(4096).0,
            cut: broadcast::channel(16).0,
            accepted: AtomicUsize::new(0),
            stranded: AtomicUsize::new(0),
            refusal: Mutex::new(None),
            open: AtomicUsize::new(0),
            heard: Mutex::new(VecDeque::new()),
            commands: AtomicUsize::new(0),
        });
        let task = AbortOnDropHandle::new(tokio::spawn(serve(listener, Arc::clone(&shared))));
        Ok(Self { addr, shared, _task: task })
    }

    /// What it knows, to be changed.
    pub(crate) fn mind(&self) -> MutexGuard<'_, M> {
        self.shared.mind.lock().expect("no poison")
    }

    pub(crate) fn behave(&self, manner: Manner) {
        *self.shared.manner.lock().expect("no poison") = manner;
    }

    pub(crate) fn publish(&self, channel: &str, payload: &str) {
        // Nobody may be listening: then the message is lost, as with any Pub/Sub.
        let _ = self.shared.events.send((channel.to_owned(), payload.to_owned()));
    }

    /// Ends every connection; new ones are welcome.
    pub(crate) fn cut(&self) {
        let _ = self.shared.cut.send(());
    }

    /// From now on a new connection hears this and is closed, as at `maxclients`; established ones
    /// stay.
    pub(crate) fn refuse(&self, refusal: Option<&[u8]>) {
        *self.shared.refusal.lock().expect("no poison") = refusal.map(<[u8]>::to_vec);
    }

    /// The connections of now stay open and get no answer ever again, as if something in between
    /// kept them up; new ones work.
    pub(crate) fn strand(&self) {
        self.shared.stranded.store(self.accepted(), Ordering::SeqCst);
    }

    /// Connections since the start.
    pub(crate) fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Connections now.
    pub(crate) fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// Commands since the start.
    pub(crate) fn commands(&self) -> usize {
        self.shared.commands.load(Ordering::SeqCst)
    }

    /// The last commands, oldest first.
    pub(crate) fn heard(&self) -> Vec<String> {
        self.shared.heard.lock().expect("no poison").iter().cloned().collect()
    }
}

async fn serve<M: Mind>(listener: TcpListener, shared: Arc<Shared<M>>) {
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let number = shared.accepted.fetch_add(1, Ordering::SeqCst) + 1;
                let shared = Arc::clone(&shared);
                tasks.spawn(async move {
                    shared.open.fetch_add(1, Ordering::SeqCst);
                    let mut cut = shared.cut.subscribe();
                    tokio::select! {
                        _ = converse(stream, &shared, number) => {}
                        _ = cut.recv() => {}
                    }
                    shared.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
            Some(_) = tasks.join_next() => {}
        }
    }
}

async fn converse<M: Mind>(
    mut stream: TcpStream,
    shared: &Shared<M>,
    number: usize,
) -> std::io::Result<()> {
    let manner = || shared.manner.lock().expect("no poison").clone();
    let (mut standing, mut input) = (Standing::default(), Vec::new());
    stream.set_nodelay(true)?;
    busy(shared).await;
    let refusal = shared.refusal.lock().expect("no poison").clone();
    if let Some(refusal) = refusal {
        return stream.write_all(&refusal).await;
    }
    let mut events = shared.events.subscribe();
    loop {
        if matches!(manner(), Manner::Hangup) {
            return Ok(());
        }
        tokio::select! {
            biased;
            Ok((channel, payload)) = events.recv() => {
                if standing.subscribed && !matches!(manner(), Manner::Mute | Manner::NoEvents) {
                    let items = ["message", &channel, &payload].map(wire::bulk);
                    say(&mut stream, &wire::push(standing.resp3, items), &manner()).await?;
                }
            }
            read = stream.read_buf(&mut input) => {
                if read? == 0 {
                    return Ok(());
                }
                busy(shared).await;
                if shared.stranded.load(Ordering::SeqCst) >= number {
                    input.clear();
                }
                while let Some(command) = wire::take_command(&mut input) {
                    let line = command.join(" ");
                    shared.commands.fetch_add(1, Ordering::SeqCst);
                    {
                        let mut heard = shared.heard.lock().expect("no poison");
                        heard.push_back(line);
                        if heard.len() > 1000 {
                            heard.pop_front();
                        }
                    }
                    let answer = shared.mind.lock().expect("no poison").answer(&command, &mut standing);
                    if standing.over {
                        return Ok(());
                    }
                    standing.answered += 1;
                    say(&mut stream, &answer, &manner()).await?;
                }
            }
        }
    }
}

/// Waits until it has time.
async fn busy<M>(shared: &Shared<M>) {
    while matches!(*shared.manner.lock().expect("no poison"), Manner::Busy) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn say(stream: &mut TcpStream, bytes: &[u8], manner: &Manner) -> std::io::Result<()> {
    match manner {
        Manner::Mute | Manner::Hangup | Manner::Busy => Ok(()),
        Manner::Proper | Manner::NoEvents => stream.write_all(bytes).await,
        Manner::Late(pause) => {
            tokio::time::sleep(*pause).await;
            stream.write_all(bytes).await
        }
        Manner::Raw(instead) => stream.write_all(instead).await,
        Manner::Endless(instead) => loop {
            stream.write_all(instead).await?;
        },
        Manner::Dribble(pause) => {
            for byte in bytes {
                stream.write_all(std::slice::from_ref(byte)).await?;
                tokio::time::sleep(*pause).await;
            }
            Ok(())
        }
    }
}

/// Answers to what every server understands: authentication, the protocol, PING. `None`: something
/// else was asked.
pub(crate) fn common(gate: &Gate, command: &[String], standing: &mut Standing) -> Option<Vec<u8>> {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let upper = command.first()?.to_ascii_uppercase();
    let whole = words.join(" ").to_ascii_uppercase();
    if let Some(rule) = gate.refused.iter().find(|refused| whole.starts_with(*refused)) {
        return Some(
            format!("-NOPERM this user has no permissions to run the '{rule}' command\r\n")
                .into_bytes(),
        );
    }
    let right = |user: &str, password: &str| {
        gate.password.as_ref().is_none_or(|(name, secret)| name == user && secret == password)
    };
    match (upper.as_str(), words.as_slice()) {
        ("HELLO", _) if gate.resp2_only => Some(b"-ERR unknown command 'HELLO'\r\n".to_vec()),
        ("HELLO", [_, _, _, user, password]) if !right(user, password) => Some(WRONGPASS.to_vec()),
        ("HELLO", [_, version, rest @ ..]) => {
            standing.authenticated |= rest.len() == 3;
            if gate.password.is_some() && !standing.authenticated {
                return Some(
                    b"-NOAUTH HELLO must be called with the client already authenticated\r\n"
                        .to_vec(),
                );
            }
            standing.resp3 = *version == "3";
            Some(wire::fields(
                standing.resp3,
                &[("server", "redis".to_owned()), ("proto", "3".to_owned())],
            ))
        }
        ("AUTH", [_, rest @ ..]) => {
            let (user, password) =
                if let [user, password] = rest { (*user, *password) } else { ("default", rest[0]) };
            standing.authenticated = right(user, password);
            Some(if standing.authenticated { b"+OK\r\n".to_vec() } else { WRONGPASS.to_vec() })
        }
        _ if gate.password.is_some() && !standing.authenticated => {
            Some(b"-NOAUTH Authentication required.\r\n".to_vec())
        }
        ("CLIENT", _) => Some(b"+OK\r\n".to_vec()),
        ("PING", _) if standing.subscribed && !standing.resp3 => Some(wire::words(&["pong", ""])),
        _ => None,
    }
}

const WRONGPASS: &[u8] = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n";

/// Who is let in, and what is not.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate {
    pub resp2_only: bool,
    /// User and password.
    pub(crate) password: Option<(String, String)>,
    /// Beginnings of commands in capitals, that the ACL refuses.
    pub(crate) refused: Vec<String>,
}
