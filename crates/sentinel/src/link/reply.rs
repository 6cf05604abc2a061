//! One reply, independent of the protocol version.
//!
//! `redis-protocol` decodes the frames; this module folds its RESP2 and RESP3 types into one, so
//! that callers read `SENTINEL MASTER` alike whether it arrived as a flat array or as a map.

use bytes::Bytes;
use redis_protocol::resp2::types::BytesFrame as Frame2;
use redis_protocol::resp3::types::BytesFrame as Frame3;
use tls::OutsideText;

/// A decoded reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// Simple, bulk and verbatim strings, and scalars that no caller evaluates.
    Text(Bytes),
    /// An error line, without the leading `-`.
    Error(OutsideText),
    /// An integer.
    Number(i64),
    /// An array, a set, or a map as alternating keys and values.
    List(Vec<Reply>),
    /// A RESP3 push. The reader of a subscribed RESP2 connection tells messages from replies
    /// itself.
    Push(Vec<Reply>),
    /// Any null.
    Null,
}

impl Reply {
    /// The text, if it is valid UTF-8.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The elements of a list.
    #[must_use]
    pub fn list(&self) -> Option<&[Self]> {
        match self {
            Self::List(items) => Some(items),
            _ => None,
        }
    }

    /// The channel and the payload, if this is a published message.
    #[must_use]
    pub fn message(&self) -> Option<(&str, &str)> {
        let (Self::List(items) | Self::Push(items)) = self else { return None };
        match items.as_slice() {
            [kind, channel, payload] if kind.text() == Some("message") => {
                Some((channel.text()?, payload.text()?))
            }
            _ => None,
        }
    }

    /// A number, including one sent as text.
    pub(crate) fn number(&self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(*number),
            _ => self.text()?.parse().ok(),
        }
    }

    /// The value of `key` in a flat list of keys and values.
    #[must_use]
    pub fn field(&self, key: &str) -> Option<&str> {
        let pairs = self.list()?.chunks_exact(2);
        pairs
            .filter_map(|pair| Some((pair.first()?, pair.get(1)?)))
            .find(|(name, _)| name.text() == Some(key))?
            .1
            .text()
    }

    /// The value of `key` in a reply to `INFO`.
    #[must_use]
    pub fn info(&self, key: &str) -> Option<&str> {
        info_field(self.text()?, key)
    }

    /// The error line, if this is an error.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Error(line) => Some(line),
            _ => None,
        }
    }
}

/// The value of `key` in the text of a reply to `INFO`.
pub(crate) fn info_field<'a>(info: &'a str, key: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim_end)
}

impl From<Frame2> for Reply {
    fn from(frame: Frame2) -> Self {
        match frame {
            Frame2::SimpleString(data) | Frame2::BulkString(data) => Self::Text(data),
            Frame2::Error(line) => Self::Error(OutsideText::from(&*line)),
            Frame2::Integer(number) => Self::Number(number),
            Frame2::Array(items) => Self::List(items.into_iter().map(Self::from).collect()),
            Frame2::Null => Self::Null,
        }
    }
}

impl From<Frame3> for Reply {
    fn from(frame: Frame3) -> Self {
        match frame {
            Frame3::BlobString { data, .. }
            | Frame3::SimpleString { data, .. }
            | Frame3::VerbatimString { data, .. }
            | Frame3::BigNumber { data, .. } => Self::Text(data),
            Frame3::ChunkedString(data) => Self::Text(data),
            Frame3::SimpleError { data, .. } => Self::Error(OutsideText::from(&*data)),
            Frame3::BlobError { data, .. } => {
                Self::Error(OutsideText::of_bytes(&data, OutsideText::MAX_CHARS))
            }
            Frame3::Number { data, .. } => Self::Number(data),
            Frame3::Boolean { data, .. } => Self::Number(i64::from(data)),
            Frame3::Double { data, .. } => Self::Text(Bytes::from(data.to_string())),
            Frame3::Array { data, .. } => Self::List(data.into_iter().map(Self::from).collect()),
            Frame3::Set { data, .. } => Self::List(data.into_iter().map(Self::from).collect()),
            Frame3::Push { data, .. } => Self::Push(data.into_iter().map(Self::from).collect()),
            Frame3::Map { data, .. } => Self::List(
                data.into_iter()
                    .flat_map(|(key, value)| [Self::from(key), Self::from(value)])
                    .collect(),
            ),
            Frame3::Null | Frame3::Hello { .. } => Self::Null,
        }
    }
}
