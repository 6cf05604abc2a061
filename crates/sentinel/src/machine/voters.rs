//! Who may vote, and what each last said.
//!
//! Votes are counted by MYID, never by address: a sentinel that is reached under two names has one vote, and a pod that
//! inherits an IP address inherits no vote. The electorate is **pinned**: a sentinel enters it during the start, or when most
//! of the members that speak list it as their peer, and leaves it only when it is silent and nobody lists it any more. A
//! cluster that merges with ours, or a stray sentinel with an old configuration, therefore cannot vote itself in.
//!
//! An observer's `+config-update-from X` followed by its switch is two votes, its own and X's, since X's hello with the higher
//! epoch is what made it switch. X's half is an [endorsement](Voters::endorse): second hand, and superseded by X's own word. Where X has
//! said it itself already, the observer's half is one, until its own next view.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::nodes::MAX_NODES;
use crate::{Epoch, MyId, NodeAddr, View};

/// The most sentinels one master's electorate may have. Far above any real deployment; a bound for a peer that lies.
pub(super) const MAX_VOTERS: usize = 64;

/// After this many expiry times during which strangers speak and no member does, the electorate is taken from the strangers:
/// all sentinels may have been replaced. After the same time a silent member that nobody lists is dismissed, even though no
/// majority of the members is there to do it: with every pod that was replaced the electorate would otherwise grow, until
/// those that live can never again be a majority of it.
const PATIENCE: u32 = 6;

/// One voter's present opinion.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Vote {
    /// Whose.
    pub voter: MyId,
    /// The address it names.
    pub addr: NodeAddr,
    /// At which config-epoch.
    pub epoch: Epoch,
    /// When it was heard.
    pub heard_at: Instant,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Voter {
    pinned: bool,
    heard: Option<(View, Instant)>,
    endorsed: Option<Vote>,
    /// Since when members speak, but neither it nor about it.
    missing_since: Option<Instant>,
}

/// The electorate and its opinions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Voters {
    by_id: BTreeMap<MyId, Voter>,
    /// Since when strangers speak and no member does.
    usurped_since: Option<Instant>,
}

impl Voters {
    /// Takes note of a view. `founding` is true until the first commit, when nobody could vouch for anybody yet.
    /// Lists longer than anything real are cut, since they are kept and looked through at every step.
    pub(super) fn hear(&mut self, now: Instant, id: &MyId, mut view: View, founding: bool) {
        view.peers.truncate(MAX_VOTERS);
        view.replicas.truncate(MAX_NODES);
        if !self.by_id.contains_key(id) && self.by_id.len() >= MAX_VOTERS {
            return;
        }
        let voter = self.by_id.entry(id.clone()).or_default();
        voter.pinned |= founding && !view.is_empty_state();
        voter.endorsed = None;
        voter.heard = Some((view, now));
    }

    /// One sentinel switched because of another's hello: what either of them says now, `who`, the other, says too.
    pub(super) fn endorse(&mut self, now: Instant, who: &MyId, addr: NodeAddr, epoch: Epoch) {
        if let Some(voter) = self.by_id.get_mut(who)
            && voter.heard.as_ref().is_none_or(|(view, _)| view.epoch < epoch)
        {
            voter.endorsed = Some(Vote { voter: who.clone(), addr, epoch, heard_at: now });
        }
    }

    /// Drops opinions older than `expiry` and brings the electorate up to date.
    pub(super) fn refresh(&mut self, now: Instant, expiry: Duration) {
        let fresh = |at: Instant| now.saturating_duration_since(at) <= expiry;
        for voter in self.by_id.values_mut() {
            voter.heard = voter.heard.take().filter(|(_, at)| fresh(*at));
            voter.endorsed = voter.endorsed.take().filter(|vote| fresh(vote.heard_at));
        }
        self.repin(now, expiry * PATIENCE);
        self.admit_listed();
        self.dismiss_unlisted(now, expiry * PATIENCE);
        self.by_id.retain(|_, voter| voter.pinned || voter.heard.is_some());
    }

    /// Forgets every opinion: after a stall of this process nothing heard before counts, and nobody's silence does.
    pub(super) fn silence(&mut self) {
        self.usurped_since = None;
        for voter in self.by_id.values_mut() {
            *voter = Voter { pinned: voter.pinned, ..Voter::default() };
        }
    }

    /// Takes the electorate from the strangers once they have been the only ones to speak for `long`. Silence changes
    /// nothing, however long: whoever happens to speak first after it gains nothing by that.
    fn repin(&mut self, now: Instant, long: Duration) {
        let speaks = |voter: &Voter| voter.heard.as_ref().is_some_and(|(view, _)| !view.is_empty_state());
        let member_speaks = self.by_id.values().any(|voter| voter.pinned && speaks(voter));
        if member_speaks || !self.by_id.values().any(speaks) {
            self.usurped_since = None;
        } else if now.saturating_duration_since(*self.usurped_since.get_or_insert(now)) > long {
            self.usurped_since = None;
            for voter in self.by_id.values_mut() {
                voter.pinned = speaks(voter);
            }
        }
    }

    fn admit_listed(&mut self) {
        let mut listed: BTreeMap<MyId, usize> = BTreeMap::new();
        let mut speaking = 0_usize;
        for (_, view) in self.member_views() {
            speaking += 1;
            let peers: BTreeSet<&MyId> = view.peers.iter().map(|(id, _)| id).collect();
            for peer in peers {
                *listed.entry(peer.clone()).or_default() += 1;
            }
        }
        for (id, times) in listed {
            if times * 2 > speaking && (self.by_id.contains_key(&id) || self.by_id.len() < MAX_VOTERS) {
                self.by_id.entry(id).or_default().pinned = true;
            }
        }
    }

    fn dismiss_unlisted(&mut self, now: Instant, long: Duration) {
        let majority = self.majority();
        let views: Vec<&View> = self.member_views().map(|(_, view)| view).collect();
        let (any, most) = (!views.is_empty(), views.len() >= majority);
        let listed: BTreeSet<MyId> =
            views.iter().flat_map(|view| view.peers.iter().map(|(id, _)| id.clone())).collect();
        self.by_id.retain(|id, voter| {
            if !any || !voter.pinned || voter.heard.is_some() || listed.contains(id) {
                voter.missing_since = None;
                return true;
            }
            let since = *voter.missing_since.get_or_insert(now);
            !most && now.saturating_duration_since(since) <= long
        });
    }

    /// The fresh first-hand views of members that are in a state to know anything.
    pub(super) fn member_views(&self) -> impl Iterator<Item = (&MyId, &View)> {
        self.by_id
            .iter()
            .filter(|(_, voter)| voter.pinned)
            .filter_map(|(id, voter)| voter.heard.as_ref().map(|(view, _)| (id, view)))
            .filter(|(_, view)| !view.is_empty_state())
    }

    /// Every replica that a member lists.
    pub(super) fn listed_replicas(&self) -> BTreeSet<NodeAddr> {
        self.member_views().flat_map(|(_, view)| view.replicas.iter().map(|replica| replica.addr.clone())).collect()
    }

    /// What a sentinel's last view names and at which epoch, if that is fresh.
    pub(super) fn word_of(&self, id: &MyId) -> Option<(NodeAddr, Epoch)> {
        self.by_id.get(id).and_then(|voter| voter.heard.as_ref()).map(|(view, _)| (view.addr.clone(), view.epoch))
    }

    /// Whether `id` belongs to the electorate.
    pub(super) fn is_member(&self, id: &MyId) -> bool {
        self.by_id.get(id).is_some_and(|voter| voter.pinned)
    }

    /// Every fresh view with its age's beginning, member or not: what is shown, not what is counted.
    pub(super) fn all_views(&self) -> impl Iterator<Item = (&MyId, bool, &View, Instant)> {
        self.by_id.iter().filter_map(|(id, voter)| voter.heard.as_ref().map(|(view, at)| (id, voter.pinned, view, *at)))
    }

    /// How many votes heard since `since` deny `addr` at `epoch`: they name something else, at most as new and not older
    /// than `floor`. A vote that merely expired denies nothing.
    pub(super) fn denials(&self, since: Instant, addr: &NodeAddr, epoch: Epoch, floor: Epoch) -> usize {
        let denies = |vote: &Vote| {
            let other = vote.addr != *addr || vote.epoch != epoch;
            other && vote.heard_at >= since && (floor..=epoch).contains(&vote.epoch)
        };
        self.votes().iter().filter(|vote| denies(vote)).count()
    }

    /// At most one vote per MYID: its own word, or what it was endorsed with since.
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
                voter.endorsed.clone().or(own)
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

    /// Whether every member that can be heard says, by its own count of peers, that it cannot reach a majority. `None` where
    /// nobody says anything about it: in TILT the count means nothing.
    pub(super) fn provable_minority(&self) -> Option<bool> {
        let majority = self.majority();
        let counts = |view: &View| 1 + view.peers.iter().filter(|(_, up)| *up).count();
        let most = self.member_views().filter(|(_, view)| !view.tilt).map(|(_, view)| counts(view)).max()?;
        Some(most < majority)
    }
}
