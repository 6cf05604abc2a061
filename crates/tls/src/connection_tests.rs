//! Two ends that are connected by buffers.

use crate::record_rig::{self, RigSettings};
use crate::testing::Authority;
use crate::{
    ClientSettings, ClientSide, ClientTls, MAX_RECORD, MAX_WAITING, Protocols, RECORD_OVERHEAD,
    Roots, ServerSettings, ServerSide, ServerTls, TlsConnection, TlsSide, Version,
};

fn settings(version: Version) -> (ServerTls, ClientTls) {
    let authority = Authority::new("ca");
    let protocols = Protocols { min: version, max: version, ..Protocols::default() };
    let server = ServerTls::new(&ServerSettings {
        certificates: vec![authority.issue(&["redis.example"])],
        ..ServerSettings::default()
    })
    .unwrap();
    let client = ClientTls::new(&ClientSettings {
        roots: Roots::Own(authority.file()),
        protocols,
        ..ClientSettings::default()
    })
    .unwrap();
    (server, client)
}

fn ends(sides: &(ServerTls, ClientTls)) -> (TlsConnection<ServerSide>, TlsConnection<ClientSide>) {
    let (server, client) = sides;
    let (config, name) = client.connect("redis.example").unwrap();
    (TlsConnection::accept(server.config()).unwrap(), TlsConnection::connect(config, name).unwrap())
}

/// Delivers `bytes` in pieces of `size`, and returns the plaintext.
fn deliver<S: TlsSide>(to: &mut TlsConnection<S>, bytes: &[u8], size: usize) -> Vec<u8> {
    let mut plaintext = Vec::new();
    for piece in bytes.chunks(size) {
        let mut incoming = [to.waiting(), piece].concat();
        to.process(&mut incoming, |it| plaintext.extend_from_slice(it)).unwrap();
    }
    plaintext
}

/// Completes the handshake, with messages in pieces of `size`.
fn shake<A: TlsSide, B: TlsSide>(
    one: &mut TlsConnection<A>,
    other: &mut TlsConnection<B>,
    size: usize,
) {
    one.process(&mut [], |_| {}).unwrap();
    loop {
        let sent = std::mem::take(one.outgoing());
        deliver(other, &sent, size);
        let answer = std::mem::take(other.outgoing());
        deliver(one, &answer, size);
        if sent.is_empty() && answer.is_empty() {
            break;
        }
    }
    assert!(!one.is_handshaking() && !other.is_handshaking());
}

/// The records of `plaintext`.
fn encrypt<S: TlsSide>(from: &mut TlsConnection<S>, plaintext: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    for piece in plaintext.chunks(MAX_RECORD) {
        let mut record = vec![0; piece.len() + RECORD_OVERHEAD];
        let length = from.encrypt(piece, &mut record).unwrap();
        all.extend_from_slice(&record[..length]);
    }
    all
}

#[test]
fn transfers_bytes_in_pieces_of_any_size() {
    for version in Version::ALL {
        let settings = settings(version);
        for size in [1, 7, 1000, 20_000] {
            let (mut server, mut client) = ends(&settings);
            shake(&mut client, &mut server, size);
            assert_eq!((server.version(), client.version()), (Some(version), Some(version)));
            for length in [1, 16, MAX_RECORD, MAX_RECORD + 1, 100_000] {
                let bytes: Vec<u8> = (0..length).map(|it| (it % 251) as u8).collect();
                let there = encrypt(&mut client, &bytes);
                assert!(deliver(&mut server, &there, size) == bytes, "{version:?} {size} {length}");
                let back = encrypt(&mut server, &bytes);
                assert!(deliver(&mut client, &back, size) == bytes, "{version:?} {size} {length}");
            }
            assert!(server.waiting().is_empty() && client.waiting().is_empty());
        }
    }
}

#[test]
fn keeps_no_buffer_while_idle() {
    for version in Version::ALL {
        let (mut server, mut client) = ends(&settings(version));
        shake(&mut client, &mut server, 5);
        let request = encrypt(&mut client, b"PING\r\n");
        let (most, rest) = request.split_at(request.len() - 1);
        assert!(deliver(&mut server, most, usize::MAX).is_empty());
        assert_eq!(server.waiting(), most);
        assert_eq!(deliver(&mut server, rest, usize::MAX), b"PING\r\n");
        *server.outgoing() = Vec::new();
        assert_eq!(server.kept(), 0);
    }
}

#[test]
fn ends_each_direction_by_itself() {
    let (mut server, mut client) = ends(&settings(Version::Tls13));
    shake(&mut client, &mut server, usize::MAX);
    client.close().unwrap();
    let end = std::mem::take(client.outgoing());
    assert!(deliver(&mut server, &end, 3).is_empty() && server.peer_closed());
    // Once is enough, and the other direction is still open.
    client.close().unwrap();
    assert!(client.outgoing().is_empty() && !client.peer_closed());
    let reply = encrypt(&mut server, b"+PONG\r\n");
    assert_eq!(deliver(&mut client, &reply, usize::MAX), b"+PONG\r\n");
    server.close().unwrap();
    let end = std::mem::take(server.outgoing());
    assert!(deliver(&mut client, &end, usize::MAX).is_empty() && client.peer_closed());
    assert!(client.encrypt(b"x", &mut [0; 600]).is_err());
}

#[test]
fn alerts_a_peer_that_breaks_the_protocol() {
    let settings = settings(Version::Tls13);
    let (mut server, mut client) = ends(&settings);
    shake(&mut client, &mut server, usize::MAX);
    let mut record = encrypt(&mut client, b"PING\r\n");
    *record.last_mut().unwrap() ^= 1;
    assert!(server.process(&mut record, |_| panic!("forged")).is_err());
    assert!(!server.outgoing().is_empty());
    let mut alert = std::mem::take(server.outgoing());
    assert!(client.process(&mut alert, |_| {}).is_err());
    // What is no TLS at all.
    for junk in [b"PING\r\n".as_slice(), b"*1\r\n$4\r\nPING\r\n", &[0x16; 100], &[0; 600]] {
        let (mut server, _) = ends(&settings);
        assert!(server.process(&mut junk.to_vec(), |_| {}).is_err());
        assert!(server.waiting().is_empty());
    }
}

#[test]
fn bounds_what_waits_for_the_rest_of_a_message() {
    let (mut server, _) = ends(&settings(Version::Tls13));
    // A hello that announces the maximum length and never ends.
    let record = |payload: &[u8]| {
        let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
        [&[0x16, 3, 1], length.as_slice(), payload].concat()
    };
    let mut first = vec![1, 0, 0xff, 0xff];
    first.resize(MAX_RECORD, 0);
    let mut next = record(&first);
    let mut most = 0;
    let failed = (0..100).any(|_| {
        let mut incoming = [server.waiting(), &next].concat();
        next = record(&vec![0; MAX_RECORD]);
        let failed = server.process(&mut incoming, |_| {}).is_err();
        most = most.max(server.waiting().len());
        failed
    });
    assert!(failed && most <= MAX_WAITING, "{failed} {most}");
}

/// Every input of the corpus, and variations of it.
#[test]
fn delivers_only_what_was_sent_on_the_fuzz_corpus() {
    let authority = Authority::new("ca");
    let server = ServerTls::new(&ServerSettings {
        certificates: vec![authority.issue(&["redis.example"])],
        ..ServerSettings::default()
    })
    .unwrap();
    let client = |version| {
        let protocols = Protocols { min: version, max: version, ..Protocols::default() };
        let roots = Roots::Own(authority.file());
        let settings = ClientSettings { roots, protocols, ..ClientSettings::default() };
        ClientTls::new(&settings).unwrap().connect("redis.example").unwrap()
    };
    let [(old, name), (new, _)] = Version::ALL.map(client);
    let settings = RigSettings { server: server.config(), clients: [old, new], name };
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut random, mut seen) = (fastrand::Rng::with_seed(7), [0; 3]);
    for file in std::fs::read_dir(folder.join("../../fuzz/corpus/tls_records")).unwrap() {
        let input = std::fs::read(file.unwrap().path()).unwrap();
        for variation in 0..8 {
            let mut bytes = input.clone();
            for _ in 0..variation {
                if !bytes.is_empty() {
                    let at = random.usize(..bytes.len());
                    bytes[at] = random.u8(..);
                }
            }
            let run = record_rig::run(&bytes, &settings);
            seen[0] += usize::from(run.arrived > 0 && !run.changed);
            seen[1] += usize::from(run.arrived > 0 && run.refused);
            seen[2] += usize::from(run.arrived == 0 && run.refused);
        }
    }
    assert!(seen.iter().all(|count| *count > 5), "of no use: {seen:?}");
}
