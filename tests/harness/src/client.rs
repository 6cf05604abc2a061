//! A small blocking Redis client that exposes the wire.
//!
//! It does what a test asks and nothing more: no reconnects, redirections or retries. Every
//! operation has a timeout, thirty seconds by default, so a hung server fails a test instead of
//! hanging it. Bytes read beyond one reply are kept for the next one, so a timeout in the middle of
//! a reply loses nothing.

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use crate::tls::{self, Tls};
use crate::value::{Value, parse};

/// Longer than Pointsman holds a client by default.
const TIMEOUT: Duration = Duration::from_secs(30);
const CHUNK: usize = 64 * 1024;

/// Credentials for a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// The user; without one, the default user, as with `requirepass`.
    pub user: Option<String>,
    /// The password.
    pub password: String,
}

/// How the peer closed the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// With FIN: nothing was lost.
    Fin,
    /// With RST.
    Reset,
}

/// One connection.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    tls: Option<Box<ClientConnection>>,
    buffer: Vec<u8>,
    /// The start of the unread part of the buffer. The part before it is removed occasionally, not
    /// for every reply.
    at: usize,
    sent: u64,
    received: u64,
}

impl Client {
    /// Connects with the default timeouts.
    ///
    /// # Errors
    /// An error of the connection.
    pub fn connect(addr: SocketAddr) -> io::Result<Self> {
        Self::connect_within(addr, TIMEOUT)
    }

    /// Connects. `timeout` applies to the connect and then to every read and write.
    ///
    /// # Errors
    /// An error of the connection.
    pub fn connect_within(addr: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, timeout)?;
        stream.set_nodelay(true)?;
        let client = Self::on(stream);
        client.set_timeout(timeout)?;
        Ok(client)
    }

    fn on(stream: TcpStream) -> Self {
        Self { stream, tls: None, buffer: Vec::new(), at: 0, sent: 0, received: 0 }
    }

    /// Connects with TLS, and completes the handshake.
    ///
    /// # Errors
    /// An error of the connection; `InvalidData` if the handshake fails.
    pub fn connect_tls(addr: SocketAddr, tls: &Tls, timeout: Duration) -> io::Result<Self> {
        Self::connect_within(addr, timeout)?.secured(tls)
    }

    /// Completes a TLS handshake on a new connection.
    ///
    /// # Errors
    /// An error of the connection; `InvalidData` if the handshake fails.
    pub fn secured(mut self, tls: &Tls) -> io::Result<Self> {
        self.tls = Some(tls.connect(&mut self.stream)?);
        Ok(self)
    }

    /// Connects from a given source address of this machine.
    ///
    /// # Errors
    /// An error of the bind or of the connection.
    pub fn connect_from(source: Ipv4Addr, addr: SocketAddr) -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::STREAM,
            // A server that another test starts at the same time would otherwise inherit the socket
            // and keep the connection open.
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::bind(&socket, &SocketAddr::from((source, 0)))?;
        rustix::net::connect(&socket, &addr)?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        let client = Self::on(stream);
        client.set_timeout(TIMEOUT)?;
        Ok(client)
    }

    /// Connects, and authenticates if there is a login.
    ///
    /// # Errors
    /// An error of the connection; an error reply to AUTH becomes `PermissionDenied`.
    pub fn connect_as(
        addr: SocketAddr,
        login: Option<&Login>,
        timeout: Duration,
    ) -> io::Result<Self> {
        Self::connect_within(addr, timeout)?.log_in(login)
    }

    /// Authenticates if there is a login.
    ///
    /// # Errors
    /// An error of the connection; an error reply to AUTH becomes `PermissionDenied`.
    pub fn log_in(mut self, login: Option<&Login>) -> io::Result<Self> {
        if let Some(Login { user, password }) = login {
            let reply = match user {
                Some(user) => self.cmd(&["AUTH", user, password])?,
                None => self.cmd(&["AUTH", password])?,
            };
            if let Some(message) = reply.error() {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, message.to_owned()));
            }
        }
        Ok(self)
    }

    /// Speaks TLS from now on, with the name `name`. Commands and replies work as before; the
    /// commands of a pipeline are written before the first reply is read.
    ///
    /// # Errors
    /// An error of the connection; `InvalidData` if the handshake fails.
    pub fn over_tls(mut self, config: &Arc<ClientConfig>, name: &str) -> io::Result<Self> {
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        let mut tls = Box::new(tls);
        while tls.is_handshaking() {
            tls.complete_io(&mut self.stream).map_err(named)?;
        }
        self.tls = Some(tls);
        Ok(self)
    }

    /// The state of TLS, such as the version.
    #[must_use]
    pub fn tls(&self) -> Option<&ClientConnection> {
        self.tls.as_deref()
    }

    /// Sets the longest duration of one read or write.
    ///
    /// # Errors
    /// If the duration is zero.
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(timeout))?;
        self.stream.set_write_timeout(Some(timeout))
    }

    /// Sends one command and reads one reply. An error reply is an ordinary value.
    ///
    /// # Errors
    /// An error of the connection: `TimedOut`, `UnexpectedEof`, `ConnectionReset` and so on;
    /// `InvalidData` if the bytes are not a reply.
    pub fn cmd<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Value> {
        self.send(&encode(args))?;
        self.read_value()
    }

    /// Sends all commands at once and reads as many replies. It reads while it writes, so that full
    /// buffers cannot block both sides; over TLS it reads afterwards.
    ///
    /// # Errors
    /// Like [`cmd`](Self::cmd).
    pub fn pipeline<A: AsRef<[u8]>>(&mut self, commands: &[Vec<A>]) -> io::Result<Vec<Value>> {
        let wire: Vec<u8> = commands.iter().flat_map(|args| encode(args)).collect();
        if self.tls.is_some() {
            self.send(&wire)?;
            return commands.iter().map(|_| self.read_value()).collect();
        }
        let length = length(&wire);
        let mut writing = self.stream.try_clone()?;
        std::thread::scope(|scope| {
            let writer = scope.spawn(move || writing.write_all(&wire));
            let replies =
                commands.iter().map(|_| self.read_value()).collect::<io::Result<Vec<Value>>>();
            if replies.is_err() {
                // The writer may be blocked by a peer that has stopped reading.
                let _ = self.stream.shutdown(Shutdown::Both);
            }
            let written = writer
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the writing thread panicked")));
            self.sent += length;
            let replies = replies?;
            written.map(|()| replies)
        })
    }

    /// Sends raw bytes.
    ///
    /// # Errors
    /// An error of the connection.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        // Counted even if it fails: a part of them may have been sent.
        self.sent += length(bytes);
        tls::write_all(self.tls.as_deref_mut(), &mut self.stream, bytes).map_err(named)
    }

    /// The bytes sent and received so far.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        (self.sent, self.received)
    }

    /// Reads one reply or push message.
    ///
    /// # Errors
    /// Like [`cmd`](Self::cmd).
    pub fn read_value(&mut self) -> io::Result<Value> {
        loop {
            let unread = &self.buffer[self.at..];
            let parsed = if unread.is_empty() { None } else { parse(unread).map_err(invalid)? };
            if let Some((value, used)) = parsed {
                self.at += used;
                return Ok(value);
            }
            // A long string is read in one go, so that it is not parsed again for each piece.
            let missing = missing(unread).max(1);
            self.fill(missing)?;
        }
    }

    /// Reads `count` raw bytes.
    ///
    /// # Errors
    /// An error of the connection; `UnexpectedEof` if it ends before.
    pub fn read_exact(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let have = self.buffer.len() - self.at;
        if have < count {
            self.fill(count - have)?;
        }
        let bytes = self.buffer[self.at..self.at + count].to_vec();
        self.at += count;
        Ok(bytes)
    }

    /// Reads until the peer closes. Returns the bytes and how it closed.
    ///
    /// # Errors
    /// `TimedOut` if it does not close.
    pub fn read_to_end(&mut self) -> io::Result<(Vec<u8>, Ending)> {
        let ending = loop {
            match self.fill(1) {
                Ok(()) => {}
                Err(error) => match error.kind() {
                    io::ErrorKind::UnexpectedEof => break Ending::Fin,
                    io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                        break Ending::Reset;
                    }
                    _ => return Err(error),
                },
            }
        };
        let rest = self.buffer.split_off(self.at);
        self.buffer.clear();
        self.at = 0;
        Ok((rest, ending))
    }

    /// Closes the sending direction: the peer sees the end of input and may still answer.
    ///
    /// # Errors
    /// An error of the connection.
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    /// Makes a later close send RST instead of FIN.
    ///
    /// # Errors
    /// An error of the connection.
    pub fn set_linger0(&self) -> io::Result<()> {
        set_socket_linger(&self.stream, Some(Duration::ZERO)).map_err(io::Error::from)
    }

    /// Closes the connection with RST.
    ///
    /// # Errors
    /// An error of the connection.
    pub fn reset(self) -> io::Result<()> {
        self.set_linger0()
    }

    /// The socket, for options and for a second handle.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The local address of the connection.
    ///
    /// # Errors
    /// An error of the connection.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// Whether the peer has closed, or sent something unasked, between two requests.
    ///
    /// # Errors
    /// An error of the socket.
    pub fn has_ended(&self) -> io::Result<bool> {
        self.stream.set_nonblocking(true)?;
        let seen = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false)?;
        Ok(!matches!(seen, Err(error) if error.kind() == io::ErrorKind::WouldBlock))
    }

    /// Reads at least `least` more bytes into the buffer.
    fn fill(&mut self, least: usize) -> io::Result<()> {
        if self.at == self.buffer.len() {
            self.buffer.clear();
            self.at = 0;
        } else if self.at > CHUNK {
            self.buffer.drain(..self.at);
            self.at = 0;
        }
        let wanted = self.buffer.len() + least;
        while self.buffer.len() < wanted {
            // Not into the buffer itself, which would have to be filled first. Without optimization
            // that takes longer than a request.
            let mut room = [0; CHUNK];
            let read = tls::read(self.tls.as_deref_mut(), &mut self.stream, &mut room);
            let read = &room[..read.map_err(named)?];
            self.buffer.extend_from_slice(read);
            self.received += length(read);
            if read.is_empty() {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the other side closed the connection",
                ));
            }
        }
        Ok(())
    }
}

/// Encodes one command.
#[must_use]
pub fn encode<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut wire = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        let arg = arg.as_ref();
        wire.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        wire.extend_from_slice(arg);
        wire.extend_from_slice(b"\r\n");
    }
    wire
}

/// How many bytes of a bulk string at the start of `unread` are missing; 0 for any other reply.
fn missing(unread: &[u8]) -> usize {
    let header = || {
        let rest = unread.strip_prefix(b"$")?;
        let end = rest.iter().position(|byte| *byte == b'\r')?;
        let length: usize = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
        Some((1 + end + 2 + length + 2).saturating_sub(unread.len()))
    };
    header().unwrap_or(0)
}

/// Replaces the misleading text of a socket timeout ("would block", "temporarily unavailable") by a
/// clear one.
fn named(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock {
        return io::Error::new(io::ErrorKind::TimedOut, "no answer within the client's timeout");
    }
    error
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
