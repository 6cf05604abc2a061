//! The configured sentinels, and the addresses of their names.
//!
//! The addresses of a name change: a resolver may return a different subset each time, and a pod
//! that is not ready disappears from its Kubernetes service while its sentinel runs. The connection
//! to an address that is no longer returned is therefore kept while its sentinel is a member, but
//! never made anew, and it is not one of the configuration any more: the address may be given to
//! the pod of another cluster. If the name has no address at all, and its name server says so, the
//! last ones are dialled again, but only the sentinel that was there before may answer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use crate::link::Environment;
use crate::link::messages::DriverMessage;
use crate::net::resolve::{LOOKUP_EVERY, LOOKUP_SOON, Lookup};
use crate::{MyId, NodeAddr};

/// The maximum number of addresses per name that it has no longer.
const MAX_FORMER: usize = 32;

/// One configured sentinel.
#[derive(Debug)]
pub(crate) struct Seed {
    /// The number of its service.
    pub(crate) service: usize,
    /// The index of its credentials.
    pub(crate) auth: usize,
    /// The configured name.
    pub(crate) name: NodeAddr,
    /// The current addresses of the name, or the last ones while its name server does not answer.
    pub(crate) found: Vec<SocketAddr>,
    /// Its former addresses that are in use, with the sentinel there.
    former: BTreeMap<SocketAddr, Option<MyId>>,
    lost: Arc<Notify>,
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
        let lost = Arc::<Notify>::default();
        let task = look_up_forever(number, name.clone(), env.clone(), Arc::clone(&lost));
        let task = tokio::spawn(task);
        Self {
            service,
            auth,
            name: name.clone(),
            found: Vec::new(),
            former: BTreeMap::new(),
            lost,
            _task: Some(AbortOnDropHandle::new(task)),
        }
    }

    /// The name now has these addresses.
    pub(crate) fn update(&mut self, found: Vec<SocketAddr>) {
        self.former.extend(std::mem::take(&mut self.found).into_iter().map(|addr| (addr, None)));
        self.former.retain(|addr, _| !found.contains(addr));
        self.found = found;
    }

    /// The sentinel at one of its addresses was lost: looks the name up at once.
    pub(crate) fn lost(&self, addr: &NodeAddr) {
        if self.found.iter().any(|found| NodeAddr::from(*found) == *addr) {
            self.lost.notify_one();
        }
    }

    /// Whether it is one of its former addresses.
    pub(crate) fn is_former(&self, addr: &NodeAddr) -> bool {
        self.former.keys().any(|former| NodeAddr::from(*former) == *addr)
    }

    /// The former addresses that are in use, with the sentinel to expect there. `member_at` is the
    /// member that is connected at an address.
    pub(crate) fn former(
        &mut self,
        member_at: impl Fn(SocketAddr) -> Option<MyId>,
    ) -> Vec<(SocketAddr, MyId)> {
        let has_others = !self.found.is_empty();
        self.former.retain(|addr, id| {
            *id = member_at(*addr).or_else(|| id.take().filter(|_| !has_others));
            id.is_some()
        });
        while self.former.len() > MAX_FORMER {
            self.former.pop_first();
        }
        self.former.iter().filter_map(|(addr, id)| Some((*addr, id.clone()?))).collect()
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

async fn look_up_forever(number: usize, name: NodeAddr, env: Environment, lost: Arc<Notify>) {
    let mut pause = LOOKUP_EVERY;
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
        if last.as_ref() != Some(&found) && (!empty || last.is_some()) {
            if empty && !std::mem::replace(&mut warned, true) {
                warn!(sentinel = %name, "sentinel name has no address any more");
            }
            last = Some(found.clone());
            if env.out.send(DriverMessage::Seed(number, found)).await.is_err() {
                return;
            }
        }
        let next = if empty { LOOKUP_SOON } else { pause };
        pause = (pause * 2).min(LOOKUP_EVERY);
        tokio::select! {
            () = tokio::time::sleep(next) => {}
            () = lost.notified() => pause = LOOKUP_SOON,
        }
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
    fn keeps_former_address_while_connected() {
        let addr = |number: u8| SocketAddr::from(([10, 0, 0, number], 26379));
        let mut seed = Seed {
            service: 0,
            auth: 0,
            name: NodeAddr { host: "s".into(), port: 26379 },
            found: Vec::new(),
            former: BTreeMap::new(),
            lost: Arc::default(),
            _task: None,
        };
        let id = |number: u8| MyId::parse(&format!("{number:040x}"));
        let at_one = |it: SocketAddr| id(7).filter(|_| it == addr(1));
        let one = vec![(addr(1), id(7).expect("an ID"))];
        seed.update(vec![addr(1)]);
        seed.update(vec![addr(2)]);
        assert_eq!(seed.former(at_one), one);
        seed.update(vec![addr(1), addr(2)]);
        assert!(seed.former(at_one).is_empty(), "it is found again");
        seed.update(vec![addr(2)]);
        assert!(seed.former(|_| None).is_empty());
        assert!(seed.former(at_one).is_empty(), "a connection that has ended is not made anew");
        seed.update(vec![addr(1)]);
        seed.update(Vec::new());
        assert_eq!(seed.former(at_one), one);
        assert_eq!(seed.former(|_| None), one, "while the name has no address");
        seed.update(vec![addr(2)]);
        assert!(seed.former(|_| None).is_empty());
        for number in 0..200 {
            seed.update(vec![addr(number)]);
        }
        assert_eq!(seed.former(|_| id(7)).len(), MAX_FORMER);
    }
}
