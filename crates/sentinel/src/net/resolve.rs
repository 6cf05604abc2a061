//! Names to addresses, without ever waiting for a name server on a worker and without piling up
//! look-ups.
//!
//! The system's resolver may block for minutes. Each [`Lookup`] therefore has at most one look-up
//! under way, on the runtime's bounded pool of blocking threads; who asks waits for as long as it
//! can afford and finds the answer later if it comes late. The last good answer is kept while
//! look-ups fail.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;

/// The most addresses taken from one name.
const MAX_ADDRESSES: usize = 32;

/// The most look-ups of one process under way at a time. A resolver that hangs takes these threads
/// and no others.
const MAX_LOOKUPS: usize = 16;

/// With an earlier answer in hand, a slow resolver is waited for no longer than this.
const PATIENCE_WITH_CACHE: Duration = Duration::from_millis(50);

/// Why a name has no address now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResolveError {
    /// The resolver said no, or gave nothing.
    #[error("the name does not resolve")]
    NotFound,
    /// The resolver did not answer in time; it goes on in the background.
    #[error("the name server does not answer")]
    TimedOut,
}

type LookupFn = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// Who is asked for the addresses behind a name. Clones share the bound on look-ups under way.
#[derive(Clone)]
pub struct Resolver {
    ask: Arc<LookupFn>,
    turns: Arc<Semaphore>,
}

impl Resolver {
    /// Asks `ask` for the addresses of a host and port. It may block: it runs on the runtime's
    /// blocking threads.
    #[must_use]
    pub fn new(
        ask: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        Self { ask: Arc::new(ask), turns: Arc::new(Semaphore::new(MAX_LOOKUPS)) }
    }

    async fn look_up(self, host: Box<str>, port: u16) -> Vec<SocketAddr> {
        // The turn goes along and is given back when the resolver returns, even if nobody waits for
        // the answer any more.
        let Ok(turn) = self.turns.acquire_owned().await else { return Vec::new() };
        let ask = self.ask;
        let answer = tokio::task::spawn_blocking(move || {
            let found = ask(&host, port).unwrap_or_default();
            drop(turn);
            found
        });
        let mut found = answer.await.unwrap_or_default();
        found.sort_unstable();
        found.dedup();
        found.truncate(MAX_ADDRESSES);
        found
    }
}

impl Default for Resolver {
    /// The system's.
    fn default() -> Self {
        Self::new(|host, port| (host, port).to_socket_addrs().map(Iterator::collect))
    }
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Resolver")
    }
}

/// One name with its port.
#[derive(Debug)]
pub(crate) struct Lookup {
    host: Box<str>,
    port: u16,
    resolver: Resolver,
    pending: Option<AbortOnDropHandle<Vec<SocketAddr>>>,
    last_good: Vec<SocketAddr>,
    /// The address that was last found to work.
    worked: Option<SocketAddr>,
    /// How many attempts have failed since.
    failures: usize,
}

impl Lookup {
    pub(crate) fn new(resolver: &Resolver, host: &str, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
            resolver: resolver.clone(),
            pending: None,
            last_good: Vec::new(),
            worked: None,
            failures: 0,
        }
    }

    /// The addresses now: at once for an IP address, else by asking, for `patience` at most, and
    /// much less where an earlier answer is there to fall back on. Fails only if there is none.
    /// Safe to drop.
    pub(crate) async fn addresses(
        &mut self,
        patience: Duration,
    ) -> Result<Vec<SocketAddr>, ResolveError> {
        if let Ok(ip) = self.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, self.port)]);
        }
        let patience =
            if self.last_good.is_empty() { patience } else { patience.min(PATIENCE_WITH_CACHE) };
        let pending = self.pending.get_or_insert_with(|| {
            AbortOnDropHandle::new(tokio::spawn(
                self.resolver.clone().look_up(self.host.clone(), self.port),
            ))
        });
        let error = match tokio::time::timeout(patience, pending).await {
            Err(_) => ResolveError::TimedOut,
            Ok(answer) => {
                self.pending = None;
                let found = answer.unwrap_or_default();
                if !found.is_empty() {
                    self.last_good.clone_from(&found);
                    return Ok(found);
                }
                ResolveError::NotFound
            }
        };
        if self.last_good.is_empty() { Err(error) } else { Ok(self.last_good.clone()) }
    }

    /// The one address to dial now: the one that worked last, as long as the name has it. One
    /// failure there may be a lost packet, and another address of the same server looks like
    /// another server, so it is tried a second time before the others get their turn, and twice in
    /// each round after that. Where none has worked yet they take turns.
    pub(crate) async fn address(&mut self, patience: Duration) -> Result<SocketAddr, ResolveError> {
        let found = self.addresses(patience).await?;
        let known = self.worked.filter(|worked| found.contains(worked));
        let turns = known
            .into_iter()
            .chain(known)
            .chain(found.iter().copied().filter(|it| known != Some(*it)));
        let turns: Vec<SocketAddr> = turns.collect();
        let turn = self.failures.checked_rem(turns.len()).unwrap_or_default();
        turns.get(turn).copied().ok_or(ResolveError::NotFound)
    }

    /// The last [`Self::address`] came to nothing.
    pub(crate) fn failed(&mut self) {
        self.failures = self.failures.wrapping_add(1);
    }

    /// Somebody answered at this address.
    pub(crate) fn worked(&mut self, addr: SocketAddr) {
        (self.worked, self.failures) = (Some(addr), 0);
    }
}

/// Whether an address that a sentinel at `announced_by` announces can be meant for us. A sentinel on
/// another machine that announces a loopback address means itself.
pub(crate) fn is_usable(ip: IpAddr, announced_by: IpAddr) -> bool {
    let (ip, announced_by) = (ip.to_canonical(), announced_by.to_canonical());
    !ip.is_unspecified() && !ip.is_multicast() && (!ip.is_loopback() || announced_by.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_needs_no_resolver_and_a_bad_name_is_an_error() {
        let mut lookup = Lookup::new(&Resolver::default(), "::1", 26379);
        assert_eq!(
            lookup.addresses(Duration::ZERO).await,
            Ok(vec!["[::1]:26379".parse().expect("address")])
        );
        // Refused before anybody is asked: what this machine's name server does is not what is
        // tested here.
        let mut lookup = Lookup::new(&Resolver::default(), "no\0name", 1);
        assert_eq!(lookup.addresses(Duration::from_secs(30)).await, Err(ResolveError::NotFound));
    }

    #[tokio::test]
    async fn the_last_good_answer_outlives_a_failing_resolver() {
        let good: SocketAddr = "10.1.2.3:1".parse().expect("address");
        let mut lookup = Lookup::new(&Resolver::default(), "no\0name", 1);
        lookup.last_good = vec![good];
        assert_eq!(lookup.addresses(Duration::from_secs(30)).await, Ok(vec![good]));
    }

    #[tokio::test]
    async fn a_name_with_several_addresses_is_tried_through() {
        let both: [SocketAddr; 2] =
            ["10.0.0.1:5", "10.0.0.2:5"].map(|it| it.parse().expect("address"));
        let resolver = Resolver::new(move |_, _| Ok(both.to_vec()));
        let mut lookup = Lookup::new(&resolver, "both.example", 5);
        for turn in [0, 1, 0] {
            assert_eq!(lookup.address(Duration::from_secs(30)).await, Ok(both[turn]));
            lookup.failed();
        }
    }

    #[tokio::test]
    async fn the_address_that_worked_last_is_tried_twice_before_the_others() {
        let all: [SocketAddr; 3] =
            ["10.0.0.1:5", "10.0.0.2:5", "[fd00::1]:5"].map(|it| it.parse().expect("address"));
        let found = Arc::new(std::sync::Mutex::new(all.to_vec()));
        let resolver = Resolver::new({
            let found = Arc::clone(&found);
            move |_, _| Ok(found.lock().map(|it| it.clone()).unwrap_or_default())
        });
        let mut lookup = Lookup::new(&resolver, "both.example", 5);
        lookup.failed();
        lookup.failed();
        assert_eq!(lookup.address(Duration::from_secs(30)).await, Ok(all[2]));
        lookup.worked(all[2]);
        for turn in [2, 2, 0, 1, 2, 2, 0] {
            assert_eq!(lookup.address(Duration::from_secs(30)).await, Ok(all[turn]));
            lookup.failed();
        }
        // It is preferred again after one success, and forgotten when the name has lost it.
        lookup.worked(all[2]);
        assert_eq!(lookup.address(Duration::from_secs(30)).await, Ok(all[2]));
        *found.lock().expect("no poison") = all[..2].to_vec();
        assert_eq!(lookup.address(Duration::from_secs(30)).await, Ok(all[0]));
    }

    #[tokio::test]
    async fn a_resolver_that_hangs_holds_up_few_threads_and_nobody_with_an_earlier_answer() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = std::sync::Mutex::new(held);
        let calls = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let resolver = Resolver::new({
            let calls = Arc::clone(&calls);
            move |_, _| {
                calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                let _ = held.lock().map(|held| held.recv());
                Ok(Vec::new())
            }
        });
        let mut lookups: Vec<Lookup> = (0..100)
            .map(|number| Lookup::new(&resolver, &format!("name{number}.example"), 1))
            .collect();
        for lookup in &mut lookups {
            assert_eq!(
                lookup.addresses(Duration::from_millis(1)).await,
                Err(ResolveError::TimedOut)
            );
        }
        assert!(calls.load(std::sync::atomic::Ordering::SeqCst) <= MAX_LOOKUPS);
        let good: SocketAddr = "10.1.2.3:1".parse().expect("address");
        let mut lookup = Lookup::new(&resolver, "late.example", 1);
        lookup.last_good = vec![good];
        let asked = tokio::time::Instant::now();
        assert_eq!(lookup.addresses(Duration::from_secs(30)).await, Ok(vec![good]));
        assert!(asked.elapsed() < Duration::from_secs(10));
        drop(release);
    }

    #[test]
    fn loopback_means_the_speaker_unless_we_share_the_machine() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("address");
        assert!(!is_usable(ip("127.0.0.1"), ip("10.0.0.1")));
        assert!(is_usable(ip("127.0.0.1"), ip("127.0.0.2")));
        assert!(!is_usable(ip("0.0.0.0"), ip("127.0.0.1")));
        assert!(is_usable(ip("10.0.0.1"), ip("10.0.0.2")));
    }
}
