//! One request over a plain socket, bounded in time and size.
//!
//! `pointsman status` runs where something is wrong: in a throttled container, beside a process
//! that hangs. So it has no runtime, no pool and no dependency, and every step has a deadline. The
//! answer may come from anything that listens on that port, so nothing in it is believed beyond its
//! framing.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::admin::control_socket;

const CONNECT: Duration = Duration::from_secs(2);
const WHOLE: Duration = Duration::from_secs(5);
/// For an order: a switchover may take as long as its limits allow.
const ORDER: Duration = Duration::from_secs(30);
const LARGEST: u64 = 8 * 1024 * 1024;
const LONGEST_LINE: u64 = 8 * 1024;
const MOST_HEADERS: usize = 100;

/// Where a pointsman takes orders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// At an address, from whoever shows the token.
    Network(SocketAddr),
    /// At a Unix socket, from whom it belongs to.
    Socket(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(addr) => addr.fmt(f),
            Self::Socket(path) => path.display().fmt(f),
        }
    }
}

/// A connection of either kind.
enum Stream {
    Network(TcpStream),
    Socket(UnixStream),
}

impl Stream {
    fn to(place: &Place) -> io::Result<Self> {
        Ok(match place {
            Place::Network(addr) => Self::Network(TcpStream::connect_timeout(addr, CONNECT)?),
            Place::Socket(path) => Self::Socket(control_socket::dial(path)?),
        })
    }

    fn send(&mut self, request: &str) -> io::Result<()> {
        match self {
            Self::Network(stream) => {
                stream.set_write_timeout(Some(WHOLE))?;
                stream.write_all(request.as_bytes())
            }
            Self::Socket(stream) => {
                stream.set_write_timeout(Some(WHOLE))?;
                stream.write_all(request.as_bytes())
            }
        }
    }

    fn read_within(&mut self, left: Duration, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Network(stream) => {
                stream.set_read_timeout(Some(left))?;
                stream.read(buffer)
            }
            Self::Socket(stream) => {
                stream.set_read_timeout(Some(left))?;
                stream.read(buffer)
            }
        }
    }
}

/// A socket whose every read ends at one deadline.
struct Bounded {
    stream: Stream,
    deadline: Instant,
}

impl Bounded {
    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::Error::from(io::ErrorKind::TimedOut)) } else { Ok(left) }
    }
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left()?;
        // A timed-out read is "would block" on Unix, which tells a person nothing.
        self.stream.read_within(left, buffer).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::Error::from(io::ErrorKind::TimedOut),
            _ => error,
        })
    }
}

/// Asks for `path` and returns the status code and the body.
///
/// # Errors
///
/// Of the connection; a time-out; or an answer that is not HTTP or too large.
pub(super) fn get(addr: SocketAddr, path: &str) -> io::Result<(u16, Vec<u8>)> {
    let mut stream = Stream::to(&Place::Network(addr))?;
    stream.send(&format!(
        "GET {path} HTTP/1.1\r\nHost: {addr}\r\nAccept: application/json\r\nConnection: close\r\n\r\n"
    ))?;
    let bounded = Bounded { stream, deadline: Instant::now() + WHOLE };
    response(&mut BufReader::new(bounded.take(LARGEST)))
}

/// Posts to `path`, with a bearer token if there is one, and gives each line of the answer to
/// `tell` as it comes. Returns the status code.
///
/// # Errors
///
/// As [`get`].
pub(super) fn post(
    place: &Place,
    path: &str,
    token: Option<&str>,
    tell: &mut dyn FnMut(&str),
) -> io::Result<u16> {
    let mut stream = Stream::to(place)?;
    let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    stream.send(&format!(
        "POST {path} HTTP/1.1\r\nHost: pointsman\r\n{token}Content-Length: 0\r\nConnection: close\r\n\r\n"
    ))?;
    let bounded = Bounded { stream, deadline: Instant::now() + ORDER };
    let mut line = Vec::new();
    let code = answer(&mut BufReader::new(bounded.take(LARGEST)), &mut |bytes| {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(piece);
            if line.ends_with(b"\n") {
                tell(String::from_utf8_lossy(&line).trim_end());
                line.clear();
            }
        }
    })?;
    if !line.is_empty() {
        tell(String::from_utf8_lossy(&line).trim_end());
    }
    Ok(code)
}

/// Reads a whole response.
fn response(from: &mut impl BufRead) -> io::Result<(u16, Vec<u8>)> {
    let mut body = Vec::new();
    let code = answer(from, &mut |bytes| body.extend_from_slice(bytes))?;
    Ok((code, body))
}

/// Reads a response and gives its body to `tell` piece by piece.
fn answer(from: &mut impl BufRead, tell: &mut dyn FnMut(&[u8])) -> io::Result<u16> {
    let status = line(from)?;
    let mut words = status.split(' ');
    let code = match (words.next(), words.next()) {
        (Some(version), Some(code)) if version.starts_with("HTTP/1.") => code.parse().ok(),
        _ => None,
    };
    let code = code.ok_or_else(|| invalid("it does not answer in HTTP"))?;
    let (mut length, mut chunked) = (None, false);
    for _ in 0..MOST_HEADERS {
        let header = line(from)?;
        if header.is_empty() {
            body(from, (length, chunked), tell)?;
            return Ok(code);
        }
        let (name, value) =
            header.split_once(':').ok_or_else(|| invalid("a header is malformed"))?;
        if name.eq_ignore_ascii_case("content-length") {
            length =
                Some(value.trim().parse::<u64>().map_err(|_| invalid("the length is malformed"))?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            chunked = value.trim().eq_ignore_ascii_case("chunked");
        }
    }
    Err(invalid("too many headers"))
}

fn body(
    from: &mut impl BufRead,
    (length, chunked): (Option<u64>, bool),
    tell: &mut dyn FnMut(&[u8]),
) -> io::Result<()> {
    if !chunked {
        let length = length.unwrap_or(LARGEST);
        let got = pass_on(from, length, tell)?;
        return if got == length || length == LARGEST {
            Ok(())
        } else {
            Err(invalid("the answer ends early"))
        };
    }
    loop {
        let header = line(from)?;
        let size = header.split(';').next().unwrap_or_default().trim();
        let size = u64::from_str_radix(size, 16).map_err(|_| invalid("a chunk is malformed"))?;
        if size == 0 {
            return Ok(());
        }
        let got = pass_on(from, size, tell)?;
        if got != size || !line(from)?.is_empty() {
            return Err(invalid("the answer ends early"));
        }
    }
}

/// Passes on up to `length` bytes as they come, and returns how many there were.
fn pass_on(from: &mut impl BufRead, length: u64, tell: &mut dyn FnMut(&[u8])) -> io::Result<u64> {
    let mut got = 0;
    while got < length {
        let here = from.fill_buf()?;
        let most = usize::try_from(length - got).unwrap_or(usize::MAX);
        let piece = here.get(..here.len().min(most)).unwrap_or_default();
        if piece.is_empty() {
            break;
        }
        tell(piece);
        let taken = piece.len();
        from.consume(taken);
        got += taken as u64;
    }
    Ok(got)
}

fn line(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    from.take(LONGEST_LINE).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(invalid("it does not answer in HTTP"));
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    String::from_utf8(line).map_err(|_| invalid("it does not answer in HTTP"))
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
    fn bodies_come_in_three_framings() {
        for text in [
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}trailing",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n1;x=y\r\n}\r\n0\r\n\r\n",
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
    fn what_is_cut_short_or_something_else_is_an_error() {
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
        fn no_answer_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), framed: bool) {
            let head: &[u8] = if framed { b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" } else { b"" };
            let _ = response(&mut [head, &bytes].concat().as_slice());
        }
    }
}
