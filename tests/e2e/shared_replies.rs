//! Large replies to clients that share connections: nobody who reads is cut, and nobody waits for
//! a client that does not.

use std::time::Duration;

use harness::{Client, Cluster, Pointsman, encode, wait_until};

use crate::{builder, metric};

const PATIENCE: Duration = Duration::from_secs(30);
const MIB: usize = 1024 * 1024;

fn start(cluster: &Cluster) -> Pointsman {
    let lines = "[process]\nworkers = 1";
    builder(cluster).service_line("upstream = \"shared\"").lines(lines).start()
}

/// A client that shares a connection.
fn sharing(pointsman: &Pointsman) -> Client {
    let mut client = pointsman.client();
    assert!(client.cmd(&["EXISTS", "k"]).unwrap().int().is_some());
    client
}

/// A key with a value of that size.
fn set(cluster: &Cluster, key: &str, size: usize) {
    let reply = cluster.master().ask(&["SETRANGE", key, &(size - 1).to_string(), "x"]).unwrap();
    assert_eq!(reply.int(), Some(size as i64));
}

/// The proxy serves another client, and does so again and again.
fn serves(other: &mut Client) {
    for _ in 0..500 {
        assert!(other.cmd(&["INCR", "n"]).unwrap().int().is_some());
    }
}

fn read_large(client: &mut Client, size: usize) {
    assert_eq!(client.read_value().unwrap().text().map(str::len), Some(size));
}

#[test]
fn keeps_readers_of_deep_pipelines_of_large_values() {
    const SIZE: usize = 100_000;
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let pointsman = start(&cluster);
    let (mut reader, mut other) = (sharing(&pointsman), sharing(&pointsman));
    set(&cluster, "large", SIZE);
    // Replies to small ones do not make the proxy expect small ones for ever.
    reader.send(&encode(&["GET", "none"]).repeat(2_000)).unwrap();
    for _ in 0..2_000 {
        assert!(reader.read_value().unwrap().text().is_none());
    }
    reader.send(&encode(&["GET", "large"]).repeat(1_000)).unwrap();
    serves(&mut other);
    for _ in 0..1_000 {
        read_large(&mut reader, SIZE);
    }
    serves(&mut other);
}

/// Many libraries write all of a pipeline before they read a reply. The sockets hold a part of it.
#[test]
fn serves_pipelines_that_are_written_before_they_are_read() {
    const PAIRS: usize = 5_000;
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let pointsman = start(&cluster);
    let (mut writer, mut other) = (sharing(&pointsman), sharing(&pointsman));
    let value = "x".repeat(10_000);
    let (set, get) = (encode(&["SET", "k", &value]), encode(&["GET", "k"]));
    writer.send(&[set, get].concat().repeat(PAIRS)).unwrap();
    serves(&mut other);
    for _ in 0..PAIRS {
        assert!(writer.read_value().unwrap().is_ok());
        read_large(&mut writer, value.len());
    }
    serves(&mut writer);
}

#[test]
fn keeps_several_replies_that_are_read_late() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let pointsman = start(&cluster);
    let mut readers: Vec<Client> = (0..3).map(|_| sharing(&pointsman)).collect();
    let mut other = sharing(&pointsman);
    set(&cluster, "large", 17 * MIB);
    for reader in &mut readers {
        reader.send(&encode(&["GET", "large"])).unwrap();
        serves(&mut other);
    }
    for reader in &mut readers {
        read_large(reader, 17 * MIB);
    }
}

/// A value that the proxy does not buffer whole arrives at the pace of its reader. Only requests
/// behind it on the same connection wait.
#[test]
fn serves_others_beside_a_slow_reader_of_a_huge_value() {
    const SIZE: usize = 100 * MIB;
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let pointsman = start(&cluster);
    let (mut reader, mut other) = (sharing(&pointsman), sharing(&pointsman));
    set(&cluster, "huge", SIZE);
    reader.send(&encode(&["GET", "huge"])).unwrap();
    let header = format!("${SIZE}\r\n");
    assert_eq!(reader.read_exact(header.len()).unwrap(), header.as_bytes());
    std::thread::scope(|scope| {
        let reading = scope.spawn(move || {
            for _ in 0..100 {
                assert_eq!(reader.read_exact(MIB).unwrap().len(), MIB);
                // Slower than the server sends, and fast enough for those who wait behind it.
                harness::pause(Duration::from_millis(5));
            }
            assert_eq!(reader.read_exact(2).unwrap(), b"\r\n");
            assert_eq!(reader.cmd(&["STRLEN", "huge"]).unwrap().int(), Some(SIZE as i64));
        });
        while !reading.is_finished() {
            assert!(other.cmd(&["INCR", "n"]).unwrap().int().is_some());
        }
    });
}

/// A client with a request behind such a value waits for a client that does not read, for a while.
#[test]
fn cuts_a_client_that_does_not_read_a_huge_value() {
    let cluster = Cluster::builder().replicas(0).sentinels(1).start();
    let pointsman = start(&cluster);
    let (mut slow, mut other) = (sharing(&pointsman), sharing(&pointsman));
    set(&cluster, "huge", 200 * MIB);
    slow.send(&encode(&["GET", "huge"])).unwrap();
    serves(&mut other);
    wait_until("the end of the client", PATIENCE, || {
        let name = "pointsman_sessions_closed_total";
        let series = format!("{name}{{service=\"mymaster\",reason=\"slow_reader\"}}");
        metric(&pointsman, &series) == Some(1.0)
    });
    serves(&mut other);
}
