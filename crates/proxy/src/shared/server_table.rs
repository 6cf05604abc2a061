//! Reads the reply to `COMMAND INFO`: names, flags and categories.
//!
//! It has many kilobytes, most of which says nothing about sharing, so it is read in one pass that
//! copies names and flags only. Anything that is not as expected makes the whole reply
//! unreadable, and then the built-in table counts alone.

use resp::{CommandInfo, Frames, Limits};

use crate::shared::commands::NAMES;

/// The largest reply that is read, in bytes. Redis 8 has less than a tenth.
pub(crate) const LARGEST_TABLE: usize = 4 << 20;

/// The request.
pub(crate) fn ask_table() -> Vec<u8> {
    let words = ["COMMAND".to_owned(), "INFO".to_owned()].into_iter().chain(NAMES.iter().cloned());
    let (mut count, mut bytes) = (0, String::new());
    for word in words {
        count += 1;
        bytes += &format!("${}\r\n{word}\r\n", word.len());
    }
    format!("*{count}\r\n{bytes}").into_bytes()
}

/// What the whole reply says of each name; `None` if it is not one.
pub(crate) fn read_table(reply: &[u8]) -> Option<Vec<Option<CommandInfo>>> {
    let mut input = reply;
    let (b'*', count) = header(&mut input)? else { return None };
    if count != NAMES.len() {
        return None;
    }
    let commands: Option<Vec<_>> = (0..count).map(|_| entry(&mut input)).collect();
    commands.filter(|_| input.is_empty())
}

/// One entry, or a null for a name that the server does not know.
fn entry(input: &mut &[u8]) -> Option<Option<CommandInfo>> {
    let fields = match header(input)? {
        (b'*', 0) | (b'_' | b'$', _) => return Some(None),
        (b'*', fields) => fields,
        _ => return None,
    };
    let mut command = CommandInfo { name: text(input)?.to_owned(), ..CommandInfo::default() };
    for field in 1..fields {
        match field {
            2 | 6 => words(input, &mut command.flags)?,
            _ => skip(input)?,
        }
    }
    Some(Some(command))
}

/// Adds the words of an array or a set.
fn words(input: &mut &[u8], to: &mut Vec<String>) -> Option<()> {
    let (b'*' | b'~', count) = header(input)? else { return None };
    for _ in 0..count {
        to.push(text(input)?.to_owned());
    }
    Some(())
}

/// Skips a value with everything in it.
fn skip(input: &mut &[u8]) -> Option<()> {
    let end = Frames::new(Limits::default()).end(input).ok()??;
    take(input, end).map(drop)
}

/// A status or a string.
fn text<'a>(input: &mut &'a [u8]) -> Option<&'a str> {
    let bytes = if input.first()? == &b'+' {
        line(input)?.get(1..)?
    } else {
        let (b'$', len) = header(input)? else { return None };
        let bytes = take(input, len)?;
        take(input, 2)?;
        bytes
    };
    std::str::from_utf8(bytes).ok()
}

/// The type and the length at the beginning. A null has the length 0.
fn header(input: &mut &[u8]) -> Option<(u8, usize)> {
    let (kind, digits) = line(input)?.split_first()?;
    let digits = std::str::from_utf8(digits).ok()?;
    if matches!(digits, "-1" | "") { Some((*kind, 0)) } else { Some((*kind, digits.parse().ok()?)) }
}

/// The bytes before the next line end.
fn line<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = input.windows(2).position(|pair| pair == b"\r\n")?;
    let found = take(input, end)?;
    take(input, 2)?;
    Some(found)
}

fn take<'a>(input: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = input.split_at_checked(len)?;
    *input = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Redis 7 says it.
    const GET: &str = "*10\r\n$3\r\nget\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n\
        *1\r\n+@read\r\n*1\r\n$3\r\ntip\r\n*1\r\n*2\r\n$5\r\nflags\r\n*0\r\n\
        *1\r\n*2\r\n$7\r\nget|sub\r\n*1\r\n+admin\r\n";

    /// A reply with this entry for `GET`, and no other command.
    fn reply(entry: &str, null: &str) -> String {
        let one = |name: &String| if name == "GET" { entry.to_owned() } else { null.to_owned() };
        let entries: String = NAMES.iter().map(one).collect();
        format!("*{}\r\n{entries}", NAMES.len())
    }

    fn shown(reply: &str) -> Option<String> {
        let said: Vec<CommandInfo> = read_table(reply.as_bytes())?.into_iter().flatten().collect();
        Some(said.iter().map(|it| format!("{}: {}", it.name, it.flags.join(" "))).collect())
    }

    #[test]
    fn reads_names_and_flags_of_each_version() {
        let expected = Some("get: readonly fast @read".to_owned());
        assert_eq!(shown(&reply(GET, "*-1\r\n")), expected);
        let resp3 = GET
            .replace("*2\r\n+readonly", "~2\r\n+readonly")
            .replace("*2\r\n$5\r\nflags\r\n*0", "%1\r\n$5\r\nflags\r\n~0");
        assert_ne!(resp3, GET);
        assert_eq!(shown(&reply(&resp3, "_\r\n")), expected);
        // Redis 6.2 has seven fields.
        let old = "*7\r\n$3\r\nget\r\n:2\r\n*0\r\n:1\r\n:1\r\n:1\r\n*1\r\n+@read\r\n";
        assert_eq!(shown(&reply(old, "$-1\r\n")), Some("get: @read".to_owned()));
    }

    #[test]
    fn refuses_everything_else() {
        let whole = reply(GET, "*-1\r\n");
        for len in (0..whole.len()).step_by(7) {
            assert_eq!(shown(&whole[..len]), None, "cut after {len}");
        }
        for entry in [
            ":1\r\n",
            "*2\r\n$3\r\nget\r\n*9999999999\r\n",
            "*2\r\n$9999999999\r\nget\r\n",
            "*3\r\n$3\r\nget\r\n:1\r\n:1\r\n",
            "*99999999999999999999\r\n",
            "*-1\r\n*-1\r\n",
        ] {
            assert_eq!(shown(&reply(entry, "*-1\r\n")), None, "{entry:?}");
        }
        for other in ["-NOPERM no\r\n", "*1\r\n*-1\r\n", "*0\r\n", ""] {
            assert_eq!(shown(other), None, "{other:?}");
        }
    }
}
