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
    let mut rest = reply;
    let entries = elements(value(&mut rest)?)?;
    if entries.len() != NAMES.len() || !rest.is_empty() {
        return None;
    }
    entries.into_iter().map(entry).collect()
}

/// One entry, or a null for a name that the server does not know.
fn entry(entry: &[u8]) -> Option<Option<CommandInfo>> {
    if matches!(entry, b"*-1\r\n" | b"*0\r\n" | b"$-1\r\n" | b"_\r\n") {
        return Some(None);
    }
    let fields = elements(entry)?;
    let name = text(fields.first()?)?.to_owned();
    let mut command = CommandInfo { name, ..CommandInfo::default() };
    for words in [2, 6].into_iter().filter_map(|at| fields.get(at)) {
        for word in elements(words)? {
            command.flags.push(text(word)?.to_owned());
        }
    }
    Some(Some(command))
}

/// The next value, with everything in it.
fn value<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = Frames::new(Limits::default()).end(input).ok()??;
    let (value, rest) = input.split_at_checked(end)?;
    *input = rest;
    Some(value)
}

/// The elements of an array or a set.
fn elements(all_of_it: &[u8]) -> Option<Vec<&[u8]>> {
    let (b'*' | b'~', _) = all_of_it.split_first()? else { return None };
    let end = all_of_it.windows(2).position(|pair| pair == b"\r\n")?;
    let mut rest = all_of_it.get(end + 2..)?;
    let mut all = Vec::new();
    while !rest.is_empty() {
        all.push(value(&mut rest)?);
    }
    Some(all)
}

/// A status or a string.
fn text(value: &[u8]) -> Option<&str> {
    let value = std::str::from_utf8(value).ok()?.strip_suffix("\r\n")?;
    match value.strip_prefix('+') {
        None => value.strip_prefix('$')?.split_once("\r\n").map(|(_, text)| text),
        status => status,
    }
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
