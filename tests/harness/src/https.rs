//! An HTTPS client that keeps its connection, as scrapers do.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustls::{ClientConnection, StreamOwned};

use crate::tls::Tls;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A connection.
#[derive(Debug)]
pub struct HttpsClient {
    stream: StreamOwned<ClientConnection, TcpStream>,
    addr: SocketAddr,
}

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpsResponse {
    /// The status code.
    pub status: u16,
    /// Whether the server closes the connection after it.
    pub is_last: bool,
    /// The content; with chunks, their framing is part of it.
    pub body: String,
}

impl HttpsClient {
    /// Connects and completes the handshake.
    ///
    /// # Errors
    /// An error of the connection; `InvalidData` if the handshake fails.
    pub fn connect(addr: SocketAddr, tls: &Tls) -> io::Result<Self> {
        let mut socket = TcpStream::connect_timeout(&addr, TIMEOUT)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        let connection = tls.connect(&mut socket)?;
        Ok(Self { stream: StreamOwned::new(*connection, socket), addr })
    }

    /// Sends a request such as `GET /status` with these headers, and reads the response.
    ///
    /// # Errors
    /// An error of the connection; `InvalidData` if the response is not HTTP.
    pub fn request(&mut self, line: &str, headers: &[(&str, &str)]) -> io::Result<HttpsResponse> {
        let mut request = format!("{line} HTTP/1.1\r\nContent-Length: 0\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            let _ = write!(request, "Host: {}\r\n", self.addr);
        }
        for (name, value) in headers {
            let _ = write!(request, "{name}: {value}\r\n");
        }
        self.stream.write_all(format!("{request}\r\n").as_bytes())?;
        self.stream.flush()?;
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            self.stream.read_exact(&mut byte)?;
            head.extend_from_slice(&byte);
        }
        let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, format!("no HTTP: {head}"));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(wrong)?;
        let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
        let mut body = Vec::new();
        match header("content-length: ") {
            Some(length) => {
                body.resize(length.trim().parse().map_err(|_| wrong())?, 0);
                self.stream.read_exact(&mut body)?;
            }
            // The last chunk is empty.
            None => {
                while !body.ends_with(b"0\r\n\r\n") {
                    self.stream.read_exact(&mut byte)?;
                    body.extend_from_slice(&byte);
                }
            }
        }
        let is_last = header("connection: close").is_some();
        Ok(HttpsResponse { status, is_last, body: String::from_utf8_lossy(&body).into_owned() })
    }

    /// Sends GET and returns the status code and the content.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    pub fn get(&mut self, path: &str) -> io::Result<(u16, String)> {
        self.request(&format!("GET {path}"), &[]).map(|response| (response.status, response.body))
    }
}
