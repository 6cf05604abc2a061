//! Who may vote, and what each last said.
//!
//! Votes are counted by MYID, never by address: a sentinel that is reached under two names has one vote, and a pod that
//! inherits an IP address inherits no vote. The electorate is **pinned**: a sentinel enters it during the start, or when a
//! member lists it as its peer, and leaves it only when a majority of the members no longer lists it. A cluster that merges
//! with ours, or a stray sentinel with an old configuration, therefore cannot vote itself in.
//!
//! An observer's `+config-update-from X` followed by its switch is two votes, its own and X's, since X's hello with the higher
//! epoch is what made it switch. X's half is an [endorsement](Voters::endorse): second hand, and superseded by X's own word.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::{Epoch, MyId, NodeAddr, View};

/// The most sentinels one master's electorate may have. Far above any real deployment; a bound for a peer that lies.
pub(super) const MAX_VOTERS: usize = 64;

/// After this many expiry times without a word from any member, the electorate is taken from whoever does answer: all
/// sentinels may have been replaced.
const REPIN_AFTER: u32 = 6;

/// One voter's present opinion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vote {
    /// Whose.
    pub voter: MyId,
    /// The address it names.
    pub addr: NodeAddr,
    /// At which config-epoch.
    pub epoch: Epoch,
    /// When it was heard.
    pub heard_at: Instant,
}

#[derive(Debug, Default)]
struct Voter {
    pinned: bool,
    heard: Option<(View, Instant)>,
    endorsed: Option<Vote>,
}

/// The electorate and its opinions.
#[derive(Debug)]
pub(super) struct Voters {
    by_id: BTreeMap<MyId, Voter>,
    member_heard_at: Instant,
}

impl Voters {
    pub(super) fn new(now: Instant) -> Self {
        Self { by_id: BTreeMap::new(), member_heard_at: now }
    }

    /// Takes note of a view. `founding` is true until the first commit, when nobody could vouch for anybody yet.
    pub(super) fn hear(&mut self, now: Instant, id: &MyId, view: View, founding: bool) {
        if !self.by_id.contains_key(id) && self.by_id.len() >= MAX_VOTERS {
            return;
        }
        let voter = self.by_id.entry(id.clone()).or_default();
        voter.pinned |= founding && !view.is_empty_state();
        if voter.endorsed.as_ref().is_some_and(|endorsed| endorsed.epoch <= view.epoch) {
            voter.endorsed = None;
        }
        if voter.pinned {
            self.member_heard_at = now;
        }
        voter.heard = Some((view, now));
    }

    /// `by` switched because of `peer`'s hello: what `by` now says, `peer` says too.
    pub(super) fn endorse(&mut self, now: Instant, peer: &MyId, addr: NodeAddr, epoch: Epoch) {
        if let Some(voter) = self.by_id.get_mut(peer) {
            if voter.heard.as_ref().is_none_or(|(view, _)| view.epoch < epoch) {
                voter.endorsed = Some(Vote { voter: peer.clone(), addr, epoch, heard_at: now });
            }
        }
    }

    /// Drops opinions older than `expiry` and brings the electorate up to date.
    pub(super) fn refresh(&mut self, now: Instant, expiry: Duration) {
        let fresh = |at: Instant| now.saturating_duration_since(at) <= expiry;
        for voter in self.by_id.values_mut() {
            voter.heard = voter.heard.take().filter(|(_, at)| fresh(*at));
            voter.endorsed = voter.endorsed.take().filter(|vote| fresh(vote.heard_at));
        }
        if now.saturating_duration_since(self.member_heard_at) > expiry * REPIN_AFTER {
            self.repin(now);
        }
        self.admit_listed();
        self.dismiss_unlisted();
        self.by_id.retain(|_, voter| voter.pinned || voter.heard.is_some());
    }

    /// Forgets every opinion: after a stall of this process nothing heard before counts.
    pub(super) fn silence(&mut self) {
        for voter in self.by_id.values_mut() {
            voter.heard = None;
            voter.endorsed = None;
        }
    }

    /// Takes the electorate from whoever answers, if anybody does; silence changes nothing.
    fn repin(&mut self, now: Instant) {
        let answers = |voter: &Voter| voter.heard.as_ref().is_some_and(|(view, _)| !view.is_empty_state());
        if self.by_id.values().any(answers) {
            for voter in self.by_id.values_mut() {
                voter.pinned = answers(voter);
            }
            self.member_heard_at = now;
        }
    }

    fn admit_listed(&mut self) {
        let listed: BTreeSet<MyId> =
            self.member_views().flat_map(|(_, view)| view.peers.iter().map(|(id, _)| id.clone())).collect();
        for id in listed {
            if self.by_id.contains_key(&id) || self.by_id.len() < MAX_VOTERS {
                self.by_id.entry(id).or_default().pinned = true;
            }
        }
    }

    fn dismiss_unlisted(&mut self) {
        let views: Vec<&View> = self.member_views().map(|(_, view)| view).collect();
        if views.len() < self.majority() {
            return;
        }
        let listed: BTreeSet<&MyId> = views.iter().flat_map(|view| view.peers.iter().map(|(id, _)| id)).collect();
        let gone: Vec<MyId> = self
            .by_id
            .iter()
            .filter(|(id, voter)| voter.pinned && voter.heard.is_none() && !listed.contains(id))
            .map(|(id, _)| id.clone())
            .collect();
        for id in gone {
            self.by_id.remove(&id);
        }
    }

    /// The fresh first-hand views of members that are in a state to know anything.
    pub(super) fn member_views(&self) -> impl Iterator<Item = (&MyId, &View)> {
        self.by_id
            .iter()
            .filter(|(_, voter)| voter.pinned)
            .filter_map(|(id, voter)| voter.heard.as_ref().map(|(view, _)| (id, view)))
            .filter(|(_, view)| !view.is_empty_state())
    }

    /// Whether `id` belongs to the electorate.
    pub(super) fn is_member(&self, id: &MyId) -> bool {
        self.by_id.get(id).is_some_and(|voter| voter.pinned)
    }

    /// Every fresh view with its age's beginning, member or not: what is shown, not what is counted.
    pub(super) fn all_views(&self) -> impl Iterator<Item = (&MyId, bool, &View, Instant)> {
        self.by_id.iter().filter_map(|(id, voter)| voter.heard.as_ref().map(|(view, at)| (id, voter.pinned, view, *at)))
    }

    /// At most one vote per MYID: its own word, or what it was endorsed with if that is newer.
    pub(super) fn votes(&self) -> Vec<Vote> {
        self.by_id
            .iter()
            .filter(|(_, voter)| voter.pinned)
            .filter_map(|(id, voter)| {
                let own = voter.heard.as_ref().filter(|(view, _)| !view.is_empty_state()).map(|(view, at)| Vote {
                    voter: id.clone(),
                    addr: view.addr.clone(),
                    epoch: view.epoch,
                    heard_at: *at,
                });
                match (own, voter.endorsed.clone()) {
                    (Some(own), Some(endorsed)) if endorsed.epoch > own.epoch => Some(endorsed),
                    (Some(own), _) => Some(own),
                    (None, endorsed) => endorsed,
                }
            })
            .collect()
    }

    /// How many sentinels there are, heard or not.
    pub(super) fn electorate(&self) -> usize {
        self.by_id.values().filter(|voter| voter.pinned).count()
    }

    /// How many votes are more than half of the electorate. At least 1.
    pub(super) fn majority(&self) -> usize {
        self.electorate() / 2 + 1
    }

    /// Whether every member that can be heard says, by its own count of peers, that it cannot reach a majority.
    pub(super) fn provable_minority(&self) -> bool {
        let majority = self.majority();
        let mut heard = 0_usize;
        for (_, view) in self.member_views() {
            heard += 1;
            let up = 1 + view.peers.iter().filter(|(_, up)| *up).count();
            if view.tilt || up >= majority {
                return false;
            }
        }
        heard > 0
    }
}
