//! Records the events that sentinels publish, with the instant of arrival.
//!
//! A dedicated thread subscribes to every channel of one sentinel, so that the recorded instant
//! does not depend on what the test is doing. Instants are of the monotonic clock and comparable
//! with all others on the machine.

use std::net::Shutdown;
use std::net::SocketAddr;
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::cluster::Node;
use crate::value::Value;

/// One event of a sentinel.
#[derive(Debug, Clone)]
pub struct Event {
    /// When it arrived.
    pub at: Instant,
    /// The sentinel that published it.
    pub from: SocketAddr,
    /// The channel, such as `+switch-master`.
    pub channel: String,
    /// The payload, as described in Sentinel's documentation.
    pub payload: String,
}

#[derive(Debug, Default)]
struct Shared {
    heard: Mutex<Vec<Event>>,
    news: Condvar,
}

/// Records events from its creation until it is dropped.
#[derive(Debug)]
pub struct Events {
    shared: Arc<Shared>,
    ears: Vec<(TcpStream, Option<JoinHandle<()>>)>,
}

impl Events {
    /// Subscribes to one sentinel; the subscription is confirmed when this returns.
    ///
    /// # Panics
    /// If it cannot be reached.
    #[must_use]
    #[track_caller]
    pub fn of(sentinel: &Node) -> Self {
        Self::of_all(std::slice::from_ref(sentinel))
    }

    /// Subscribes to several sentinels; their events are recorded in one list in order of arrival.
    ///
    /// # Panics
    /// If one of them cannot be reached.
    #[must_use]
    #[track_caller]
    pub fn of_all(sentinels: &[Node]) -> Self {
        let shared = Arc::<Shared>::default();
        let ears = sentinels.iter().map(|sentinel| listen(sentinel, &shared)).collect();
        Self { shared, ears }
    }

    /// All events so far.
    #[must_use]
    pub fn all(&self) -> Vec<Event> {
        lock(&self.shared).clone()
    }

    /// The events after the first `seen` ones, for incremental reading.
    #[must_use]
    pub fn after(&self, seen: usize) -> Vec<Event> {
        lock(&self.shared).iter().skip(seen).cloned().collect()
    }

    /// The first event of a channel, if it has arrived.
    #[must_use]
    pub fn first(&self, channel: &str) -> Option<Event> {
        lock(&self.shared).iter().find(|event| event.channel == channel).cloned()
    }

    /// Waits for an event of a channel; events that arrived earlier count.
    ///
    /// # Panics
    /// If none arrives within `timeout`; the message lists the other events.
    #[track_caller]
    pub fn wait_for(&self, channel: &str, timeout: Duration) -> Event {
        self.wait_for_that(channel, timeout, |_| true)
    }

    /// Like [`wait_for`](Self::wait_for), for an event with a matching payload.
    ///
    /// # Panics
    /// If none arrives within `timeout`; the message lists the other events.
    #[track_caller]
    pub fn wait_for_that(
        &self,
        channel: &str,
        timeout: Duration,
        right: impl Fn(&str) -> bool,
    ) -> Event {
        let deadline = Instant::now() + timeout;
        let mut heard = lock(&self.shared);
        loop {
            if let Some(event) =
                heard.iter().find(|event| event.channel == channel && right(&event.payload))
            {
                return event.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let what = || {
                heard
                    .iter()
                    .map(|event| format!("\n  {} {}", event.channel, event.payload))
                    .collect::<String>()
            };
            assert!(!left.is_zero(), "no {channel} within {timeout:?}; heard:{}", what());
            heard = self
                .shared
                .news
                .wait_timeout(heard, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        for (stream, thread) in &mut self.ears {
            // Ends the read of the thread; fails only if the sentinel closed the connection before.
            let _ = stream.shutdown(Shutdown::Both);
            if let Some(thread) = thread.take() {
                let _ = thread.join();
            }
        }
    }
}

#[track_caller]
fn listen(sentinel: &Node, shared: &Arc<Shared>) -> (TcpStream, Option<JoinHandle<()>>) {
    let mut client = sentinel.client();
    let reply = client.cmd(&["PSUBSCRIBE", "*"]).expect("a sentinel that takes subscriptions");
    assert_eq!(
        reply.items().first().and_then(Value::text),
        Some("psubscribe"),
        "{} answered {reply}",
        sentinel.name()
    );
    client.stream().set_read_timeout(None).expect("a socket without timeout");
    let stream = client.stream().try_clone().expect("a second handle of a socket");
    let (shared, from) = (Arc::clone(shared), sentinel.addr());
    let thread = std::thread::spawn(move || {
        while let Ok(message) = client.read_value() {
            let at = Instant::now();
            let [_, _, channel, payload] = message.items() else { continue };
            let event =
                Event { at, from, channel: channel.to_string(), payload: payload.to_string() };
            lock(&shared).push(event);
            shared.news.notify_all();
        }
    });
    (stream, Some(thread))
}

fn lock(shared: &Shared) -> MutexGuard<'_, Vec<Event>> {
    shared.heard.lock().unwrap_or_else(PoisonError::into_inner)
}
