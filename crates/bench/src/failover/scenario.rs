//! The faults, and how each is brought about and repaired.

use std::net::IpAddr;
use std::time::Duration;

use clap::ValueEnum;
use harness::{Cluster, Cut, Node, PROXY, Signal};

use super::contender::Contender;

/// A fault, in the order of the tables, with its heading there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Scenario {
    /// Planned failover (SENTINEL FAILOVER)
    Planned,
    /// SIGKILL of the master
    Sigkill,
    /// SIGSTOP of the master
    Sigstop,
    /// Loss of the master's node
    NodeLoss,
    /// Partition, clients with the majority
    Partition,
    /// Partition, clients with the old master
    Minority,
    /// Rolling update of Redis
    RollingRedis,
    /// Rolling update of the proxy
    RollingProxy,
}

impl Scenario {
    /// Sentinel's `down-after-milliseconds`; for the loss of a node that of valkey-helm#235.
    pub(super) fn down_after(self) -> Duration {
        Duration::from_secs(if self == Self::NodeLoss { 5 } else { 2 })
    }

    /// Whether sentinels name another master.
    pub(super) fn switches(self) -> bool {
        self != Self::RollingProxy
    }

    /// Whether it is measured with a contender.
    pub(super) fn includes(self, contender: Contender) -> bool {
        match contender {
            // It makes a run twenty seconds longer.
            Contender::Service30 => self.waits_long(),
            _ => self.switches() || contender.is_proxy(),
        }
    }

    /// Whether it lasts long enough for a Service that is moved after thirty seconds.
    fn waits_long(self) -> bool {
        matches!(self, Self::Planned | Self::Sigkill | Self::NodeLoss)
    }

    /// How long clients are watched after the majority's switch, or after the restarts.
    pub(super) fn tail(self, contenders: &[Contender]) -> Duration {
        let long = self.waits_long() && contenders.contains(&Contender::Service30);
        Duration::from_secs(if long { 34 } else { 13 })
    }

    /// Brings it about. The networks are cut until the returned value is dropped.
    ///
    /// # Panics
    /// If a signal or the packet filter fails.
    pub(super) fn begin(self, cluster: &Cluster, parties: &Parties<'_>) -> Option<Cut> {
        let Parties { old, beside, .. } = *parties;
        let (near, far, clients) = (parties.near(), parties.far(), clients(cluster));
        match self {
            Self::Planned | Self::RollingRedis => drop(cluster.begin_failover_of(cluster.name())),
            Self::Sigkill => old.kill(),
            Self::Sigstop => old.stop(),
            Self::Partition | Self::NodeLoss => {
                let cut = Cut::between(&near, &[far, clients].concat());
                if self == Self::NodeLoss {
                    old.kill();
                    beside.kill();
                }
                return Some(cut);
            }
            Self::Minority => return Some(Cut::between(&[near, clients].concat(), &far)),
            Self::RollingProxy => {}
        }
        None
    }

    /// Repairs it as in production; a server that died comes back with its configuration.
    pub(super) fn repair(self, parties: &Parties<'_>, cut: Option<Cut>) {
        let Parties { old, beside, .. } = *parties;
        match self {
            Self::Sigkill => old.restart(),
            Self::Sigstop => old.cont(),
            Self::NodeLoss => {
                old.restart();
                beside.restart();
            }
            Self::RollingRedis => stop_and_start(old),
            Self::Planned | Self::Partition | Self::Minority | Self::RollingProxy => {}
        }
        drop(cut);
    }
}

/// Stops a server as an operator does and starts it again.
pub(super) fn stop_and_start(node: &Node) {
    node.signal(Signal::TERM);
    harness::wait_until("a server to stop", Duration::from_secs(10), || !node.is_running());
    node.restart();
}

/// The members on both sides.
#[derive(Debug, Clone)]
pub(super) struct Parties<'a> {
    pub(super) old: &'a Node,
    /// The sentinel on the old master's machine.
    pub(super) beside: &'a Node,
    pub(super) replicas: Vec<&'a Node>,
    pub(super) others: Vec<&'a Node>,
}

impl<'a> Parties<'a> {
    pub(super) fn of(cluster: &'a Cluster) -> Option<Self> {
        let mut sentinels = cluster.sentinels().iter();
        let beside = sentinels.next()?;
        let (old, replicas) = (cluster.master(), cluster.replicas());
        Some(Self { old, beside, replicas, others: sentinels.collect() })
    }

    fn near(&self) -> Vec<IpAddr> {
        [self.old, self.beside].map(|it| it.addr().ip()).into()
    }

    fn far(&self) -> Vec<IpAddr> {
        self.replicas.iter().chain(&self.others).map(|it| it.addr().ip()).collect()
    }
}

/// The addresses of proxies and clients.
fn clients(cluster: &Cluster) -> Vec<IpAddr> {
    vec![PROXY, cluster.address().ip()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_slow_services_in_some_scenarios() {
        let all = Contender::value_variants();
        let without = [Contender::Pointsman, Contender::Service5];
        assert_eq!(Scenario::Sigkill.tail(all).as_secs(), 34);
        assert_eq!(Scenario::Sigkill.tail(&without).as_secs(), 13);
        assert!(!Scenario::Sigstop.includes(Contender::Service30));
        assert_eq!(Scenario::Sigstop.tail(all).as_secs(), 13);
    }

    #[test]
    fn restarts_only_proxies() {
        let all = Contender::value_variants().iter();
        let left_out: Vec<_> = all.filter(|it| !Scenario::RollingProxy.includes(**it)).collect();
        assert_eq!(left_out.len(), 8, "{left_out:?}");
        assert!(left_out.iter().all(|it| !it.is_proxy()));
    }
}
