//! What each event adds to what is known. Notices and probes may feed suspicion or arm a hold;
//! nothing here moves the points.

use std::time::{Duration, Instant};

use super::electorate::{Heard, MAX_VOTERS};
use super::nodes::{MAX_NODES, verifies};
use super::state::{Cause, State};

use super::{Action, Announced, Event, Machine, Note};
use crate::{MyId, NodeAddr, Notice, Probe, ProbeFailure, Report, Role, Verify, View};

/// Hints of the data plane are taken this often at most, and ever more seldom while nothing comes
/// of them: legitimate `-READONLY` replies exist.
pub(super) const HINT_PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause between two hints that are taken.
pub(super) const HINT_PAUSE_MAX: Duration = Duration::from_secs(5);

impl Machine {
    pub(super) fn apply(&mut self, now: Instant, event: Event) {
        match event {
            Event::View { from, view, asked_at, configured } => {
                self.view(
                    now,
                    &from,
                    Heard { view, asked_at: asked_at.min(now), at: now, configured },
                );
            }
            Event::Expected(sentinels) => self.electorate.expect(sentinels),
            Event::Notice { from, notice } => self.notice(now, from.as_ref(), notice),
            Event::Probed { node, probe } => self.probed(now, &node, &probe),
            Event::CanaryLost { node } => {
                self.nodes.ended(now, &node);
                if self.is_target(&node) {
                    self.suspect(now);
                }
            }
            Event::Hint if now >= self.hint_after => {
                self.hint_after = now + self.hint_pause;
                self.hint_pause = (self.hint_pause * 2).min(HINT_PAUSE_MAX);
                self.suspect(now);
            }
            Event::Pause(pause) => self.pause = Some(pause),
            Event::Resume => self.pause = None,
            Event::Hint | Event::Stalled | Event::Tick => {}
        }
    }

    fn view(&mut self, now: Instant, from: &MyId, heard: Heard) {
        let view = &heard.view;
        let committed = self.committed.as_ref().map(|it| (it.addr.clone(), it.epoch));
        let newer = committed.as_ref().is_some_and(|(_, epoch)| view.epoch > *epoch);
        if committed.as_ref().is_some_and(|(_, epoch)| view.epoch < *epoch) {
            self.actions.push(Action::Note(Note::StaleView));
        } else if let Some((addr, _)) = &committed {
            let troubled = !view.tilt && (view.down || view.failing_over) && view.addr == *addr;
            if newer {
                self.story.switched(now);
            }
            if troubled || newer {
                self.suspect(now);
            }
            if view.addr == *addr && self.electorate.is_member(from) {
                self.extend_family(&heard.view);
            }
        }
        self.follow_announcement(now, from, &heard.view, newer);
        self.electorate.hear(from, heard);
        let followers =
            self.updating_from.iter().filter(|(_, it)| it.peer == *from).map(|(id, _)| id.clone());
        followers
            .collect::<Vec<_>>()
            .iter()
            .for_each(|follower| self.believe_switch(now, follower));
    }

    /// The first view in which a sentinel's epoch has risen after it announced whose hello it
    /// follows: what it says now, that peer says too. Anything later it may have learnt elsewhere,
    /// so the announcement is good for this one view only.
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

    /// A sentinel that said whose hello it follows, and then where it switched to, names what the
    /// peer itself names: the hello carried the peer's own address and epoch. So its vote need not
    /// wait for its next view, and two sentinels have spoken for themselves. Where the peer's view
    /// has not been heard yet, this is asked again when it is; and it holds for one switch.
    fn believe_switch(&mut self, now: Instant, follower: &MyId) {
        let Some(announced) = self.updating_from.get_mut(follower) else { return };
        let fresh = now.saturating_duration_since(announced.at) <= self.rules.view_expiry;
        let Some((addr, epoch)) = self.electorate.word_of(&announced.peer).filter(|_| fresh) else {
            return;
        };
        let newer = self.committed.as_ref().is_some_and(|committed| epoch > committed.epoch);
        let same = announced.to.as_ref() == Some(&addr) && epoch > announced.was;
        if newer && same && self.electorate.is_member(&announced.peer) {
            announced.to = None;
            self.electorate.endorse(now, follower, addr, epoch);
        }
    }

    /// Takes the listed replicas into the family. Where there is no room, those that nobody lists
    /// any more leave first.
    fn extend_family(&mut self, view: &View) {
        let new = || view.replicas.iter().map(|replica| &replica.addr);
        if self.family.len() + new().filter(|addr| !self.family.contains(*addr)).count() > MAX_NODES
        {
            let listed = self.electorate.listed_replicas();
            self.family.retain(|addr| listed.contains(addr));
        }
        let room = MAX_NODES.saturating_sub(self.family.len());
        let fresh: Vec<NodeAddr> =
            new().filter(|addr| !self.family.contains(*addr)).take(room).cloned().collect();
        self.family.extend(fresh);
    }

    fn notice(&mut self, now: Instant, from: Option<&MyId>, notice: Notice) {
        self.next_ask = self.next_ask.min(now);
        let member = from.filter(|id| self.electorate.is_member(id)).cloned();
        match (notice, member) {
            (Notice::Switched { to }, member) => {
                if self.committed.as_ref().is_some_and(|it| it.addr != to) {
                    self.story.switched(now);
                }
                self.suspect(now);
                if let Some((from, announced)) =
                    member.and_then(|it| Some((it.clone(), self.updating_from.get_mut(&it)?)))
                {
                    announced.to = Some(to);
                    self.believe_switch(now, &from);
                }
            }
            (Notice::ConfigUpdateFrom { peer, leaving }, Some(from)) => {
                // It must leave what it named last: then the next view in which its epoch has risen
                // is the one that follows the hello. An announcement that comes late, from before
                // that view, is of an earlier switch.
                if let Some((addr, was)) = self.electorate.word_of(&from)
                    && addr == leaving
                    && self.updating_from.len() < MAX_VOTERS
                {
                    self.updating_from
                        .insert(from, Announced { peer, leaving, at: now, was, to: None });
                }
            }
            (Notice::CandidateSelected { candidate }, Some(from)) => {
                self.updating_from.remove(&from);
                self.arm(now, Cause::Selected, &candidate, Some(from));
            }
            (Notice::PromotionOrdered { candidate }, Some(from)) => {
                self.updating_from.remove(&from);
                self.arm(now, Cause::Ordered, &candidate, Some(from));
            }
            (Notice::Promoted { candidate }, Some(from)) => {
                self.updating_from.remove(&from);
                self.arm(now, Cause::Promoted, &candidate, Some(from));
            }
            (Notice::Aborted, Some(from)) => {
                // Another sentinel's failed attempt says nothing about the one that is under way.
                let theirs = self.armed_by.as_ref().is_none_or(|by| *by == from);
                if theirs && matches!(self.state, State::Armed { .. }) {
                    self.disarm(now);
                }
                self.suspect(now);
            }
            (Notice::ConfigUpdateFrom { .. } | Notice::ReplicaDone | Notice::Changed, _) => {}
            (_, _) => self.suspect(now),
        }
    }

    fn probed(&mut self, now: Instant, node: &NodeAddr, probe: &Probe) {
        if !self.nodes.heard(node, probe.clone()) {
            return;
        }
        let since_commit =
            self.committed.as_ref().is_none_or(|committed| probe.asked_at >= committed.since);
        if since_commit && matches!(&probe.outcome, Ok(Report { role: Role::Replica { .. }, .. })) {
            self.zombies.remove(node);
        }
        if matches!(&self.state, State::Committing { addr, .. } if addr == node) {
            self.verify(now, node, probe);
        } else if self.committed.as_ref().is_some_and(|committed| committed.addr == *node) {
            self.probed_target(now, node, probe);
        } else if let Ok(report) = &probe.outcome
            && since_commit
            && verifies(report, Verify::Role)
            && self.is_heir(node, report)
        {
            self.arm(now, Cause::Promoted, node, None);
        }
    }

    fn probed_target(&mut self, now: Instant, node: &NodeAddr, probe: &Probe) {
        let Some(committed) = self.committed.as_ref().filter(|it| it.addr == *node) else { return };
        if probe.asked_at < committed.since {
            return;
        }
        let published = committed.published;
        match &probe.outcome {
            Ok(Report { role: Role::Replica { .. }, .. }) if published => self.demoted(now),
            Ok(report) if verifies(report, self.rules.verify) => {
                if published {
                    self.target_answered(now, probe.asked_at, report);
                } else {
                    self.notes_another_process(now, probe.asked_at, report);
                }
            }
            // It must not be asked, so it says neither good nor bad; but something is there.
            Err(ProbeFailure::Denied) => {}
            // It is there and full: no sign that it was replaced.
            Err(ProbeFailure::ConnectionRejected) => self.suspect(now),
            Ok(_) | Err(_) => {
                self.doubt(now, probe.asked_at, !published);
                self.suspect(now);
            }
        }
    }

    /// Whether `node`, which says that it is the master, is the committed master's promoted replica
    /// rather than a zombie or a stranger.
    fn is_heir(&self, node: &NodeAddr, report: &Report) -> bool {
        let Some(committed) = &self.committed else { return false };
        let continues = match (&committed.lineage, &report.lineage) {
            (Some(old), Some(new)) => new.continues(old),
            _ => true,
        };
        continues && self.family.contains(node) && !self.zombies.contains(node)
    }
}
