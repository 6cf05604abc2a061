//! RESP as servers read and write it.

use sentinel::simulation::Reply;

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
pub(crate) fn put(out: &mut Vec<u8>, reply: &Reply) {
    let head = |out: &mut Vec<u8>, kind: u8, number: usize| {
        out.push(kind);
        out.extend_from_slice(number.to_string().as_bytes());
        out.extend_from_slice(b"\r\n");
    };
    match reply {
        Reply::Text(text) => {
            head(out, b'$', text.len());
            out.extend_from_slice(text);
            out.extend_from_slice(b"\r\n");
        }
        Reply::Number(number) => out.extend_from_slice(format!(":{number}\r\n").as_bytes()),
        Reply::Error(line) => out.extend_from_slice(format!("-{line}\r\n").as_bytes()),
        Reply::Null => out.extend_from_slice(b"*-1\r\n"),
        Reply::List(items) | Reply::Push(items) => {
            let kind = if matches!(reply, Reply::Push(_)) { b'>' } else { b'*' };
            head(out, kind, items.len());
            items.iter().for_each(|item| put(out, item));
        }
    }
}

/// Appends `+OK`.
pub(crate) fn put_ok(out: &mut Vec<u8>) {
    out.extend_from_slice(b"+OK\r\n");
}

/// Appends an error line.
pub(crate) fn put_error(out: &mut Vec<u8>, line: &str) {
    out.extend_from_slice(format!("-{line}\r\n").as_bytes());
}
