//! Requests, their expected replies, and the replies of the backend, as bytes.
//!
//! The backend supports the commands by which a sentinel watches it and Pointsman verifies a
//! master.

use std::fmt::Write as _;

/// Length of a small value.
const SMALL: usize = 64;
/// The keys of the large values, with their sizes; a Redis must hold them before [`Workload::Get`]
/// runs.
pub const BIG_KEYS: [(&str, usize); 2] = [("bulk:64KiB", 64 << 10), ("bulk:1MiB", 1 << 20)];
/// The run id of the backend.
const RUN_ID: &str = "51a451a451a451a451a451a451a451a451a451a4";

/// The kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// GET of a 64-byte value.
    Small,
    /// SET of a 64-byte value.
    Write,
    /// PING.
    Ping,
    /// GET of a value of this many bytes, a size of [`BIG_KEYS`].
    Get(usize),
    /// SET of a value of this many bytes, a size of [`BIG_KEYS`].
    Set(usize),
}

impl Workload {
    /// The bytes of the request.
    #[must_use]
    pub fn request(self) -> Vec<u8> {
        match self {
            Self::Small => command(&[b"GET", small_key()]),
            Self::Write => command(&[b"SET", small_key(), &value(SMALL)]),
            Self::Ping => command(&[b"PING"]),
            Self::Get(size) => command(&[b"GET", big_key(size).as_bytes()]),
            Self::Set(size) => command(&[b"SET", big_key(size).as_bytes(), &value(size)]),
        }
    }

    /// The bytes of the expected reply.
    #[must_use]
    pub fn reply(self) -> Vec<u8> {
        match self {
            Self::Small => bulk(&value(SMALL)),
            Self::Ping => b"+PONG\r\n".to_vec(),
            Self::Get(size) => bulk(&value(size)),
            Self::Write | Self::Set(_) => b"+OK\r\n".to_vec(),
        }
    }

    /// The commands that prepare a Redis for this request; none for PING.
    #[must_use]
    pub fn preparation(self) -> Option<Vec<u8>> {
        match self {
            Self::Small | Self::Write => Some(Self::Write.request()),
            Self::Ping => None,
            Self::Get(size) | Self::Set(size) => Some(Self::Set(size).request()),
        }
    }

    /// Bytes of the value in the request or its reply.
    #[must_use]
    pub fn payload(self) -> usize {
        match self {
            Self::Small | Self::Write => SMALL,
            Self::Ping => 0,
            Self::Get(size) | Self::Set(size) => size,
        }
    }
}

fn small_key() -> &'static [u8] {
    b"key:000000000042"
}

fn big_key(size: usize) -> &'static str {
    BIG_KEYS.iter().find(|(_, known)| *known == size).map_or("bulk:other", |(key, _)| key)
}

fn value(size: usize) -> Vec<u8> {
    vec![b'x'; size]
}

fn bulk(value: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(bulk(word));
    }
    bytes
}

/// The reply of the backend, as a master without replicas would give it.
pub(crate) fn answer(words: &[&str], out: &mut Vec<u8>) {
    let Some((command, channels)) = words.split_first() else { return };
    match command.to_ascii_uppercase().as_bytes() {
        b"GET" => out.extend(Workload::Small.reply()),
        b"PING" => out.extend_from_slice(b"+PONG\r\n"),
        b"ROLE" => out.extend_from_slice(b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"),
        b"INFO" => out.extend(bulk(info().as_bytes())),
        b"AUTH" | b"CLIENT" | b"SELECT" => out.extend_from_slice(b"+OK\r\n"),
        b"PUBLISH" => out.extend_from_slice(b":0\r\n"),
        b"SUBSCRIBE" => {
            for (index, channel) in channels.iter().enumerate() {
                out.extend_from_slice(b"*3\r\n$9\r\nsubscribe\r\n");
                out.extend(bulk(channel.as_bytes()));
                out.extend(format!(":{}\r\n", index + 1).into_bytes());
            }
        }
        _ => out.extend_from_slice(b"-ERR unknown command\r\n"),
    }
}

fn info() -> String {
    let mut text = String::from("# Server\r\nredis_version:7.0.15\r\n");
    let _ = write!(text, "run_id:{RUN_ID}\r\nuptime_in_seconds:1000\r\n");
    text.push_str("# Replication\r\nrole:master\r\nconnected_slaves:0\r\nmaster_repl_offset:0\r\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_sentinels_as_a_master() {
        let ask = |words: &[&str]| {
            let mut out = Vec::new();
            answer(words, &mut out);
            String::from_utf8(out).expect("text")
        };
        assert!(ask(&["role"]).contains("master"));
        assert!(ask(&["INFO"]).contains("role:master\r\n") && ask(&["INFO"]).contains(RUN_ID));
        assert_eq!(ask(&["SUBSCRIBE", "a"]), "*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n");
        assert_eq!(RUN_ID.len(), 40);
        assert!(ask(&["SLAVEOF", "NO", "ONE"]).starts_with("-ERR"));
        assert_eq!(ask(&["GET", "anything"]).into_bytes(), Workload::Small.reply());
    }
}
