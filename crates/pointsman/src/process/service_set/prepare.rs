//! The part of a reload that may fail: every new address is bound, and every duplicate of a socket
//! is made. What was acquired is dropped after a failure, and everything is as it was.
//!
//! The file of a Unix socket is only created at a start, because a file system can hang: such an
//! address waits for a restart.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use proxy::{AddressPlan, ListenAddr, Options, Running};

use super::{BoundListener, RunningSet, ServedAddress, ServiceSet};
use crate::config::Config;
use crate::process::listener_plan::{self, ListenerPlan, ListenerStep, SetAddress};
use crate::process::listener_set::{self, ListenerSet};
use crate::process::{activation, inherit};

/// How long a reload waits for addresses that an earlier one is closing.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(2);
/// How often it looks.
const CLOSING_INTERVAL: Duration = Duration::from_millis(2);
/// The maximum number of services that are being removed. A reload that removes more is refused
/// until some of them have ended.
const MAX_LEAVING: usize = 256;

/// What a reload has acquired. Dropping it leaves everything as it was.
pub(crate) struct PreparedReload {
    pub(super) wanted: Vec<(ListenerSet, ListenAddr)>,
    pub(super) plan: ListenerPlan,
    /// The wanted addresses that are opened or moved.
    pub(super) opened: Vec<BoundListener>,
}

impl ServiceSet {
    /// The running addresses, and whether each is kept although it is not configured.
    pub(super) fn running<'a>(&'a self) -> Vec<(SetAddress, &'a ServedAddress)> {
        let sets = self.services.iter().flat_map(|service| &service.sets);
        let of = |set: &'a RunningSet| {
            let key = |it: &ServedAddress| (set.key(it.tls), it.configured.clone());
            set.addresses.iter().map(move |it| (key(it), it))
        };
        sets.flat_map(of).collect()
    }

    /// The addresses that the configuration wants, each with its set.
    fn wanted(&self, config: &Config) -> Vec<(ListenerSet, ListenAddr)> {
        let mut wanted = Vec::new();
        for set in listener_set::all(config) {
            let running = self
                .services
                .iter()
                .flat_map(|service| &service.sets)
                .find(|running| *running.name == *set.set);
            let running = || {
                let addresses = running.into_iter().flat_map(|running| &running.addresses);
                addresses.filter(|it| it.tls == set.tls)
            };
            let managed: Vec<ListenAddr> =
                running().filter(|it| it.is_managed).map(|it| it.configured.clone()).collect();
            let listen = if managed.is_empty() {
                let taken = running().map(|it| &it.configured).filter(|addr| {
                    // An IPv4 socket of an older process, beside ours for IPv6.
                    inherit::both_families(addr).is_some_and(|both| set.listen.contains(&both))
                        && !set.listen.contains(addr)
                });
                let own = set.listen.iter().filter(|addr| self.can_serve(addr));
                own.chain(taken).cloned().collect()
            } else {
                managed
            };
            wanted.extend(listen.into_iter().map(|addr| (set.clone(), addr)));
        }
        wanted
    }

    /// Whether an address can be served without a restart. The file of a Unix socket is only
    /// created at a start, because a file system can hang.
    fn can_serve(&self, addr: &ListenAddr) -> bool {
        addr.tcp().is_some() || self.running().iter().any(|(_, served)| served.addr == *addr)
    }

    /// The configured addresses that a restart would serve and a reload does not, for the list of
    /// pending keys.
    pub(crate) fn unserved(&self, config: &Config) -> Vec<String> {
        let wanted = self.wanted(config);
        let mut unserved = Vec::new();
        for set in listener_set::all(config) {
            let is_wanted = |addr: &ListenAddr| {
                wanted.iter().any(|(other, it)| other.name == set.name && it == addr)
            };
            let key = set.key();
            let missing = set.listen.iter().filter(|addr| !is_wanted(addr));
            let service = config.services.get(set.service).map_or("", |it| it.name.as_str());
            unserved.extend(missing.map(|addr| format!("{key} ({service}): {addr}")));
        }
        unserved
    }

    /// Does everything that may fail. `limits` are the maximum numbers of connections of each
    /// service.
    ///
    /// # Errors
    ///
    /// The service and address concerned, and why. Nothing has changed then.
    pub(crate) async fn prepare(
        &self,
        config: &Config,
        limits: &[usize],
        workers: &Running,
    ) -> Result<PreparedReload, String> {
        let leaving = self
            .services
            .iter()
            .filter(|running| config.services.iter().all(|service| service.name != running.name));
        if leaving.count() > MAX_LEAVING {
            return Err(format!(
                "more than {MAX_LEAVING} services would be closing their sessions at the same \
                 time; wait until some have ended, or lower shutdown.drain_timeout"
            ));
        }
        let wanted = self.wanted(config);
        self.refuse_other_protocol(&wanted)?;
        let running: Vec<SetAddress> = self.running().into_iter().map(|(key, _)| key).collect();
        let keys: Vec<SetAddress> =
            wanted.iter().map(|(set, addr)| (set.name.clone(), addr.clone())).collect();
        let plan = listener_plan::plan(&running, &keys);
        self.wait_for_closed(workers).await;
        let options: BTreeMap<String, Options> =
            listener_set::options_of(config, limits, &self.tls).into_iter().collect();
        let opened = self.bind(&wanted, &plan, &options)?;
        Ok(PreparedReload { wanted, plan, opened })
    }

    /// Refuses an address with TLS where a service manager's socket is plain, or the reverse. That
    /// socket is kept, and with `ReusePort=` both could be bound.
    fn refuse_other_protocol(&self, wanted: &[(ListenerSet, ListenAddr)]) -> Result<(), String> {
        for (_, served) in self.running().iter().filter(|(_, served)| served.is_managed) {
            let other = wanted
                .iter()
                .find(|(set, it)| set.tls != served.tls && activation::covers(it, &served.addr));
            if let Some((set, it)) = other {
                return Err(format!(
                    "{}: the service manager's socket {} is {} TLS; move it into a socket unit of \
                     its own with FileDescriptorName={}, and restart, or change {} from {it}",
                    set.name,
                    served.addr,
                    if served.tls { "for" } else { "without" },
                    set.name,
                    set.key(),
                ));
            }
        }
        Ok(())
    }

    /// Waits until the sockets that an earlier reload closes are closed, since their addresses may
    /// be wanted again.
    async fn wait_for_closed(&self, workers: &Running) {
        let since = Instant::now();
        while self.closing.keys().any(|id| !workers.is_closed(*id))
            && since.elapsed() < CLOSING_TIMEOUT
        {
            tokio::time::sleep(CLOSING_INTERVAL).await;
        }
    }

    fn bind(
        &self,
        wanted: &[(ListenerSet, ListenAddr)],
        plan: &ListenerPlan,
        options: &BTreeMap<String, Options>,
    ) -> Result<Vec<BoundListener>, String> {
        let kept = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let after: Vec<SocketAddr> = wanted.iter().filter_map(|(_, addr)| addr.tcp()).collect();
        let after: Vec<SocketAddr> = after.into_iter().chain(self.admin.iter().copied()).collect();
        let bound = kept.all().iter().filter_map(|socket| socket.addr.tcp()).collect();
        let addresses = AddressPlan::new(self.workers, &after, bound);
        let running = self.running();
        let mut opened = Vec::new();
        for ((set, addr), step) in wanted.iter().zip(&plan.steps) {
            let at = |what: &dyn std::fmt::Display| format!("service {}: {what}", set.name);
            let unusable =
                |error: std::io::Error| at(&format_args!("cannot listen on {addr}: {error}"));
            let default = Options::default();
            let options = options.get(&set.name).unwrap_or(&default);
            let listener = match step {
                ListenerStep::Keep(_) => continue,
                ListenerStep::Move(from) => {
                    let Some((_, served)) = running.get(*from) else { continue };
                    let duplicates = kept.duplicate(served.id).map_err(unusable)?;
                    let Some(listener) = duplicates.into_iter().next() else { continue };
                    listener
                }
                ListenerStep::Open => {
                    let Some(tcp) = addr.tcp() else { continue };
                    addresses.bind(tcp, options).map_err(|error| {
                        let source = std::error::Error::source(&error);
                        let source = source.map(|it| format!(": {it}")).unwrap_or_default();
                        at(&format_args!("{error}{source}"))
                    })?
                }
            };
            let bound = BoundListener::new(set, addr.clone(), false, listener);
            opened.push(bound.map_err(unusable)?);
        }
        Ok(opened)
    }
}
