//! The parser against headers of haproxy, against the specification, and against a second
//! implementation of version 1.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use proptest::prelude::*;

use super::crc32c::crc32c;
use super::parse::{MAX_HEADER, ProxyHeader, parse};
use crate::rejection::Rejection;

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// A header of version 2 with this command, family and content.
fn v2(command: u8, family: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap().to_be_bytes();
    [SIGNATURE, &[command, family], &length, content].concat()
}

fn field(kind: u8, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).unwrap().to_be_bytes();
    [&[kind], &length[..], value].concat()
}

/// The addresses of family and protocol TCP over IPv4: from 192.0.2.1:4660.
const V4: &[u8] = &[192, 0, 2, 1, 192, 0, 2, 2, 0x12, 0x34, 0x18, 0xeb];

fn corpus(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/proxy_header");
    std::fs::read(folder.join(name)).unwrap()
}

fn client(text: &str) -> Option<SocketAddr> {
    Some(text.parse().unwrap())
}

/// What every parse must hold: in whichever pieces the bytes arrive, the result is the same, and
/// what follows a header does not matter.
fn check(bytes: &[u8]) -> Result<Option<ProxyHeader>, Rejection> {
    let whole = parse(bytes);
    let mut earlier = Ok(None);
    for end in 0..=bytes.len() {
        let now = parse(&bytes[..end]);
        if earlier != Ok(None) {
            assert_eq!(now, earlier, "changed with byte {end} of {bytes:?}");
        }
        earlier = now;
    }
    assert_eq!(whole, earlier);
    if let Ok(Some(header)) = whole {
        assert!((15..=MAX_HEADER).contains(&header.length) && header.length <= bytes.len());
        assert_eq!(parse(&bytes[..header.length]), whole);
        assert_eq!(parse(&bytes[..header.length - 1]), Ok(None), "complete too early");
    }
    if whole == Ok(None) {
        assert!(bytes.len() < MAX_HEADER, "never complete");
    }
    whole
}

#[test]
fn parses_headers_that_haproxy_sent() {
    for (name, expected, length) in [
        ("haproxy-v1-tcp4", client("127.0.0.1:32930"), 44),
        ("haproxy-v1-tcp6", client("[::1]:46238"), 32),
        ("haproxy-v1-unknown", None, 15),
        ("haproxy-v2-tcp4", client("127.0.0.1:45068"), 28),
        ("haproxy-v2-tcp6", client("[::1]:53276"), 52),
        ("haproxy-v2-unix", None, 16),
        ("haproxy-v2check-unix-alone", None, 16),
        ("haproxy-v2crc-tcp4", client("127.0.0.1:50546"), 35),
        ("haproxy-v2crc-unix", None, 23),
        ("haproxy-v2opts-tcp6", client("[::1]:49266"), 98),
    ] {
        let bytes = corpus(name);
        assert_eq!(check(&bytes), Ok(Some(ProxyHeader { client: expected, length })), "{name}");
        assert!(name.ends_with("-alone") || bytes[length..] == *b"PING\r\n", "{name}");
    }
}

#[test]
fn notices_every_changed_bit_by_checksum() {
    for name in ["haproxy-v2crc-tcp4", "haproxy-v2opts-tcp4"] {
        let bytes = corpus(name);
        let length = parse(&bytes).unwrap().unwrap().length;
        for bit in 0..length * 8 {
            let mut changed = bytes[..length].to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            let parsed = parse(&changed);
            // A changed length makes the header incomplete. A changed type of the field removes the
            // checksum, and a changed command ignores the addresses.
            let is_excused = bit / 8 == 12 || bit / 8 == 28;
            assert!(!matches!(parsed, Ok(Some(_))) || is_excused, "{name} {bit}: {parsed:?}");
        }
    }
}

#[test]
fn rejects_what_version_1_does_not_permit() {
    let line = |line: &str| check(format!("{line}\r\nPING\r\n").as_bytes());
    for (text, expected) in [
        ("PROXY TCP4 192.0.2.1 192.0.2.2 0 65535", client("192.0.2.1:0")),
        ("PROXY TCP6 2001:db8::1 ::1 65535 0", client("[2001:db8::1]:65535")),
        ("PROXY UNKNOWN", None),
        ("PROXY UNKNOWN 1 2 3 whatever", None),
    ] {
        let header = ProxyHeader { client: expected, length: text.len() + 2 };
        assert_eq!(line(text), Ok(Some(header)), "{text}");
    }
    for text in [
        "PROXY ",
        "PROXY TCP4",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1 2 3",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1 2 ",
        "PROXY TCP4  1.1.1.1 2.2.2.2 1 2",
        "PROXY  TCP4 1.1.1.1 2.2.2.2 1 2",
        "PROXY TCP4\t1.1.1.1 2.2.2.2 1 2",
        "PROXY TCP4 1.1.1 2.2.2.2 1 2",
        "PROXY TCP4 01.1.1.1 2.2.2.2 1 2",
        "PROXY TCP4 1.1.1.1 2.2.2.2 01 2",
        "PROXY TCP4 1.1.1.1 2.2.2.2 +1 2",
        "PROXY TCP4 1.1.1.1 2.2.2.2 65536 2",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1 -2",
        "PROXY TCP4 ::1 ::1 1 2",
        "PROXY TCP6 1.1.1.1 2.2.2.2 1 2",
        "PROXY TCP6 fe80::1%1 ::1 1 2",
        "PROXY tcp4 1.1.1.1 2.2.2.2 1 2",
        "PROXY UDP4 1.1.1.1 2.2.2.2 1 2",
        "PROXY UNKNOWNX",
        "PROXY TCP4 1.1.1.1 2.2.2.2 1 2\n",
        "PROXY UNKNOWN \u{e9}",
        "PROXY UNKNOWN \0",
    ] {
        assert_eq!(line(text), Err(Rejection::HeaderMalformed), "{text:?}");
    }
    for missing in ["PING", "proxy TCP4 1.1.1.1 2.2.2.2 1 2", "PROXYTCP4", "*1", " PROXY UNKNOWN"] {
        assert_eq!(line(missing), Err(Rejection::HeaderMissing), "{missing:?}");
    }
    assert_eq!(check(b"PROXY UNKNOWN\n"), Err(Rejection::HeaderMalformed));
    assert_eq!(check(b"PROXY UNKNOWN\rX"), Err(Rejection::HeaderMalformed));
    let longest = format!("PROXY UNKNOWN {}", "x".repeat(91));
    assert_eq!(line(&longest).map(|header| header.unwrap().length), Ok(107));
    assert_eq!(line(&format!("{longest}x")), Err(Rejection::HeaderTooLong));
    assert_eq!(
        check(&[b"PROXY ".as_slice(), &[b'x'; 101]].concat()),
        Err(Rejection::HeaderTooLong)
    );
}

#[test]
fn rejects_what_version_2_does_not_permit() {
    let length = 16 + V4.len();
    let header = |client| Ok(Some(ProxyHeader { client, length }));
    assert_eq!(check(&v2(0x21, 0x11, V4)), header(client("192.0.2.1:4660")));
    // The connection is the load balancer's own: whatever it says of addresses is ignored.
    assert_eq!(check(&v2(0x20, 0x11, V4)), header(None));
    assert_eq!(check(&v2(0x20, 0x77, V4)), header(None));
    assert_eq!(check(&v2(0x21, 0x00, V4)), header(None));
    let unix = [[b'x'; 216].as_slice(), &field(4, b"padding")].concat();
    assert_eq!(check(&v2(0x21, 0x31, &unix)).unwrap().unwrap().client, None);
    for (command, family, content) in [
        // Other versions, commands, families and protocols; datagrams do not come over a stream.
        (0x11, 0x11, V4),
        (0x31, 0x11, V4),
        (0x22, 0x11, V4),
        (0x2f, 0x11, V4),
        (0x21, 0x12, V4),
        (0x21, 0x10, V4),
        (0x21, 0x13, V4),
        (0x21, 0x41, V4),
        // Too short for its addresses.
        (0x21, 0x11, &V4[..11]),
        (0x21, 0x21, V4),
        (0x21, 0x31, V4),
        (0x21, 0x11, b""),
    ] {
        let bytes = v2(command, family, content);
        assert_eq!(check(&bytes), Err(Rejection::HeaderMalformed), "{command:x} {family:x}");
    }
    for fields in [
        b"\x02".to_vec(),
        b"\x02\0".to_vec(),
        b"\x02\0\x05abcd".to_vec(),
        field(3, b"abc"),
        [field(3, b"abcd"), field(3, b"abcd")].concat(),
    ] {
        let bytes = v2(0x21, 0x11, &[V4, &fields].concat());
        assert_eq!(check(&bytes), Err(Rejection::HeaderMalformed), "{fields:?}");
    }
    assert_eq!(check(b"\r\n\r\nPING"), Err(Rejection::HeaderMissing));
    assert_eq!(check(b"\r\n\r\n\0\r\nQUIT\r"), Err(Rejection::HeaderMissing));
}

#[test]
fn bounds_length_of_header() {
    let padded = |total: usize| {
        let value = vec![b'x'; total - 16 - V4.len() - 3];
        v2(0x21, 0x11, &[V4, &field(0xea, &value)].concat())
    };
    assert_eq!(parse(&padded(MAX_HEADER)).map(|it| it.unwrap().length), Ok(MAX_HEADER));
    assert_eq!(parse(&padded(MAX_HEADER + 1)), Err(Rejection::HeaderTooLong));
    // Noticed by the announced length, before the bytes.
    let announced = [SIGNATURE, &[0x21, 0x11, 0xff, 0xff]].concat();
    assert_eq!(parse(&announced), Err(Rejection::HeaderTooLong));
}

#[test]
fn agrees_on_the_fuzz_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/proxy_header");
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().collect();
    assert!(files.len() >= 40, "{} files", files.len());
    for file in files {
        let _ = check(&std::fs::read(file.unwrap().path()).unwrap());
    }
}

/// An address of either family.
fn any_addr() -> impl Strategy<Value = SocketAddr> {
    let v4 = any::<(u32, u16)>().prop_map(|(ip, port)| (Ipv4Addr::from_bits(ip).into(), port));
    let v6 = any::<(u128, u16)>().prop_map(|(ip, port)| (Ipv6Addr::from_bits(ip).into(), port));
    prop_oneof![v4, v6].prop_map(|(ip, port): (IpAddr, u16)| SocketAddr::new(ip, port))
}

proptest! {
    #[test]
    fn parses_every_written_header(source in any_addr(), port: u16, data: [u8; 8], crc: bool) {
        let (family, bytes) = match source.ip() {
            IpAddr::V4(ip) => (0x11, ip.octets().to_vec()),
            IpAddr::V6(ip) => (0x21, ip.octets().to_vec()),
        };
        let ports = [source.port().to_be_bytes(), port.to_be_bytes()].concat();
        let mut fields = field(0x04, &data);
        if crc {
            fields.extend(field(0x03, &[0; 4]));
        }
        let mut header = v2(0x21, family, &[&bytes[..], &bytes, &ports, &fields].concat());
        if crc {
            let sum = crc32c(header.iter().copied()).to_be_bytes();
            let at = header.len() - 4;
            header[at..].copy_from_slice(&sum);
        }
        let expected = ProxyHeader { client: Some(source), length: header.len() };
        header.extend(data);
        prop_assert_eq!(check(&header), Ok(Some(expected)));
        let word = if source.is_ipv4() { "TCP4" } else { "TCP6" };
        let (ip, from) = (source.ip(), source.port());
        let mut line = format!("PROXY {word} {ip} {ip} {from} {port}\r\n").into_bytes();
        let expected = ProxyHeader { client: Some(source), length: line.len() };
        line.extend(data);
        prop_assert_eq!(check(&line), Ok(Some(expected)));
    }

    #[test]
    fn never_changes_its_mind(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        prefix in prop::sample::select(vec![&b""[..], b"PROXY ", b"PROXY TCP4 ", SIGNATURE]),
        command in prop::sample::select(vec![0x20_u8, 0x21]),
        family in prop::sample::select(vec![0x00_u8, 0x11, 0x21, 0x31]),
        framed: bool,
    ) {
        let _ = check(&[prefix, &bytes].concat());
        if framed {
            let _ = check(&v2(command, family, &bytes));
        }
    }
}
