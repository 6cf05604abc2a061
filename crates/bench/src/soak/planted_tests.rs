//! Whether the checking clients find what is planted: a small server that makes one mistake.
//!
//! The clients' model is shared by all kinds of chains, so a server with strings, counters and ECHO
//! is enough. Faults of the books are planted in `stock.rs` and `books.rs`, as text.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use harness::{Value, encode, parse, wait_until};

use super::client::{Chained, Kind};
use super::judge::History;
use super::shared::Shared;

const PATIENCE: Duration = Duration::from_secs(60);
/// The mistake is made once, with this INCR.
const AT: u64 = 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// An acknowledged write is gone.
    LoseWrite,
    /// A write runs twice.
    RunTwice,
    /// Two replies are exchanged.
    ForeignReply,
    Refuse,
    Close,
    /// A key is deleted, and the connection is closed instead of a reply.
    CloseAfterDeletion,
}

/// A server of counters with one mistake, until the test ends.
struct Server {
    addr: SocketAddr,
    incremented: Arc<AtomicU64>,
    _acceptor: JoinHandle<()>,
}

impl Server {
    fn start(mistake: Mistake) -> Self {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let addr = listener.local_addr().expect("its address");
        let (incremented, store) = (Arc::<AtomicU64>::default(), Arc::default());
        let count = Arc::clone(&incremented);
        let acceptor = std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (store, count) = (Arc::clone(&store), Arc::clone(&count));
                std::thread::spawn(move || serve(stream, mistake, &store, &count));
            }
        });
        Self { addr, incremented, _acceptor: acceptor }
    }
}

/// Serves one connection until its end.
fn serve(
    mut stream: TcpStream,
    mistake: Mistake,
    store: &Mutex<BTreeMap<String, u64>>,
    count: &AtomicU64,
) {
    use std::io::{Read as _, Write as _};
    let (mut unread, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        while let Some((request, length)) = parse(&unread).expect("a request") {
            unread.drain(..length);
            let words: Vec<&str> = request.items().iter().filter_map(Value::text).collect();
            let number = if words[0] == "INCR" { count.fetch_add(1, Ordering::AcqRel) } else { 0 };
            let now = number == AT;
            if now && mistake == Mistake::Close {
                return;
            }
            let reply = answer(&words, now.then_some(mistake), store);
            if words[0] == "DEL" && mistake == Mistake::CloseAfterDeletion {
                return;
            }
            if stream.write_all(&reply).is_err() {
                return;
            }
        }
        match stream.read(&mut chunk) {
            Ok(0) | Err(_) => return,
            Ok(read) => unread.extend_from_slice(&chunk[..read]),
        }
    }
}

fn answer(
    words: &[&str],
    mistake: Option<Mistake>,
    store: &Mutex<BTreeMap<String, u64>>,
) -> Vec<u8> {
    let mut store = store.lock().expect("the store");
    match words {
        ["INCR", key] => {
            let value = store.entry((*key).to_owned()).or_default();
            match mistake {
                Some(Mistake::LoseWrite) => *value -= 1,
                Some(Mistake::RunTwice) => *value += 2,
                _ => *value += 1,
            }
            match mistake {
                Some(Mistake::Refuse) => b"-ERR planted\r\n".to_vec(),
                Some(Mistake::ForeignReply) => b"+OK\r\n".to_vec(),
                _ => format!(":{value}\r\n").into_bytes(),
            }
        }
        ["GET", key] => match store.get(*key) {
            Some(value) => bulk(&value.to_string()),
            None => b"$-1\r\n".to_vec(),
        },
        ["DEL", key] => {
            store.remove(*key);
            b":1\r\n".to_vec()
        }
        ["ECHO", text] => bulk(text),
        other => panic!("not a request of these clients: {other:?}"),
    }
}

/// An array of one bulk string without its first line.
fn bulk(text: &str) -> Vec<u8> {
    encode(&[text]).split_off(b"*1\r\n".len())
}

/// What a client of this kind finds.
fn findings(kind: Kind, mistake: Mistake) -> Vec<String> {
    let server = Server::start(mistake);
    let shared = Shared::new(server.addr, 1);
    // A key is deleted after 400 positions.
    let enough = if mistake == Mistake::CloseAfterDeletion { 500 } else { 2 * AT };
    std::thread::scope(|scope| {
        scope.spawn(|| Chained::new(&shared, 0, kind, 1).run());
        wait_until("requests after the mistake", PATIENCE, || {
            server.incremented.load(Ordering::Acquire) > enough
        });
        // And a comparison of the whole value.
        let round = shared.ask_for_round();
        wait_until("a comparison", PATIENCE, || shared.missing(round).is_empty());
        shared.stop.store(true, Ordering::Release);
    });
    shared.judge(&History::default());
    shared.findings().into_iter().map(|it| it.what).collect()
}

#[test]
fn finds_nothing_wrong_with_honest_server() {
    for kind in [Kind::Counter, Kind::Pipeline] {
        assert_eq!(findings(kind, Mistake::None), Vec::<String>::new());
    }
}

#[test]
fn finds_each_planted_mistake() {
    for (mistake, expected) in [
        (Mistake::LoseWrite, "acknowledged writes are gone"),
        (Mistake::RunTwice, "writes ran that were not sent"),
        (Mistake::ForeignReply, "a reply of another request"),
        (Mistake::Refuse, "error reply without a fault"),
        (Mistake::Close, "connection lost without a fault"),
    ] {
        for kind in [Kind::Counter, Kind::Pipeline] {
            let found = findings(kind, mistake);
            assert!(found.iter().any(|it| it.contains(expected)), "{mistake:?}: {found:?}");
        }
    }
}

#[test]
fn reports_no_loss_of_a_key_deleted_without_reply() {
    let found = findings(Kind::Pipeline, Mistake::CloseAfterDeletion);
    assert!(
        !found.is_empty() && found.iter().all(|it| it.contains("connection lost")),
        "{found:?}"
    );
}
