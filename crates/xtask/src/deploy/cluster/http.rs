//! HTTP as far as helm and kubectl need it, on a loopback address. A watch is answered at once with
//! all its events, and ends.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use tiny_http::Header;

/// A request.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) content_type: String,
    pub(super) body: Vec<u8>,
}

impl Request {
    fn read(request: &mut tiny_http::Request) -> io::Result<Self> {
        let (path, query) = request.url().split_once('?').unwrap_or((request.url(), ""));
        let of_content = |it: &&Header| it.field.equiv("Content-Type");
        let content_type = request.headers().iter().find(of_content).map(|it| it.value.to_string());
        let mut read = Self {
            method: request.method().to_string(),
            path: path.to_owned(),
            query: query.to_owned(),
            content_type: content_type.unwrap_or_default(),
            body: Vec::new(),
        };
        request.as_reader().read_to_end(&mut read.body)?;
        Ok(read)
    }

    /// A parameter of the query, decoded.
    pub(super) fn parameter(&self, name: &str) -> Option<String> {
        let mut pairs = form_urlencoded::parse(self.query.as_bytes());
        pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    }
}

/// An answer: its code, and one JSON document or several.
#[derive(Debug)]
pub(super) struct Answer(pub(super) u16, pub(super) String);

/// Starts a server with a thread for each request, which lives as long as the process.
pub(super) fn start(
    answer: impl Fn(&Request) -> Answer + Send + Sync + 'static,
) -> Result<SocketAddr, String> {
    let server = tiny_http::Server::http("127.0.0.1:0").map_err(|error| error.to_string())?;
    let addr = server.server_addr().to_ip().ok_or("it has no address")?;
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for request in server.incoming_requests() {
            let answer = Arc::clone(&answer);
            // A client that goes away ends its connection with an error, which concerns nobody
            // else.
            thread::spawn(move || serve(request, &*answer).ok());
        }
    });
    Ok(addr)
}

fn serve(mut request: tiny_http::Request, answer: &dyn Fn(&Request) -> Answer) -> io::Result<()> {
    let Answer(code, body) = answer(&Request::read(&mut request)?);
    let head = format!("HTTP/1.1 {code} X\r\nContent-Type: application/json\r\n");
    let answer = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    // In one piece: the second one would wait for an acknowledgement of the first.
    let mut writer = request.into_writer();
    writer.write_all(answer.as_bytes())?;
    writer.flush()
}
