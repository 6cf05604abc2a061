//! The gate never opens to a master that is known to be superseded, and no child is dismissed
//! without a reason.
//!
//! The witness judges by what the machine was told: the last answers of the nodes and the views of
//! the sentinels. From the machine itself it takes only which children it knows since when, and
//! which texts it reads as the master's. Its rule for a reinstatement is a necessary condition.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::streams::{happening, rules};
use super::{Oracle, World};
use crate::machine::{Committed, Followed, Machine, MachineAction, MachineEvent, OverrideNews};
use crate::{MyId, NodeAddr, NodeReport, Probe, Role, View};

const EXPIRY: Duration = Duration::from_secs(5);
const DEMOTION: Duration = Duration::from_secs(20);

/// A child as the machine knows it.
struct Promoted {
    /// When it was seen.
    since: Instant,
    /// The sentinels whose views had expired by then.
    silent: BTreeSet<MyId>,
}

#[derive(Default)]
pub(super) struct Witness {
    master: Option<(NodeAddr, Instant)>,
    /// Those whose history continues that of the published master.
    children: BTreeSet<NodeAddr>,
    promoted: BTreeMap<NodeAddr, Promoted>,
    views: BTreeMap<MyId, Heard>,
    /// These are the electorate, as far as known.
    voters: BTreeSet<MyId>,
}

impl Witness {
    /// Exactly these vote.
    pub(super) fn of_electorate(&mut self, voters: impl IntoIterator<Item = MyId>) {
        self.voters = voters.into_iter().collect();
    }

    pub(super) fn check(
        &mut self,
        now: Instant,
        event: &MachineEvent,
        actions: &[MachineAction],
        machine: &Machine,
    ) {
        match event {
            MachineEvent::View { from, view, asked_at, .. } => {
                let heard = Heard { view: view.clone(), asked_at: *asked_at, at: now };
                self.views.insert(from.clone(), heard);
            }
            // Any sentinel that answers at a configured address votes from now on.
            MachineEvent::SentinelsReplaced(_) => {
                self.views.clear();
                self.voters.clear();
            }
            _ => {}
        }
        let Some(committed) = machine.committed() else { return };
        let master = (committed.addr.clone(), committed.since);
        let replaced = self.master.as_ref() != Some(&master);
        if replaced {
            self.children.clear();
            self.master = Some(master);
        }
        // The machine may forget a node that turns out to be a replica.
        if let MachineEvent::Probed { node, probe } = event
            && matches!(&probe.outcome, Ok(NodeReport { role: Role::Replica { .. }, .. }))
        {
            self.meet(committed, node, probe);
        }
        for (node, last) in machine.nodes() {
            if let Some(last) = last {
                self.meet(committed, node, last);
            }
        }
        let confirmed = |it: &MachineAction| {
            let MachineAction::Override(OverrideNews::Answered(_, answer)) = it else {
                return false;
            };
            *answer == Ok(Followed::Confirmed)
        };
        let confirmed = actions.iter().any(confirmed);
        let known: BTreeMap<NodeAddr, Instant> = machine.succession.seen().collect();
        for (node, child) in std::mem::take(&mut self.promoted) {
            if known.contains_key(&node) {
                self.promoted.insert(node, child);
                continue;
            }
            let answered = matches!(event, MachineEvent::Probed { node: it, .. } if *it == node);
            let voted = self.stand_by_master(now, machine, &child);
            let dismissed = replaced || confirmed || answered || voted;
            assert!(dismissed, "{node} was dismissed without a word of the voters");
            self.children.remove(&node);
        }
        // One that is recalled is a child again if its last answer says so.
        self.children.retain(|node| !machine.succession.strays().any(|it| it == node));
        let open = committed.published && !machine.is_holding();
        let child = self.children.first().filter(|_| open);
        assert_eq!(child, None, "open to a superseded master: {:?}", machine.state());
        for (node, since) in known {
            let silent = |id: &&MyId| !self.views.get(*id).is_some_and(|it| it.is_fresh(now));
            let silent = self.voters.iter().filter(silent).cloned().collect();
            if self.promoted.get(&node).is_none_or(|child| child.since != since) {
                self.promoted.insert(node, Promoted { since, silent });
            }
        }
    }

    fn meet(&mut self, committed: &Committed, node: &NodeAddr, last: &Probe) {
        let Ok(report) = &last.outcome else { return };
        let Some(new) = &report.lineage else { return };
        let Some(old) = &committed.lineage else { return };
        match &report.role {
            Role::Replica { master, .. }
                if *master == committed.addr || new.replid == old.replid =>
            {
                self.children.remove(node);
            }
            Role::Master
                if new.replid2 == old.replid
                    && new.run_id != old.run_id
                    && report.ping.is_ready()
                    && *node != committed.addr
                    && last.asked_at >= committed.since =>
            {
                self.children.insert(node.clone());
            }
            _ => {}
        }
    }

    /// Whether the voters may have reinstated the master: a majority names it, none has a failover
    /// in progress, and all have answered, were silent before, or had the time to demote the child.
    fn stand_by_master(&self, now: Instant, machine: &Machine, child: &Promoted) -> bool {
        let master = machine.committed().map(|it| &it.addr);
        let votes = |id: &MyId| self.voters.is_empty() || self.voters.contains(id);
        let views = self.views.iter().filter(|(id, it)| votes(id) && it.is_fresh(now));
        let asked: BTreeMap<&MyId, &View> = views
            .filter(|(_, it)| it.asked_at >= child.since)
            .map(|(id, it)| (id, &it.view))
            .collect();
        // Another text may lead to the process of the master (`names`).
        let named = |id: &MyId| machine.electorate.named_by(id).map(|(addr, _)| addr);
        let is_ours =
            |id: &MyId, view: &View| Some(&view.addr) == master || named(id).as_ref() == master;
        let ours = || asked.iter().filter(|(id, view)| is_ours(id, view)).map(|(_, view)| view);
        let standing = ours().filter(|view| !view.failing_over).count();
        let spoken = |id| asked.contains_key(id) || child.silent.contains(id);
        let all = self.voters.iter().all(spoken) || now >= child.since + DEMOTION;
        let calm = self.voters.is_empty() || ours().all(|view| !view.failing_over);
        standing > self.voters.len() / 2 && calm && all
    }
}

struct Heard {
    view: View,
    asked_at: Instant,
    at: Instant,
}

impl Heard {
    fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) <= EXPIRY
    }
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    #[test]
    fn never_opens_to_superseded_master(
        rules in rules(), stream in prop::collection::vec(happening(false), 1..250),
    ) {
        let mut world = World::new(rules.clone(), Oracle::new(rules).of_electorate(3));
        world.witness.of_electorate((1..=3).map(super::id));
        world.boot();
        for happening in &stream {
            world.happens(happening);
        }
    }
}
