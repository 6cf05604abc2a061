//! From what is known to what is wanted: the rules that feed suspicion, arm a hold and let time run out.

use std::time::{Duration, Instant};

use super::agree::{self, Claim, Finding};
use super::nodes::{MAX_NODES, verifies};
use super::state::{Basis, Cause, Lack, State};
use super::voters::MAX_VOTERS;
use super::{Action, Event, Machine, Note, Pending};
use crate::{Epoch, Minority, MyId, NodeAddr, Notice, Probe, ProbeFailure, Report, Role, View};

/// Hints of the data plane are taken this often at most, and ever more seldom while nothing comes of them: legitimate
/// `-READONLY` replies exist.
pub(super) const HINT_PAUSE_MIN: Duration = Duration::from_millis(100);
const HINT_PAUSE_MAX: Duration = Duration::from_secs(5);

/// Holds that may end without a commit within [`HOLD_WINDOW`]; after that, signs of a failover no longer hold.
const FAILED_HOLDS: usize = 3;
const HOLD_WINDOW: Duration = Duration::from_secs(60);

impl Machine {
    pub(super) fn apply(&mut self, now: Instant, event: Event) {
        match event {
            Event::View { from, view } => self.view(now, &from, view),
            Event::Notice { from, notice } => self.notice(now, from.as_ref(), notice),
            Event::Probed { node, probe } => self.probed(now, &node, probe),
            Event::CanaryLost { node } => {
                self.nodes.ask_at(now, &node);
                if self.is_target(&node) {
                    self.suspect(now);
                }
            }
            Event::Hint if now >= self.hint_after => {
                self.hint_after = now + self.hint_pause;
                self.hint_pause = (self.hint_pause * 2).min(HINT_PAUSE_MAX);
                self.suspect(now);
            }
            Event::Hint | Event::Tick => {}
        }
    }

    fn view(&mut self, now: Instant, from: &MyId, view: View) {
        let committed = self.committed.as_ref().map(|it| (it.addr.clone(), it.epoch));
        let founding = committed.is_none();
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
            if view.addr == *addr && self.voters.is_member(from) {
                let room = MAX_NODES.saturating_sub(self.family.len());
                self.family.extend(view.replicas.iter().take(room).map(|replica| replica.addr.clone()));
            }
        }
        if newer {
            // Only after its announcement: what it says now, the peer it followed says too.
            if let Some(peer) = self.updating_from.remove(from) {
                self.voters.endorse(now, &peer, view.addr.clone(), view.epoch);
            }
        }
        self.voters.hear(now, from, view, founding);
    }

    fn notice(&mut self, now: Instant, from: Option<&MyId>, notice: Notice) {
        self.next_ask = self.next_ask.min(now);
        let member = from.is_some_and(|id| self.voters.is_member(id));
        match notice {
            Notice::Switched { to } => {
                if self.committed.as_ref().is_some_and(|it| it.addr != to) {
                    self.story.switched(now);
                }
                self.suspect(now);
            }
            Notice::ConfigUpdateFrom { peer } => {
                if let Some(from) = from.filter(|_| member && self.updating_from.len() < MAX_VOTERS) {
                    self.updating_from.insert(from.clone(), peer);
                }
            }
            Notice::CandidateSelected { candidate } if member => self.arm(now, Cause::Selected, &candidate),
            Notice::Promoted { candidate } if member => self.arm(now, Cause::Promoted, &candidate),
            Notice::Aborted => {
                if let State::Armed { cause: Cause::Selected | Cause::Promoted, .. } = self.state {
                    self.disarm(now);
                }
                self.suspect(now);
            }
            Notice::CandidateSelected { .. } | Notice::Promoted { .. } | Notice::Trouble => self.suspect(now),
            Notice::Changed => {}
        }
    }

    fn probed(&mut self, now: Instant, node: &NodeAddr, probe: Probe) {
        if !self.nodes.heard(node, probe.clone()) {
            return;
        }
        if let Ok(Report { role: Role::Replica { .. }, .. }) = &probe.outcome {
            self.zombies.remove(node);
        }
        if matches!(&self.state, State::Committing { addr, .. } if addr == node) {
            self.verify(now, node, &probe);
        } else if self.is_target(node) {
            self.probed_target(now, node, &probe);
        } else if let Ok(report) = &probe.outcome {
            if verifies(report, crate::Verify::Role) && self.is_heir(node, report) {
                let node = node.clone();
                self.arm(now, Cause::Promoted, &node);
            }
        }
    }

    fn probed_target(&mut self, now: Instant, node: &NodeAddr, probe: &Probe) {
        let Some(committed) = self.committed.as_mut() else { return };
        match &probe.outcome {
            Ok(Report { role: Role::Replica { .. }, .. }) => {
                if probe.asked_at >= committed.since {
                    self.take_away(now, Lack::Demoted);
                }
            }
            Ok(report) if verifies(report, self.rules.verify) => {
                let restarted = match (&committed.lineage, &report.lineage) {
                    (Some(old), Some(new)) => old.run_id != new.run_id,
                    _ => false,
                };
                if restarted {
                    let (addr, epoch) = (node.clone(), committed.epoch);
                    self.actions.push(Action::Note(Note::Rebooted));
                    self.pursue(now, addr, epoch, Basis::Again);
                    return;
                }
                if report.lineage.is_some() {
                    committed.lineage.clone_from(&report.lineage);
                }
                if matches!(self.state, State::NoMaster { lack: Lack::Unreachable, .. }) {
                    self.state = State::Suspect { since: now, fed_at: now };
                }
            }
            // Whoever may not ask learns nothing, neither good nor bad.
            Err(ProbeFailure::Denied) => {}
            Ok(_) | Err(_) => self.suspect(now),
        }
    }

    /// Whether `node`, which says that it is the master, is the committed master's promoted replica rather than a zombie or
    /// a stranger.
    fn is_heir(&self, node: &NodeAddr, report: &Report) -> bool {
        let Some(committed) = &self.committed else { return false };
        let continues = match (&committed.lineage, &report.lineage) {
            (Some(old), Some(new)) => new.continues(old),
            _ => true,
        };
        continues && self.family.contains(node) && !self.zombies.contains(node)
    }

    /// Brings the states up to date with all that is known.
    pub(super) fn decide(&mut self, now: Instant) {
        self.voters.refresh(now, self.rules.view_expiry);
        let committed = self.committed.as_ref().map(|it| (&it.addr, it.epoch));
        let finding = agree::count(&self.voters.votes(), self.voters.majority(), committed);
        let was_split = matches!(self.finding, Finding::Confirmed { split: true, .. });
        self.finding = finding.clone();
        self.weigh_minority(now);
        match finding {
            Finding::Silence => self.pending = None,
            Finding::Confirmed { majority, split, .. } => {
                if split && !was_split {
                    self.actions.push(Action::Note(Note::Split));
                }
                self.pending = None;
                self.confirmed(now, majority, split);
            }
            Finding::Claimed(claim) => self.claimed(now, &claim),
            Finding::Regressed(claim) => self.regressed(now, &claim),
        }
        self.run_out(now);
    }

    fn weigh_minority(&mut self, now: Instant) {
        let minority = self.committed.is_some() && self.voters.provable_minority();
        if minority && !self.minority {
            self.actions.push(Action::Note(Note::Minority));
            if self.rules.minority == Minority::Cut {
                self.take_away(now, Lack::Minority);
            }
        }
        self.minority = minority;
    }

    fn confirmed(&mut self, now: Instant, majority: bool, split: bool) {
        let Some(committed) = &self.committed else { return };
        let good = self.nodes.get(&committed.addr).and_then(super::nodes::Node::report);
        let good = good.is_some_and(|report| verifies(report, self.rules.verify));
        match &self.state {
            State::Committing { addr, basis: Basis::Solo, .. } if *addr != committed.addr => self.disarm(now),
            State::NoMaster { lack, .. } if !committed.published && good => {
                if majority || (!split && *lack != Lack::Minority) {
                    let (addr, epoch) = (committed.addr.clone(), committed.epoch);
                    self.pursue(now, addr, epoch, Basis::Again);
                }
            }
            State::Armed { cause: Cause::Stalled, since, .. } => {
                let asked_since = |probe: &Probe| probe.asked_at >= *since;
                if good && self.nodes.get(&committed.addr).and_then(|node| node.last.as_ref()).is_some_and(asked_since)
                {
                    self.state = State::Suspect { since: now, fed_at: now };
                }
            }
            _ => {}
        }
    }

    fn claimed(&mut self, now: Instant, claim: &Claim) {
        if self.superseded.get(&claim.addr).is_some_and(|epoch| *epoch >= claim.epoch) {
            return;
        }
        if let State::Bootstrap { heard_at } = &mut self.state {
            let since = *heard_at.get_or_insert(now);
            let needed = self.voters.majority().max(self.expected_voters / 2 + 1);
            if claim.votes >= needed {
                self.pursue(now, claim.addr.clone(), claim.epoch, Basis::Majority);
            } else if now.saturating_duration_since(since) >= self.rules.bootstrap_grace {
                self.pursue(now, claim.addr.clone(), claim.epoch, Basis::BootstrapMinority);
            }
            return;
        }
        if self.committed.is_none() {
            // A verification of the start failed its deadline or is under way: the best claim is followed.
            let basis = if claim.majority { Basis::Majority } else { Basis::BootstrapMinority };
            self.pursue(now, claim.addr.clone(), claim.epoch, basis);
            return;
        }
        self.suspect(now);
        let since = self.pend(now, &claim.addr, claim.epoch);
        if claim.majority {
            self.pursue(now, claim.addr.clone(), claim.epoch, Basis::Majority);
        } else if claim.contradicted_at.is_none_or(|at| at < since)
            && now.saturating_duration_since(since) >= self.rules.solo_grace
        {
            self.pursue(now, claim.addr.clone(), claim.epoch, Basis::Solo);
        }
    }

    fn regressed(&mut self, now: Instant, claim: &Claim) {
        let since = self.pend(now, &claim.addr, claim.epoch);
        let Some(committed) = self.committed.as_mut() else { return };
        if !claim.majority {
            return;
        }
        let patient = now.saturating_duration_since(since) >= self.rules.regress_grace;
        let node = self.nodes.get(&committed.addr);
        let bad = !committed.published || node.is_some_and(|node| node.is_gone(now, self.rules.unreachable));
        if !patient && !bad {
            return;
        }
        if committed.addr == claim.addr && committed.published {
            // Configured anew, to the same master: nothing moves, only the clock is theirs again.
            committed.epoch = claim.epoch;
            self.superseded.clear();
            self.pending = None;
        } else {
            self.pursue(now, claim.addr.clone(), claim.epoch, Basis::Regress);
        }
    }

    /// Since when this very claim has been standing.
    fn pend(&mut self, now: Instant, addr: &NodeAddr, epoch: Epoch) -> Instant {
        match &self.pending {
            Some(pending) if pending.addr == *addr && pending.epoch == epoch => pending.since,
            _ => self.pending.insert(Pending { addr: addr.clone(), epoch, since: now }).since,
        }
    }

    pub(super) fn grace(&self, epoch: Epoch) -> Duration {
        match &self.committed {
            Some(committed) if epoch < committed.epoch => self.rules.regress_grace,
            _ => self.rules.solo_grace,
        }
    }

    /// Feeds suspicion: everything is looked at more often, nothing else changes.
    pub(super) fn suspect(&mut self, now: Instant) {
        match &mut self.state {
            State::Stable => {
                self.story.suspected(now);
                self.state = State::Suspect { since: now, fed_at: now };
                self.next_ask = self.next_ask.min(now);
                self.nodes.hurry(now);
            }
            State::Suspect { fed_at, .. } => *fed_at = now,
            _ => {}
        }
    }

    fn arm(&mut self, now: Instant, cause: Cause, heir: &NodeAddr) {
        self.suspect(now);
        let known =
            self.family.contains(heir) && self.committed.as_ref().is_some_and(|it| it.published && it.addr != *heir);
        match &mut self.state {
            State::Armed { candidate, .. } if known => *candidate = Some(heir.clone()),
            State::Suspect { .. } if known => {
                self.failed_holds.retain(|at| now.saturating_duration_since(*at) < HOLD_WINDOW);
                if self.failed_holds.len() >= FAILED_HOLDS {
                    self.actions.push(Action::Note(Note::HoldsExhausted));
                    return;
                }
                let until = now + self.rules.hold_max;
                self.state = State::Armed { cause, candidate: Some(heir.clone()), since: now, until };
                self.nodes.hurry(now);
            }
            _ => {}
        }
    }

    /// Ends a hold that came to nothing.
    fn disarm(&mut self, now: Instant) {
        if matches!(self.state, State::Armed { .. } | State::Committing { .. }) {
            self.failed_holds.push_back(now);
            self.failed_holds.truncate(FAILED_HOLDS);
            self.state = State::Suspect { since: now, fed_at: now };
        }
    }

    fn run_out(&mut self, now: Instant) {
        let target = self.committed.as_ref().filter(|it| it.published).and_then(|it| self.nodes.get(&it.addr));
        let gone = target.is_some_and(|node| node.is_gone(now, self.rules.unreachable));
        match &self.state {
            State::Suspect { .. } if gone => self.state = State::NoMaster { lack: Lack::Unreachable, since: now },
            State::Suspect { fed_at, .. } if now.saturating_duration_since(*fed_at) >= self.rules.calm => {
                self.state = State::Stable;
                self.story.dismissed();
            }
            State::Armed { until, .. } if now >= *until => {
                self.actions.push(Action::Note(Note::HoldExpired));
                self.disarm(now);
                if gone {
                    self.state = State::NoMaster { lack: Lack::Unreachable, since: now };
                }
            }
            State::Committing { until, .. } if now >= *until => self.take_away(now, Lack::Unverified),
            _ => {}
        }
        if matches!(self.state, State::Stable) && now >= self.hint_after + HINT_PAUSE_MAX {
            self.hint_pause = HINT_PAUSE_MIN;
        }
    }
}
