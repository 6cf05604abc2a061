//! Requests, their expected replies, and the replies of the backend, as bytes.
//!
//! The backend supports the commands by which a sentinel watches it and Pointsman verifies a
//! master.

use harness::encode;

/// Length of a small value.
const SMALL: usize = 64;
/// The run id of the backend.
const RUN_ID: &str = "51a451a451a451a451a451a451a451a451a451a4";

/// The kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// PING.
    Ping,
    /// GET of a value of this many bytes, which a Redis must hold before.
    Get(usize),
    /// SET of a value of this many bytes.
    Set(usize),
}

impl Workload {
    /// GET of a 64-byte value.
    pub const SMALL: Self = Self::Get(SMALL);
    /// SET of a 64-byte value.
    pub const WRITE: Self = Self::Set(SMALL);

    /// The bytes of the request.
    #[must_use]
    pub fn request(self) -> Vec<u8> {
        match self {
            Self::Ping => encode(&["PING"]),
            Self::Get(size) => encode(&["GET", &key(size)]),
            Self::Set(size) => encode(&["SET", &key(size), &value(size)]),
        }
    }

    /// The bytes of the expected reply.
    #[must_use]
    pub fn reply(self) -> Vec<u8> {
        match self {
            Self::Ping => b"+PONG\r\n".to_vec(),
            Self::Get(size) => bulk(&value(size)),
            Self::Set(_) => b"+OK\r\n".to_vec(),
        }
    }

    /// Bytes of the value in the request or its reply.
    #[must_use]
    pub fn payload(self) -> usize {
        match self {
            Self::Ping => 0,
            Self::Get(size) | Self::Set(size) => size,
        }
    }
}

/// The key of a value, always of the same length.
fn key(size: usize) -> String {
    format!("key:{size:0>12}")
}

fn value(size: usize) -> String {
    "x".repeat(size)
}

fn bulk(value: &str) -> Vec<u8> {
    format!("${}\r\n{value}\r\n", value.len()).into_bytes()
}

/// The reply of the backend, as a master without replicas would give it.
pub(crate) fn answer(words: &[&str], out: &mut Vec<u8>) {
    let Some((command, channels)) = words.split_first() else { return };
    match command.to_ascii_uppercase().as_bytes() {
        b"GET" => out.extend(Workload::SMALL.reply()),
        b"PING" => out.extend_from_slice(b"+PONG\r\n"),
        b"ROLE" => out.extend_from_slice(b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"),
        b"INFO" => out.extend(bulk(&info())),
        b"AUTH" | b"CLIENT" | b"SELECT" => out.extend_from_slice(b"+OK\r\n"),
        b"PUBLISH" => out.extend_from_slice(b":0\r\n"),
        b"SUBSCRIBE" => {
            for (index, channel) in channels.iter().enumerate() {
                out.extend_from_slice(b"*3\r\n$9\r\nsubscribe\r\n");
                out.extend(bulk(channel));
                out.extend(format!(":{}\r\n", index + 1).into_bytes());
            }
        }
        _ => out.extend_from_slice(b"-ERR unknown command\r\n"),
    }
}

fn info() -> String {
    format!(
        "# Server\r\nredis_version:7.0.15\r\nrun_id:{RUN_ID}\r\nuptime_in_seconds:1000\r\n\
         # Replication\r\nrole:master\r\nconnected_slaves:0\r\nmaster_repl_offset:0\r\n"
    )
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
        assert_eq!(ask(&["GET", "anything"]).into_bytes(), Workload::SMALL.reply());
    }
}
