//! Sends one HTTP request over a socket or TLS, bounded in time and size.
//!
//! `pointsman status` runs when something is wrong: in a throttled container, beside a process that
//! hangs. It therefore has one thread and no pool, and every step has a deadline. The response may
//! come from any program on that port, so only its framing is trusted.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http1;
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use tls::OutsideText;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::signal::ctrl_c;
use tokio::time::timeout;

use super::admin_server::AdminServer;
use super::admin_tls;
use crate::system::{socket_file, threads};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// For a control command: a switchover may take as long as its limits allow, after the time until
/// the sentinels know the replica to promote, and before the time until priorities are restored.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(90);
const MAX_RESPONSE: usize = 8 * 1024 * 1024;
/// For a list of ten thousand sessions with the longest names.
const MAX_LIST: usize = 32 * 1024 * 1024;

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
    size: usize,
}

impl Limits {
    pub(super) const STATUS: Self = Self { time: REQUEST_TIMEOUT, size: MAX_RESPONSE };
    pub(super) const LIST: Self = Self { time: CONTROL_TIMEOUT, size: MAX_LIST };
    const COMMAND: Self = Self { time: CONTROL_TIMEOUT, size: MAX_RESPONSE };
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

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
    let mut body = Vec::new();
    let mut sink = |piece: &[u8]| body.extend_from_slice(piece);
    let code = exchange(endpoint, &Method::GET, path, token, limits, &mut sink)?;
    Ok((code, body))
}

/// Posts to `path`, with a bearer token if given, and passes each line of the response to `sink` as
/// it arrives. Returns the status code.
///
/// # Errors
///
/// As [`get`]; `Interrupted` after Ctrl-C.
pub(super) fn post(
    endpoint: &ControlEndpoint,
    path: &str,
    token: Option<&str>,
    sink: &mut dyn FnMut(&str),
) -> io::Result<u16> {
    let mut line = Vec::new();
    let mut lines = |piece: &[u8]| {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                sink(OutsideText::lines(&std::mem::take(&mut line)).trim_end());
            }
        }
    };
    let code = exchange(endpoint, &Method::POST, path, token, Limits::COMMAND, &mut lines)?;
    if !line.is_empty() {
        sink(OutsideText::lines(&line).trim_end());
    }
    Ok(code)
}

/// Connects, sends a request, and passes the body of the response to `sink` piece by piece.
fn exchange(
    endpoint: &ControlEndpoint,
    method: &Method,
    path: &str,
    token: Option<&str>,
    limits: Limits,
    sink: &mut dyn FnMut(&[u8]),
) -> io::Result<u16> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let stream = connect(endpoint).await?;
        let host = match endpoint {
            ControlEndpoint::Network(server) => server.addr.to_string(),
            ControlEndpoint::Socket(_) => "pointsman".to_owned(),
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, host)
            .header(header::ACCEPT, "application/json")
            .header(header::CONNECTION, "close");
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Empty::new()).map_err(io::Error::other)?;
        let talk = timeout(limits.time, talk(endpoint, stream, request, limits, sink));
        tokio::select! {
            result = talk => result.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
            // What the command has done so far is left, or undone, by the process.
            Ok(()) = ctrl_c(), if *method == Method::POST => {
                Err(io::ErrorKind::Interrupted.into())
            }
        }
    })
}

async fn connect(endpoint: &ControlEndpoint) -> io::Result<Box<dyn Stream>> {
    let server = match endpoint {
        ControlEndpoint::Network(server) => server,
        ControlEndpoint::Socket(path) => {
            let stream = socket_file::dial(path)?;
            stream.set_nonblocking(true)?;
            return Ok(Box::new(UnixStream::from_std(stream)?));
        }
    };
    let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(server.addr)).await??;
    match &server.tls {
        None => Ok(Box::new(stream)),
        Some((host, tls)) => {
            let session = admin_tls::connect(stream, host, tls, server);
            Ok(Box::new(timeout(REQUEST_TIMEOUT, session).await??))
        }
    }
}

async fn talk(
    endpoint: &ControlEndpoint,
    stream: Box<dyn Stream>,
    request: Request<Empty<Bytes>>,
    limits: Limits,
    sink: &mut dyn FnMut(&[u8]),
) -> io::Result<u16> {
    let broken = |error| explained(error, endpoint);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // Its errors are those of the response, too.
    tokio::spawn(connection);
    let mut response = pin!(sender.send_request(request));
    let response = match timeout(REQUEST_TIMEOUT, &mut response).await {
        Ok(response) => response,
        Err(_) => {
            if limits.time > REQUEST_TIMEOUT {
                threads::write_stderr(format!(
                    "pointsman: {endpoint} has not answered for {} s; waiting (Ctrl-C gives up)\n",
                    REQUEST_TIMEOUT.as_secs()
                ));
            }
            response.await
        }
    };
    let (head, mut body) = response.map_err(broken)?.into_parts();
    let mut received = 0;
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(broken)?.into_data() else { continue };
        received += piece.len();
        if received > limits.size {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the response is too large"));
        }
        sink(&piece);
    }
    Ok(head.status.as_u16())
}

/// An error of the exchange, with what an error of TLS means: with TLS 1.3 the server refuses a
/// certificate after the handshake.
fn explained(error: hyper::Error, endpoint: &ControlEndpoint) -> io::Error {
    let cause = error.source().and_then(|it| it.downcast_ref::<io::Error>());
    if let (ControlEndpoint::Network(server), Some(cause)) = (endpoint, cause)
        && let Some(problem) = admin_tls::TlsProblem::of_io(cause, server)
    {
        return problem.into();
    }
    io::Error::new(cause.map_or(io::ErrorKind::InvalidData, io::Error::kind), error)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use proptest::prelude::*;

    use super::*;

    /// Sends this response to one request.
    fn read(response: &[u8]) -> io::Result<(u16, String)> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let response = response.to_owned();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let size = stream.read(&mut request).unwrap();
            // The client may have left already.
            let _ = stream.write_all(&response);
            size
        });
        let endpoint = ControlEndpoint::Network(AdminServer { addr, tls: None });
        let got = get(&endpoint, "/status", None, Limits::STATUS);
        assert!(server.join().unwrap() > 0);
        got.map(|(code, body)| (code, String::from_utf8_lossy(&body).into_owned()))
    }

    #[test]
    fn reads_bodies_in_three_framings() {
        for text in [
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}trailing",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
             1\r\n{\r\n1;x=y\r\n}\r\n0\r\n\r\n",
            "HTTP/1.0 200 OK\r\n\r\n{}",
        ] {
            assert_eq!(read(text.as_bytes()).unwrap(), (200, "{}".to_owned()), "{text}");
        }
        let unavailable = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(read(unavailable).unwrap().0, 503);
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
            assert!(read(text.as_bytes()).is_err(), "{text}");
        }
        let huge = format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(MAX_RESPONSE + 1));
        assert_eq!(read(huge.as_bytes()).unwrap_err().to_string(), "the response is too large");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn never_panics_on_arbitrary_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            framed: bool,
        ) {
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            let head = if framed { head } else { "" };
            let _ = read(&[head.as_bytes(), &bytes].concat());
        }
    }
}
