//! HTTP/1.1 as far as helm and kubectl need it, on a loopback address: requests with a length,
//! answers with one, and streams of events in chunks.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The largest body that is read: a release of helm has some hundred KiB.
const LARGEST: u64 = 16 << 20;
const LONGEST_LINE: u64 = 16 << 10;

/// A request.
#[derive(Debug, Default)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) content_type: String,
    pub(super) body: Vec<u8>,
}

impl Request {
    /// A parameter of the query, decoded.
    pub(super) fn parameter(&self, name: &str) -> Option<String> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| decoded(value))
    }
}

/// An answer.
#[derive(Debug)]
pub(super) enum Answer {
    /// Code and JSON.
    Json(u16, String),
    /// JSON documents, one each, and then the end of the stream.
    Events(Vec<String>),
}

fn decoded(text: &str) -> String {
    let mut bytes = text.bytes();
    let mut out = Vec::new();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let pair: Vec<u8> = bytes.by_ref().take(2).collect();
                let pair = String::from_utf8_lossy(&pair).into_owned();
                u8::from_str_radix(&pair, 16).unwrap_or(b'?')
            }
            byte => byte,
        });
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// A server with a thread for each connection; it ends when it is dropped.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) addr: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    pub(super) fn start(
        answer: impl Fn(&Request) -> Answer + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let answer = Arc::new(answer);
        let over = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::Acquire) {
                    return;
                }
                let (Ok(stream), answer) = (stream, Arc::clone(&answer)) else { continue };
                // A client that goes away ends its connection with an error, which concerns nobody
                // else.
                std::thread::spawn(move || serve(&stream, &*answer).ok());
            }
        });
        Ok(Self { addr, is_over, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // Wakes the thread from its accept.
        if TcpStream::connect(self.addr).is_ok()
            && let Some(thread) = self.thread.take()
        {
            thread.join().ok();
        }
    }
}

fn serve(stream: &TcpStream, answer: &dyn Fn(&Request) -> Answer) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(120)))?;
    let mut reader = BufReader::new(stream);
    while let Some(request) = read(&mut reader)? {
        let mut out = Vec::new();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
        match answer(&request) {
            Answer::Json(code, body) => {
                let head = head.replacen("200 OK", &format!("{code} X"), 1);
                write!(out, "{head}Content-Length: {}\r\n\r\n{body}", body.len())?;
            }
            Answer::Events(events) => {
                write!(out, "{head}Transfer-Encoding: chunked\r\n\r\n")?;
                for event in events {
                    write!(out, "{:x}\r\n{event}\n\r\n", event.len() + 1)?;
                }
                write!(out, "0\r\n\r\n")?;
            }
        }
        (&mut &*stream).write_all(&out)?;
    }
    Ok(())
}

fn line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut text = String::new();
    reader.take(LONGEST_LINE).read_line(&mut text)?;
    Ok(text.trim_end().to_owned())
}

fn read(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
    let first = line(reader)?;
    let mut words = first.split(' ');
    let (Some(method), Some(target)) = (words.next(), words.next()) else { return Ok(None) };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request = Request {
        method: method.to_owned(),
        path: decoded(path),
        query: query.to_owned(),
        ..Request::default()
    };
    let mut length = 0;
    loop {
        let header = line(reader)?;
        let Some((name, value)) = header.split_once(':') else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().map_err(io::Error::other)?,
            "content-type" => request.content_type = value.trim().to_owned(),
            "transfer-encoding" => return Err(io::Error::other("a body without a length")),
            _ => {}
        }
    }
    if length > LARGEST {
        return Err(io::Error::other("the body is too large"));
    }
    reader.take(length).read_to_end(&mut request.body)?;
    Ok(Some(request))
}
