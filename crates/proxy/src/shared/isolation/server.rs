//! Requests of model clients, and what any model server answers.

/// A request.
#[derive(Debug, Clone)]
pub(super) struct Request {
    /// Its bytes.
    pub(super) bytes: Vec<u8>,
    /// The bytes of the reply; none if it is not answered.
    pub(super) reply: Vec<u8>,
    /// How it changes the state of a transaction.
    pub(super) transaction: Option<bool>,
}

/// Larger than any request that is shared.
const LARGE_REQUEST: usize = super::super::member_state::MAX_REQUEST + 1;

/// Larger than what a session may keep and stay shared.
const LARGE_REPLY: usize = 300 * 1024;

/// The request of that kind.
pub(super) fn request(kind: u8, client: usize, number: u32) -> Request {
    let token = format!("client{client}-request{number}").into_bytes();
    let words = match kind {
        0..=79 => vec![b"GET".to_vec(), token],
        80..=99 => vec![b"SET".to_vec(), token, vec![b'v'; usize::from(kind)]],
        100..=119 => vec![b"INCR".to_vec(), token],
        120..=139 => vec![b"TYPE".to_vec(), token],
        140..=149 => vec![b"LPUSH".to_vec(), token],
        150..=159 => vec![b"HGETALL".to_vec(), token],
        160..=169 => vec![b"LRANGE".to_vec(), token],
        170..=179 => vec![b"EVAL".to_vec(), token],
        180..=189 => Vec::new(),
        190..=209 => vec![b"SELECT".to_vec(), b"1".to_vec()],
        210..=229 => vec![b"MULTI".to_vec()],
        230..=249 => vec![b"EXEC".to_vec()],
        250..=253 => vec![b"SET".to_vec(), token, vec![b'v'; LARGE_REQUEST]],
        _ => vec![b"DUMP".to_vec(), token],
    };
    let transaction = match words.first().map(Vec::as_slice) {
        Some(b"MULTI") => Some(true),
        Some(b"EXEC") => Some(false),
        _ => None,
    };
    Request { bytes: encode(&words), reply: reply(&words), transaction }
}

/// What any server answers.
pub(super) fn reply(words: &[Vec<u8>]) -> Vec<u8> {
    let Some((name, rest)) = words.split_first() else { return Vec::new() };
    let text = rest.first().map(|token| String::from_utf8_lossy(token)).unwrap_or_default();
    let len = text.len();
    match name.as_slice() {
        b"GET" => format!("${len}\r\n{text}\r\n").into_bytes(),
        b"INCR" => format!(":{len}\r\n").into_bytes(),
        b"TYPE" => format!("+{text}\r\n").into_bytes(),
        b"LPUSH" => format!("-ERR wrong {text}\r\n").into_bytes(),
        b"HGETALL" => format!("%1\r\n$1\r\nk\r\n+{text}\r\n").into_bytes(),
        b"LRANGE" => format!("*2\r\n+{text}\r\n$300\r\n{}\r\n", "x".repeat(300)).into_bytes(),
        b"DUMP" => {
            let filler = "x".repeat(LARGE_REPLY - len);
            format!("${LARGE_REPLY}\r\n{text}{filler}\r\n").into_bytes()
        }
        b"EVAL" => b"+QUEUED\r\n".to_vec(),
        b"EXEC" => b"*0\r\n".to_vec(),
        _ => b"+OK\r\n".to_vec(),
    }
}

/// Whether a shared connection may carry it.
pub(super) fn may_be_shared(words: &[Vec<u8>]) -> bool {
    let name = words.first().map(Vec::as_slice).unwrap_or_default();
    !matches!(name, b"SELECT" | b"MULTI" | b"EXEC" | b"")
        && words.iter().all(|word| word.len() < LARGE_REQUEST)
}

/// Words as a client sends them.
pub(super) fn encode(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// The words of the request at the beginning of `bytes`, and its length. `None` if it is
/// incomplete.
pub(super) fn parse(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let mut at = 0;
    let mut words = Vec::new();
    for _ in 0..number(bytes, &mut at)? {
        let len = number(bytes, &mut at)?;
        words.push(bytes.get(at..at + len)?.to_vec());
        bytes.get(..at + len + 2)?;
        at += len + 2;
    }
    Some((words, at))
}

/// The number in a header such as `*2`.
fn number(bytes: &[u8], at: &mut usize) -> Option<usize> {
    let rest = bytes.get(*at + 1..)?;
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    *at += 1 + end + 1;
    std::str::from_utf8(rest.get(..end.checked_sub(1)?)?).ok()?.parse().ok()
}
