//! RESP as a fake server writes and reads it: by hand, so that it shares no code with what it
//! tests.

/// A bulk string.
pub(crate) fn bulk(text: &str) -> Vec<u8> {
    format!("${}\r\n{text}\r\n", text.len()).into_bytes()
}

/// An array of values.
pub(crate) fn array(items: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let items: Vec<Vec<u8>> = items.into_iter().collect();
    let mut out = format!("*{}\r\n", items.len()).into_bytes();
    out.extend(items.concat());
    out
}

/// The entry of a command in `COMMAND INFO`, as Redis 7 writes it.
pub(crate) fn command_entry(name: &str, flags: &[&str], subcommands: Vec<Vec<u8>>) -> Vec<u8> {
    let number = |number: i64| format!(":{number}\r\n").into_bytes();
    let keys = if subcommands.is_empty() { 1 } else { 0 };
    array([
        bulk(name),
        number(-2),
        words(flags),
        number(keys),
        number(keys),
        number(keys),
        words(&["@read"]),
        words(&[]),
        array((0..keys).map(|_| words(&["flags", "RO"]))),
        array(subcommands),
    ])
}

/// An array of bulk strings.
pub(crate) fn words(items: &[&str]) -> Vec<u8> {
    array(items.iter().map(|item| bulk(item)))
}

/// Keys and values: a map in RESP3, a flat array in RESP2.
pub(crate) fn fields(resp3: bool, pairs: &[(&str, String)]) -> Vec<u8> {
    let mut out =
        if resp3 { format!("%{}\r\n", pairs.len()) } else { format!("*{}\r\n", 2 * pairs.len()) }
            .into_bytes();
    for (key, value) in pairs {
        out.extend(bulk(key));
        out.extend(bulk(value));
    }
    out
}

/// A null in the given protocol version.
pub(crate) fn nothing(resp3: bool) -> Vec<u8> {
    if resp3 { b"_\r\n".to_vec() } else { b"*-1\r\n".to_vec() }
}

/// A message or confirmation of Pub/Sub.
pub(crate) fn push(resp3: bool, items: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut out = array(items);
    if resp3 && let Some(kind) = out.first_mut() {
        *kind = b'>';
    }
    out
}

/// Takes one command, an array of bulk strings, off the front of `input`, if it is all there.
pub(crate) fn take_command(input: &mut Vec<u8>) -> Option<Vec<String>> {
    let mut at = 0;
    let mut header = |kind: u8| -> Option<usize> {
        let rest = input.get(at..)?;
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        assert_eq!(rest.first(), Some(&kind), "a command is an array of bulk strings");
        let number = std::str::from_utf8(rest.get(1..end)?).ok()?.parse().ok()?;
        at += end + 2;
        if kind == b'$' {
            at += number + 2;
        }
        Some(number)
    };
    let count = header(b'*')?;
    let mut found = Vec::new();
    let mut lengths = Vec::new();
    for _ in 0..count {
        lengths.push(header(b'$')?);
    }
    let mut scan = input.iter().position(|byte| *byte == b'\n')? + 1;
    if at > input.len() {
        return None;
    }
    for length in lengths {
        scan += input.get(scan..)?.iter().position(|byte| *byte == b'\n')? + 1;
        found.push(String::from_utf8_lossy(input.get(scan..scan + length)?).into_owned());
        scan += length + 2;
    }
    input.drain(..at);
    Some(found)
}
