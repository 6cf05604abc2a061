//! Servers for the property that nobody notices: they execute and answer by the [model](crate::carry_model), publish, die and come
//! back, end connections on purpose, and stop in the middle of an answer.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use crate::carry_model::Connection;
use crate::testing::SOON;

/// What all servers have executed, in order: they replicate without loss.
pub(crate) type Log = Arc<Mutex<Vec<u32>>>;

/// A connection, and its socket.
type Open = Arc<(Mutex<Connection>, TcpStream)>;

/// Whether answers stop half-way, and how many have.
type Stop = Arc<(Mutex<(bool, usize)>, Condvar)>;

/// A server that can die and come back.
pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    dead: Arc<AtomicBool>,
    connections: Arc<Mutex<Vec<Open>>>,
    stop: Stop,
}

impl Server {
    /// `knows`: it knows the handshake about maintenance.
    pub(crate) fn start(log: &Log, knows: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (dead, connections) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<Open>>>::default());
        let stop = Stop::default();
        let (log, rest) = (Arc::clone(log), Arc::clone(&stop));
        let server = Self { addr, dead: Arc::clone(&dead), connections: Arc::clone(&connections), stop };
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if Arc::strong_count(&dead) == 1 {
                    return;
                }
                stream.set_nodelay(true).unwrap();
                let mut connections = connections.lock().unwrap();
                // Within the lock, so that whoever kills all of them knows of this one.
                if !dead.load(Ordering::SeqCst) {
                    let open = Arc::new((Mutex::new(Connection::new(knows)), stream));
                    connections.push(Arc::clone(&open));
                    let (log, stop) = (Arc::clone(&log), Arc::clone(&rest));
                    thread::spawn(move || serve(&open, &log, &stop));
                }
            }
        });
        server
    }

    /// Ends all connections, and takes others as before.
    pub(crate) fn kick(&self) {
        for open in self.connections.lock().unwrap().drain(..) {
            drop(open.1.shutdown(Shutdown::Both));
        }
        self.go_on();
    }

    pub(crate) fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.kick();
    }

    pub(crate) fn revive(&self) {
        self.go_on();
        self.dead.store(false, Ordering::SeqCst);
    }

    /// Publishes to all who are subscribed here.
    pub(crate) fn publish(&self, channel: &str, message: u32) {
        self.go_on();
        for open in self.connections.lock().unwrap().iter() {
            let connection = open.0.lock().unwrap();
            drop((&open.1).write_all(connection.hears(channel, message).concat().as_bytes()));
        }
    }

    /// From now on, answers stop half-way.
    pub(crate) fn stop_half_way(&self) {
        self.stop.0.lock().unwrap().0 = true;
    }

    /// Waits until an answer has stopped.
    pub(crate) fn wait_for_a_half(&self) {
        let (state, bell) = &*self.stop;
        let waited = bell.wait_timeout_while(state.lock().unwrap(), SOON, |(_, stopped)| *stopped == 0).unwrap();
        assert!(!waited.1.timed_out(), "nothing was answered");
    }

    /// What has stopped goes on.
    pub(crate) fn go_on(&self) {
        self.stop.0.lock().unwrap().0 = false;
        self.stop.1.notify_all();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        self.dead = Arc::default();
        // The accepting thread finds that nobody else holds its flag.
        drop(TcpStream::connect(self.addr));
    }
}

fn serve(open: &Open, log: &Log, stop: &Stop) {
    let (connection, mut stream) = (&open.0, &open.1);
    let (mut chunk, mut buffer) = ([0; 512], Vec::new());
    while let Ok(read @ 1..) = stream.read(&mut chunk) {
        buffer.extend_from_slice(&chunk[..read]);
        while let Some((command, len)) = parse(&buffer) {
            buffer.drain(..len);
            let mut connection = connection.lock().unwrap();
            let answer = connection.answer(&command, &mut log.lock().unwrap());
            let (half, rest) = answer.as_bytes().split_at(answer.len() / 2);
            // Within the lock, so that no message comes before the confirmation.
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

/// Waits half-way, if that is wanted.
fn wait((state, bell): &(Mutex<(bool, usize)>, Condvar)) {
    let mut state = state.lock().unwrap();
    state.1 += 1;
    bell.notify_all();
    while state.0 {
        state = bell.wait(state).unwrap();
    }
    state.1 -= 1;
}

/// A whole command and its length.
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
    let words: String = command.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{words}", command.len())
}
