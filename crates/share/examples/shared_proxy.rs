//! A prototype of a shared upstream connection, for measurements: one thread, one epoll instance,
//! one connection to the server, and the decisions of this crate. Clients are not authenticated,
//! and one that needs a connection of its own is closed.
//!
//! Beside `crates/bench/examples/baseline.rs`, which has a connection per client, it shows what
//! sharing gains and what the decisions cost.
//!
//! Usage: `shared_proxy LISTEN TARGET`.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use resp::{NextRequest, Sharing, WholeRequests};
use rustix::event::epoll;
use rustix::io::Errno;
use share::{
    Action, Member, Quantum, Room, SharedSession, Taken, TurnQueue, UpstreamLedger, UpstreamLimits,
};

const BUFFER: usize = 256 << 10;
const MAX_REQUEST: usize = 64 << 10;
const EVENTS: usize = 512;
const LISTENER: u64 = 0;
const UPSTREAM: u64 = 1;

struct Client {
    socket: TcpStream,
    requests: WholeRequests,
    session: SharedSession,
    buffer: Vec<u8>,
    replies: Vec<u8>,
    queued: bool,
    ended: bool,
}

struct Proxy {
    epoll: OwnedFd,
    listener: TcpListener,
    upstream: TcpStream,
    ledger: UpstreamLedger,
    turns: TurnQueue,
    clients: HashMap<u64, Client>,
    next: u64,
    outgoing: Vec<u8>,
    kept: Vec<u8>,
    scratch: Vec<u8>,
    /// Clients with replies to write.
    answered: Vec<u64>,
}

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [listen, target] = words.as_slice() else {
        return Err(io::Error::other("usage: shared_proxy LISTEN TARGET"));
    };
    let addr = |word: &String| word.parse::<SocketAddr>().map_err(io::Error::other);
    let listener = TcpListener::bind(addr(listen)?)?;
    listener.set_nonblocking(true)?;
    let upstream = TcpStream::connect(addr(target)?)?;
    upstream.set_nodelay(true)?;
    upstream.set_nonblocking(true)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let both = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
    let data = epoll::EventData::new_u64;
    epoll::add(&epoll, &listener, data(LISTENER), epoll::EventFlags::IN)?;
    epoll::add(&epoll, &upstream, data(UPSTREAM), both)?;
    Proxy {
        epoll,
        listener,
        upstream,
        ledger: UpstreamLedger::new(false, false, UpstreamLimits::default()),
        turns: TurnQueue::new(Quantum::default()),
        clients: HashMap::new(),
        next: UPSTREAM + 1,
        outgoing: Vec::new(),
        kept: Vec::new(),
        scratch: vec![0; BUFFER],
        answered: Vec::new(),
    }
    .run()
}

impl Proxy {
    fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept()?,
                    UPSTREAM => self.receive()?,
                    client => self.read(client),
                }
            }
            for client in std::mem::take(&mut self.answered) {
                self.write(client);
            }
            self.turn();
            self.send()?;
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        let Ok((socket, _)) = self.listener.accept() else { return Ok(()) };
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(self.next), flags)?;
        let client = Client {
            socket,
            requests: WholeRequests::new(MAX_REQUEST),
            session: SharedSession::default(),
            buffer: Vec::new(),
            replies: Vec::new(),
            queued: false,
            ended: false,
        };
        self.clients.insert(self.next, client);
        self.next += 1;
        Ok(())
    }

    fn read(&mut self, id: u64) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        loop {
            match client.socket.read(&mut self.scratch) {
                Ok(0) => client.ended = true,
                Ok(len) => {
                    client.buffer.extend_from_slice(self.scratch.get(..len).unwrap_or_default());
                    if len == BUFFER {
                        continue;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => client.ended = true,
            }
            break;
        }
        if !client.queued && !client.buffer.is_empty() {
            client.queued = true;
            self.turns.wait(Member(id));
        }
        self.write(id);
    }

    /// Moves requests of all clients to the next write.
    fn turn(&mut self) {
        let Self { clients, ledger, turns, outgoing, .. } = self;
        let (requests, bytes) = ledger.room();
        turns.give_turns(Room { requests, bytes }, |member, quantum, room| {
            let Some(client) = clients.get_mut(&member.0) else {
                return Taken::Sent { requests: 0, bytes: 0, more: false };
            };
            let taken = client.take(member, quantum, room, ledger, outgoing);
            client.queued = matches!(taken, Taken::NoRoom | Taken::Sent { more: true, .. });
            taken
        });
    }

    fn send(&mut self) -> io::Result<()> {
        if self.outgoing.is_empty() {
            return Ok(());
        }
        match self.upstream.write(&self.outgoing) {
            Ok(len) => {
                self.outgoing.drain(..len);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn receive(&mut self) -> io::Result<()> {
        loop {
            let len = match self.upstream.read(&mut self.scratch) {
                Ok(0) => return Err(io::Error::other("the server closed the connection")),
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let joined;
            let mut input = self.scratch.get(..len).unwrap_or_default();
            if !self.kept.is_empty() {
                self.kept.extend_from_slice(input);
                joined = std::mem::take(&mut self.kept);
                input = &joined;
            }
            while let Some(piece) =
                self.ledger.take(&mut input).map_err(|it| io::Error::other(it.text()))?
            {
                let to = piece.to.and_then(|it| Some((it.0, self.clients.get_mut(&it.0)?)));
                let Some((id, client)) = to else { continue };
                if client.replies.is_empty() {
                    self.answered.push(id);
                }
                client.replies.extend_from_slice(piece.bytes);
                client.ended |= matches!(client.session.replied(piece.ended), Action::End(_));
            }
            self.kept.extend_from_slice(input);
            if len < BUFFER {
                return Ok(());
            }
        }
    }

    fn write(&mut self, id: u64) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if !client.replies.is_empty() && !client.ended {
            match client.socket.write(&client.replies) {
                Ok(len) => drop(client.replies.drain(..len)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => client.ended = true,
            }
        }
        if client.ended {
            self.ledger.leave(Member(id));
            self.turns.leave(Member(id));
            self.clients.remove(&id);
        }
    }
}

impl Client {
    fn take(
        &mut self,
        member: Member,
        quantum: Quantum,
        room: Room,
        ledger: &mut UpstreamLedger,
        outgoing: &mut Vec<u8>,
    ) -> Taken {
        let most = usize::try_from(quantum.bytes).unwrap_or(usize::MAX);
        let (mut count, mut len) = self.requests.run(&self.buffer, quantum.requests, most);
        let mut script = false;
        if count == 0 {
            match self.requests.next(&self.buffer) {
                NextRequest::Whole { len: one, sharing } if sharing != Sharing::Verified => {
                    if one > usize::try_from(room.bytes).unwrap_or(usize::MAX) {
                        return Taken::NoRoom;
                    }
                    (count, len, script) = (1, one, sharing == Sharing::SharedScript);
                }
                NextRequest::Incomplete => {}
                _ => {
                    let _ = self.socket.shutdown(std::net::Shutdown::Both);
                }
            }
        }
        let bytes = u32::try_from(len).unwrap_or(u32::MAX);
        if self.session.offer_run(count) && ledger.send(member, count, bytes, script) {
            outgoing.extend(self.buffer.drain(..len));
        }
        Taken::Sent { requests: count, bytes, more: count > 0 && !self.buffer.is_empty() }
    }
}
