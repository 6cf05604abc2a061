//! What the oracle sees of one proxy: the published target, the snapshots of discovery, and what
//! servers told it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sentinel::simulation::parse_notice;
use sentinel::{Basis, DiscoveryHandle, DiscoverySnapshot, FailoverRecord, MyId, Notice};

use target::{Generation, Pool, ReplyPolicy, Target, TargetReader};

use super::host::reading;
use crate::net::{Net, Observation};
use crate::wire::{Addr, MS, Micros, NAME, Pid, Told, hex};

/// About the interval between two polls.
const ANSWERED: Micros = 1200 * MS;

/// An answer that took longer is outdated: this process was stopped meanwhile.
const STALE_AFTER: Micros = 1250 * MS;

/// A committed master: its address, epoch and `run_id`.
pub(crate) type Committed = (Addr, u64, Option<Box<str>>);

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Observed {
    pid: Pid,
    reader: Arc<TargetReader>,
    pool: Arc<Pool>,
    pub(crate) snapshot: Arc<DiscoverySnapshot>,
    current: Option<Arc<Target>>,
    /// The gate is closed; the lease is not considered.
    pub(super) held: bool,
    /// Published or not.
    pub(crate) committed: Option<Committed>,
    /// Since when a hold or a verification lasts.
    unsettled_since: Option<Micros>,
    shut_since: Option<Micros>,
    minority_while_shut: bool,
    /// The process was stopped until then, in virtual time, and has received no view since.
    pub(crate) unproven_since: Option<Micros>,
    /// When the last view of each sentinel was received.
    heard: BTreeMap<u64, Micros>,
    /// Which address each sentinel named since the gate closed.
    named: BTreeMap<u64, Addr>,
    /// When each claim was first received, and when each node was asked that answered last that it
    /// is a master.
    claims: BTreeMap<(Addr, u64), Micros>,
    verified: BTreeMap<Addr, Micros>,
    /// Since when there is evidence that another node was, or is being, promoted.
    pub(crate) evidence: Option<Micros>,
    /// Since when a candidate is known to be selected, which precedes its promotion.
    pub(crate) selected: Option<Micros>,
    /// When a node that writes this history first said that it is a master, and the successor in
    /// the last view of each sentinel, in virtual time.
    pub(crate) masters: BTreeMap<u64, Micros>,
    pub(crate) successors: BTreeMap<u64, (Addr, Micros)>,
    last_epoch: u64,
    /// Numbers of the orders that were carried out.
    orders: BTreeSet<u64>,
    /// When the last order was given.
    pub(super) ordered_at: Micros,
    /// The target is used by an operator's order, until sentinels name it or another one.
    pub(crate) ordered: bool,
}

impl Observed {
    pub(super) fn new(
        pid: Pid,
        now: Micros,
        reader: Arc<TargetReader>,
        pool: Arc<Pool>,
        handle: &DiscoveryHandle,
    ) -> Self {
        Self {
            pid,
            reader,
            pool,
            snapshot: handle.snapshot(),
            current: None,
            held: false,
            committed: None,
            unsettled_since: None,
            shut_since: Some(now),
            minority_while_shut: false,
            unproven_since: None,
            heard: BTreeMap::new(),
            named: BTreeMap::new(),
            claims: BTreeMap::new(),
            verified: BTreeMap::new(),
            evidence: None,
            selected: None,
            masters: BTreeMap::new(),
            successors: BTreeMap::new(),
            last_epoch: 0,
            orders: BTreeSet::new(),
            ordered_at: 0,
            ordered: false,
        }
    }

    /// How long ago the current hold or verification began.
    pub(crate) fn held_for(&self, now: Micros) -> Micros {
        self.unsettled_since.map_or(0, |since| now.saturating_sub(since))
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.snapshot.pause.is_some()
    }

    /// Whether an override is in force.
    pub(crate) fn is_overridden(&self) -> bool {
        self.snapshot.overrides.in_force.is_some()
    }

    /// The members of the pool for readers.
    pub(crate) fn readers(&self) -> BTreeSet<Addr> {
        let members = self.pool.members().unwrap_or_default();
        members.iter().map(|it| Addr::of_socket(it.addr())).collect()
    }

    /// Whether the node answered the last probe.
    #[cfg(test)]
    pub(crate) fn answers_probes(&self, node: &sentinel::NodeAddr) -> bool {
        let mut nodes = self.snapshot.nodes.iter().filter(|it| it.addr == *node);
        nodes.any(|it| it.probe.as_ref().is_some_and(|probe| probe.outcome.is_ok()))
    }

    /// The published target.
    pub(crate) fn target(&self) -> Option<Addr> {
        self.current.as_ref().map(|it| Addr::of_socket(it.addr()))
    }

    /// Its generation.
    pub(crate) fn generation(&self) -> Option<Generation> {
        self.current.as_ref().map(|it| it.generation())
    }

    /// Whether the gate is closed or the lease has expired.
    pub(crate) fn is_closed(&self, net: &Net) -> bool {
        let now = reading(net.now, net.mono(self.pid));
        self.current.as_ref().is_some_and(|target| target.is_closed_at(now))
    }

    /// The policy for replies of a session of this generation.
    pub(crate) fn replies(&self, generation: Generation, net: &Net) -> ReplyPolicy {
        let now = reading(net.now, net.mono(self.pid));
        let target = self.current.as_ref().filter(|it| it.generation() == generation);
        target.map_or(ReplyPolicy::Drop, |target| target.reply_policy_at(now))
    }

    /// Whether a majority of the sentinels answered shortly before `at`.
    pub(super) fn was_answered(&self, at: Micros) -> bool {
        let recent = |it: &&Micros| **it + ANSWERED >= at;
        self.heard.values().filter(recent).count() >= self.snapshot.quorum.1
    }

    /// The process was stopped: the gate counts as closed since then.
    pub(super) fn resumed(&mut self, now: Micros, virtual_now: Micros) {
        self.unproven_since = Some(virtual_now);
        self.shut_since = None;
        self.shut(now);
        self.claims.clear();
        self.verified.clear();
    }

    fn shut(&mut self, now: Micros) {
        if self.shut_since.is_none() {
            self.shut_since = Some(now);
            self.named.clear();
            self.minority_while_shut = self.snapshot.minority;
        }
    }

    /// A server told this at `now` (`virtual_now` in virtual time), in answer to what was asked at
    /// `asked`.
    pub(super) fn told(
        &mut self,
        told: &Told,
        from: Addr,
        asked: Micros,
        now: Micros,
        virtual_now: Micros,
    ) {
        match told {
            Told::View { id, master, epoch, successor } => {
                self.successors.insert(*id, (*successor, virtual_now));
                // A late answer names nobody any more, and is evidence for a claim all the same.
                self.claims.entry((*master, *epoch)).or_insert(now);
                if now.saturating_sub(asked) > STALE_AFTER {
                    return;
                }
                if self.shut_since.is_some_and(|since| asked >= since) {
                    self.named.insert(*id, *master);
                }
                self.unproven_since = None;
                self.heard.insert(*id, now);
            }
            Told::Event { id, channel, payload } => self.heard_event(*id, channel, payload, now),
            Told::Role { is_master: true, history } => {
                self.masters.entry(*history).or_insert(virtual_now);
                self.verified.insert(from, asked);
                if self.snapshot.candidate.as_ref().and_then(Addr::of) == Some(from) {
                    self.note_evidence(now, from);
                }
            }
            Told::Role { is_master: false, history } => {
                self.masters.remove(history);
            }
        }
    }

    fn heard_event(&mut self, id: u64, channel: &str, payload: &str, now: Micros) {
        let Some((master, notice)) = parse_notice(channel, payload) else { return };
        let id = MyId::parse(&hex(id));
        let known = self.snapshot.sentinels.iter().any(|it| it.member && it.id == id);
        if !known || master.is_some_and(|it| it != NAME) {
            return;
        }
        match &notice {
            Notice::CandidateSelected { candidate }
                if Addr::of(candidate).is_some_and(|it| self.is_other(it)) =>
            {
                self.selected.get_or_insert(now);
            }
            Notice::PromotionOrdered { candidate } | Notice::Promoted { candidate } => {
                Addr::of(candidate).into_iter().for_each(|it| self.note_evidence(now, it));
            }
            Notice::Aborted => (self.evidence, self.selected) = (None, None),
            _ => {}
        }
    }

    fn is_other(&self, candidate: Addr) -> bool {
        self.committed.as_ref().is_some_and(|(addr, ..)| *addr != candidate)
    }

    fn note_evidence(&mut self, now: Micros, candidate: Addr) {
        if self.is_other(candidate) {
            self.evidence.get_or_insert(now);
        }
    }

    /// Discovery has run: what has changed.
    pub(super) fn look(&mut self, handle: &DiscoveryHandle, now: Micros) -> Vec<Observation> {
        let (snapshot, current) = (handle.snapshot(), self.reader.current());
        let is_held = current.as_ref().is_some_and(|it| !it.may_accept_requests());
        let is_same = match (&self.current, &current) {
            (Some(ours), Some(it)) => Arc::ptr_eq(ours, it),
            (ours, it) => ours.is_none() && it.is_none(),
        };
        if is_same && is_held == self.held && Arc::ptr_eq(&self.snapshot, &snapshot) {
            return Vec::new();
        }
        let before = std::mem::replace(&mut self.snapshot, snapshot);
        if let Some(master) = &self.snapshot.master
            && let Some(addr) = Addr::of(&master.addr)
        {
            self.committed = Some((addr, master.epoch, master.run_id.clone()));
        }
        let is_settled = !matches!(self.snapshot.state, "armed" | "committing");
        self.unsettled_since =
            if is_settled { None } else { Some(self.unsettled_since.unwrap_or(now)) };
        let mut events = Vec::new();
        let was_held = std::mem::replace(&mut self.held, is_held);
        let former = std::mem::replace(&mut self.current, current);
        let to = self.target();
        if former.map(|it| it.generation()) != self.generation() {
            self.shut(now);
            if let (Some(to), Some(commit)) = (to, self.snapshot.failovers.last().cloned()) {
                self.check_commit(&commit, &mut events);
                (self.evidence, self.selected) = (None, None);
                if !self.held {
                    let how = format!("committed at epoch {} ({:?})", commit.epoch, commit.basis);
                    events.push(self.opened(now, to, how));
                }
                // What was named before a commit at a lower epoch is evidence for the next one.
                self.claims.retain(|(_, epoch), _| *epoch > commit.epoch);
            }
        } else if was_held && !self.held {
            (self.evidence, self.selected) = (None, None);
            let how = format!("released from {}", before.state);
            events.extend(to.map(|to| self.opened(now, to, how)));
        } else if self.held && !was_held {
            self.shut(now);
        }
        self.minority_while_shut |= self.held && self.snapshot.minority;
        self.look_at_orders(&mut events);
        events
    }

    fn look_at_orders(&mut self, events: &mut Vec<Observation>) {
        let overrides = &self.snapshot.overrides;
        let carried_out = overrides.answers.iter().filter(|(_, answer)| answer.is_ok());
        let new = carried_out.filter(|(id, _)| !self.orders.contains(id)).map(|(id, _)| *id);
        let new: Vec<u64> = new.collect();
        if new.is_empty() {
            self.ordered &= overrides.in_force.is_some() || !self.is_confirmed();
            return;
        }
        self.orders.extend(new);
        // The operator's word replaces that of the sentinels.
        (self.ordered, self.unproven_since, self.evidence) = (true, None, None);
        events.extend(self.target().map(|to| Observation::Ordered { to }));
    }

    fn is_confirmed(&self) -> bool {
        self.snapshot.overrides.last_end == Some(sentinel::OverrideEnd::Confirmed)
    }

    fn opened(&mut self, now: Micros, to: Addr, how: String) -> Observation {
        let shut_for = self.shut_since.take().map(|since| now.saturating_sub(since));
        let fresh = self.named.values().filter(|addr| **addr == to).count();
        self.named.clear();
        let minority = std::mem::take(&mut self.minority_while_shut);
        Observation::Opened { to, how, fresh, minority, shut_for }
    }

    /// Checks S3 and S4, as far as they are visible from outside.
    fn check_commit(&mut self, commit: &FailoverRecord, events: &mut Vec<Observation>) {
        self.ordered = commit.basis == Basis::Operator;
        // The epoch of the same master is taken over from a majority before it is used again.
        let may_fall = matches!(commit.basis, Basis::EpochRegression | Basis::Reconfirmed);
        if commit.epoch < self.last_epoch && !may_fall {
            events.push(Observation::InvariantBroken(format!(
                "S3: epoch {} after {}",
                commit.epoch, self.last_epoch
            )));
        }
        self.last_epoch = commit.epoch;
        let Some(addr) = Addr::of(&commit.to) else { return };
        let claimed = match commit.basis {
            Basis::Operator => Some(self.ordered_at),
            _ => self.claims.get(&(addr, commit.epoch)).copied(),
        };
        let verified = self.verified.get(&addr).copied();
        if verified.is_none() || (commit.basis != Basis::Reconfirmed && claimed > verified) {
            events.push(Observation::InvariantBroken(format!(
                "S4: {addr} was not verified after its evidence"
            )));
        }
    }

    /// The epoch may fall without a master change if sentinels were configured anew.
    pub(crate) fn note_epoch(&mut self) {
        self.last_epoch = self.committed.as_ref().map_or(self.last_epoch, |(_, epoch, _)| *epoch);
    }
}
