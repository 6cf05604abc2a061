//! Name resolution that never blocks a worker and never accumulates lookups.
//!
//! The system's resolver may block for minutes. Each [`Lookup`] therefore has at most one request
//! in progress, on the runtime's bounded pool of blocking threads. A caller waits for a limited
//! time and gets a late answer with a later call.
//!
//! The last good answer is kept while lookups fail. An answer that the name has no address is no
//! failure ([`Lookup::is_gone`]): what is at its last address by now may be another server, and a
//! caller that dials it must know whom it expects there.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use dns_lookup::{AddrInfoHints, LookupErrorKind, getaddrinfo};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::net::host::Host;

/// The maximum number of addresses taken from one name.
const MAX_ADDRESSES: usize = 32;

/// The maximum number of lookups of one process in progress. A resolver that hangs blocks these
/// threads and no others.
const MAX_LOOKUPS: usize = 16;

/// The interval between two lookups of a name that is in use.
pub(crate) const LOOKUP_EVERY: Duration = Duration::from_secs(5);

/// That interval while the name has no address, and first after a server at one was lost: its
/// address may already belong to another one.
pub(crate) const LOOKUP_SOON: Duration = Duration::from_millis(500);

/// How many answers in a row show that a name has left an address.
const MISSES: u8 = 4;

/// How long to wait for a slow resolver if an earlier answer is available.
const PATIENCE_WITH_CACHE: Duration = Duration::from_millis(50);

/// Why a name has no address now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The name has no address, or the resolver returned an error and there was no answer before.
    #[error("the name does not resolve")]
    NotFound,
    /// The resolver did not answer in time; the request continues in the background.
    #[error("the name server does not answer")]
    TimedOut,
}

type LookupFn = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// A source of addresses for host names. Clones share the limit on lookups in progress.
#[derive(Clone)]
pub struct Resolver {
    ask: Arc<LookupFn>,
    permits: Arc<Semaphore>,
    /// In place of the operating system, for connections and clocks, too.
    host: Option<Arc<dyn Host>>,
}

impl Resolver {
    /// Uses `ask` to look up a host and port: no addresses if the name has none, an error if that
    /// is not known. It may block: it runs on the runtime's blocking threads.
    #[must_use]
    pub fn new(
        ask: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        Self { ask: Arc::new(ask), permits: Arc::new(Semaphore::new(MAX_LOOKUPS)), host: None }
    }

    /// Uses this host instead of the operating system.
    #[must_use]
    pub fn simulated(host: Arc<dyn Host>) -> Self {
        Self { host: Some(host), ..Self::default() }
    }

    pub(crate) fn host(&self) -> Option<&Arc<dyn Host>> {
        self.host.as_ref()
    }

    /// The addresses of a name, or `None` if the lookup failed.
    async fn look_up(self, host: Box<str>, port: u16) -> Option<Vec<SocketAddr>> {
        if let Some(simulated) = &self.host {
            return Some(simulated.look_up(&host, port).await);
        }
        // The blocking task keeps the permit until the resolver returns, even if the answer is no
        // longer awaited.
        let permit = self.permits.acquire_owned().await.ok()?;
        let ask = self.ask;
        let answer = tokio::task::spawn_blocking(move || {
            let found = ask(&host, port);
            drop(permit);
            found
        });
        let mut found = answer.await.ok()?.ok()?;
        found.sort_unstable();
        found.dedup();
        found.truncate(MAX_ADDRESSES);
        Some(found)
    }
}

impl Default for Resolver {
    /// The system's resolver.
    fn default() -> Self {
        Self::new(ask_system)
    }
}

/// Asks the system's resolver. It answers that a name has no address if only one family of
/// addresses has none and the query for the other failed; so each is asked for alone then.
fn ask_system(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let with_port = |mut addr: SocketAddr| {
        addr.set_port(port);
        addr
    };
    let ask = |address| -> io::Result<Vec<SocketAddr>> {
        let hints = AddrInfoHints { socktype: libc::SOCK_STREAM, address, ..Default::default() };
        match getaddrinfo(Some(host), None, Some(hints)) {
            Err(it) if matches!(it.kind(), LookupErrorKind::NoName | LookupErrorKind::NoData) => {
                Ok(Vec::new())
            }
            found => found?.map(|it| it.map(|it| with_port(it.sockaddr))).collect(),
        }
    };
    let found = ask(libc::AF_UNSPEC)?;
    if !found.is_empty() {
        return Ok(found);
    }
    Ok([ask(libc::AF_INET)?, ask(libc::AF_INET6)?].concat())
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Resolver")
    }
}

/// One name with its port.
#[derive(Debug)]
pub struct Lookup {
    host: Box<str>,
    port: u16,
    resolver: Resolver,
    pending: Option<AbortOnDropHandle<Option<Vec<SocketAddr>>>>,
    last_good: Vec<SocketAddr>,
    /// When the name server answered that the name has no address, if that was its last answer.
    gone_at: Option<Instant>,
    /// How many lookups in a row have not found an address that is in use.
    missed: u8,
    /// When the name was looked up last while an address of it is in use, and the pause after that.
    recheck: (Instant, Duration),
    /// The address that worked last.
    worked: Option<SocketAddr>,
    /// Failed attempts since then.
    failures: usize,
}

impl Lookup {
    /// A lookup of this host name or address, with the port to dial.
    #[must_use]
    pub fn new(resolver: &Resolver, host: &str, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
            resolver: resolver.clone(),
            pending: None,
            last_good: Vec::new(),
            gone_at: None,
            missed: 0,
            recheck: (Instant::now(), LOOKUP_SOON),
            worked: None,
            failures: 0,
        }
    }

    /// The name, or the address.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// The current addresses: at once for an IP address, otherwise by a lookup. Waits up to
    /// `patience`, and much less if an earlier answer is available. Cancel-safe.
    ///
    /// # Errors
    ///
    /// The name has no address, or the name server does not answer and has not before.
    pub async fn addresses(&mut self, patience: Duration) -> Result<Vec<SocketAddr>, ResolveError> {
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
                if let Some(found) = answer.ok().flatten() {
                    self.gone_at = found.is_empty().then(Instant::now);
                    if !self.is_gone() {
                        self.last_good = found;
                    }
                }
                ResolveError::NotFound
            }
        };
        match self.last_good.as_slice() {
            [] => Err(error),
            _ if self.is_gone() => Err(ResolveError::NotFound),
            found => Ok(found.to_vec()),
        }
    }

    /// Whether the last answer of the name server was that the name has no address.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone_at.is_some()
    }

    /// Whether the name has addresses now, and this one is not among them, by [`MISSES`] answers in
    /// a row: of several name servers one may remember the last address. One is enough if another
    /// server `is_there`. If the server at `addr` `is_wrong` for certain, the next address of the
    /// name is dialled instead. Never waits: a lookup is begun now and then, first soon
    /// after [`Self::address`], and counts with a later call. True at most once per lookup.
    pub(crate) async fn has_left(
        &mut self,
        addr: SocketAddr,
        is_there: bool,
        is_wrong: bool,
    ) -> bool {
        let (last, pause) = self.recheck;
        let pause = if is_there { LOOKUP_SOON } else { pause };
        if self.pending.is_none() && last.elapsed() < pause {
            return false;
        }
        let found = self.addresses(Duration::ZERO).await;
        if self.pending.is_some() {
            return false;
        }
        self.recheck = (Instant::now(), (pause * 2).min(LOOKUP_EVERY));
        let at = found.as_ref().map(|found| found.iter().position(|it| *it == addr));
        let has_others = found.as_ref().is_ok_and(|found| found.len() > 1);
        if let (Ok(Some(at)), true, true) = (at, is_wrong, has_others) {
            // Unless another was tried already.
            self.failures = if self.worked.take().is_some() { at + 1 } else { self.failures };
            return true;
        }
        let is_missing = at == Ok(None);
        self.missed = if is_missing { self.missed.saturating_add(1) } else { 0 };
        self.missed >= if is_there { 1 } else { MISSES }
    }

    /// The address to dial now: the one that worked last, as long as the name still has it, or has
    /// none. A single failure may be a lost packet, and another address of the same server looks
    /// like another server. It is therefore tried a second time before the other addresses, and
    /// twice in each round after that. If none has worked yet, they are tried in turn.
    ///
    /// # Errors
    ///
    /// Those of [`Self::addresses`].
    pub async fn address(&mut self, patience: Duration) -> Result<SocketAddr, ResolveError> {
        let now = Instant::now();
        let gone = self.gone_at.is_some_and(|at| now < at + LOOKUP_SOON);
        let found = if gone { Err(ResolveError::NotFound) } else { self.addresses(patience).await };
        (self.recheck, self.missed) = ((now, LOOKUP_SOON), 0);
        let found = match found {
            Err(_) if !self.last_good.is_empty() => self.last_good.clone(),
            found => found?,
        };
        let known = self.worked.filter(|worked| found.contains(worked));
        let others = found.iter().copied().filter(|it| known != Some(*it));
        let order: Vec<SocketAddr> = known.into_iter().chain(known).chain(others).collect();
        let next = self.failures.checked_rem(order.len()).unwrap_or_default();
        order.get(next).copied().ok_or(ResolveError::NotFound)
    }

    /// Whether the name has, beside this address, the one at which the server answered last.
    pub(crate) fn is_other(&self, addr: SocketAddr) -> bool {
        self.worked.is_some_and(|it| it != addr && self.last_good.contains(&it))
    }

    /// Called when a server refused the credentials. Where none was accepted, it may be another
    /// server than the one at the other addresses.
    pub(crate) fn refused(&mut self, addr: SocketAddr) {
        self.failures = self.failures.wrapping_add(usize::from(self.worked != Some(addr)));
    }

    /// Called when a dial of the last [`Self::address`] failed.
    pub(crate) fn failed(&mut self) {
        self.failures = self.failures.wrapping_add(1);
    }

    /// Called when a server answered at this address.
    pub(crate) fn worked(&mut self, addr: SocketAddr) {
        (self.worked, self.failures) = (Some(addr), 0);
    }
}

/// Whether an address that a sentinel at `announced_by` announces can be meant for this process. A
/// sentinel on another host that announces a loopback address means itself.
#[must_use]
pub fn is_usable(ip: IpAddr, announced_by: IpAddr) -> bool {
    let (ip, announced_by) = (ip.to_canonical(), announced_by.to_canonical());
    !ip.is_unspecified() && !ip.is_multicast() && (!ip.is_loopback() || announced_by.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn resolves_ip_addresses_and_rejects_bad_names() {
        let mut lookup = Lookup::new(&Resolver::default(), "::1", 26379);
        assert_eq!(
            lookup.addresses(Duration::ZERO).await,
            Ok(vec!["[::1]:26379".parse().expect("address")])
        );
        // Rejected before a resolver is used, so the test does not depend on this host's name
        // server.
        let mut lookup = Lookup::new(&Resolver::default(), "no\0name", 1);
        assert_eq!(lookup.addresses(Duration::from_secs(30)).await, Err(ResolveError::NotFound));
    }

    #[tokio::test]
    async fn keeps_last_good_answer_while_lookups_fail() {
        let good: SocketAddr = "10.1.2.3:1".parse().expect("address");
        let mut lookup = Lookup::new(&Resolver::default(), "no\0name", 1);
        lookup.last_good = vec![good];
        assert_eq!(lookup.addresses(Duration::from_secs(30)).await, Ok(vec![good]));
    }

    #[tokio::test]
    async fn tries_all_addresses_of_a_name_in_turn() {
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
    async fn tries_last_working_address_twice_first() {
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
        // It is preferred again after one success, and dropped when the name no longer has it.
        lookup.worked(all[2]);
        assert_eq!(lookup.address(Duration::from_secs(30)).await, Ok(all[2]));
        *found.lock().expect("no poison") = all[..2].to_vec();
        assert_eq!(lookup.address(Duration::from_secs(30)).await, Ok(all[0]));
    }

    #[tokio::test(start_paused = true)]
    async fn dials_all_other_addresses_than_a_wrong_one() {
        let all: [SocketAddr; 3] =
            ["10.0.0.1:5", "10.0.0.2:5", "10.0.0.3:5"].map(|it| it.parse().expect("address"));
        let resolver = Resolver::new(move |_, _| Ok(all.to_vec()));
        let mut lookup = Lookup::new(&resolver, "all.example", 5);
        assert_eq!(lookup.address(Duration::from_secs(30)).await, Ok(all[0]));
        lookup.worked(all[0]);
        for turn in [1, 2, 0, 1] {
            tokio::time::timeout(Duration::from_secs(30), async {
                while !lookup.has_left(all[0], true, true).await {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            })
            .await
            .expect("it is looked up");
            assert_eq!(lookup.address(Duration::from_secs(30)).await, Ok(all[turn]));
            lookup.failed();
        }
        lookup.worked(all[1]);
        tokio::time::sleep(LOOKUP_EVERY).await;
        for _ in 0..100 {
            assert!(!lookup.has_left(all[1], true, false).await, "it may be the right one");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    #[tokio::test]
    async fn bounds_threads_blocked_by_a_hanging_resolver() {
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
        let asked = Instant::now();
        assert_eq!(lookup.addresses(Duration::from_secs(30)).await, Ok(vec![good]));
        assert!(asked.elapsed() < Duration::from_secs(10));
        drop(release);
    }

    #[test]
    fn accepts_loopback_only_from_the_same_host() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("address");
        assert!(!is_usable(ip("127.0.0.1"), ip("10.0.0.1")));
        assert!(is_usable(ip("127.0.0.1"), ip("127.0.0.2")));
        assert!(!is_usable(ip("0.0.0.0"), ip("127.0.0.1")));
        assert!(is_usable(ip("10.0.0.1"), ip("10.0.0.2")));
    }
}
