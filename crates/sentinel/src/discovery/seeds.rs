//! The configured sentinels, and the addresses of their names.
//!
//! The addresses of a name change: a resolver may return a different subset each time, and a pod
//! that is not ready disappears from its Kubernetes service while its sentinel runs. An address
//! that is no longer returned is therefore used as long as its sentinel is connected, and for a
//! while after that.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use crate::link::Environment;
use crate::link::messages::DriverMessage;
use crate::net::resolve::Lookup;
use crate::{MyId, NodeAddr};

/// The interval between two lookups of a name.
const LOOKUP_EVERY: Duration = Duration::from_secs(5);

/// The same while the name has no address at all.
const LOOKUP_SOON: Duration = Duration::from_millis(500);

/// How long an address is kept that its name no longer has and whose sentinel is not connected.
const KEEP_PAST: Duration = Duration::from_secs(60);

/// The maximum number of such addresses per name.
const MAX_PAST: usize = 32;

/// One configured sentinel.
#[derive(Debug)]
pub(crate) struct Seed {
    /// The number of its service.
    pub(crate) service: usize,
    /// The index of its credentials.
    pub(crate) auth: usize,
    /// The configured name.
    pub(crate) name: NodeAddr,
    /// The current addresses of the name, or the last ones known.
    pub(crate) found: Vec<SocketAddr>,
    /// Former addresses, each with the time when it was last in use.
    past: BTreeMap<SocketAddr, Instant>,
    _task: Option<AbortOnDropHandle<()>>,
}

impl Seed {
    /// Looks `name` up periodically. Changes are sent as [`DriverMessage::Seed`] with this
    /// `number`.
    pub(crate) fn new(
        number: usize,
        service: usize,
        auth: usize,
        name: &NodeAddr,
        env: &Environment,
    ) -> Self {
        let task = tokio::spawn(look_up_forever(number, name.clone(), env.clone()));
        Self {
            service,
            auth,
            name: name.clone(),
            found: Vec::new(),
            past: BTreeMap::new(),
            _task: Some(AbortOnDropHandle::new(task)),
        }
    }

    /// The name now has these addresses.
    pub(crate) fn update(&mut self, found: Vec<SocketAddr>, now: Instant) {
        for gone in std::mem::take(&mut self.found) {
            self.past.insert(gone, now);
        }
        for addr in &found {
            self.past.remove(addr);
        }
        self.found = found;
        while self.past.len() > MAX_PAST {
            let oldest = self.past.iter().min_by_key(|(_, at)| **at).map(|(addr, _)| *addr);
            oldest.and_then(|addr| self.past.remove(&addr));
        }
    }

    /// The addresses to connect to; `up` tells which of them are connected.
    pub(crate) fn wanted(
        &mut self,
        now: Instant,
        up: impl Fn(SocketAddr) -> bool,
    ) -> Vec<SocketAddr> {
        self.past.retain(|addr, at| {
            if up(*addr) {
                *at = now;
            }
            now.saturating_duration_since(*at) < KEEP_PAST
        });
        self.found.iter().chain(self.past.keys()).copied().collect()
    }
}

/// The number of sentinels behind these names, as far as known. An address under two names counts
/// once, and so does a sentinel that `answers` at two addresses of one family. For a name with
/// addresses of both families, the larger family counts, since both addresses of a pod lead to the
/// same sentinel and one family may be unreachable. A name without an address counts as one.
pub(crate) fn expected<'a>(
    names: impl Iterator<Item = &'a [SocketAddr]>,
    answers: impl Fn(SocketAddr) -> Option<MyId>,
) -> usize {
    let (mut known, mut reached): (BTreeSet<SocketAddr>, BTreeSet<(MyId, bool)>) =
        Default::default();
    let mut sentinels = 0;
    for found in names {
        let mut by_family = [0_usize, 0];
        for addr in found.iter().filter(|addr| known.insert(**addr)) {
            let twin = answers(*addr).is_some_and(|id| !reached.insert((id, addr.is_ipv6())));
            if let Some(family) = by_family.get_mut(usize::from(addr.is_ipv6())).filter(|_| !twin) {
                *family += 1;
            }
        }
        sentinels += if found.is_empty() { 1 } else { by_family.into_iter().max().unwrap_or(0) };
    }
    sentinels
}

async fn look_up_forever(number: usize, name: NodeAddr, env: Environment) {
    let mut lookup = Lookup::new(&env.resolver, &name.host, name.port);
    let (mut last, mut warned): (Option<Vec<SocketAddr>>, bool) = (None, false);
    loop {
        let found = lookup.addresses(env.timeouts().command).await;
        if let Err(error) = &found
            && last.is_none()
            && !std::mem::replace(&mut warned, true)
        {
            warn!(sentinel = %name, "cannot resolve sentinel name: {error}");
        }
        let found = found.unwrap_or_default();
        let empty = found.is_empty();
        if !empty && last.as_ref() != Some(&found) {
            last = Some(found.clone());
            if env.out.send(DriverMessage::Seed(number, found)).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(if empty { LOOKUP_SOON } else { LOOKUP_EVERY }).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expects_one_sentinel_for_each_resolved_address() {
        let four = |number: u8| SocketAddr::from(([10, 0, 0, number], 26379));
        let six = |number: u16| SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, number], 26379));
        let id = |number: u8| MyId::parse(&format!("{number:040x}"));
        let count = |names: &[&[SocketAddr]]| expected(names.iter().copied(), |_| None);
        assert_eq!(count(&[&[four(1), four(2), four(3)]]), 3, "one name for all");
        assert_eq!(count(&[&[four(1)], &[], &[four(3)]]), 3, "a name without an address yet");
        assert_eq!(
            count(&[&[four(1), four(2)], &[four(2), four(3)]]),
            3,
            "an address under two names"
        );
        let both = [four(1), four(2), four(3), six(1), six(2), six(3)];
        assert_eq!(count(&[&both]), 3, "one sentinel has an address of each family");
        assert_eq!(
            count(&[&[four(1)], &[six(2)]]),
            2,
            "two names with an address each are two sentinels"
        );
        let twins = [four(1), four(2), four(3)];
        let answers = |addr: SocketAddr| if addr == four(3) { None } else { id(7) };
        assert_eq!(expected([&twins[..]].into_iter(), answers), 2, "a sentinel at two addresses");
        assert_eq!(count(&[]), 0);
    }

    #[test]
    fn keeps_former_address_while_connected_and_after() {
        let addr = |number: u8| SocketAddr::from(([10, 0, 0, number], 26379));
        let mut seed = Seed {
            service: 0,
            auth: 0,
            name: NodeAddr { host: "s".into(), port: 26379 },
            found: Vec::new(),
            past: BTreeMap::new(),
            _task: None,
        };
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        seed.update(vec![addr(1)], at(0));
        seed.update(vec![addr(2)], at(1));
        assert_eq!(seed.wanted(at(100), |it| it == addr(1)), [addr(2), addr(1)]);
        assert_eq!(seed.wanted(at(159), |_| false), [addr(2), addr(1)]);
        assert_eq!(seed.wanted(at(160), |_| false), [addr(2)]);
        for number in 0..200 {
            seed.update(vec![addr(number)], at(200));
        }
        assert!(seed.wanted(at(200), |_| true).len() <= 1 + MAX_PAST);
    }
}
