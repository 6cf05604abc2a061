//! Servers of the property test: they execute and answer by the
//! [model](crate::session::carry::testing::model), publish, crash and come back as other processes,
//! close connections on purpose, stop in the middle of a reply, and do not serve new connections at
//! once.

pub(crate) mod blanks;
pub(crate) mod client;
pub(crate) mod model;
pub(crate) mod relay;
pub(crate) mod steps;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use tls::rustls::ServerConfig;

use crate::session::carry::testing::model::{ModelConnection, ServerProcess};
use crate::session::carry::testing::relay::TlsRelay;
use crate::testing::SOON;

/// The commands that all servers have executed, in order: they replicate without loss.
pub(crate) type ExecutionLog = Arc<Mutex<Vec<u32>>>;

/// A connection's state, and its socket.
type OpenConnection = Arc<(Mutex<ModelConnection>, TcpStream)>;

/// Whether replies stop half-way, and how many have.
type HalfwayStop = Arc<(Mutex<(bool, usize)>, Condvar)>;

/// Why a server does not serve a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerFault {
    /// It is at its `maxclients`: it replies so unrequested, and closes.
    Full,
    /// It runs a script.
    Busy,
    /// It loads its data.
    Loading,
}

impl ServerFault {
    /// The error reply to a command that is not executed (`redis:src/commands`, the flags
    /// ALLOW_BUSY and LOADING).
    fn refuse(self, command: &[String]) -> Option<&'static str> {
        let word = command.first().map_or("", String::as_str);
        let (echo, transaction) = (
            matches!(word, "AUTH" | "HELLO" | "RESET"),
            matches!(word, "MULTI" | "EXEC" | "DISCARD"),
        );
        let state = matches!(word, "SELECT" | "CLIENT" | "READONLY" | "READWRITE")
            || word.ends_with("SUBSCRIBE");
        match self {
            Self::Full => None,
            Self::Busy => {
                (!echo && !transaction).then_some("-BUSY Redis is busy running a script.\r\n")
            }
            Self::Loading => {
                (!echo && !state).then_some("-LOADING Redis is loading the dataset in memory\r\n")
            }
        }
    }
}

/// How many new connections a server does not serve, and why.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConnectionFaults(Arc<Mutex<Option<(ServerFault, usize)>>>);

impl ConnectionFaults {
    pub(crate) fn begin(&self, fault: ServerFault, count: usize) {
        *self.0.lock().unwrap() = Some((fault, count));
    }

    pub(crate) fn end(&self) {
        *self.0.lock().unwrap() = None;
    }

    pub(crate) fn is_any(&self) -> bool {
        self.0.lock().unwrap().is_some()
    }

    fn next(&self) -> Option<ServerFault> {
        let mut left = self.0.lock().unwrap();
        let (fault, count) = (*left)?;
        *left = (count > 1).then_some((fault, count - 1));
        Some(fault)
    }
}

/// The process that a server is at present.
type CurrentProcess = Arc<Mutex<Arc<ServerProcess>>>;

/// No two processes have the same seed, and no two connections the same number.
static NUMBERS: AtomicU32 = AtomicU32::new(1);

fn process() -> Arc<ServerProcess> {
    Arc::new(ServerProcess {
        seed: NUMBERS.fetch_add(1, Ordering::Relaxed),
        ..ServerProcess::default()
    })
}

/// A server that can crash and come back.
pub(crate) struct ModelServer {
    /// The address for the proxy.
    pub(crate) addr: SocketAddr,
    own_addr: SocketAddr,
    relay: Option<TlsRelay>,
    pub(crate) faults: ConnectionFaults,
    process: CurrentProcess,
    dead: Arc<AtomicBool>,
    connections: Arc<Mutex<Vec<OpenConnection>>>,
    stop: HalfwayStop,
}

impl ModelServer {
    /// `knows_handshake`: it knows the maintenance handshake.
    pub(crate) fn start(log: &ExecutionLog, knows_handshake: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (dead, connections) =
            (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<OpenConnection>>>::default());
        let stop = HalfwayStop::default();
        let (log, rest) = (Arc::clone(log), Arc::clone(&stop));
        let (faults, running) =
            (ConnectionFaults::default(), CurrentProcess::new(Mutex::new(process())));
        let (upcoming, now) = (faults.clone(), Arc::clone(&running));
        let (alive, open) = (Arc::clone(&dead), Arc::clone(&connections));
        let server = Self {
            addr,
            own_addr: addr,
            relay: None,
            faults,
            process: running,
            dead: alive,
            connections: open,
            stop,
        };
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if Arc::strong_count(&dead) == 1 {
                    return;
                }
                stream.set_nodelay(true).unwrap();
                let mut connections = connections.lock().unwrap();
                // Under the lock, so that a crash closes this connection, too.
                if !dead.load(Ordering::SeqCst) {
                    let fault = upcoming.next();
                    if fault == Some(ServerFault::Full) {
                        drop((&stream).write_all(b"-ERR max number of clients reached\r\n"));
                        continue;
                    }
                    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
                    let connection = ModelConnection::at(
                        knows_handshake,
                        Arc::clone(&now.lock().unwrap()),
                        number,
                    );
                    let open = Arc::new((Mutex::new(connection), stream));
                    connections.push(Arc::clone(&open));
                    let (log, stop) = (Arc::clone(&log), Arc::clone(&rest));
                    thread::spawn(move || serve(&open, &log, &stop, fault));
                }
            }
        });
        server
    }

    /// The same server, which speaks TLS.
    pub(crate) fn over_tls(mut self, config: Arc<ServerConfig>) -> Self {
        let relay = self.relay.insert(TlsRelay::start(self.own_addr, config));
        self.addr = relay.addr;
        self
    }

    /// Closes all connections, and accepts new ones as before.
    pub(crate) fn kick(&self) {
        for open in self.connections.lock().unwrap().drain(..) {
            drop(open.1.shutdown(Shutdown::Both));
        }
        self.release();
    }

    pub(crate) fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.kick();
    }

    /// Comes back, as another process if it had crashed.
    pub(crate) fn revive(&self) {
        self.release();
        if self.dead.load(Ordering::SeqCst) {
            *self.process.lock().unwrap() = process();
        }
        self.dead.store(false, Ordering::SeqCst);
    }

    /// Publishes to all connections that are subscribed here.
    pub(crate) fn publish(&self, channel: &str, message: u32) {
        self.release();
        for open in self.connections.lock().unwrap().iter() {
            let connection = open.0.lock().unwrap();
            drop((&open.1).write_all(connection.frames_of(channel, message).concat().as_bytes()));
        }
    }

    /// From now on, replies stop half-way.
    pub(crate) fn stop_replies_halfway(&self) {
        self.stop.0.lock().unwrap().0 = true;
    }

    /// Waits until a reply has stopped.
    pub(crate) fn wait_for_stopped_reply(&self) {
        let (state, changed) = &*self.stop;
        let waited = changed
            .wait_timeout_while(state.lock().unwrap(), SOON, |(_, stopped)| *stopped == 0)
            .unwrap();
        assert!(!waited.1.timed_out(), "no reply was sent");
    }

    /// Releases replies that have stopped.
    pub(crate) fn release(&self) {
        self.stop.0.lock().unwrap().0 = false;
        self.stop.1.notify_all();
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.kill();
        self.dead = Arc::default();
        // The accepting thread finds that it is the only owner of its flag.
        drop(TcpStream::connect(self.own_addr));
    }
}

fn serve(
    open: &OpenConnection,
    log: &ExecutionLog,
    stop: &HalfwayStop,
    fault: Option<ServerFault>,
) {
    let (connection, mut stream) = (&open.0, &open.1);
    let (mut chunk, mut buffer) = ([0; 512], Vec::new());
    while let Ok(read @ 1..) = stream.read(&mut chunk) {
        buffer.extend_from_slice(&chunk[..read]);
        while let Some((command, len)) = parse(&buffer) {
            buffer.drain(..len);
            let mut connection = connection.lock().unwrap();
            let refusal = fault.and_then(|it| it.refuse(&command));
            let executed = || connection.answer(&command, &mut log.lock().unwrap());
            let answer = refusal.map_or_else(executed, str::to_owned);
            let (half, rest) = answer.as_bytes().split_at(answer.len() / 2);
            // Under the lock, so that no message comes before the confirmation.
            if stream.write_all(half).is_err() {
                return;
            }
            wait(stop);
            if stream.write_all(rest).is_err() {
                return;
            }
        }
    }
}

/// Stops half-way, if that is wanted.
fn wait(stop: &(Mutex<(bool, usize)>, Condvar)) {
    let (state, changed) = stop;
    let mut state = state.lock().unwrap();
    state.1 += 1;
    changed.notify_all();
    while state.0 {
        state = changed.wait(state).unwrap();
    }
    state.1 -= 1;
}

/// A complete command and its length.
fn parse(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let text = std::str::from_utf8(bytes).unwrap();
    let mut at = text.find("\r\n")? + 2;
    let count: usize = text[1..at - 2].parse().unwrap();
    let mut words = Vec::new();
    for _ in 0..count {
        let end = at + text[at..].find("\r\n")? + 2;
        let len: usize = text[at + 1..end - 2].parse().unwrap();
        words.push(text.get(end..end + len)?.to_owned());
        at = end + len + 2;
        text.get(..at)?;
    }
    Some((words, at))
}

pub(crate) fn encode(command: &[String]) -> String {
    let words: String =
        command.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{words}", command.len())
}
