//! A RESP connection to a sentinel or Redis node: sends commands, reads whole replies, bounds
//! everything.
//!
//! The incremental scanner of the data plane finds the end of each frame. It enforces limits for
//! length, number and depth and never scans a byte twice; only whole frames reach the decoder. A
//! peer that sends garbage, announces gigabytes, nests without end or sends a byte at a time
//! therefore affects this connection only.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use redis_protocol::{resp2, resp3};
use resp::Limits;
use socket2::{SockRef, TcpKeepalive};
use tls::{CertificateFacts, Fault};
use tokio::net::TcpStream;

use crate::clock;
use crate::link::poll::put_command;
use crate::link::reply::Reply;
use crate::net::stream::{Stream, TlsFacts, fault, is_tls};
use crate::net::transport::Transport;

/// Limit for one reply, in bytes. No reply to the commands used here comes near it.
const LONGEST_REPLY: usize = 1024 * 1024;

/// Replies nest at most three levels deep; the bound matters because the decoder recurses.
const LIMITS: Limits = Limits {
    inline_bytes: 64 * 1024,
    bulk_bytes: LONGEST_REPLY as u64,
    elements: 64 * 1024,
    depth: 16,
    marks: 0,
    memory: 0,
    names: 0,
};

/// For connections to Redis nodes: an unanswered write or keepalive probe ends the connection after
/// this time.
pub const USER_TIMEOUT: Duration = Duration::from_secs(3);

/// How often the kernel probes an idle peer's kernel. A host that took over another's address
/// answers with a reset at once; nothing else detects that while a request is unanswered.
const KEEPALIVE: Duration = Duration::from_secs(1);

/// The RESP version of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// RESP2.
    Resp2,
    /// RESP3.
    Resp3,
}

/// Why a connection is unusable.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The dial failed.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// The dial took too long.
    #[error("cannot connect within {} ms", .0.as_millis())]
    ConnectTimeout(Duration),
    /// TLS failed, or there is TLS where none is expected.
    #[error(transparent)]
    Tls(Fault),
    /// The peer closed a plain connection in the place of its first answer.
    #[error("it closes the connection without an answer, as a port with TLS does to plain text")]
    Unanswered,
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// Reading or writing failed.
    #[error("the connection broke")]
    Io(#[source] io::Error),
    /// The reply exceeds a limit, or is not RESP.
    #[error("the peer sends invalid or oversized RESP: {0}")]
    Malformed(&'static str),
}

impl From<io::Error> for ConnectionError {
    fn from(error: io::Error) -> Self {
        fault(&error).map_or(Self::Io(error), Self::Tls)
    }
}

/// A connection with its read buffer and frame scanner.
#[derive(Debug)]
pub struct RespConnection {
    stream: Stream,
    /// Nothing was received yet.
    fresh: bool,
    input: BytesMut,
    frames: resp::Frames,
    /// Bytes of `input` that `frames` has scanned.
    scanned: usize,
    /// When the last bytes were read, and so the end of the most recently returned reply.
    pub(crate) read_at: Instant,
    /// The version that was negotiated; RESP2 before that.
    pub protocol: Protocol,
}

impl RespConnection {
    /// Connects within `timeout`, the handshake of TLS included. The kernel ends the connection
    /// after `user_timeout` without acknowledgement from the peer.
    ///
    /// # Errors
    ///
    /// The address does not accept the connection, or TLS fails.
    pub async fn connect(
        addr: SocketAddr,
        transport: &Transport,
        timeout: Duration,
        user_timeout: Duration,
    ) -> Result<Self, ConnectionError> {
        if let Some(host) = transport.host() {
            return Ok(Self::over(Stream::plain(within(timeout, host.dial(addr)).await?)));
        }
        let deadline = tokio::time::Instant::now() + timeout;
        let stream = within(timeout, TcpStream::connect(addr)).await?;
        let socket = SockRef::from(&stream);
        // The number of keepalive probes has no effect with a user timeout.
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
        socket
            .set_tcp_nodelay(true)
            .and_then(|()| socket.set_tcp_keepalive(&keepalive))
            .and_then(|()| socket.set_tcp_user_timeout(Some(user_timeout)))
            .map_err(ConnectionError::Connect)?;
        let stream = tokio::time::timeout_at(deadline, transport.open(addr, stream))
            .await
            .map_err(|_| ConnectionError::Tls(Fault::timed_out()))??;
        Ok(Self::over(stream))
    }

    fn over(stream: Stream) -> Self {
        Self {
            stream,
            fresh: true,
            input: BytesMut::new(),
            frames: resp::Frames::new(LIMITS).refuse_deeper(),
            scanned: 0,
            read_at: clock::now(),
            protocol: Protocol::Resp2,
        }
    }

    /// Writes all of it. Commands are small, so this blocks only if the peer has stopped reading;
    /// callers wrap it in a timeout.
    pub(crate) async fn send<'a>(
        &mut self,
        commands: &[impl AsRef<[&'a str]>],
    ) -> Result<(), ConnectionError> {
        let mut request = BytesMut::new();
        commands.iter().for_each(|words| put_command(&mut request, words.as_ref()));
        Ok(self.stream.write_all(&request).await?)
    }

    /// The next whole reply. Cancel-safe: no bytes that were read are lost.
    pub(crate) async fn next(&mut self) -> Result<Reply, ConnectionError> {
        loop {
            if let Some(length) = self.frame_end()? {
                let frame = self.input.split_to(length).freeze();
                self.scanned = 0;
                return decode(&frame, self.protocol);
            }
            if self.input.len() > LONGEST_REPLY {
                return Err(ConnectionError::Malformed("a reply is longer than 1 MiB"));
            }
            self.input.reserve(4096);
            match self.stream.read(&mut self.input).await {
                Ok(0) | Err(_) if self.fresh && self.tls().is_none() => {
                    return Err(ConnectionError::Unanswered);
                }
                Ok(0) => return Err(ConnectionError::Closed),
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            if std::mem::take(&mut self.fresh) && is_tls(&self.input) {
                return Err(ConnectionError::Tls(Fault::not_plain()));
            }
            self.read_at = clock::now();
        }
    }

    /// Sends these commands and appends their replies. Those that arrived before an error, or
    /// before the caller stops waiting, stay there.
    ///
    /// # Errors
    ///
    /// The connection ended, or the peer sends something that is not a reply within the limits.
    pub async fn ask<'a>(
        &mut self,
        commands: &[impl AsRef<[&'a str]>],
        replies: &mut Vec<Reply>,
    ) -> Result<(), ConnectionError> {
        self.send(commands).await?;
        for _ in commands {
            replies.push(self.next().await?);
        }
        Ok(())
    }

    /// Sends one command and returns its reply.
    pub(crate) async fn ask_one(&mut self, words: &[&str]) -> Result<Reply, ConnectionError> {
        self.send(&[words]).await?;
        self.next().await
    }

    /// What was negotiated; `None` without TLS.
    pub(crate) fn tls(&self) -> Option<&TlsFacts> {
        self.stream.tls.as_ref()
    }

    /// The certificate of the server; `None` without TLS.
    #[must_use]
    pub fn certificate(&self) -> Option<CertificateFacts> {
        self.tls()?.certificate.clone()
    }

    /// Whether bytes were read that have not been returned as a reply.
    pub(crate) fn has_input(&self) -> bool {
        !self.input.is_empty()
    }

    /// Where the first frame of the input ends, if it is complete.
    fn frame_end(&mut self) -> Result<Option<usize>, ConnectionError> {
        let unseen = self.input.get(self.scanned..).unwrap_or_default();
        let end = self
            .frames
            .end(unseen)
            .map_err(|_| ConnectionError::Malformed("not RESP, or beyond the limits"))?;
        match end {
            Some(length) => Ok(Some(self.scanned + length)),
            None => {
                self.scanned = self.input.len();
                Ok(None)
            }
        }
    }
}

async fn within<T>(
    timeout: Duration,
    dial: impl Future<Output = io::Result<T>>,
) -> Result<T, ConnectionError> {
    let dialled = tokio::time::timeout(timeout, dial).await;
    dialled.map_err(|_| ConnectionError::ConnectTimeout(timeout))?.map_err(ConnectionError::Connect)
}

/// The replies in these bytes, up to the first that is incomplete or malformed, as a connection of
/// this protocol version reads them. For tests with arbitrary bytes.
#[must_use]
pub fn read_replies(mut bytes: &[u8], is_resp3: bool) -> Vec<Reply> {
    let protocol = if is_resp3 { Protocol::Resp3 } else { Protocol::Resp2 };
    let (mut frames, mut replies) = (resp::Frames::new(LIMITS).refuse_deeper(), Vec::new());
    while let Ok(Some(length)) = frames.end(bytes)
        && let Some((frame, rest)) = bytes.split_at_checked(length)
        && let Ok(reply) = decode(&bytes::Bytes::copy_from_slice(frame), protocol)
    {
        replies.push(reply);
        bytes = rest;
    }
    replies
}

/// Decodes one complete frame.
fn decode(frame: &bytes::Bytes, protocol: Protocol) -> Result<Reply, ConnectionError> {
    let malformed = || ConnectionError::Malformed("a frame that cannot be decoded");
    match protocol {
        Protocol::Resp2 => match resp2::decode::decode_bytes(frame) {
            Ok(Some((decoded, _))) => Ok(Reply::from(decoded)),
            _ => Err(malformed()),
        },
        Protocol::Resp3 => match resp3::decode::complete::decode_bytes(frame) {
            Ok(Some((decoded, _))) => Ok(Reply::from(decoded)),
            _ => Err(malformed()),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::link::poll::PollOutcome;

    /// Fragments of valid frames, and fragments that occur in no valid frame.
    fn piece() -> impl Strategy<Value = Vec<u8>> {
        let header = (prop::sample::select(b"*$%~>|+-:#,_(!=;.".to_vec()), -2_i64..9)
            .prop_map(|(kind, number)| format!("{}{number}\r\n", char::from(kind)).into_bytes());
        let odd = prop::sample::select(vec![
            &b"_\r\n"[..],
            b"#t\r\n",
            b",nan\r\n",
            b",-inf\r\n",
            b"$?\r\n",
            b"*?\r\n",
            b";0\r\n",
            b".\r\n",
            b"$5\r\nhello\r\n",
            b"=7\r\ntxt:abc\r\n",
            b"=3\r\nabc\r\n",
            b"!3\r\n\xff\xfe\x00\r\n",
            b"$0\r\n\r\n",
            b"(99999999999999999999\r\n",
            b":99999999999999999999\r\n",
            b"-\xff\xff\r\n",
            b"|1\r\n+a\r\n+b\r\n",
            b"%1\r\n*1\r\n+k\r\n,nan\r\n",
            b"+HELLO\r\n",
        ]);
        prop_oneof![
            3 => header,
            2 => odd.prop_map(<[u8]>::to_vec),
            1 => prop::collection::vec(any::<u8>(), 0..6),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

        #[test]
        fn decodes_or_rejects_every_scanned_frame(pieces in prop::collection::vec(piece(), 1..24)) {
            let wire = pieces.concat();
            if let Ok(Some(length)) = resp::Frames::new(LIMITS).refuse_deeper().end(&wire) {
                prop_assert!(length <= wire.len() && length > 0);
                let frame = bytes::Bytes::copy_from_slice(&wire[..length]);
                for protocol in [Protocol::Resp2, Protocol::Resp3] {
                    let _ = decode(&frame, protocol);
                }
            }
        }
    }

    /// Every input of the corpus, and variations of it.
    #[test]
    fn reads_the_fuzz_corpus() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let files = std::fs::read_dir(folder.join("../../fuzz/corpus/sentinel")).unwrap();
        let (mut views, mut events, mut random) = (0, 0, fastrand::Rng::with_seed(7));
        for file in files {
            let input = std::fs::read(file.unwrap().path()).unwrap();
            for variation in 0..100 {
                let mut bytes = input.clone();
                for _ in 0..variation % 8 {
                    if !bytes.is_empty() {
                        let at = random.usize(..bytes.len());
                        bytes[at] = random.u8(..);
                    }
                }
                for is_resp3 in [false, true] {
                    let replies = read_replies(&bytes, is_resp3);
                    for poll in replies.windows(5) {
                        let read = crate::link::poll::read_poll(poll, false);
                        views += usize::from(matches!(read, PollOutcome::View { .. }));
                    }
                    let messages = replies.iter().filter_map(Reply::message);
                    events += messages
                        .filter(|(channel, text)| {
                            crate::link::notice::parse(channel, text).is_some()
                        })
                        .count();
                }
            }
        }
        assert!(views > 50 && events > 100, "the corpus is of no use: {views} {events}");
    }
}
