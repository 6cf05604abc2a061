//! How each event changes what the machine knows. Notices and probes may raise suspicion or arm a
//! hold; nothing here commits.

use std::time::Instant;

use super::electorate::{MAX_VOTERS, ReceivedView};
use super::nodes::{MAX_NODES, verifies};
use super::state::{HoldCause, MachineState};

use super::{Announced, Machine, MachineAction, MachineEvent, Warning};
use crate::{MyId, NodeAddr, NodeReport, Notice, Probe, ProbeFailure, Role, View};

impl Machine {
    pub(super) fn apply(&mut self, now: Instant, event: MachineEvent) {
        match event {
            MachineEvent::View { from, view, asked_at, configured } => {
                let (named, asked_at) = (view.addr.clone(), asked_at.min(now));
                let received = ReceivedView { named, view, asked_at, at: now, configured };
                self.handle_view(now, &from, received);
            }
            MachineEvent::ExpectedSentinels(sentinels) => self.electorate.expect(sentinels),
            MachineEvent::SentinelsReplaced(names) => self.replace_sentinels(now, names),
            MachineEvent::SentinelLost { id } => self.electorate.record_loss(&id),
            MachineEvent::Displaced { id } => self.electorate.displace(&id),
            MachineEvent::NameUnknown { from } => self.electorate.record_abstention(now, &from),
            MachineEvent::Notice { from, notice } => self.handle_notice(now, from.as_ref(), notice),
            MachineEvent::Probed { node, probe } => self.handle_probe(now, &node, &probe),
            MachineEvent::ProbeConnectionLost { node } => {
                self.nodes.ended(now, &node);
                if self.is_target(&node) {
                    self.suspect(now);
                }
            }
            MachineEvent::Hint if self.pacing.take_hint(now) => self.suspect(now),
            MachineEvent::Rules(rules) => self.set_rules(now, *rules),
            MachineEvent::Pause(pause) => self.hold.pause = Some(pause),
            MachineEvent::Resume => self.hold.pause = None,
            MachineEvent::SentinelConnections(count) => self.pacing.connections = count,
            MachineEvent::Follow(order) => self.order_follow(now, order),
            MachineEvent::Unfollow => self.unfollow(),
            MachineEvent::Hint | MachineEvent::Stalled | MachineEvent::Tick => {}
        }
    }

    /// The views of the former sentinels and what they announced do not count any more. A failover
    /// that they have begun continues, and none of the new ones will announce its promotion.
    fn replace_sentinels(&mut self, now: Instant, names: usize) {
        if matches!(self.state, MachineState::Stable | MachineState::Suspect { .. }) {
            self.hold_for_failover_in_progress(now);
        }
        self.electorate.refound(names);
        self.reach.majority_at = now;
        self.pending = None;
        self.updating_from.clear();
        self.hold.armed_by.clear();
        self.pacing.ask_now(now);
    }

    fn handle_view(&mut self, now: Instant, from: &MyId, received: ReceivedView) {
        let view = &received.view;
        let committed = self.committed.as_ref().map(|it| (it.addr.clone(), it.epoch));
        let newer = committed.as_ref().is_some_and(|(_, epoch)| view.epoch > *epoch);
        if committed.as_ref().is_some_and(|(_, epoch)| view.epoch < *epoch) {
            self.actions.push(MachineAction::Warning(Warning::StaleView));
        } else if let Some((addr, _)) = &committed {
            let is_down = view.down && view.addr == *addr;
            let troubled = !view.tilt && (is_down || view.replaces(addr));
            if newer {
                self.timeline.switched(now);
            }
            if (troubled || newer) && self.electorate.is_trusted(received.configured) {
                self.suspect(now);
            }
        }
        self.follow_announcement(now, from, &received.view, newer);
        let named = received.view.addr.clone();
        self.electorate.record(from, received);
        if committed.is_some_and(|(addr, _)| addr == named) {
            self.extend_family(&named);
        }
        let followers =
            self.updating_from.iter().filter(|(_, it)| it.peer == *from).map(|(id, _)| id.clone());
        followers
            .collect::<Vec<_>>()
            .iter()
            .for_each(|follower| self.count_announced_switch(now, follower));
    }

    /// Handles the first view with a higher epoch after the sentinel announced whose hello it
    /// adopts: the peer names what this view names. Later views may have another origin, so the
    /// announcement is valid for this one view only.
    fn follow_announcement(&mut self, now: Instant, from: &MyId, view: &View, newer: bool) {
        let Some(announced) = self.updating_from.get(from) else { return };
        let fresh = now.saturating_duration_since(announced.at) <= self.rules.view_expiry;
        let rose = view.epoch > announced.was;
        if rose || !fresh {
            let peer = announced.peer.clone();
            let left = announced.leaving != view.addr;
            self.updating_from.remove(from);
            if rose && left && fresh && newer {
                self.electorate.endorse(now, &peer, view.addr.clone(), view.epoch);
            }
        }
    }

    /// A sentinel that announced whose hello it adopts and then where it switched to, names what
    /// the peer names: the hello carried the peer's address and epoch. Its vote therefore need not
    /// wait for its next view, and two sentinels have voted. If no view of the peer is known yet,
    /// this runs again when one arrives. It is valid for one switch.
    fn count_announced_switch(&mut self, now: Instant, follower: &MyId) {
        let Some(announced) = self.updating_from.get_mut(follower) else { return };
        let fresh = now.saturating_duration_since(announced.at) <= self.rules.view_expiry;
        let Some((addr, epoch)) = self.electorate.named_by(&announced.peer).filter(|_| fresh)
        else {
            return;
        };
        let newer = self.committed.as_ref().is_some_and(|committed| epoch > committed.epoch);
        let same = announced.to.as_ref() == Some(&addr) && epoch > announced.was;
        if newer && same && self.electorate.is_member(&announced.peer) {
            announced.to = None;
            self.electorate.endorse(now, follower, addr, epoch);
        }
    }

    /// Adds the master's replicas that most configured sentinels list to the family. If the family
    /// is full, nodes that are no longer listed are removed first.
    fn extend_family(&mut self, master: &NodeAddr) {
        let mut new = self.electorate.vouched_replicas(master);
        if self.nodes.family.union(&new).count() > MAX_NODES {
            self.nodes.family.retain(|addr| new.contains(addr));
        }
        let free = MAX_NODES.saturating_sub(self.nodes.family.len());
        new.retain(|addr| !self.nodes.family.contains(addr));
        self.nodes.family.extend(new.into_iter().take(free));
    }

    fn handle_notice(&mut self, now: Instant, from: Option<&MyId>, notice: Notice) {
        match notice {
            Notice::Switched { .. } => self.pacing.ask_now(now),
            _ => self.pacing.ask_soon(now, &self.rules),
        }
        let member = from.filter(|id| self.electorate.is_member(id)).cloned();
        let is_trusted = member.as_ref().is_some_and(|id| self.electorate.trusts(id));
        let is_sign = !matches!(
            notice,
            Notice::ConfigUpdateFrom { .. } | Notice::ReplicaDone | Notice::Changed
        );
        match (notice, member) {
            (Notice::Switched { to }, member) => {
                if self.committed.as_ref().is_some_and(|it| it.addr != to) {
                    self.timeline.switched(now);
                }
                if let Some((from, announced)) =
                    member.and_then(|it| Some((it.clone(), self.updating_from.get_mut(&it)?)))
                {
                    announced.to = Some(to);
                    self.count_announced_switch(now, &from);
                }
            }
            (Notice::ConfigUpdateFrom { peer, leaving }, Some(from)) => {
                // The sentinel must leave the address it named last: then the next view with a
                // higher epoch is the one that follows the hello. An announcement that arrives
                // late, after that view, belongs to an earlier switch.
                if let Some((addr, was)) = self.electorate.named_by(&from)
                    && addr == leaving
                    && self.updating_from.len() < MAX_VOTERS
                {
                    self.updating_from
                        .insert(from, Announced { peer, leaving, at: now, was, to: None });
                }
            }
            (Notice::CandidateSelected { candidate }, Some(from)) => {
                self.updating_from.remove(&from);
                self.arm(now, HoldCause::Selected, &candidate, from);
            }
            (
                Notice::PromotionOrdered { candidate } | Notice::Promoted { candidate },
                Some(from),
            ) => {
                self.updating_from.remove(&from);
                self.arm(now, HoldCause::Ordered, &candidate, from);
            }
            (Notice::Aborted, Some(from)) if matches!(self.state, MachineState::Armed { .. }) => {
                // A failed attempt of one sentinel says nothing about the failover of another.
                let by = &mut self.hold.armed_by;
                let is_of_all = by.iter().all(|it| *it == from);
                if is_of_all && (is_trusted || by.contains(&from)) {
                    self.disarm(now);
                } else {
                    by.remove(&from);
                }
            }
            (_, _) => {}
        }
        if is_trusted && is_sign {
            self.suspect(now);
        }
    }

    fn handle_probe(&mut self, now: Instant, node: &NodeAddr, probe: &Probe) {
        if !self.nodes.record(node, probe.clone()) {
            return;
        }
        let since_commit =
            self.committed.as_ref().is_none_or(|committed| probe.asked_at >= committed.since);
        if let Ok(report) = &probe.outcome {
            self.learn_history(node, report, since_commit);
        }
        let is_last = self.committed.as_ref().is_some_and(|committed| committed.addr == *node);
        // A promotion by hand is no failover: the order comes first.
        if !is_last && self.weigh_order(now, node, probe) {
            return;
        }
        if !is_last
            && since_commit
            && let Ok(report @ NodeReport { role: Role::Replica { .. }, .. }) = &probe.outcome
        {
            self.weigh_replica(now, node, report);
        }
        if matches!(&self.state, MachineState::Committing { addr, .. } if addr == node) {
            self.verify(now, node, probe);
        } else if is_last {
            self.handle_target_probe(now, node, probe);
        } else if self.committed.is_none()
            && let MachineState::Committing { addr, evidence_at, .. } = &self.state
            && let Some(last) = self.nodes.get(addr).and_then(|it| it.last.clone())
            && last.asked_at >= *evidence_at
        {
            self.verify(now, &addr.clone(), &last);
        }
        if is_last {
            self.weigh_order(now, node, probe);
        }
    }

    fn handle_target_probe(&mut self, now: Instant, node: &NodeAddr, probe: &Probe) {
        let Some(committed) = self.committed.as_ref().filter(|it| it.addr == *node) else { return };
        if probe.asked_at < committed.since {
            return;
        }
        let published = committed.published;
        match &probe.outcome {
            Ok(NodeReport { role: Role::Replica { .. }, .. }) if published => self.demoted(now),
            Ok(report) if verifies(report, self.rules.verify) => {
                if published {
                    self.target_answered(now, probe.asked_at, report);
                } else {
                    self.detect_restart(now, probe.asked_at, report);
                }
            }
            // The credentials do not permit the query. It is neither a good nor a bad sign, but a
            // server is present.
            Err(ProbeFailure::Denied) => {}
            // The server is present but full or busy: no sign that it was replaced.
            Err(ProbeFailure::ConnectionRejected | ProbeFailure::Busy) => self.suspect(now),
            Ok(_) | Err(_) => {
                self.doubt(now, probe.asked_at, !published);
                self.suspect(now);
                if let Ok(report) = &probe.outcome {
                    self.detect_restart(now, probe.asked_at, report);
                }
            }
        }
    }
}
