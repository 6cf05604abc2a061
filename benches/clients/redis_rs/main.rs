//! Clients of redis-rs, asynchronous and multiplexed, that open a new connection after an error;
//! every error is counted.
//!
//! Arguments: host, port, clients, seconds. Writes one line of JSON.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisResult};

/// Longer than any pause that is expected: the library's own half a second would end every failover
/// with an error.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Seen {
    answered: u64,
    /// When each failed request was begun, in milliseconds of Unix time.
    errors_at: Vec<u128>,
    wrong: u64,
    longest: Duration,
    /// When that was begun.
    longest_at: u128,
}

impl Seen {
    /// Counts a wrong reply and shows the first few: a counter that fell back was not on the new
    /// master, one that is far off is another client's, and so is another name.
    fn check<T: PartialEq + std::fmt::Debug>(&mut self, name: &str, expected: T, came: T) {
        if expected != came {
            self.wrong += 1;
            if self.wrong <= 20 {
                eprintln!("{name}: {came:?} came and not {expected:?}");
            }
        }
    }
}

async fn connect(url: &str, name: &str) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(Some(PATIENCE))
        .set_connection_timeout(Some(PATIENCE));
    let mut connection =
        Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?;
    redis::cmd("CLIENT").arg("SETNAME").arg(name).query_async::<()>(&mut connection).await?;
    Ok(connection)
}

async fn ask(connection: &mut MultiplexedConnection, name: &str) -> RedisResult<(i64, String)> {
    redis::pipe().cmd("INCR").arg(name).cmd("CLIENT").arg("GETNAME").query_async(connection).await
}

async fn live(
    number: u32,
    url: String,
    count: u32,
    settled: Instant,
    end: Instant,
    seen: Rc<RefCell<Seen>>,
) {
    let name = format!("rs-{number}");
    let (mut connection, mut expected) = (None, None);
    tokio::time::sleep(Duration::from_millis(100) * number / count).await;
    while Instant::now() < end {
        let (begin, at) = (
            Instant::now(),
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
        );
        if connection.is_none() {
            connection = connect(&url, &name).await.ok();
        }
        let answer = match &mut connection {
            Some(connection) => ask(connection, &name).await.ok(),
            None => None,
        };
        let mut seen = seen.borrow_mut();
        if let Some((value, got)) = answer {
            seen.answered += 2;
            seen.check(&name, expected.unwrap_or(value), value);
            seen.check(&name, &*name, &*got);
            expected = Some(value + 1);
        } else {
            seen.errors_at.push(at.as_millis());
            // Whether it ran is unknown, and what the new master knows too.
            (connection, expected) = (None, None);
        }
        if begin > settled && begin.elapsed() > seen.longest {
            (seen.longest, seen.longest_at) = (begin.elapsed(), at.as_millis());
        }
        drop(seen);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [host, port, count, seconds] = args.as_slice() else {
        panic!("host, port, clients, seconds")
    };
    let (count, seconds): (u32, u64) = (count.parse().unwrap(), seconds.parse().unwrap());
    let end = Instant::now() + Duration::from_secs(seconds);
    // Until then the machine is busy with starting everybody, which is no pause.
    let settle = std::env::var("CLIENTS_SETTLE").map_or(0, |it| it.parse().unwrap());
    let settled = Instant::now() + Duration::from_secs(settle);
    let seen = Rc::<RefCell<Seen>>::default();
    let everybody = tokio::task::LocalSet::new();
    for number in 0..count {
        // Every other one speaks RESP3.
        let url =
            format!("redis://app:pw@{host}:{port}/{}?protocol=resp{}", number % 16, 2 + number % 2);
        everybody.spawn_local(live(number, url, count, settled, end, Rc::clone(&seen)));
    }
    everybody.await;
    let seen = seen.borrow();
    println!(
        "{{\"library\": \"redis-rs {}\", \"answered\": {}, \"errors\": {}, \"wrong\": {}, \"longest_ms\": {}, \
         \"longest_at\": {}, \"errors_at\": {:?}}}",
        std::env::var("CLIENTS_VERSION").unwrap_or_default(),
        seen.answered,
        seen.errors_at.len(),
        seen.wrong,
        seen.longest.as_millis(),
        seen.longest_at,
        seen.errors_at,
    );
}
