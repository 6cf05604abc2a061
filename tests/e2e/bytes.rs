//! Byte for byte: through the proxy a client gets exactly what it gets from the server directly,
//! for every type of both protocol versions and however the bytes are split.

use std::io::{Read, Write};
use std::time::Duration;

use harness::{Client, Cluster, Pointsman, Value, encode};

use crate::{builder, metric, pointsman};

/// The longest wait for a reply.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that can return every type of the protocol.
fn cluster() -> Cluster {
    Cluster::builder().replicas(0).sentinels(1).start()
}

/// Requests of every kind that get the same replies each time.
fn conversation() -> Vec<u8> {
    // Redis before 6.2.6 writes a nested reply of a script beyond Lua's stack (CVE-2021-32626). 64
    // levels damage the heap of 6.2.5, and the next script ends it; 32 do not.
    let has_deep_replies = harness::server_release() >= (6, 2, 6);
    let nested = format!(
        "local t = 'deep'; for i = 1, {} do t = {{t, i}} end return t",
        if has_deep_replies { 64 } else { 16 }
    );
    let maps =
        "redis.setresp(3); return {map={a={double=1.5},b={set={x=true}},c={map={d={1,{2,{3}}}}}}}";
    let long = "x".repeat(300_000);
    let mut lines: Vec<Vec<&str>> = vec![
        vec!["FLUSHALL"],
        vec!["SET", "k", ""],
        vec!["GET", "k"],
        vec!["GET", "nosuch"],
        vec!["HSET", "h", "a", "1", "b", "2"],
        vec!["HGETALL", "h"],
        vec!["SADD", "s", "1", "2", "3"],
        vec!["SMEMBERS", "s"],
        vec!["ZADD", "z", "1.5", "one", "inf", "two"],
        vec!["ZRANGE", "z", "0", "-1", "WITHSCORES"],
        vec!["ZSCORE", "z", "one"],
        vec!["RPUSH", "l", "a\r\nb", "$5\r\n", "*1\r\n"],
        vec!["LRANGE", "l", "0", "-1"],
        vec!["SET", "long", &long],
        vec!["GET", "long"],
        vec!["INCR", "long"],
        vec!["NOSUCH", "command"],
        vec!["EVAL", &nested, "0"],
        vec!["EVAL", maps, "0"],
        vec!["CONFIG", "GET", "maxmemory*"],
        vec!["COMMAND", "INFO", "get", "nosuch"],
        vec!["MULTI"],
        vec!["SET", "k", "v"],
        vec!["LPUSH", "k", "wrong type"],
        vec!["EXEC"],
        vec!["MULTI"],
        vec!["NOSUCH"],
        vec!["EXEC"],
        vec!["MULTI"],
        vec!["DISCARD"],
        vec!["WATCH", "k"],
        vec!["UNWATCH"],
        vec!["BLPOP", "nosuch", "0.01"],
        vec!["ECHO", "after"],
    ];
    // Redis 6.2.5 ends by an assertion at a push to a RESP2 client; 6.2.14 answers with an error.
    let push = if harness::server_release() >= (6, 2, 14) { "push" } else { "set" };
    let types = [
        "string", "integer", "double", "null", "array", "set", "map", "attrib", push, "verbatim",
        "bignum",
    ];
    lines
        .extend(types.iter().chain(&["true", "false"]).map(|kind| vec!["DEBUG", "PROTOCOL", kind]));
    let mut bytes: Vec<u8> = lines.iter().flat_map(|line| encode(line)).collect();
    bytes.extend_from_slice(b"PING\r\n\r\nSET inline \"quo ted\"\r\nGET inline\n");
    // Valkey 9.0.0 ends by an assertion at an empty array before an inline request.
    if harness::server_release() != (9, 0, 0) {
        bytes.extend_from_slice(b"*0\r\n");
    }
    bytes.extend_from_slice(b"ECHO 'the end'\r\n");
    bytes
}

/// Switches a client to this protocol version.
fn speaking(mut client: Client, version: u8) -> Client {
    if version == 3 {
        assert_eq!(
            client.cmd(&["HELLO", "3"]).expect("HELLO").field("proto").and_then(Value::int),
            Some(3)
        );
    }
    client
}

/// The reply to the last request of every conversation.
const END: &[u8] = b"$7\r\nthe end\r\n";

/// All bytes that a client receives for these requests, sent in pieces of this size while replies
/// are read. The client does not half-close: Redis then discards pending replies.
fn answers(client: &Client, bytes: &[u8], piece: usize) -> Vec<u8> {
    client.set_timeout(PATIENCE).expect("a patient client");
    let (mut writer, mut reader) = (client.stream(), client.stream());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for piece in bytes.chunks(piece) {
                writer.write_all(piece).expect("a piece");
            }
        });
        let (mut got, mut room) = (Vec::new(), vec![0; 64 * 1024]);
        while !got.ends_with(END) {
            let read = reader.read(&mut room).expect("an answer");
            assert!(read > 0, "closed after {} bytes", got.len());
            got.extend_from_slice(&room[..read]);
        }
        got
    })
}

#[track_caller]
fn compare(cluster: &Cluster, pointsman: &Pointsman, version: u8, bytes: &[u8], piece: usize) {
    let direct = answers(&speaking(cluster.nodes()[0].client(), version), bytes, usize::MAX);
    let proxied = answers(&speaking(pointsman.client(), version), bytes, piece);
    let differs = direct
        .iter()
        .zip(&proxied)
        .position(|(a, b)| a != b)
        .unwrap_or(direct.len().min(proxied.len()));
    let around = |bytes: &[u8]| {
        String::from_utf8_lossy(&bytes[differs.saturating_sub(40)..]).chars().take(120).collect()
    };
    let (here, there): (String, String) = (around(&direct), around(&proxied));
    assert!(
        direct == proxied,
        "RESP{version}, pieces of {piece}: at {differs} {here:?} became {there:?}"
    );
}

#[test]
fn forwards_every_type_in_any_pieces() {
    let cluster = cluster();
    let pointsman = pointsman(&cluster);
    let bytes = conversation();
    for version in [2, 3] {
        for piece in [usize::MAX, 4096, 1000, 7] {
            compare(&cluster, &pointsman, version, &bytes, piece);
        }
    }
    // The session was understood to the end, not only forwarded: opaque requests are not counted.
    let counted =
        metric(&pointsman, "pointsman_commands_total{service=\"mymaster\"}").unwrap_or(0.0);
    let each = conversation_length();
    assert_eq!(counted, (8 * each + 4) as f64, "some session was not followed to its end");
}

/// The number of requests: the encoded ones and four inline ones. The empty line and `*0` are not
/// requests.
fn conversation_length() -> usize {
    34 + 13 + 4
}

#[test]
fn forwards_single_bytes_both_ways() {
    let cluster = cluster();
    let pointsman = pointsman(&cluster);
    for version in [2, 3] {
        let mut client = speaking(pointsman.client(), version);
        let expected = b"$5\r\nb\r\nte\r\n*2\r\n$1\r\n1\r\n$1\r\n2\r\n";
        let requests = [
            encode(&["SET", "one", "b\r\nte"]),
            encode(&["GET", "one"]),
            encode(&["MGET", "x1", "x2"]),
        ]
        .concat();
        assert!(client.cmd(&["MSET", "x1", "1", "x2", "2"]).expect("MSET").is_ok());
        for byte in requests {
            client.send(&[byte]).expect("a byte");
        }
        assert_eq!(client.read_exact(5).expect("+OK"), b"+OK\r\n");
        for byte in expected {
            assert_eq!(client.read_exact(1).expect("a byte"), [*byte]);
        }
    }
}

#[test]
fn tells_pushes_from_replies() {
    let cluster = cluster();
    let pointsman = pointsman(&cluster);
    let mut client = speaking(pointsman.client(), 3);
    assert!(
        client
            .cmd(&["CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "seen:"])
            .expect("TRACKING")
            .is_ok()
    );
    let mut other = pointsman.client();
    let (mut pushes, rounds) = (0, 200);
    for round in 0..rounds {
        assert!(other.cmd(&["SET", &format!("seen:{round}"), "x"]).expect("SET").is_ok());
        client.send(&encode(&["ECHO", &round.to_string()])).expect("send");
        loop {
            match client.read_value().expect("a push or the answer") {
                Value::Push(items) => {
                    assert_eq!(items[0].text(), Some("invalidate"));
                    pushes += 1;
                }
                answer => {
                    assert_eq!(answer.text(), Some(round.to_string().as_str()));
                    break;
                }
            }
        }
    }
    assert!(pushes > rounds / 2, "only {pushes} pushes came");
}

#[test]
fn answers_deep_resp3_pipeline_as_directly() {
    let cluster = cluster();
    let pointsman = pointsman(&cluster);
    let mut bytes: Vec<u8> =
        (0..100_000).flat_map(|at| encode(&["ECHO", &at.to_string()])).collect();
    bytes.extend(encode(&["ECHO", "the end"]));
    compare(&cluster, &pointsman, 3, &bytes, 100_000);
}

/// A server that reads the end of a connection discards what it has not written yet.
#[test]
fn delivers_large_replies_before_a_protocol_error() {
    let cluster = cluster();
    let long = "x".repeat(20_000_000);
    assert!(cluster.master().client().cmd(&["SET", "long", &long]).expect("SET").is_ok());
    for way in ["dedicated", "shared"] {
        let line = format!("upstream = {way:?}");
        let pointsman = builder(&cluster).service_line(&line).start();
        let mut client = pointsman.client();
        client.set_timeout(PATIENCE).expect("a patient client");
        client.send(&[&encode(&["GET", "long"])[..], b"*1\r\n:1\r\n"].concat()).expect("sent");
        assert_eq!(client.read_value().expect("the value").text().map(str::len), Some(long.len()));
        let error = client.read_value().expect("the error");
        assert!(error.error().is_some_and(|it| it.starts_with("ERR Protocol error")), "{error:?}");
        client.read_value().expect_err("the end");
        drop(client);
    }
}
