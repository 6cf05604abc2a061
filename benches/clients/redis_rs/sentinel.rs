//! Clients of redis-rs that ask sentinels for the master: writers, and a reader of the write
//! acknowledged last.
//!
//! Arguments: the master's name, sentinels (host:port,...), the prefix of all keys, writers, writes
//! per second of all of them, and the time in seconds after which a connection is given up. Writes
//! a line per outcome; harness::LoadBuilder::start_program reads them. The library does not retry
//! and does not connect again by itself: its documentation leaves both to the program, which asks
//! the sentinels again after an error.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::sentinel::{SentinelClient, SentinelServerType};
use redis::{AsyncCommands, AsyncConnectionConfig, RedisResult};
use tokio::time::{Instant, sleep, sleep_until};

/// The key that was written last.
type Newest = Rc<RefCell<Option<String>>>;

const BACK_OFF: Duration = Duration::from_millis(20);

/// A client with one connection, or none after an error.
struct Master {
    sentinels: SentinelClient,
    config: AsyncConnectionConfig,
    connection: Option<MultiplexedConnection>,
}

impl Master {
    fn new(name: &str, sentinels: &str, timeout: Duration) -> Self {
        let urls = sentinels.split(',').map(|addr| format!("redis://{addr}/")).collect();
        let kind = SentinelServerType::Master;
        let sentinels = SentinelClient::build::<String>(urls, name.to_owned(), None, kind).unwrap();
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(timeout))
            .set_connection_timeout(Some(timeout));
        Self { sentinels, config, connection: None }
    }

    async fn connection(&mut self) -> RedisResult<MultiplexedConnection> {
        if self.connection.is_none() {
            let it = self.sentinels.get_async_connection_with_config(&self.config).await?;
            self.connection = Some(it);
        }
        Ok(self.connection.clone().expect("just connected"))
    }

    /// The result, or none after an error, which is reported.
    async fn settle<T>(&mut self, result: RedisResult<T>) -> Option<T> {
        match result {
            Ok(it) => Some(it),
            Err(error) => {
                println!("err {}", error.to_string().replace('\n', " "));
                self.connection = None;
                sleep(BACK_OFF).await;
                None
            }
        }
    }

    async fn set(&mut self, key: &str) -> RedisResult<()> {
        self.connection().await?.set(key, "1").await
    }

    async fn get(&mut self, key: &str) -> RedisResult<Option<String>> {
        self.connection().await?.get(key).await
    }
}

async fn write(mut master: Master, prefix: String, writer: u32, pause: Duration, newest: Newest) {
    let mut due = Instant::now();
    for number in 0_u64.. {
        sleep_until(due).await;
        due = due.max(Instant::now()) + pause;
        let key = format!("{prefix}:{writer}:{number}");
        let result = master.set(&key).await;
        if master.settle(result).await.is_some() {
            println!("ok {writer} {number}");
            *newest.borrow_mut() = Some(key);
        }
    }
}

async fn read(mut master: Master, newest: Newest) {
    loop {
        let key = newest.borrow().clone();
        if let Some(key) = key {
            let result = master.get(&key).await;
            if master.settle(result).await.is_some_and(|value| value.as_deref() != Some("1")) {
                println!("wrong");
            }
        }
        sleep(BACK_OFF).await;
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, sentinels, prefix, writers, rate, seconds] = args.as_slice() else {
        panic!("name, sentinels, prefix, writers, rate, seconds")
    };
    let (writers, rate): (u32, u32) = (writers.parse().unwrap(), rate.parse().unwrap());
    let timeout = Duration::from_secs(seconds.parse().unwrap());
    let pause = Duration::from_secs(1) * writers / rate;
    let (newest, everybody) = (Newest::default(), tokio::task::LocalSet::new());
    for writer in 0..writers {
        let master = Master::new(name, sentinels, timeout);
        everybody.spawn_local(write(master, prefix.clone(), writer, pause, Rc::clone(&newest)));
    }
    everybody.spawn_local(read(Master::new(name, sentinels, timeout), newest));
    everybody.await;
}
