//! Sends one HTTP request over a socket or TLS, bounded in time and size.
//!
//! `pointsman status` runs when something is wrong: in a throttled container, beside a process that
//! hangs. It therefore has no runtime, no pool and no dependency, and every step has a deadline.
//! The response may come from any program on that port, so only its framing is trusted.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Take, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use socket2::Socket;
use tls::OutsideText;

use super::admin_server::AdminServer;
use super::admin_tls;
use crate::system::{socket_file, threads};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// For a control command: a switchover may take as long as its limits allow, after the time until
/// the sentinels know the replica to promote, and before the time until priorities are restored.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(90);
const MAX_RESPONSE: u64 = 8 * 1024 * 1024;
/// For a list of ten thousand sessions with the longest names.
const MAX_LIST: u64 = 32 * 1024 * 1024;
const MAX_LINE: u64 = 8 * 1024;
const MAX_HEADERS: usize = 100;

/// Where a pointsman accepts control commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ControlEndpoint {
    /// An admin server, for clients with the token.
    Network(AdminServer),
    /// A Unix socket, for the users that its mode admits.
    Socket(PathBuf),
}

impl fmt::Display for ControlEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(server) => server.fmt(f),
            Self::Socket(path) => path.display().fmt(f),
        }
    }
}

/// The limits of a response: the time until its end, and its size in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    time: Duration,
    size: u64,
}

impl Limits {
    pub(super) const STATUS: Self = Self { time: REQUEST_TIMEOUT, size: MAX_RESPONSE };
    pub(super) const LIST: Self = Self { time: CONTROL_TIMEOUT, size: MAX_LIST };
    const COMMAND: Self = Self { time: CONTROL_TIMEOUT, size: MAX_RESPONSE };
}

trait Channel: Read + Write {}
impl<T: Read + Write> Channel for T {}

/// A connection whose reads share one deadline.
struct Connection<'a> {
    endpoint: &'a ControlEndpoint,
    channel: Box<dyn Channel>,
    /// The socket of the channel.
    socket: Socket,
    deadline: Instant,
    /// Whether something was received, or the user was told that nothing is.
    has_begun: bool,
}

impl<'a> Connection<'a> {
    fn to(endpoint: &'a ControlEndpoint, timeout: Duration) -> io::Result<Self> {
        let (channel, socket): (Box<dyn Channel>, Socket) = match endpoint {
            ControlEndpoint::Network(server) => {
                let stream = TcpStream::connect_timeout(&server.addr, CONNECT_TIMEOUT)?;
                let socket = stream.try_clone()?.into();
                match &server.tls {
                    None => (Box::new(stream), socket),
                    Some((host, tls)) => {
                        let tls = admin_tls::connect(stream, host, tls, server, REQUEST_TIMEOUT)?;
                        (Box::new(tls), socket)
                    }
                }
            }
            ControlEndpoint::Socket(path) => {
                let stream = socket_file::dial(path)?;
                let socket = stream.try_clone()?.into();
                (Box::new(stream), socket)
            }
        };
        socket.set_write_timeout(Some(REQUEST_TIMEOUT))?;
        Ok(Self { endpoint, channel, socket, deadline: Instant::now() + timeout, has_begun: false })
    }
}

impl Read for Connection<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
        let silent = if self.has_begun { left } else { left.min(REQUEST_TIMEOUT) };
        self.socket.set_read_timeout(Some(silent))?;
        let received = self.channel.read(buffer);
        self.has_begun = true;
        if silent < left
            && received.as_ref().is_err_and(|it| it.kind() == io::ErrorKind::WouldBlock)
        {
            threads::write_stderr(format!(
                "pointsman: {} has not answered for {} s; waiting (Ctrl-C gives up)\n",
                self.endpoint,
                silent.as_secs()
            ));
            return self.read(buffer);
        }
        received.map_err(|error| match (error.kind(), self.endpoint) {
            // A timed-out read is "would block" on Unix, which means nothing to users.
            (io::ErrorKind::WouldBlock, _) => io::Error::from(io::ErrorKind::TimedOut),
            // With TLS 1.3 the server refuses our certificate after the handshake.
            (_, ControlEndpoint::Network(server)) => admin_tls::explained(error, server),
            _ => error,
        })
    }
}

/// Sends a request, with a bearer token if given, and returns the connection for the response.
fn request<'a>(
    endpoint: &'a ControlEndpoint,
    line: &str,
    header: &str,
    token: Option<&str>,
    limits: Limits,
) -> io::Result<BufReader<Take<Connection<'a>>>> {
    let host = match endpoint {
        ControlEndpoint::Network(server) => server.addr.to_string(),
        ControlEndpoint::Socket(_) => "pointsman".to_owned(),
    };
    let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let mut connection = Connection::to(endpoint, limits.time)?;
    connection.channel.write_all(
        format!("{line} HTTP/1.1\r\nHost: {host}\r\n{token}{header}\r\nConnection: close\r\n\r\n")
            .as_bytes(),
    )?;
    connection.channel.flush()?;
    Ok(BufReader::new(connection.take(limits.size)))
}

/// Requests `path`, with a bearer token if given, and returns the status code and the body.
///
/// # Errors
///
/// Of the connection; a time-out; or a response that is not HTTP or too large.
pub(super) fn get(
    endpoint: &ControlEndpoint,
    path: &str,
    token: Option<&str>,
    limits: Limits,
) -> io::Result<(u16, Vec<u8>)> {
    let line = format!("GET {path}");
    response(&mut request(endpoint, &line, "Accept: application/json", token, limits)?)
}

/// Posts to `path`, with a bearer token if given, and passes each line of the response to `sink` as
/// it arrives. Returns the status code.
///
/// # Errors
///
/// As [`get`].
pub(super) fn post(
    endpoint: &ControlEndpoint,
    path: &str,
    token: Option<&str>,
    sink: &mut dyn FnMut(&str),
) -> io::Result<u16> {
    let line = format!("POST {path}");
    let mut reader = request(endpoint, &line, "Content-Length: 0", token, Limits::COMMAND)?;
    let mut lines = Lines { line: Vec::new(), sink };
    let code = read_response(&mut reader, &mut lines)?;
    if !lines.line.is_empty() {
        lines.flush()?;
    }
    Ok(code)
}

/// Passes each line on as it arrives.
struct Lines<'a> {
    line: Vec<u8>,
    sink: &'a mut dyn FnMut(&str),
}

impl Write for Lines<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                self.flush()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        (self.sink)(OutsideText::lines(&self.line).trim_end());
        self.line.clear();
        Ok(())
    }
}

/// Reads a whole response.
fn response(from: &mut impl BufRead) -> io::Result<(u16, Vec<u8>)> {
    let mut body = Vec::new();
    Ok((read_response(from, &mut body)?, body))
}

/// Reads a response and passes its body to `sink` piece by piece.
fn read_response(from: &mut impl BufRead, sink: &mut impl Write) -> io::Result<u16> {
    let status = line(from)?;
    let mut words = status.split(' ');
    let code = match (words.next(), words.next()) {
        (Some(version), Some(code)) if version.starts_with("HTTP/1.") => code.parse().ok(),
        _ => None,
    };
    let code = code.ok_or_else(|| invalid("the response is not HTTP"))?;
    let (mut length, mut chunked) = (None, false);
    for _ in 0..MAX_HEADERS {
        let header = line(from)?;
        if header.is_empty() {
            body(from, length, chunked, sink)?;
            return Ok(code);
        }
        let (name, value) =
            header.split_once(':').ok_or_else(|| invalid("a header is malformed"))?;
        if name.eq_ignore_ascii_case("content-length") {
            let parsed = value.trim().parse();
            length = Some(parsed.map_err(|_| invalid("the content length is malformed"))?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            chunked = value.trim().eq_ignore_ascii_case("chunked");
        }
    }
    Err(invalid("too many headers"))
}

fn body(
    from: &mut impl BufRead,
    length: Option<u64>,
    chunked: bool,
    sink: &mut impl Write,
) -> io::Result<()> {
    if !chunked {
        let length = length.unwrap_or(MAX_RESPONSE);
        let received = io::copy(&mut from.take(length), sink)?;
        return if received == length || length == MAX_RESPONSE {
            Ok(())
        } else {
            Err(invalid("the response ends early"))
        };
    }
    loop {
        let header = line(from)?;
        let size = header.split(';').next().unwrap_or_default().trim();
        let size = u64::from_str_radix(size, 16).map_err(|_| invalid("a chunk is malformed"))?;
        if size == 0 {
            return Ok(());
        }
        let received = io::copy(&mut from.take(size), sink)?;
        if received != size || !line(from)?.is_empty() {
            return Err(invalid("the response ends early"));
        }
    }
}

fn line(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    from.take(MAX_LINE).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(invalid("the response is not HTTP"));
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    String::from_utf8(line).map_err(|_| invalid("the response is not HTTP"))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> io::Result<(u16, String)> {
        response(&mut text.as_bytes()).map(|(code, body)| (code, String::from_utf8(body).unwrap()))
    }

    #[test]
    fn reads_bodies_in_three_framings() {
        for text in [
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}trailing",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
             1\r\n{\r\n1;x=y\r\n}\r\n0\r\n\r\n",
            "HTTP/1.0 200\r\n\r\n{}",
        ] {
            assert_eq!(read(text).unwrap(), (200, "{}".to_owned()), "{text}");
        }
        assert_eq!(
            read("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n").unwrap().0,
            503
        );
    }

    #[test]
    fn rejects_truncated_and_foreign_responses() {
        for text in [
            "",
            "-ERR unknown command 'GET'\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{}",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
        assert!(read(&format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(200))).is_err());
    }

    proptest! {
        #[test]
        fn never_panics_on_arbitrary_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            framed: bool,
        ) {
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            let head = if framed { head } else { "" };
            let _ = response(&mut [head.as_bytes(), &bytes].concat().as_slice());
        }
    }
}
