//! Observes the conditions of the alarms, and logs where they begin and end.

use std::collections::BTreeSet;
use std::time::Instant;

use tracing::{info, warn};

use super::ServiceRuntime;
use crate::discovery::alarms::{Alarm, Conditions};
use crate::link::links::Links;
use crate::machine::Lacking;
use crate::{MyId, Probe, ProbeFailure, View};

impl ServiceRuntime {
    /// A sentinel answered, and it does or does not know the master's name.
    pub(crate) fn note_name(&mut self, from: &MyId, known: bool) {
        if known {
            self.name_unknown_at.remove(from);
        } else {
            self.name_unknown_at.insert(from.clone());
        }
    }

    /// Updates the alarms. The log says when one begins and when it ends.
    pub(super) fn update_alarms(&mut self, now: Instant, links: &Links) {
        self.name_unknown_at.retain(|id| links.is_reached(self.number, id));
        let conditions = Conditions::from([
            (Alarm::NameUnknown, self.without_name(links)),
            (Alarm::Unlisted, self.unlisted(links)),
            (Alarm::Ghosts, self.ghosts(links)),
            (Alarm::OutsideNodes, self.outside_nodes()),
            (Alarm::FollowedByReplica, self.own_listeners()),
            (Alarm::LacksConfirmed, self.lacking()),
        ]);
        for record in self.alarms.update(now, &conditions) {
            let (alarm, sentinels) = (record.alarm, record.sentinels.join(", "));
            self.log(move |service, suppressed| match record.ended_at {
                None => warn!(
                    %service, suppressed, alarm = alarm.label(), %sentinels,
                    "{}", alarm.message()
                ),
                Some(at) => {
                    let lasted_s = at.saturating_duration_since(record.since).as_secs();
                    info!(
                        %service, suppressed, alarm = alarm.label(), %sentinels, lasted_s,
                        "alarm ended"
                    );
                }
            });
        }
    }

    /// Listed nodes that are listeners of this process.
    fn own_listeners(&self) -> BTreeSet<String> {
        let leads_back = |probe: &&Probe| probe.outcome == Err(ProbeFailure::UnusableAddress);
        let nodes = self.machine.nodes();
        let own = nodes.filter(|(_, probe)| probe.as_ref().is_some_and(leads_back));
        own.map(|(addr, _)| addr.to_string()).collect()
    }

    /// The promoted node that lacks confirmed writes.
    fn lacking(&self) -> BTreeSet<String> {
        let text = |it: &Lacking| format!("{} (at least {} bytes)", it.node, it.bytes);
        self.machine.lacking().map(text).into_iter().collect()
    }

    /// The sentinels that do not know the name, if those that do are no majority.
    fn without_name(&self, links: &Links) -> BTreeSet<String> {
        let knowing = self.machine.views().filter(|(_, member, ..)| *member).count();
        let all = self.expected.max(self.machine.quorum().0);
        if knowing > all / 2 {
            return BTreeSet::new();
        }
        let unknown = self.name_unknown_at.iter();
        let links = unknown.filter_map(|id| links.voting_link(self.number, id));
        links.map(|link| link.addr.to_string()).collect()
    }

    /// Configured sentinels that answer and that no other one lists. One that has no vote, since it
    /// does not know the others either, is reported as such. A single sentinel has no others.
    fn unlisted(&self, links: &Links) -> BTreeSet<String> {
        let views: Vec<(&MyId, bool, &View)> =
            self.machine.views().map(|(id, member, view, _)| (id, member, view)).collect();
        if views.len() < 2 {
            return BTreeSet::new();
        }
        let listed: BTreeSet<&MyId> = views
            .iter()
            .flat_map(|(lister, _, view)| {
                view.peers.iter().map(|(id, _)| id).filter(move |id| id != lister)
            })
            .collect();
        views
            .into_iter()
            .filter(|(id, member, view)| !listed.contains(id) && (*member || view.is_empty_state()))
            .filter_map(|(id, ..)| links.voting_link(self.number, id))
            .filter(|link| !link.is_learned())
            .map(|link| link.addr.to_string())
            .collect()
    }

    /// Listed sentinels that every lister finds down and that do not answer here. One at a
    /// configured address is expected back and is reported as a sentinel that is down.
    fn ghosts(&self, links: &Links) -> BTreeSet<String> {
        let views = || self.machine.views().filter(|(_, member, view, _)| *member && !view.tilt);
        let (mut down, mut up) = (BTreeSet::new(), BTreeSet::new());
        for (id, is_up) in views().flat_map(|(_, _, view, _)| &view.peers) {
            if *is_up {
                up.insert(id)
            } else {
                down.insert(id)
            };
        }
        let configured: BTreeSet<_> = links
            .for_service(self.number)
            .filter(|link| !link.is_learned() && link.up.is_none())
            .map(|link| &link.addr)
            .collect();
        let addresses = self.learned_addresses.candidates();
        let ghosts = down.difference(&up).filter(|id| !links.is_reached(self.number, id));
        ghosts
            .filter_map(|id| {
                let addrs = addresses.get(*id);
                let is_expected = |addr| configured.contains(addr);
                if addrs.is_some_and(|addrs| addrs.iter().any(|addr| is_expected(*addr))) {
                    return None;
                }
                let addr = addrs.and_then(|addrs| addrs.first()).map(ToString::to_string);
                Some(addr.unwrap_or_else(|| id.short().to_owned()))
            })
            .collect()
    }
}
