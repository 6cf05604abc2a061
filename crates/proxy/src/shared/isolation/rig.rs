//! The steps of a run, and what must be true after each.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::shared::upstream_ledger::Load;
use target::{Destination, Target, TargetWriter};

use crate::shared::isolation::client::{Client, Need};
use crate::shared::isolation::server::parse;
use crate::shared::isolation::wire::Wire;
use crate::shared::{Connection, ConnectionEnd};
use crate::shared_counters::SharedCounters;

const CLIENTS: usize = 5;
const CONNECTIONS: usize = 2;
const QUANTUM: Load = Load { requests: 3, bytes: 200 };
const LIMITS: Load = Load { requests: 12, bytes: 70_000 };

/// What a server may send that no shared request asks for.
const LIES: [&[u8]; 5] = [
    b"+QUEUED\r\n",
    b"-NOAUTH no\r\n",
    b"-ERR Protocol error: x\r\n",
    b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
    b"garbage\r\n",
];

/// What happened in a run.
#[derive(Debug, Default, Clone, Copy)]
pub struct Seen {
    /// Requests that shared servers executed.
    pub executed: u32,
    /// Connections that were lost.
    pub lost: u32,
    /// Clients that ended with one.
    pub ended: u32,
    /// Clients that left.
    pub left: u32,
    /// Sessions that got their own connection.
    pub promoted: u32,
    /// Sessions that shared again.
    pub returned: u32,
    /// Connections closed because their replies did not match.
    pub desynchronised: u32,
    /// Sessions that rested.
    pub rested: u32,
    /// Turns while the gate was closed.
    pub held: u32,
    /// Silent connections whose members changed to another one.
    pub retired: u32,
}

impl Seen {
    /// The sum of two.
    #[must_use]
    pub fn add(self, other: Self) -> Self {
        Self {
            executed: self.executed + other.executed,
            lost: self.lost + other.lost,
            ended: self.ended + other.ended,
            left: self.left + other.left,
            promoted: self.promoted + other.promoted,
            returned: self.returned + other.returned,
            desynchronised: self.desynchronised + other.desynchronised,
            rested: self.rested + other.rested,
            held: self.held + other.held,
            retired: self.retired + other.retired,
        }
    }
}

struct Rig {
    clients: Vec<Client>,
    connections: Vec<(Rc<Connection>, Wire)>,
    writer: TargetWriter,
    target: std::sync::Arc<Target>,
    counters: SharedCounters,
    gate_open: bool,
    seen: Seen,
}

/// Runs the steps, then everything that is left to do, and compares.
pub fn run(steps: &[u8]) -> Seen {
    let (mut writer, _reader) = TargetWriter::new();
    let addr = ([127, 0, 0, 1], 6379).into();
    let target = writer.commit(Destination { addr, name: "a".into(), epoch: 1, run_id: None });
    let mut rig = Rig {
        clients: (0..CLIENTS).map(|number| Client::new(number, 0)).collect(),
        connections: (0..CONNECTIONS).map(connection).collect(),
        writer,
        target,
        counters: SharedCounters::default(),
        gate_open: true,
        seen: Seen::default(),
    };
    for step in steps.chunks_exact(3) {
        rig.step(step[0], step[1], step[2]);
        rig.clients.iter().for_each(Client::check);
    }
    rig.finish();
    rig.seen
}

/// An open connection; those with an odd number encrypt.
fn connection(number: usize) -> (Rc<Connection>, Wire) {
    let connection = Connection::with_limits(QUANTUM, LIMITS);
    connection.opened(true, true, None);
    (Rc::new(connection), Wire::new(number % 2 == 1))
}

impl Rig {
    fn step(&mut self, action: u8, which: u8, how: u8) {
        let (at, on) = (usize::from(which) % CLIENTS, usize::from(which) % CONNECTIONS);
        match action % 64 {
            0..=15 => self.clients[at].write(how),
            16..=27 => self.clients[at].pass(1 + usize::from(how) * 3),
            28..=37 => self.turn(on, usize::from(how), 0),
            38..=43 => self.serve(on, usize::from(how % 5)),
            44..=51 => self.turn(on, 0, 1 + usize::from(how) * 2),
            52..=58 => self.read(at, 1 + usize::from(how) * 2),
            59 if how < 60 => self.lose(on, &ConnectionEnd::Closed),
            59 if how < 120 => {
                let error = io::Error::from(io::ErrorKind::ConnectionReset);
                self.lose(on, &ConnectionEnd::Failed(error));
            }
            59 => self.connections[on].0.set_silent(),
            60 if how < 120 => self.lie(on, how),
            61 if how < 80 => self.replace(at),
            62 if how < 200 => self.set_gate(how < 100),
            63 if how < 120 => self.seen.rested += u32::from(self.clients[at].rest_and_wake()),
            _ => self.seen.returned += u32::from(self.clients[at].return_if_clean()),
        }
        self.advance();
    }

    /// Every session does what it can.
    fn advance(&mut self) {
        for client in &mut self.clients {
            match client.advance() {
                Need::Nothing => {}
                Need::Join => {
                    let usable = self.connections.iter().filter(|(it, _)| !it.is_closed());
                    let least = usable.min_by_key(|(it, _)| it.len());
                    least.into_iter().for_each(|(it, _)| client.join(it));
                }
                Need::Promote => {
                    client.promote();
                    self.seen.promoted += 1;
                }
                Need::Replace(silent) => {
                    if self.connections.iter().all(|(it, _)| !it.is_closed()) {
                        silent.retire();
                        self.seen.retired += 1;
                    }
                }
            }
        }
    }

    /// The task of a connection runs; the wire takes and gives so many bytes.
    fn turn(&mut self, on: usize, takes: usize, gives: usize) {
        let (connection, wire) = &mut self.connections[on];
        (wire.takes, wire.gives, wire.gate_open) = (takes, gives, self.gate_open);
        self.seen.held += u32::from(!self.gate_open);
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(end) = connection.poll(&mut cx, wire, &self.target, &self.counters) {
            assert!(matches!(end, ConnectionEnd::Desync(_)), "{end:?}");
            self.seen.desynchronised += 1;
            return self.lose(on, &end);
        }
        if connection.is_over() {
            self.connections[on] = self::connection(on);
        }
    }

    /// A server executes requests. It must find those of each client in their order.
    fn serve(&mut self, on: usize, most: usize) {
        let Self { clients, connections, seen, .. } = self;
        connections[on].1.serve(most, |request| {
            seen.executed += 1;
            let (words, _) = parse(request).expect("whole");
            let token = String::from_utf8_lossy(&words[1]);
            let number = token.trim_start_matches("client").split('-').next();
            let number: usize = number.and_then(|it| it.parse().ok()).expect("a number");
            // That of a client that has left may be executed, too.
            if clients[number].has_written(&token) {
                clients[number].note_executed(request);
            }
        });
    }

    fn read(&mut self, at: usize, most: usize) {
        let alive = self.clients[at].read(most);
        assert!(alive, "failed although its connection was not lost");
    }

    /// A connection is lost: exactly the clients with requests in flight on it end.
    fn lose(&mut self, on: usize, end: &ConnectionEnd) {
        let (lost, _wire) = std::mem::replace(&mut self.connections[on], connection(on));
        let ends = lost.close(end);
        self.seen.lost += 1;
        let mut failed = 0;
        for client in &mut self.clients {
            client.advance();
            // A session first reads the replies that it has.
            let alive = client.read(usize::MAX);
            client.check();
            if !alive {
                assert!(client.replies_due() > 0, "ended without a request in flight");
                failed += 1;
                *client = client.successor();
            }
        }
        assert_eq!(ends, failed, "sessions that end");
        self.seen.ended += u32::try_from(ends).expect("few");
        self.advance();
    }

    /// A server sends what no request asked for. It is detected before any client receives it.
    fn lie(&mut self, on: usize, how: u8) {
        let (connection, wire) = &mut self.connections[on];
        let (outgoing, kept) = connection.buffered();
        // A script may answer anything, and then a lie cannot be told from its reply.
        let script = wire.has_script() || outgoing.windows(4).any(|word| word == b"EVAL");
        if script || wire.has_replies() || !kept.is_empty() {
            return;
        }
        let lie = LIES[usize::from(how) % LIES.len()];
        // No write begins before it is read.
        wire.encrypts = false;
        wire.lie(lie);
        let before = self.seen.desynchronised;
        self.turn(on, 0, usize::MAX);
        assert_eq!(self.seen.desynchronised, before + 1, "not detected: {}", lie.escape_ascii());
    }

    /// A client leaves, and another one takes its place.
    fn replace(&mut self, at: usize) {
        self.seen.left += 1;
        self.clients[at] = self.clients[at].successor();
    }

    fn set_gate(&mut self, open: bool) {
        self.gate_open = open;
        if open { self.writer.release() } else { self.writer.hold() }
    }

    /// Does all that is left to do. Then every client has received everything.
    fn finish(&mut self) {
        self.set_gate(true);
        for _ in 0..10_000 {
            for at in 0..CLIENTS {
                self.clients[at].pass(usize::MAX);
                self.read(at, usize::MAX);
            }
            self.advance();
            for on in 0..CONNECTIONS {
                self.turn(on, 1_000_000, usize::MAX);
                self.serve(on, usize::MAX);
                self.turn(on, 1_000_000, usize::MAX);
            }
            if self.clients.iter().all(Client::has_all_replies) {
                break;
            }
        }
        self.clients.iter().for_each(Client::check);
        assert!(self.clients.iter().all(Client::has_all_replies), "{:#?}", self.clients);
    }
}
