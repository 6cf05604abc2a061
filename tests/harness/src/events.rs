//! What a sentinel says, and when it was heard.
//!
//! A thread of its own listens to every channel of one sentinel, so that the instant noted is that
//! of the arrival, whatever the test is doing. All instants are of the monotonic clock of this
//! machine and can be compared with any other.

use std::net::Shutdown;
use std::net::SocketAddr;
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::cluster::Node;
use crate::value::Value;

/// One message of a sentinel.
#[derive(Debug, Clone)]
pub struct Event {
    /// When it arrived.
    pub at: Instant,
    /// The sentinel it came from.
    pub from: SocketAddr,
    /// `+switch-master` and the like.
    pub channel: String,
    /// What follows it, as described in Sentinel's documentation.
    pub payload: String,
}

#[derive(Debug, Default)]
struct Shared {
    heard: Mutex<Vec<Event>>,
    news: Condvar,
}

/// Listens from its making until it is dropped. Clones of what was heard can be had at any time.
#[derive(Debug)]
pub struct Events {
    shared: Arc<Shared>,
    ears: Vec<(TcpStream, Option<JoinHandle<()>>)>,
}

impl Events {
    /// Listens to one sentinel; it has confirmed the subscription when this returns.
    ///
    /// # Panics
    /// If it cannot be reached.
    #[must_use]
    #[track_caller]
    pub fn of(sentinel: &Node) -> Self {
        Self::of_all(std::slice::from_ref(sentinel))
    }

    /// Listens to several sentinels at once; their events come into one list, in the order of
    /// arrival.
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

    /// All that was heard so far.
    #[must_use]
    pub fn all(&self) -> Vec<Event> {
        lock(&self.shared).clone()
    }

    /// What was heard after the first `seen` events: for reading on from where one stopped.
    #[must_use]
    pub fn after(&self, seen: usize) -> Vec<Event> {
        lock(&self.shared).iter().skip(seen).cloned().collect()
    }

    /// The first event of a channel, if it has come.
    #[must_use]
    pub fn first(&self, channel: &str) -> Option<Event> {
        lock(&self.shared).iter().find(|event| event.channel == channel).cloned()
    }

    /// Waits for an event of a channel, whether it came already or comes now.
    ///
    /// # Panics
    /// If none has come after `timeout`; what came instead is listed.
    #[track_caller]
    pub fn wait_for(&self, channel: &str, timeout: Duration) -> Event {
        self.wait_for_that(channel, timeout, |_| true)
    }

    /// As [`wait_for`](Self::wait_for), for an event whose payload is the right one.
    ///
    /// # Panics
    /// If none has come after `timeout`; what came instead is listed.
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
            // Ends the thread's read; it fails only if the sentinel closed before.
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
