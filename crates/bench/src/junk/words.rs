//! What strangers say: bytes that no client of a port sends, or that it sends only halfway.

use std::iter;
use std::net::IpAddr;
use std::sync::Arc;

use fastrand::Rng;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

/// What is spoken at a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Clients of Redis.
    Clients,
    /// The same, with TLS.
    Tls,
    /// After a header of the PROXY protocol.
    Proxied,
    /// Clients of Sentinel.
    Sentinels,
    /// HTTP.
    Admin,
}

/// What a stranger says at a port: pieces, between which it waits for an answer for a moment. Every
/// second one knows what is spoken there.
pub(super) fn pieces(kind: Kind, random: &mut Rng) -> Vec<Vec<u8>> {
    let knows = random.bool();
    match kind {
        Kind::Tls if knows => tls(random),
        Kind::Proxied if knows => vec![header(random)],
        Kind::Sentinels if knows => vec![question(random)],
        _ => vec![anything(random)],
    }
}

/// What is wrong at every port, or at all but one.
fn anything(random: &mut Rng) -> Vec<u8> {
    match random.u8(..16) {
        0 => bytes(1..65_536, random),
        // A hello of TLS: whole by its length, cut, and one that promises more than there is.
        1 => random_hello(200, 200, random),
        2 => random_hello(512, 40, random),
        3 => random_hello(16_000, 5, random),
        4 => b"*1000000000\r\n".to_vec(),
        5 => b"*2\r\n$3\r\nGET\r\n$99999999999\r\n".to_vec(),
        6 => b"*-7\r\n$-5\r\n:1\r\n".to_vec(),
        7 => b"*1\r\n".repeat(4000),
        8 => vec![b'a'; 70_000],
        9 => b"\r\n".repeat(random.usize(1..4000)),
        10 => [b"GET / HTTP/1.1\r\nHost: x\r\nX-A: ".to_vec(), vec![b'a'; 100_000]].concat(),
        11 => b"GET / HTTP/1.1\r\nX".to_vec(),
        12 => b"POST /control/kill HTTP/1.1\r\nContent-Length: -1\r\n\r\n".to_vec(),
        13 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        14 => b"PROXY TCP4 1.2.3.4 5.6.7.8 1 ".to_vec(),
        _ => b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff".to_vec(),
    }
}

fn tls(random: &mut Rng) -> Vec<Vec<u8>> {
    let newest = random.bool();
    let hello = client_hello(newest);
    match random.u8(..8) {
        // The server signs and sends its part, and nothing follows.
        0 | 1 => vec![hello],
        2 => vec![hello.get(..hello.len() / 2).unwrap_or_default().to_vec()],
        // Each byte in a record of its own.
        3 => {
            let message = hello.get(5..).unwrap_or_default();
            vec![message.iter().flat_map(|byte| record(22, &[*byte])).collect()]
        }
        // Begin again, in the middle of the handshake.
        4 => vec![hello, client_hello(newest)],
        // Application data and alerts that nobody can decrypt.
        5 => vec![hello, record(23, &bytes(1..4000, random))],
        6 => vec![hello, record(21, &[2, 40]), record(20, &[1])],
        // A record longer than any, and a type that there is not.
        _ => vec![hello, vec![23, 3, 3, 0xff, 0xff], record(99, &[0; 40])],
    }
}

fn header(random: &mut Rng) -> Vec<u8> {
    const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
    let second = |rest: &[u8]| [SIGNATURE, rest].concat();
    match random.u8(..12) {
        0 => b"PROXY TCP4 1.2.3.4 5.6.7.8 1 ".to_vec(),
        1 => b"PROXY TCP4 1.2.3.4 5.6.7.8 1 99999\r\n".to_vec(),
        2 => b"PROXY TCP6 1.2.3.4 ::1 1 2\r\nPING\r\n".to_vec(),
        3 => [b"PROXY TCP4 ".to_vec(), vec![b'1'; 200]].concat(),
        4 => b"PROXY UNKNOWN\r\n*1\r\n$-1\r\n".to_vec(),
        5 => b"PROXY".to_vec(),
        6 => second(&[0x21, 0x11, 0, 12, 1, 2]),
        7 => second(&[0x21, 0x11, 0xff, 0xff]),
        8 => second(&[0x31, 0x11, 0, 12]),
        9 => second(&[0x21, 0x11, 0, 3, 1, 2, 3]),
        10 => SIGNATURE.get(..random.usize(1..12)).unwrap_or_default().to_vec(),
        // A sound header, and junk after it.
        _ => {
            let whole = second(&[0x21, 0x11, 0, 12, 9, 9, 9, 9, 8, 8, 8, 8, 0, 1, 0, 2]);
            [whole, anything(random)].concat()
        }
    }
}

fn question(random: &mut Rng) -> Vec<u8> {
    match random.u8(..8) {
        0 => b"SENTINEL\r\n".repeat(random.usize(1..500)),
        1 => b"*3\r\n$8\r\nSENTINEL\r\n$23\r\nget-master-addr-by-name\r\n$500000000\r\n".to_vec(),
        2 => b"PSUBSCRIBE *\r\n".repeat(random.usize(1..200)),
        3 => b"SENTINEL MASTER nobody\r\n".repeat(random.usize(1..200)),
        4 => b"SUBSCRIBE a\r\nSENTINEL MASTERS\r\nMULTI\r\n".to_vec(),
        5 => b"*2\r\n$8\r\nSENTI".to_vec(),
        6 => b"HELLO 99\r\nAUTH x y\r\n".repeat(random.usize(1..100)),
        _ => b"*1048577\r\n$1\r\n".to_vec(),
    }
}

fn bytes(length: std::ops::Range<usize>, random: &mut Rng) -> Vec<u8> {
    let length = random.usize(length);
    iter::repeat_with(|| random.u8(..)).take(length).collect()
}

/// A record of a TLS hello that says it has `length` bytes, and has `sent` of them.
fn random_hello(length: u16, sent: usize, random: &mut Rng) -> Vec<u8> {
    let [high, low] = length.to_be_bytes();
    let [inner_high, inner_low] = length.saturating_sub(4).to_be_bytes();
    let mut hello = vec![22, 3, 1, high, low, 1, 0, inner_high, inner_low, 3, 3];
    hello.extend(iter::repeat_with(|| random.u8(..)).take(sent));
    hello
}

/// A hello that a server answers: of TLS 1.3, or 1.2 only. Unlike all other junk it differs in
/// every run.
pub(super) fn client_hello(newest: bool) -> Vec<u8> {
    let version = if newest { &rustls::version::TLS13 } else { &rustls::version::TLS12 };
    let config = ClientConfig::builder_with_protocol_versions(&[version])
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::from(IpAddr::from([127, 0, 0, 1]));
    let mut hello = Vec::new();
    if let Ok(mut client) = ClientConnection::new(Arc::new(config), name) {
        // A list of bytes takes all of them.
        let _written = client.write_tls(&mut hello);
    }
    hello
}

fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    [&[kind, 3, 3], &*sized(content)].concat()
}

/// Bytes after their length.
fn sized(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    [&length.to_be_bytes(), bytes].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 5] =
        [Kind::Clients, Kind::Tls, Kind::Proxied, Kind::Sentinels, Kind::Admin];

    #[test]
    fn repeats_junk_of_a_seed_and_varies_it() {
        for kind in KINDS {
            let all = |seed| {
                let mut random = Rng::with_seed(seed);
                (0..200).map(|_| pieces(kind, &mut random)).collect::<Vec<_>>()
            };
            let lengths = |all: Vec<Vec<Vec<u8>>>| -> Vec<usize> {
                all.iter().flatten().map(Vec::len).collect()
            };
            match kind {
                // A whole hello has random numbers of the library.
                Kind::Tls => assert_eq!(lengths(all(1)), lengths(all(1))),
                _ => assert_eq!(all(1), all(1)),
            }
            let mut found: Vec<_> = all(1).into_iter().flatten().map(|it| it.len()).collect();
            found.sort_unstable();
            found.dedup();
            assert!(found.len() > 12, "{kind:?}: {found:?}");
            assert_ne!(all(1), all(2));
        }
    }

    #[test]
    fn promises_more_of_a_hello_than_it_sends() {
        let hello = random_hello(512, 40, &mut Rng::with_seed(1));
        assert_eq!((hello.len(), &hello[..5]), (51, [22, 3, 1, 2, 0].as_slice()));
    }
}
