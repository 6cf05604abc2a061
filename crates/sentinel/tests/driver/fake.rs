//! A fake server: its answers come from a script that a test may change at any time, and the way in
//! which it sends them is its [`Behavior`].

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

/// How a server sends its answers.
#[derive(Debug, Clone)]
pub(crate) enum Behavior {
    /// Correctly.
    Normal,
    /// One byte at a time, with a pause after each.
    ByteByByte(Duration),
    /// Every answer is delayed by this time.
    Delayed(Duration),
    /// Does nothing until its behavior changes, like a server that executes a long command, and
    /// then processes everything at once.
    Busy,
    /// Reads and never sends a byte: no answer, no event, no end of the connection, like a host
    /// that lost its power.
    Mute,
    /// Answers, and publishes no event.
    NoEvents,
    /// Sends this instead of any answer.
    Raw(Vec<u8>),
    /// Sends this without end instead of any answer.
    Endless(Vec<u8>),
    /// Closes every connection as soon as it is accepted.
    CloseAtOnce,
}

/// The state of one connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionState {
    pub resp3: bool,
    pub(crate) authenticated: bool,
    pub(crate) subscribed: bool,
    /// Commands answered so far.
    pub(crate) answered: usize,
    /// Close it, without an answer.
    pub(crate) over: bool,
}

/// The content of a server's answers.
pub(crate) trait Script: Send + 'static {
    /// The answer to one command; may be several frames, or none.
    fn answer(&mut self, command: &[String], state: &mut ConnectionState) -> Vec<u8>;
}

struct Shared<M> {
    script: Mutex<M>,
    behavior: Mutex<Behavior>,
    events: broadcast::Sender<(String, String)>,
    cut: broadcast::Sender<()>,
    accepted: AtomicUsize,
    /// The connections up to this number get no answers any more.
    stranded: AtomicUsize,
    /// Sent to new connections before they are closed.
    refusal: Mutex<Option<Vec<u8>>>,
    open: AtomicUsize,
    heard: Mutex<VecDeque<String>>,
    commands: AtomicUsize,
}

/// A server on a port chosen by the kernel.
pub(crate) struct FakeServer<M> {
    pub(crate) addr: SocketAddr,
    shared: Arc<Shared<M>>,
    _task: AbortOnDropHandle<()>,
}

impl<M: Script> FakeServer<M> {
    pub(crate) async fn start(script: M) -> Self {
        Self::start_at(IpAddr::V4(Ipv4Addr::LOCALHOST), 0, script).await.expect("a free port")
    }

    pub(crate) async fn start_at(ip: IpAddr, port: u16, script: M) -> std::io::Result<Self> {
        let listener = TcpListener::bind((ip, port)).await?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            script: Mutex::new(script),
            behavior: Mutex::new(Behavior::Normal),
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

    /// The script, to be changed.
    pub(crate) fn script(&self) -> MutexGuard<'_, M> {
        self.shared.script.lock().expect("no poison")
    }

    pub(crate) fn behave(&self, behavior: Behavior) {
        *self.shared.behavior.lock().expect("no poison") = behavior;
    }

    pub(crate) fn publish(&self, channel: &str, payload: &str) {
        // Without a subscriber the message is lost, as with any Pub/Sub.
        let _ = self.shared.events.send((channel.to_owned(), payload.to_owned()));
    }

    /// Closes every connection; new ones are accepted.
    pub(crate) fn cut(&self) {
        let _ = self.shared.cut.send(());
    }

    /// From now on a new connection receives this and is closed, as at `maxclients`; established
    /// connections stay.
    pub(crate) fn refuse(&self, refusal: Option<&[u8]>) {
        *self.shared.refusal.lock().expect("no poison") = refusal.map(<[u8]>::to_vec);
    }

    /// The current connections stay open and never get an answer again, as if a proxy in between
    /// kept them open; new ones work.
    pub(crate) fn strand(&self) {
        self.shared.stranded.store(self.accepted(), Ordering::SeqCst);
    }

    /// Connections since the start.
    pub(crate) fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Open connections.
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

async fn serve<M: Script>(listener: TcpListener, shared: Arc<Shared<M>>) {
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

async fn converse<M: Script>(
    mut stream: TcpStream,
    shared: &Shared<M>,
    number: usize,
) -> std::io::Result<()> {
    let behavior = || shared.behavior.lock().expect("no poison").clone();
    let (mut state, mut input) = (ConnectionState::default(), Vec::new());
    stream.set_nodelay(true)?;
    busy(shared).await;
    let refusal = shared.refusal.lock().expect("no poison").clone();
    if let Some(refusal) = refusal {
        return stream.write_all(&refusal).await;
    }
    let mut events = shared.events.subscribe();
    loop {
        if matches!(behavior(), Behavior::CloseAtOnce) {
            return Ok(());
        }
        tokio::select! {
            biased;
            Ok((channel, payload)) = events.recv() => {
                if state.subscribed && !matches!(behavior(), Behavior::Mute | Behavior::NoEvents) {
                    let items = ["message", &channel, &payload].map(wire::bulk);
                    set_master(&mut stream, &wire::push(state.resp3, items), &behavior()).await?;
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
                    let answer = shared.script.lock().expect("no poison").answer(&command, &mut state);
                    if state.over {
                        return Ok(());
                    }
                    state.answered += 1;
                    set_master(&mut stream, &answer, &behavior()).await?;
                }
            }
        }
    }
}

/// Waits until its behavior lets it answer.
async fn busy<M>(shared: &Shared<M>) {
    while matches!(*shared.behavior.lock().expect("no poison"), Behavior::Busy) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn set_master(
    stream: &mut TcpStream,
    bytes: &[u8],
    behavior: &Behavior,
) -> std::io::Result<()> {
    match behavior {
        Behavior::Mute | Behavior::CloseAtOnce | Behavior::Busy => Ok(()),
        Behavior::Normal | Behavior::NoEvents => stream.write_all(bytes).await,
        Behavior::Delayed(pause) => {
            tokio::time::sleep(*pause).await;
            stream.write_all(bytes).await
        }
        Behavior::Raw(overrides) => stream.write_all(overrides).await,
        Behavior::Endless(overrides) => loop {
            stream.write_all(overrides).await?;
        },
        Behavior::ByteByByte(pause) => {
            for byte in bytes {
                stream.write_all(std::slice::from_ref(byte)).await?;
                tokio::time::sleep(*pause).await;
            }
            Ok(())
        }
    }
}

/// Answers to commands that every server supports: authentication, protocol, PING. `None` for any
/// other command.
pub(crate) fn common(
    access: &AccessRules,
    command: &[String],
    state: &mut ConnectionState,
) -> Option<Vec<u8>> {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let upper = command.first()?.to_ascii_uppercase();
    let whole = words.join(" ").to_ascii_uppercase();
    if let Some(rule) = access.refused.iter().find(|refused| whole.starts_with(*refused)) {
        return Some(
            format!("-NOPERM this user has no permissions to run the '{rule}' command\r\n")
                .into_bytes(),
        );
    }
    let right = |user: &str, password: &str| {
        access.password.as_ref().is_none_or(|(name, secret)| name == user && secret == password)
    };
    match (upper.as_str(), words.as_slice()) {
        ("HELLO", _) if access.resp2_only => Some(b"-ERR unknown command 'HELLO'\r\n".to_vec()),
        ("HELLO", [_, _, _, user, password]) if !right(user, password) => Some(WRONGPASS.to_vec()),
        ("HELLO", [_, version, rest @ ..]) => {
            state.authenticated |= rest.len() == 3;
            if access.password.is_some() && !state.authenticated {
                return Some(
                    b"-NOAUTH HELLO must be called with the client already authenticated\r\n"
                        .to_vec(),
                );
            }
            state.resp3 = *version == "3";
            Some(wire::fields(
                state.resp3,
                &[("server", "redis".to_owned()), ("proto", "3".to_owned())],
            ))
        }
        ("AUTH", [_, rest @ ..]) => {
            let (user, password) =
                if let [user, password] = rest { (*user, *password) } else { ("default", rest[0]) };
            state.authenticated = right(user, password);
            Some(if state.authenticated { b"+OK\r\n".to_vec() } else { WRONGPASS.to_vec() })
        }
        _ if access.password.is_some() && !state.authenticated => {
            Some(b"-NOAUTH Authentication required.\r\n".to_vec())
        }
        ("CLIENT", _) => Some(b"+OK\r\n".to_vec()),
        ("PING", _) if state.subscribed && !state.resp3 => Some(wire::words(&["pong", ""])),
        _ => None,
    }
}

const WRONGPASS: &[u8] = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n";

/// Which credentials are accepted, and which commands are refused.
#[derive(Debug, Clone, Default)]
pub(crate) struct AccessRules {
    pub resp2_only: bool,
    /// User and password.
    pub(crate) password: Option<(String, String)>,
    /// Beginnings of commands, in capitals, that the ACL refuses.
    pub(crate) refused: Vec<String>,
}
