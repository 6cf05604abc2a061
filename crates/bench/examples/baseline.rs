//! The baseline proxy: the least that a user-space program can do to move bytes between two
//! sockets.
//!
//! One thread, one epoll instance, edge-triggered; an `accept`, a `connect`, and one `recv` and one
//! `send` for whatever arrived, through one buffer of 256 KiB. No deadlines, limits, counters,
//! fences or protocol. The benchmarks measure it beside the proxies. Where it misses a target, no
//! proxy with one server connection per client can reach the target on that machine; what a proxy
//! costs beyond it is the proxy's own cost.
//!
//! Usage: `baseline [listen target]...`.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

const BUFFER: usize = 256 << 10;
const EVENTS: usize = 512;

/// One direction of a pair of connections.
#[derive(Default)]
struct Way {
    /// Bytes that the receiver did not accept yet; nothing is read until they are written.
    kept: Vec<u8>,
    ended: bool,
}

struct Pair {
    ends: [TcpStream; 2],
    /// The two directions; index `n` reads from end `n` and writes to the other end.
    ways: [Way; 2],
}

struct Door {
    listener: TcpListener,
    target: SocketAddr,
}

struct Floor {
    epoll: OwnedFd,
    doors: Vec<Door>,
    pairs: Vec<Option<Pair>>,
    free: Vec<usize>,
    /// Freed after this round of events: their numbers may be among the remaining events.
    gone: Vec<usize>,
    buffer: Vec<u8>,
}

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let addr = |word: &String| {
        word.parse::<SocketAddr>().map_err(|error| io::Error::other(format!("{word}: {error}")))
    };
    let mut doors = Vec::new();
    for route in words.chunks(2) {
        let [listen, target] = route else {
            return Err(io::Error::other("usage: floor [listen target]..."));
        };
        let listener = TcpListener::bind(addr(listen)?)?;
        listener.set_nonblocking(true)?;
        doors.push(Door { listener, target: addr(target)? });
    }
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (number, door) in doors.iter().enumerate() {
        epoll::add(
            &epoll,
            &door.listener,
            epoll::EventData::new_u64(number as u64),
            epoll::EventFlags::IN,
        )?;
    }
    Floor {
        epoll,
        doors,
        pairs: Vec::new(),
        free: Vec::new(),
        gone: Vec::new(),
        buffer: vec![0; BUFFER],
    }
    .run()
}

impl Floor {
    fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                let number = usize::try_from(event.data.u64()).map_err(io::Error::other)?;
                match number.checked_sub(self.doors.len()) {
                    None => self.accept(number)?,
                    Some(end) => self.serve(end, event.flags),
                }
            }
            self.free.append(&mut self.gone);
        }
    }

    fn accept(&mut self, door: usize) -> io::Result<()> {
        let Some(door) = self.doors.get(door) else { return Ok(()) };
        let Ok((client, _)) = door.listener.accept() else { return Ok(()) };
        let server = socket2::Socket::new(
            socket2::Domain::for_address(door.target),
            socket2::Type::STREAM,
            None,
        )?;
        for socket in [&socket2::SockRef::from(&client), &socket2::SockRef::from(&server)] {
            socket.set_nonblocking(true)?;
            socket.set_tcp_nodelay(true)?;
        }
        match server.connect(&door.target.into()) {
            Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => {
                return Ok(());
            }
            _ => {}
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.pairs.push(None);
            self.pairs.len() - 1
        });
        let pair = Pair { ends: [client, server.into()], ways: Default::default() };
        for (end, socket) in pair.ends.iter().enumerate() {
            let data = epoll::EventData::new_u64((self.doors.len() + 2 * place + end) as u64);
            let flags = epoll::EventFlags::IN
                | epoll::EventFlags::OUT
                | epoll::EventFlags::RDHUP
                | epoll::EventFlags::ET;
            epoll::add(&self.epoll, socket, data, flags)?;
        }
        if let Some(slot) = self.pairs.get_mut(place) {
            *slot = Some(pair);
        }
        Ok(())
    }

    fn serve(&mut self, end: usize, flags: epoll::EventFlags) {
        let (place, end) = (end / 2, end % 2);
        let Some(slot) = self.pairs.get_mut(place) else { return };
        let Some(pair) = slot else { return };
        let fine = (!flags.contains(epoll::EventFlags::OUT)
            || pair.write_kept(1 - end, &mut self.buffer))
            && (!flags.intersects(
                epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::HUP,
            ) || pair.carry(end, &mut self.buffer));
        if !fine || pair.ways.iter().all(|way| way.ended) {
            *slot = None;
            self.gone.push(place);
        }
    }
}

impl Pair {
    /// Moves the bytes that arrived at `end` to the other end; `false` if the pair is broken.
    fn carry(&mut self, end: usize, buffer: &mut [u8]) -> bool {
        let (Some(from), Some(to), Some(way)) =
            (self.ends.get(end), self.ends.get(1 - end), self.ways.get_mut(end))
        else {
            return false;
        };
        while way.kept.is_empty() && !way.ended {
            let came = match recv(from, &mut *buffer, RecvFlags::empty()) {
                Ok((_, 0)) => {
                    way.ended = true;
                    return shutdown(to, Shutdown::Write).is_ok();
                }
                Ok((_, came)) => came,
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            };
            let bytes = buffer.get(..came).unwrap_or_default();
            let sent = match send(to, bytes, SendFlags::NOSIGNAL) {
                Ok(sent) => sent,
                // The state while the connection to the server is being opened.
                Err(Errno::AGAIN | Errno::NOTCONN) => 0,
                Err(_) => return false,
            };
            way.kept.extend_from_slice(bytes.get(sent..).unwrap_or_default());
            if came < buffer.len() {
                return true;
            }
        }
        true
    }

    /// The receiver of this direction can accept bytes again.
    fn write_kept(&mut self, end: usize, buffer: &mut [u8]) -> bool {
        let (Some(to), Some(way)) = (self.ends.get(1 - end), self.ways.get_mut(end)) else {
            return false;
        };
        if way.kept.is_empty() {
            return true;
        }
        match send(to, &way.kept, SendFlags::NOSIGNAL) {
            Ok(sent) => drop(way.kept.drain(..sent)),
            Err(Errno::AGAIN | Errno::NOTCONN) => return true,
            Err(_) => return false,
        }
        !way.kept.is_empty() || self.carry(end, buffer)
    }
}
