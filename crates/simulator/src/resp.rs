//! RESP as servers read and write it.

use bytes::BytesMut;
use redis_protocol::resp3::encode::complete::extend_encode;
use redis_protocol::resp3::types::BytesFrame as Frame;

/// The commands in these bytes, which always end with a whole one.
pub(crate) fn commands(bytes: &[u8]) -> Vec<Vec<&str>> {
    let text = std::str::from_utf8(bytes).expect("commands in ASCII");
    let (mut words, mut commands) = (text.split("\r\n"), Vec::new());
    while let Some(count) = words.next().and_then(|it| it.strip_prefix('*')) {
        let count: usize = count.parse().expect("a number of words");
        let command = (0..count).map(|_| words.next().and(words.next()).expect("a word"));
        commands.push(command.collect());
    }
    commands
}

/// Appends a reply.
pub(crate) fn put(out: &mut BytesMut, reply: &Frame) {
    extend_encode(out, reply, false).expect("a frame");
}

/// A bulk string.
pub(crate) fn text(word: impl Into<String>) -> Frame {
    Frame::BlobString { data: word.into().into(), attributes: None }
}

pub(crate) fn error(line: &'static str) -> Frame {
    Frame::SimpleError { data: line.into(), attributes: None }
}

pub(crate) fn list(data: Vec<Frame>) -> Frame {
    Frame::Array { data, attributes: None }
}

/// Keys with their values.
pub(crate) fn fields(pairs: impl IntoIterator<Item = (&'static str, String)>) -> Frame {
    list(pairs.into_iter().flat_map(|(key, value)| [text(key), text(value)]).collect())
}
