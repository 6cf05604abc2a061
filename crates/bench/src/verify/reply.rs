//! Replies as bytes: where each ends, and what of it is compared.
//!
//! Independent of the product and of the harness's parser: a reply is compared as it was sent.

use super::exceptions::Treatment;

/// The end of a connection in a list of replies.
pub(super) const CLOSED: &[u8] = b"<closed>";

const PROTOCOL_ERROR: &[u8] = b"-ERR Protocol error";

/// The fields of `CLIENT INFO` that do not depend on the connection or the time.
/// The library's name is the last one.
const FIELDS: [&str; 11] =
    ["name", "flags", "db", "sub", "psub", "ssub", "multi", "user", "redir", "resp", "lib-name"];

/// First elements of messages that no request asked for.
const UNASKED: [&[u8]; 5] =
    [b"message", b"pmessage", b"smessage", b"invalidate", b"tracking-redir-broken"];

/// The length of the first reply, if it is complete.
pub(super) fn frame(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut left) = (0, 1_usize);
    while left > 0 {
        let rest = bytes.get(at..)?;
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        let (kind, number) = rest.get(..end)?.split_first()?;
        let count = std::str::from_utf8(number).ok().and_then(|it| it.parse().ok()).unwrap_or(0);
        at += end + 2;
        left -= 1;
        match kind {
            b'*' | b'~' | b'>' => left += count,
            b'%' => left += 2 * count,
            b'|' => left += 2 * count + 1,
            b'$' | b'=' | b'!' if number != b"-1" => at += count + 2,
            _ => {}
        }
    }
    (at <= bytes.len()).then_some(at)
}

/// Whether a frame is a notification of Pointsman about maintenance.
pub(super) fn is_maintenance(frame: &[u8]) -> bool {
    let name = frame.split(|byte| *byte == b'\n').nth(2).unwrap_or_default();
    let names: [&[u8]; 3] = [b"MOVING\r", b"FAILING_OVER\r", b"FAILED_OVER\r"];
    frame.first() == Some(&b'>') && names.contains(&name)
}

/// What Pointsman replies where the server replies `direct`, if that differs.
pub(super) fn agreed(direct: &[u8], treatment: Treatment, agrees: bool) -> Vec<u8> {
    let text = direct.to_ascii_lowercase();
    let is_unknown = text.starts_with(b"-err unknown subcommand");
    if treatment == Treatment::Agreed && agrees && is_unknown {
        return b"+OK\r\n".to_vec();
    }
    direct.to_vec()
}

/// Whether a frame is a message that no request asked for.
pub(super) fn is_unasked(frame: &[u8]) -> bool {
    let is_aggregate = matches!(frame.first(), Some(b'*' | b'>'));
    let mut words = frame.split(|byte| *byte == b'\n').skip(2);
    let first = words.next().map(|word| word.strip_suffix(b"\r").unwrap_or(word));
    is_aggregate && first.is_some_and(|word| UNASKED.contains(&word))
}

/// What is compared of a reply.
pub(super) fn compared(frame: &[u8], treatment: Treatment) -> Vec<u8> {
    let is_protocol_error = frame.starts_with(PROTOCOL_ERROR);
    if treatment == Treatment::ProtocolError && is_protocol_error {
        return PROTOCOL_ERROR.to_vec();
    }
    if is_unasked(frame) {
        return without_id(frame);
    }
    if frame == CLOSED || matches!(frame.first(), Some(b'-')) {
        return frame.to_vec();
    }
    match treatment {
        Treatment::Exact | Treatment::LeftOut | Treatment::ProtocolError | Treatment::Agreed => {
            frame.to_vec()
        }
        Treatment::Kind => frame.get(..1).unwrap_or_default().to_vec(),
        Treatment::HelloId => without_id(frame),
        Treatment::ClientFields => fields(frame, &FIELDS),
        Treatment::SharedFields => fields(frame, FIELDS.split_last().map_or(&[], |(_, it)| it)),
        Treatment::Unordered => {
            let mut lines: Vec<&[u8]> = frame.split(|byte| *byte == b'\n').collect();
            lines.sort_unstable();
            lines.join(&b'\n')
        }
    }
}

/// A reply without the number of the connection, or of the one to which invalidations go.
fn without_id(frame: &[u8]) -> Vec<u8> {
    const IDS: [&[u8]; 3] =
        [b"$2\r\nid\r\n:", b"$8\r\nredirect\r\n:", b"$21\r\ntracking-redir-broken\r\n:"];
    let end = |id: &[u8]| Some(frame.windows(id.len()).position(|part| part == id)? + id.len());
    let Some(at) = IDS.into_iter().find_map(end) else { return frame.to_vec() };
    let (before, after) = frame.split_at(at);
    let digits = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
    [before, after.get(digits..).unwrap_or_default()].concat()
}

fn fields(frame: &[u8], names: &[&str]) -> Vec<u8> {
    let text = String::from_utf8_lossy(frame);
    let is_compared =
        |word: &&str| word.split_once('=').is_some_and(|(name, _)| names.contains(&name));
    let one = |word: &str| match word.strip_prefix("redir=") {
        Some(id) if id != "-1" && id != "0" => "redir=N".to_owned(),
        // Valkey 9.1 after a transaction.
        _ if word == "multi=0" => "multi=-1".to_owned(),
        _ => word.to_owned(),
    };
    let words = text.split_whitespace().filter(is_compared).map(one);
    words.collect::<Vec<_>>().join(" ").into_bytes()
}

/// A reply for people: one line, shortened in the middle.
pub(super) fn readable(frame: &[u8]) -> String {
    const ENDS: usize = 200;
    let text = |part: &[u8]| part.escape_ascii().to_string();
    if frame.len() <= 2 * ENDS {
        return text(frame);
    }
    let (first, last) = (frame.get(..ENDS), frame.get(frame.len() - ENDS..));
    let length = frame.len();
    let (first, last) = (text(first.unwrap_or_default()), text(last.unwrap_or_default()));
    format!("{first} … {last} ({length} bytes)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_end_of_every_type() {
        let whole: [&[u8]; 9] = [
            b"+OK\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"$5\r\na\r\nbc\r\n",
            b"*2\r\n:1\r\n%1\r\n+a\r\n~1\r\n,1.5\r\n",
            b"|1\r\n+ttl\r\n:3\r\n*1\r\n$0\r\n\r\n",
            b">2\r\n+a\r\n_\r\n",
            b"=7\r\ntxt:abc\r\n",
            b"*0\r\n",
        ];
        for bytes in whole {
            let longer = [bytes, b"+next\r\n"].concat();
            assert_eq!(frame(&longer), Some(bytes.len()), "{}", bytes.escape_ascii());
            for end in 0..bytes.len() {
                assert_eq!(frame(&bytes[..end]), None, "{end} of {}", bytes.escape_ascii());
            }
        }
        let deep = [b"*1\r\n".repeat(100_000), b":1\r\n".to_vec()].concat();
        assert_eq!(frame(&deep), Some(deep.len()));
    }

    #[test]
    fn tells_messages_from_replies() {
        assert!(is_unasked(b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nb\r\n"));
        assert!(is_unasked(b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n"));
        assert!(!is_unasked(b">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n"));
        assert!(!is_unasked(b"$7\r\nmessage\r\n"));
    }

    #[test]
    fn expects_agreement_in_resp3_only() {
        let unknown = b"-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n";
        let reply = |direct: &[u8], is_resp3| agreed(direct, Treatment::Agreed, is_resp3);
        assert_eq!(reply(unknown, true), b"+OK\r\n");
        assert_eq!(reply(unknown, false), unknown);
        assert_eq!(reply(b"-NOPERM no\r\n", true), b"-NOPERM no\r\n");
        assert_eq!(agreed(unknown, Treatment::Exact, true), unknown);
        assert!(is_maintenance(b">3\r\n$11\r\nFAILED_OVER\r\n:1\r\n$2\r\n[]\r\n"));
        assert!(!is_maintenance(b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n"));
    }

    #[test]
    fn compares_only_what_has_to_be_equal() {
        let same = |one: &[u8], other: &[u8], treatment| {
            compared(one, treatment) == compared(other, treatment)
        };
        let (one, other) = (b"*2\r\n$2\r\nid\r\n:5\r\n", b"*2\r\n$2\r\nid\r\n:77\r\n");
        assert!(same(one, other, Treatment::HelloId) && !same(one, other, Treatment::Exact));
        assert!(same(b":1\r\n", b":2\r\n", Treatment::Kind));
        assert!(!same(b":1\r\n", b"-ERR\r\n", Treatment::Kind));
        assert!(!same(b"-A\r\n", b"-B\r\n", Treatment::Kind), "errors are always compared");
        let info = |id, name| format!("$30\r\nid={id} addr=a:{id} name={name} db=0\r\n");
        let same_info = |one: String, other: String| {
            same(one.as_bytes(), other.as_bytes(), Treatment::ClientFields)
        };
        assert!(same_info(info(1, "a"), info(2, "a")) && !same_info(info(1, "a"), info(1, "b")));
        let (one, other) = (b"*2\r\n+a\r\n+b\r\n", b"*2\r\n+b\r\n+a\r\n");
        assert!(same(one, other, Treatment::Unordered) && !same(one, other, Treatment::Exact));
    }
}
