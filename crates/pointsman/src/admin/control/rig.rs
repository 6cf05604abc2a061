//! The guards of the admin server against hostile requests, for the fuzz target and the test that
//! replays its corpus: hosts, tokens and bodies.
//!
//! A real server with the real guard gets the bytes on a socket. What it must not do is judged from
//! the bytes alone: answer a reader or execute a command without the token, or answer at all under
//! the name of a foreign host.
#![cfg_attr(not(fuzzing), allow(unreachable_pub, reason = "a fuzz target uses it"))]

use std::borrow::Cow;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use admin_http::{Format, Handle, Method, Reply, Reporter, Server, ServerSettings, Verdict};

use super::access::ControlAccess;
use crate::config::{Secret, load_text};

/// The token for commands. Both tokens are in the corpus and the dictionary.
const CONTROL: &str = "token-that-may-give-commands";
/// The token for reading.
const READ: &str = "token-that-may-read";
/// A host that is not ours.
const FOREIGN: &str = "rebind.example";

/// Commands that were executed.
static EXECUTED: AtomicU64 = AtomicU64::new(0);
static SERVER: OnceLock<Handle> = OnceLock::new();
static SOURCES: AtomicU32 = AtomicU32::new(0);

struct Report;

impl Reporter for Report {
    fn alive(&self) -> Verdict {
        Verdict::yes()
    }

    fn ready(&self) -> Verdict {
        Verdict::yes()
    }

    fn metrics(&self, _format: Format) -> String {
        "secret_of_readers 1\n".to_owned()
    }

    fn status(&self) -> String {
        "{\"secret_of_readers\":1}".to_owned()
    }

    fn page(&self) -> Cow<'static, str> {
        Cow::Borrowed("secret_of_readers")
    }
}

#[allow(clippy::expect_used, reason = "it reports by a panic")]
fn serve() -> Handle {
    let text = "[[service]]\nname = \"m\"\nlisten = [\"127.0.0.1:1\"]\nsentinels = [\"a:1\"]\n";
    let mut config = load_text("rig.toml", text).config().expect("a configuration").clone();
    config.admin.control = true;
    config.admin.control_token = Some(Secret::new(CONTROL.to_owned()));
    config.admin.read_token = Some(Secret::new(READ.to_owned()));
    let access = ControlAccess::of(&config);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = Server::bind(&[address], ServerSettings::default()).expect("an address");
    let reading = access.clone();
    let server = server.guard(move |request| reading.authorize_reader(request));
    let server = server.route("/control/m", Method::Post, move |request| {
        access.authorize_command(request)?;
        EXECUTED.fetch_add(1, Ordering::SeqCst);
        Ok(Reply::text(200, "executed\n"))
    });
    server.serve(Arc::new(Report)).expect("a thread")
}

/// Sends the bytes from an address of their own, since wrong tokens are counted by address.
#[allow(clippy::expect_used, reason = "it reports by a panic")]
fn exchange(server: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = SOURCES.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let socket = socket.expect("a socket");
    let source = SocketAddr::from((Ipv4Addr::new(127, a, b, c | 1), 0));
    socket.bind(&source.into()).expect("a loopback address");
    socket.connect(&server.into()).expect("a connection");
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    // The server may close the connection first.
    let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
    let mut response = Vec::new();
    if let Err(error) = stream.read_to_end(&mut response) {
        assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "not closed");
    }
    response
}

fn contains(bytes: &[u8], part: &str) -> bool {
    bytes.windows(part.len()).any(|it| it.eq_ignore_ascii_case(part.as_bytes()))
}

/// Sends a request, and checks what came of it. Returns the response.
///
/// # Panics
///
/// If a guard was passed that should not have been.
#[allow(clippy::panic, reason = "it reports by a panic")]
pub fn run(data: &[u8]) -> Vec<u8> {
    let server = SERVER.get_or_init(serve);
    let Some(address) = server.addresses.first().copied() else { panic!("no address") };
    let before = EXECUTED.load(Ordering::SeqCst);
    let response = exchange(address, data);
    let executed = EXECUTED.load(Ordering::SeqCst) - before;
    let text = || String::from_utf8_lossy(data).into_owned();
    // One connection brings as many commands as requests, each with its token.
    let tokens = data.windows(CONTROL.len()).filter(|it| *it == CONTROL.as_bytes()).count();
    assert!(executed <= tokens as u64, "{executed} commands with {tokens} tokens: {}", text());
    if contains(&response, "secret_of_readers") {
        let given = contains(data, READ) || contains(data, CONTROL) || contains(data, "basic");
        assert!(given, "read without a token: {}", text());
        let requests = data.windows(5).filter(|it| it.eq_ignore_ascii_case(b"http/")).count();
        assert!(requests > 1 || !names_foreign_host(data), "read as a foreign host: {}", text());
    }
    if data.is_empty() {
        assert!(response.is_empty());
    }
    response
}

/// Whether the first header that names a host names the foreign one.
fn names_foreign_host(data: &[u8]) -> bool {
    let mut lines = data.split(|byte| *byte == b'\n').skip(1);
    let host = lines.find_map(|line| {
        let (name, value) = line.split_at_checked(5)?;
        name.eq_ignore_ascii_case(b"host:").then_some(value)
    });
    host.is_some_and(|value| contains(value, FOREIGN))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Every input of the corpus, and variations of it. One test, since commands are counted for
    /// all.
    #[test]
    fn guards_hold_against_the_fuzz_corpus() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/admin_guards");
        let (mut random, mut seen) = (fastrand::Rng::with_seed(7), [0; 4]);
        for file in std::fs::read_dir(folder).unwrap() {
            let input = std::fs::read(file.unwrap().path()).unwrap();
            for variation in 0..20 {
                let mut bytes = input.clone();
                for _ in 0..variation % 5 {
                    if !bytes.is_empty() {
                        let at = random.usize(..bytes.len());
                        bytes[at] = random.u8(..);
                    }
                }
                let response = run(&bytes);
                for (status, count) in ["200", "401", "413", "421"].iter().zip(&mut seen) {
                    *count +=
                        usize::from(response.starts_with(format!("HTTP/1.1 {status}").as_bytes()));
                }
            }
        }
        assert!(seen.iter().all(|count| *count > 5), "of no use: {seen:?}");
        assert!(EXECUTED.load(Ordering::SeqCst) > 5);
    }
}
