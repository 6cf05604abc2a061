//! A minimal HTTP client for the admin server.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Sends GET and returns the status code and the body.
///
/// # Errors
/// An error of the connection; `InvalidData` if the response is not HTTP.
pub fn http_get(addr: SocketAddr, path: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&addr, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    // HTTP/1.0, so that the body is not chunked and the server closes the connection.
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {addr}\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    read(&String::from_utf8_lossy(&answer)).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("no HTTP answer from {addr}{path}"))
    })
}

fn read(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/")?.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_response_into_status_and_body() {
        assert_eq!(
            read("HTTP/1.0 503 Service Unavailable\r\nA: b\r\n\r\nno\n"),
            Some((503, "no\n".to_owned()))
        );
        assert_eq!(read("SSH-2.0-OpenSSH\r\n\r\n"), None);
    }
}
