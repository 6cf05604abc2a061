//! Publishes the sentinels that answer, for listeners that lead to any live sentinel.
//!
//! Some deployments expose the sentinel port beside Redis, and clients that support Sentinel
//! connect to it. The pool holds the configured sentinels to which discovery has a connection right
//! now, or the learned ones if there is none: anybody who may publish may have announced those, and
//! they could give clients any address. Sentinels in TILT and sentinels that do not know the
//! master's name are left out while another one is connected: they would give a client an outdated
//! answer or none.

use std::net::SocketAddr;
use std::time::Duration;

use target::{ClockReading, Destination, PoolWriter};

use crate::{MyId, NodeAddr};

/// A connected sentinel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LiveSentinel {
    pub(crate) id: MyId,
    pub(crate) dialled: SocketAddr,
    /// The host and port that led there: its certificate is verified for that host.
    pub(crate) addr: NodeAddr,
    pub(crate) is_configured: bool,
    /// It knows the master's name and is not in TILT.
    pub(crate) is_useful: bool,
}

/// The pool of one service.
#[derive(Debug)]
pub(crate) struct SentinelPool {
    writer: PoolWriter,
    published: Option<Vec<LiveSentinel>>,
}

impl SentinelPool {
    pub(crate) fn new(writer: PoolWriter) -> Self {
        Self { writer, published: None }
    }

    /// Publishes the sentinels that are connected now, if they have changed. Before the first
    /// publication clients wait instead of being refused, so an empty set is published first only
    /// if `all_failed`: no sentinel is still being dialled.
    pub(crate) fn publish(&mut self, live: Vec<LiveSentinel>, all_failed: bool) {
        let members = choose(live);
        let is_early = members.is_empty() && self.published.is_none() && !all_failed;
        if is_early || self.published.as_ref() == Some(&members) {
            return;
        }
        let destinations = members.iter().map(|it| Destination {
            addr: it.dialled,
            name: it.addr.to_string().into(),
            epoch: 0,
            run_id: Some(it.id.as_str().into()),
        });
        self.writer.publish(destinations.collect());
        self.published = Some(members);
    }

    /// Confirms what was published, for `span` from `checked_at` on.
    pub(crate) fn renew(&mut self, checked_at: ClockReading, span: Duration) {
        self.writer.renew(checked_at, span);
    }
}

/// The configured sentinels, or all if there is none; of these the useful ones, likewise.
fn choose(mut live: Vec<LiveSentinel>) -> Vec<LiveSentinel> {
    for is_better in [|it: &LiveSentinel| it.is_configured, |it: &LiveSentinel| it.is_useful] {
        if live.iter().any(is_better) {
            live.retain(is_better);
        }
    }
    live
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentinel(number: u8, is_useful: bool) -> LiveSentinel {
        let id = MyId::parse(&format!("{number:040x}")).unwrap();
        let dialled = SocketAddr::from(([127, 0, 0, number], 26379));
        let addr = NodeAddr { host: dialled.ip().to_string().into(), port: dialled.port() };
        LiveSentinel { id, dialled, addr, is_configured: true, is_useful }
    }

    #[test]
    fn prefers_sentinels_that_know_the_master() {
        let (good, bad) = (sentinel(1, true), sentinel(2, false));
        assert_eq!(choose(vec![good.clone(), bad.clone()]), [good]);
        assert_eq!(choose(vec![bad.clone()]), [bad]);
        assert_eq!(choose(Vec::new()), []);
    }

    /// Anybody who may publish can have one announced.
    #[test]
    fn leads_to_no_learned_sentinel_beside_configured_ones() {
        let learned = LiveSentinel { is_configured: false, ..sentinel(3, true) };
        for is_useful in [true, false] {
            let ours = sentinel(1, is_useful);
            assert_eq!(choose(vec![learned.clone(), ours.clone()]), [ours]);
        }
        assert_eq!(choose(vec![learned.clone()]), [learned]);
    }

    #[test]
    fn publishes_only_changes_of_live_sentinels() {
        let (_master, reader) = target::TargetWriter::new();
        let (writer, pool) = PoolWriter::new(&reader, target::EmptyPool::Reject);
        let source = target::TargetSource::from(std::sync::Arc::clone(&pool));
        let mut sentinels = SentinelPool::new(writer);
        sentinels.publish(Vec::new(), false);
        assert!(pool.members().is_none(), "clients wait for the first sentinel");
        sentinels.publish(vec![sentinel(1, true), sentinel(2, true)], false);
        sentinels.renew(ClockReading::now(), Duration::from_secs(5));
        let target = source.usable_target().expect("a live sentinel");
        let generation = target.generation();
        sentinels.publish(vec![sentinel(1, true), sentinel(2, true)], false);
        assert_eq!(pool.members().map(|it| it.len()), Some(2));
        assert!(pool.members().iter().flatten().any(|it| it.generation() == generation));
        sentinels.publish(Vec::new(), false);
        assert!(target.is_draining() && source.usable_target().is_none());
    }
}
