//! Replies of Redis, parsed independently of the product.
//!
//! The parser shares no code with the crate under test, so that a mistake there cannot hide here.
//! It is simple instead of fast: an incomplete reply is parsed again from its start when more bytes
//! arrive. Deliberately absent: streamed aggregates and attributes, which no server sends today.

use std::fmt;

/// One reply, RESP2 or RESP3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// `+`
    Simple(String),
    /// `-` and `!`
    Error(String),
    /// `:`
    Int(i64),
    /// `$`
    Bulk(Vec<u8>),
    /// `$-1`, `*-1` and `_`
    Nil,
    /// `*`
    Array(Vec<Value>),
    /// `%`
    Map(Vec<(Value, Value)>),
    /// `~`
    Set(Vec<Value>),
    /// `>`
    Push(Vec<Value>),
    /// `,` as it was written
    Double(String),
    /// `#`
    Bool(bool),
    /// `(` as it was written
    Big(String),
    /// `=` without the three letters of its format
    Verbatim(String),
}

impl Value {
    /// The text of a simple, bulk or verbatim string, if it is UTF-8.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Simple(text) | Self::Verbatim(text) => Some(text),
            Self::Bulk(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The value of an integer, or of a string that holds one.
    #[must_use]
    pub fn int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            other => other.text()?.parse().ok(),
        }
    }

    /// The elements of an array, set or push; empty for any other reply.
    #[must_use]
    pub fn items(&self) -> &[Value] {
        match self {
            Self::Array(items) | Self::Set(items) | Self::Push(items) => items,
            _ => &[],
        }
    }

    /// The value of a key, in a map or in the flat array that RESP2 uses instead.
    #[must_use]
    pub fn field(&self, key: &str) -> Option<&Value> {
        if let Self::Map(pairs) = self {
            return pairs.iter().find(|(name, _)| name.text() == Some(key)).map(|(_, value)| value);
        }
        self.items().chunks_exact(2).find(|pair| pair[0].text() == Some(key)).map(|pair| &pair[1])
    }

    /// The message of an error reply.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        if let Self::Error(message) = self { Some(message) } else { None }
    }

    /// Whether it is an error reply.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.error().is_some()
    }

    /// Whether it is `+OK`.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Simple(text) if text == "OK")
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(message) => write!(f, "-{message}"),
            Self::Bulk(bytes) => write!(f, "{}", String::from_utf8_lossy(bytes)),
            Self::Simple(text) | Self::Double(text) | Self::Big(text) | Self::Verbatim(text) => {
                f.write_str(text)
            }
            other => write!(f, "{other:?}"),
        }
    }
}

/// Parses one reply at the start of `bytes`. Returns the reply and its length, or `None` if it is
/// incomplete.
///
/// # Errors
/// A message for people, if the bytes are not a reply.
pub fn parse(bytes: &[u8]) -> Result<Option<(Value, usize)>, String> {
    let mut reader = Reader { bytes, at: 0 };
    Ok(reader.value()?.map(|value| (value, reader.at)))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn value(&mut self) -> Result<Option<Value>, String> {
        let Some(line) = self.line() else { return Ok(None) };
        let (Some(kind), rest) = (line.chars().next(), line.get(1..).unwrap_or("")) else {
            return Err("an empty line where a reply should start".to_owned());
        };
        let value = match kind {
            '+' => Value::Simple(rest.to_owned()),
            '-' => Value::Error(rest.to_owned()),
            ':' => Value::Int(rest.parse().map_err(|_| format!("no integer: {line:?}"))?),
            ',' => Value::Double(rest.to_owned()),
            '(' => Value::Big(rest.to_owned()),
            '#' => Value::Bool(rest == "t"),
            '_' => Value::Nil,
            '$' | '*' if rest == "-1" => Value::Nil,
            '$' | '!' | '=' => return self.bulk(kind, length(&line)?),
            '*' | '~' | '>' => {
                let Some(items) = self.items(length(&line)?)? else { return Ok(None) };
                match kind {
                    '*' => Value::Array(items),
                    '~' => Value::Set(items),
                    _ => Value::Push(items),
                }
            }
            '%' => {
                let Some(items) = self.items(2 * length(&line)?)? else { return Ok(None) };
                let mut items = items.into_iter();
                Value::Map(std::iter::from_fn(|| Some((items.next()?, items.next()?))).collect())
            }
            _ => return Err(format!("no reply starts like this: {line:?}")),
        };
        Ok(Some(value))
    }

    fn line(&mut self) -> Option<String> {
        let rest = &self.bytes[self.at..];
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        self.at += end + 2;
        Some(String::from_utf8_lossy(&rest[..end]).into_owned())
    }

    fn bulk(&mut self, kind: char, length: usize) -> Result<Option<Value>, String> {
        let rest = &self.bytes[self.at..];
        if rest.len() < length + 2 {
            return Ok(None);
        }
        if &rest[length..length + 2] != b"\r\n" {
            return Err(format!("a string of {length} bytes does not end with CR LF"));
        }
        self.at += length + 2;
        let bytes = rest[..length].to_vec();
        let text = || String::from_utf8_lossy(&bytes).into_owned();
        Ok(Some(match kind {
            '!' => Value::Error(text()),
            '=' => Value::Verbatim(text().get(4..).unwrap_or("").to_owned()),
            _ => Value::Bulk(bytes),
        }))
    }

    fn items(&mut self, count: usize) -> Result<Option<Vec<Value>>, String> {
        let mut items = Vec::new();
        for _ in 0..count {
            let Some(item) = self.value()? else { return Ok(None) };
            items.push(item);
        }
        Ok(Some(items))
    }
}

fn length(line: &str) -> Result<usize, String> {
    line[1..].parse().map_err(|_| format!("no length: {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIRE: &[u8] = b"*3\r\n$5\r\nhello\r\n:-7\r\n%1\r\n+k\r\n*-1\r\n";

    #[test]
    fn reads_nested_replies_and_their_length() {
        let (value, used) = parse(WIRE).expect("a reply").expect("complete");
        assert_eq!(used, WIRE.len());
        assert_eq!(value.items()[0].text(), Some("hello"));
        assert_eq!(value.items()[1].int(), Some(-7));
        assert_eq!(value.items()[2].field("k"), Some(&Value::Nil));
    }

    #[test]
    fn treats_every_prefix_as_incomplete() {
        for end in 0..WIRE.len() {
            assert_eq!(parse(&WIRE[..end]), Ok(None), "cut at {end}");
        }
    }

    #[test]
    fn refuses_what_is_no_reply() {
        for wire in ["hello\r\n", "\r\n", "$x\r\n", "$1\r\nabc", ":one\r\n"] {
            assert!(parse(wire.as_bytes()).is_err(), "{wire:?}");
        }
    }
}
