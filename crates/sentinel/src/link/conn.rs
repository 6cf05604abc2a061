//! One connection to a sentinel or a redis node: commands out, whole replies in, everything
//! bounded.
//!
//! The frame's end is found by the same incremental scanner that the data plane uses, which knows
//! limits for length, number and depth and never looks at a byte twice; only a whole frame is given
//! to the decoder. A peer that sends garbage, claims gigabytes, nests without end or dribbles
//! therefore costs this connection and nothing more.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use redis_protocol::{resp2, resp3};
use resp::Limits;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::link::reply::Reply;

/// No reply that is asked for here comes near this size, in bytes.
const LONGEST_REPLY: usize = 1024 * 1024;

/// Replies nest three deep at most; the decoder recurses, so that the bound matters.
const LIMITS: Limits = Limits {
    inline_bytes: 64 * 1024,
    bulk_bytes: LONGEST_REPLY as u64,
    elements: 64 * 1024,
    depth: 16,
    marks: 0,
    memory: 0,
    names: 0,
};

/// For connections to redis nodes: an unanswered write or keepalive probe ends the connection after
/// this long.
pub(crate) const USER_TIMEOUT: Duration = Duration::from_secs(3);

/// How often the kernel asks a silent peer's kernel whether the connection is still there. A host
/// that has taken over the address of another says no at once, and nobody else could find that out
/// while a question is open.
const KEEPALIVE: Duration = Duration::from_secs(1);

/// Which protocol a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Resp2,
    Resp3,
}

/// Why a connection is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnError {
    /// The dial failed.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// The dial took too long.
    #[error("cannot connect within {} ms", .0.as_millis())]
    ConnectTimeout(Duration),
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// Reading or writing failed.
    #[error("the connection broke")]
    Io(#[source] io::Error),
    /// A reply beyond every bound, or no RESP at all.
    #[error("the peer does not speak RESP within bounds: {0}")]
    Malformed(&'static str),
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Conn {
    stream: TcpStream,
    input: BytesMut,
    frames: resp::Frames,
    /// Bytes of `input` that `frames` has seen.
    scanned: usize,
    /// When the last bytes were read.
    read_at: Instant,
    pub(crate) protocol: Protocol,
}

impl Conn {
    /// Connects within `patience`. Dead peers are noticed by the kernel after `user_timeout`.
    pub(crate) async fn connect(
        addr: SocketAddr,
        patience: Duration,
        user_timeout: Duration,
    ) -> Result<Self, ConnError> {
        let stream = tokio::time::timeout(patience, TcpStream::connect(addr))
            .await
            .map_err(|_| ConnError::ConnectTimeout(patience))?
            .map_err(ConnError::Connect)?;
        let socket = SockRef::from(&stream);
        // The number of probes means nothing beside a user timeout.
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
        socket
            .set_tcp_nodelay(true)
            .and_then(|()| socket.set_tcp_keepalive(&keepalive))
            .and_then(|()| socket.set_tcp_user_timeout(Some(user_timeout)))
            .map_err(ConnError::Connect)?;
        Ok(Self {
            stream,
            input: BytesMut::new(),
            frames: resp::Frames::new(LIMITS),
            scanned: 0,
            read_at: Instant::now(),
            protocol: Protocol::Resp2,
        })
    }

    /// Writes it all. Commands are small, so that this waits only behind a peer that stopped
    /// reading; bring a timeout.
    pub(crate) async fn send(&mut self, commands: &[u8]) -> Result<(), ConnError> {
        self.stream.write_all(commands).await.map_err(ConnError::Io)
    }

    /// The next whole reply. Safe to drop: nothing read is lost.
    pub(crate) async fn next(&mut self) -> Result<Reply, ConnError> {
        loop {
            if let Some(length) = self.frame_end()? {
                let frame = self.input.split_to(length).freeze();
                self.scanned = 0;
                return decode(&frame, self.protocol);
            }
            if self.input.len() > LONGEST_REPLY {
                return Err(ConnError::Malformed("a reply is longer than 1 MiB"));
            }
            self.input.reserve(4096);
            if self.stream.read_buf(&mut self.input).await.map_err(ConnError::Io)? == 0 {
                return Err(ConnError::Closed);
            }
            self.read_at = Instant::now();
        }
    }

    /// When the end of the reply that was given last was read from the socket.
    pub(crate) fn read_at(&self) -> Instant {
        self.read_at
    }

    /// Whether something has been read that nobody took.
    pub(crate) fn has_input(&self) -> bool {
        !self.input.is_empty()
    }

    /// Where the first frame of the input ends, if it is all there.
    fn frame_end(&mut self) -> Result<Option<usize>, ConnError> {
        let unseen = self.input.get(self.scanned..).unwrap_or_default();
        let end = self
            .frames
            .end(unseen)
            .map_err(|_| ConnError::Malformed("not RESP, or beyond the limits"))?;
        match end {
            Some(length) => Ok(Some(self.scanned + length)),
            None => {
                self.scanned = self.input.len();
                Ok(None)
            }
        }
    }
}

/// Decodes one whole frame.
fn decode(frame: &bytes::Bytes, protocol: Protocol) -> Result<Reply, ConnError> {
    let malformed = || ConnError::Malformed("a frame that cannot be decoded");
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

    /// Pieces that a frame is made of, and some that no frame is made of.
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
        prop_oneof![3 => header, 2 => odd.prop_map(<[u8]>::to_vec), 1 => prop::collection::vec(any::<u8>(), 0..6)]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

        #[test]
        fn whatever_the_scanner_lets_through_the_decoder_survives(pieces in prop::collection::vec(piece(), 1..24)) {
            let wire = pieces.concat();
            if let Ok(Some(length)) = resp::Frames::new(LIMITS).end(&wire) {
                prop_assert!(length <= wire.len() && length > 0);
                let frame = bytes::Bytes::copy_from_slice(&wire[..length]);
                for protocol in [Protocol::Resp2, Protocol::Resp3] {
                    let _ = decode(&frame, protocol);
                }
            }
        }
    }
}
