//! Many clients over shared connections to model servers, without sockets. Every step is chosen by
//! a byte, so that property tests and a fuzz target drive the same rig.
//!
//! Each request carries the number of its client and its own, and each reply depends on nothing
//! else. So what a client must receive is known in advance, and a reply of another client is
//! recognized by its first wrong byte.

use std::time::Duration;

use resp::{NextRequest, Sharing, WholeRequests};
use share::{
    Action, Member, Mode, Offer, Quantum, Room, SharedSession, Taken, TurnQueue, UpstreamLedger,
    UpstreamLimits,
};

const CLIENTS: usize = 5;
const UPSTREAMS: usize = 2;
const LIMITS: UpstreamLimits = UpstreamLimits { requests: 12, bytes: 2_000 };
const MAX_REQUEST: usize = 600;

/// What happened in a run.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) delivered: u32,
    pub(crate) dropped: u32,
    pub(crate) lost: u32,
    pub(crate) left: u32,
    pub(crate) ended: u32,
    pub(crate) promoted: u32,
    pub(crate) returned: u32,
    pub(crate) verified: u32,
    pub(crate) desynchronised: u32,
}

impl Seen {
    /// The sum of two.
    #[allow(dead_code, reason = "the fuzz target does not count")]
    pub(crate) fn add(self, other: Self) -> Self {
        Self {
            delivered: self.delivered + other.delivered,
            dropped: self.dropped + other.dropped,
            lost: self.lost + other.lost,
            left: self.left + other.left,
            ended: self.ended + other.ended,
            promoted: self.promoted + other.promoted,
            returned: self.returned + other.returned,
            verified: self.verified + other.verified,
            desynchronised: self.desynchronised + other.desynchronised,
        }
    }
}

/// A client, and its session.
struct Client {
    member: Member,
    session: SharedSession,
    requests: WholeRequests,
    /// Bytes that it has written and the proxy has not read.
    unsent: Vec<u8>,
    buffer: Vec<u8>,
    upstream: usize,
    queued: bool,
    /// Requests that it has written.
    written: u32,
    expected: Vec<u8>,
    received: Vec<u8>,
    in_transaction: bool,
    gone: bool,
}

/// A shared connection, and the server at its other end.
struct Upstream {
    ledger: UpstreamLedger,
    queue: TurnQueue,
    to_server: Vec<u8>,
    from_server: Vec<u8>,
    kept: Vec<u8>,
}

impl Upstream {
    fn new() -> Self {
        Self {
            ledger: UpstreamLedger::new(true, true, LIMITS),
            queue: TurnQueue::new(Quantum { requests: 3, bytes: 200 }),
            to_server: Vec::new(),
            from_server: Vec::new(),
            kept: Vec::new(),
        }
    }
}

fn encode(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// The reply of any server to a request with these words.
fn reply(words: &[Vec<u8>]) -> Vec<u8> {
    let token = words.get(1).cloned().unwrap_or_default();
    let text = String::from_utf8_lossy(&token).into_owned();
    match words[0].as_slice() {
        b"GET" => format!("${}\r\n{text}\r\n", text.len()).into_bytes(),
        b"SET" => b"+OK\r\n".to_vec(),
        b"INCR" => format!(":{}\r\n", text.len()).into_bytes(),
        b"TYPE" => format!("+{text}\r\n").into_bytes(),
        b"LPUSH" => format!("-ERR wrong {text}\r\n").into_bytes(),
        b"HGETALL" => format!("%1\r\n$1\r\nk\r\n+{text}\r\n").into_bytes(),
        b"LRANGE" => format!("*2\r\n+{text}\r\n${}\r\n{}\r\n", 300, "x".repeat(300)).into_bytes(),
        b"EVAL" => b"+QUEUED\r\n".to_vec(),
        b"EXEC" => b"*0\r\n".to_vec(),
        _ => b"+OK\r\n".to_vec(),
    }
}

/// The request of that kind, its words, and what a server answers.
fn request(kind: u8, client: usize, number: u32) -> (Vec<u8>, Vec<u8>) {
    let token = format!("client{client}-request{number}").into_bytes();
    let large = vec![b'v'; 2 * MAX_REQUEST];
    let words: Vec<Vec<u8>> = match kind % 14 {
        0..=2 => vec![b"GET".to_vec(), token],
        3 => vec![b"SET".to_vec(), token, vec![b'v'; usize::from(kind)]],
        4 => vec![b"INCR".to_vec(), token],
        5 => vec![b"TYPE".to_vec(), token],
        6 => vec![b"LPUSH".to_vec(), token],
        7 => vec![b"HGETALL".to_vec(), token],
        8 => vec![b"LRANGE".to_vec(), token],
        9 => vec![b"EVAL".to_vec(), token],
        10 => vec![b"SELECT".to_vec(), b"1".to_vec()],
        11 => vec![b"MULTI".to_vec()],
        12 => vec![b"EXEC".to_vec()],
        _ => vec![b"SET".to_vec(), token, large],
    };
    let borrowed: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    (encode(&borrowed), reply(&words))
}

/// The words of the requests at the beginning of `bytes`, at most `most`, and their length.
fn parse(bytes: &[u8], most: usize) -> (Vec<Vec<Vec<u8>>>, usize) {
    let (mut all, mut at) = (Vec::new(), 0);
    let number = |at: &mut usize| {
        let end = at.checked_add(bytes.get(*at..)?.iter().position(|byte| *byte == b'\n')?)?;
        let text = std::str::from_utf8(bytes.get(*at + 1..end - 1)?).ok()?;
        *at = end + 1;
        text.parse::<usize>().ok()
    };
    while all.len() < most {
        let mut next = at;
        let mut words = Vec::new();
        let Some(count) = number(&mut next) else { break };
        for _ in 0..count {
            let Some(len) = number(&mut next) else { return (all, at) };
            let Some(word) = bytes.get(next..next + len) else { return (all, at) };
            words.push(word.to_vec());
            next += len + 2;
        }
        if next > bytes.len() {
            break;
        }
        all.push(words);
        at = next;
    }
    (all, at)
}

struct Rig {
    clients: Vec<Client>,
    upstreams: Vec<Upstream>,
    next_member: u64,
    now: Duration,
    seen: Seen,
}

/// Runs the steps, then everything that is left to do, and compares.
pub(crate) fn run(steps: &[u8]) -> Seen {
    let mut rig = Rig {
        clients: Vec::new(),
        upstreams: (0..UPSTREAMS).map(|_| Upstream::new()).collect(),
        next_member: 0,
        now: Duration::from_secs(1),
        seen: Seen::default(),
    };
    for _ in 0..CLIENTS {
        let client = rig.client();
        rig.clients.push(client);
    }
    for step in steps.chunks_exact(3) {
        rig.step(step[0], step[1], step[2]);
        rig.check_prefixes();
    }
    rig.finish();
    rig.seen
}

impl Rig {
    fn client(&mut self) -> Client {
        self.next_member += 1;
        Client {
            member: Member(self.next_member),
            session: SharedSession::default(),
            requests: WholeRequests::new(MAX_REQUEST),
            unsent: Vec::new(),
            buffer: Vec::new(),
            upstream: 0,
            queued: false,
            written: 0,
            expected: Vec::new(),
            received: Vec::new(),
            in_transaction: false,
            gone: false,
        }
    }

    fn step(&mut self, action: u8, which: u8, how: u8) {
        let (at, up) = (usize::from(which) % CLIENTS, usize::from(which) % UPSTREAMS);
        self.now += Duration::from_millis(u64::from(how));
        match action % 64 {
            0..=19 => self.write(at, how),
            20..=33 => self.read(at, 1 + usize::from(how) * 3),
            34..=43 => self.turn(up),
            44..=50 => self.serve(up, usize::from(how % 5)),
            51..=60 => self.receive(up, 1 + usize::from(how) * 2),
            61 if how < 60 => self.lose(up),
            61 if how < 120 => self.lie(up, how),
            62 if how < 80 => self.replace(at),
            _ => self.return_if_clean(at),
        }
    }

    /// A client writes a request.
    fn write(&mut self, at: usize, kind: u8) {
        let client = &mut self.clients[at];
        // A transaction ends before the next begins, so that every reply depends on its request.
        let kind = match kind % 14 {
            11 if client.in_transaction => 12,
            12 if !client.in_transaction => 11,
            _ => kind,
        };
        client.in_transaction = match kind % 14 {
            11 => true,
            12 => false,
            _ => client.in_transaction,
        };
        client.written += 1;
        let (bytes, reply) = request(kind, at, client.written);
        client.unsent.extend(bytes);
        client.expected.extend(reply);
    }

    /// The proxy reads from a client.
    fn read(&mut self, at: usize, most: usize) {
        let client = &mut self.clients[at];
        let piece = client.unsent.len().min(most);
        client.buffer.extend(client.unsent.drain(..piece));
        self.advance(at);
    }

    /// Handles what a client has sent, up to a request that must wait.
    fn advance(&mut self, at: usize) {
        loop {
            let client = &mut self.clients[at];
            if client.gone || client.queued {
                return;
            }
            if let Mode::Dedicated(_) = client.session.mode() {
                return self.forward(at);
            }
            let sharing = match client.requests.next(&client.buffer) {
                NextRequest::Incomplete => return,
                NextRequest::Empty(len) => {
                    client.buffer.drain(..len);
                    continue;
                }
                NextRequest::Whole { sharing: Sharing::Shared | Sharing::SharedScript, .. } => {
                    if client.session.mode() != Mode::Shared {
                        return;
                    }
                    if client.session.in_flight() == 0 {
                        let least = (0..UPSTREAMS)
                            .min_by_key(|up| self.upstreams[*up].ledger.in_flight())
                            .unwrap_or(0);
                        if client.upstream != least {
                            client.session.changed_connection();
                        }
                        client.upstream = least;
                    }
                    client.queued = true;
                    self.upstreams[client.upstream].queue.wait(client.member);
                    return;
                }
                NextRequest::Whole { sharing, .. } => sharing,
                NextRequest::Promotes(reason) => Sharing::Promotes(reason),
            };
            match client.session.offer(sharing, self.now) {
                Offer::Verify => {
                    let (words, len) = parse(&client.buffer, 1);
                    client.received.extend(reply(&words[0]));
                    client.buffer.drain(..len);
                    // The reset finds the next request.
                    client.requests.reset();
                    assert_eq!(client.session.verified(true, self.now), Action::Join);
                    self.seen.verified += 1;
                }
                Offer::Wait => {
                    if client.session.pending() != Action::Connect {
                        return;
                    }
                    assert_eq!(client.session.connected(), Action::Continue);
                    self.seen.promoted += 1;
                }
                other => panic!("{other:?} for {sharing:?}"),
            }
        }
    }

    /// The client's own server answers.
    fn forward(&mut self, at: usize) {
        let client = &mut self.clients[at];
        let (all, len) = parse(&client.buffer, usize::MAX);
        client.buffer.drain(..len);
        all.iter().for_each(|words| client.received.extend(reply(words)));
    }

    fn return_if_clean(&mut self, at: usize) {
        let now = self.now;
        let client = &mut self.clients[at];
        let replies_open = client.in_transaction && client.unsent.is_empty();
        let clean = client.buffer.is_empty() && !client.in_transaction && !replies_open;
        if matches!(client.session.mode(), Mode::Dedicated(_))
            && client.session.at_boundary(clean, now + Duration::from_secs(400)) == Action::Join
        {
            client.requests.reset();
            self.seen.returned += 1;
        }
    }

    /// The requests of a turn leave on a connection.
    fn turn(&mut self, up: usize) {
        let Self { clients, upstreams, .. } = self;
        let Upstream { ledger, queue, to_server, .. } = &mut upstreams[up];
        let (requests, bytes) = ledger.room();
        queue.give_turns(Room { requests, bytes }, |member, quantum, room| {
            let client = clients.iter_mut().find(|it| it.member == member).expect("in the queue");
            let taken = take(client, quantum, room, ledger, to_server);
            client.queued = matches!(taken, Taken::NoRoom | Taken::Sent { more: true, .. });
            taken
        });
        (0..CLIENTS).for_each(|at| self.advance(at));
    }

    /// A server reads requests and answers them.
    fn serve(&mut self, up: usize, most: usize) {
        let upstream = &mut self.upstreams[up];
        let (all, len) = parse(&upstream.to_server, most);
        upstream.to_server.drain(..len);
        for words in &all {
            upstream.from_server.extend(reply(words));
            if words[0] == b"INCR" {
                upstream.from_server.extend(b">2\r\n+notice\r\n:1\r\n");
            }
        }
    }

    /// The proxy reads replies.
    fn receive(&mut self, up: usize, most: usize) {
        let Upstream { ledger, from_server, kept, .. } = &mut self.upstreams[up];
        let piece = from_server.len().min(most);
        kept.extend(from_server.drain(..piece));
        let bytes = std::mem::take(kept);
        let mut input = &bytes[..];
        let desync = loop {
            match ledger.take(&mut input) {
                Ok(None) => break false,
                Err(_) => break true,
                Ok(Some(piece)) => {
                    let to = self.clients.iter_mut().find(|it| Some(it.member) == piece.to);
                    let Some(client) = to else {
                        assert_eq!(piece.to, None, "a client that has left");
                        self.seen.dropped += 1;
                        continue;
                    };
                    client.received.extend_from_slice(piece.bytes);
                    self.seen.delivered += piece.ended;
                    match client.session.replied(piece.ended) {
                        Action::Connect => {
                            assert_eq!(client.session.connected(), Action::Continue);
                            self.seen.promoted += 1;
                        }
                        Action::None | Action::Continue => {}
                        other => panic!("{other:?}"),
                    }
                }
            }
        };
        *kept = input.to_vec();
        if desync {
            self.seen.desynchronised += 1;
            self.lose(up);
        }
        (0..CLIENTS).for_each(|at| self.advance(at));
    }

    /// A connection is lost: exactly the clients with requests in flight on it end.
    fn lose(&mut self, up: usize) {
        let lost = std::mem::replace(&mut self.upstreams[up], Upstream::new());
        let mut ends = lost.ledger.close();
        self.seen.lost += 1;
        let mut expected = Vec::new();
        for at in 0..CLIENTS {
            let client = &mut self.clients[at];
            if client.upstream != up || client.gone {
                continue;
            }
            client.queued = false;
            if client.session.in_flight() > 0 {
                expected.push(client.member);
                assert!(matches!(client.session.connection_lost(), Action::End(_)));
                self.seen.ended += 1;
                self.restart(at);
            } else if client.session.mode() == Mode::Shared {
                assert_eq!(client.session.connection_lost(), Action::Continue);
            }
        }
        ends.sort();
        expected.sort();
        assert_eq!(ends, expected, "who ends");
        (0..CLIENTS).for_each(|at| self.advance(at));
    }

    /// A server sends what no request asked for. It is detected before any client receives it.
    fn lie(&mut self, up: usize, how: u8) {
        let lies: [&[u8]; 5] = [
            b"+QUEUED\r\n",
            b"-NOAUTH no\r\n",
            b"-ERR Protocol error: x\r\n",
            b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
            b"garbage\r\n",
        ];
        let upstream = &mut self.upstreams[up];
        // A script may answer anything, and then a lie cannot be told from its reply. So it is read
        // at once, before a script is sent.
        let scripts = String::from_utf8_lossy(&upstream.to_server).contains("EVAL");
        if !scripts && upstream.from_server.is_empty() && upstream.kept.is_empty() {
            upstream.from_server.extend_from_slice(lies[usize::from(how) % lies.len()]);
            let before = self.seen.desynchronised;
            self.receive(up, usize::MAX);
            assert_eq!(self.seen.desynchronised, before + 1, "not detected");
        }
    }

    /// A client leaves, and another one takes its place.
    fn replace(&mut self, at: usize) {
        self.seen.left += 1;
        let client = &self.clients[at];
        let upstream = &mut self.upstreams[client.upstream];
        upstream.ledger.leave(client.member);
        upstream.queue.leave(client.member);
        self.restart(at);
    }

    fn restart(&mut self, at: usize) {
        self.check_prefixes();
        // The numbers of its requests continue, so that no two requests are equal.
        let written = self.clients[at].written;
        self.clients[at] = Client { written, ..self.client() };
    }

    fn check_prefixes(&self) {
        for client in &self.clients {
            let same = client.expected.starts_with(&client.received);
            assert!(
                same,
                "received {}\nexpected {}",
                client.received.escape_ascii(),
                client.expected.escape_ascii()
            );
        }
    }

    /// Does all that is left to do. Then every client has received everything.
    fn finish(&mut self) {
        for _ in 0..10_000 {
            for at in 0..CLIENTS {
                self.read(at, usize::MAX);
            }
            for up in 0..UPSTREAMS {
                self.turn(up);
                self.serve(up, usize::MAX);
                self.receive(up, usize::MAX);
            }
            if self.clients.iter().all(|it| it.received == it.expected) {
                break;
            }
        }
        for client in &self.clients {
            assert_eq!(
                client.received.escape_ascii().to_string(),
                client.expected.escape_ascii().to_string(),
                "{:?}, {} in flight",
                client.session.mode(),
                client.session.in_flight()
            );
        }
    }
}

/// Moves requests of a client to the connection.
fn take(
    client: &mut Client,
    quantum: Quantum,
    room: Room,
    ledger: &mut UpstreamLedger,
    to_server: &mut Vec<u8>,
) -> Taken {
    let bytes = usize::try_from(quantum.bytes).expect("32 bits");
    let (mut count, mut len) = client.requests.run(&client.buffer, quantum.requests, bytes);
    let mut script = false;
    if count == 0 {
        match client.requests.next(&client.buffer) {
            NextRequest::Whole { len: one, sharing } if sharing != Sharing::Verified => {
                if one > usize::try_from(room.bytes).expect("32 bits") {
                    return Taken::NoRoom;
                }
                (count, len, script) = (1, one, sharing == Sharing::SharedScript);
            }
            _ => return Taken::Sent { requests: 0, bytes: 0, more: false },
        }
    }
    let bytes = u32::try_from(len).expect("32 bits");
    assert!(client.session.offer_run(count), "{:?}", client.session.mode());
    assert!(ledger.send(client.member, count, bytes, script), "the queue knows the room");
    to_server.extend(client.buffer.drain(..len));
    // What follows is looked at when the client advances.
    Taken::Sent { requests: count, bytes, more: false }
}
