//! The electorate: which sentinels may vote on the master, by whose word and since when, and what
//! each last said.
//!
//! Votes are counted by MYID, never by address: a sentinel that is reached under two names has one
//! vote, and a pod that inherits an IP address inherits no vote. There are four ways into the
//! electorate ([`Admission`]):
//!
//! - **Founder.** Until a majority has decided once, every sentinel that knows anything is
//!   admitted, since no member could vouch for it. A decision for want of a majority does not end
//!   this: otherwise the one sentinel that answered first would be an electorate of one for ever,
//!   and one that has lost its file answers as fast as any other.
//! - **Configured.** Later, a sentinel that answers at a configured address is admitted if it and a
//!   member know each other.
//! - **Listed.** A sentinel that more than half of the speaking members list as their peer.
//! - **Successor.** When no member has spoken for a long time but others do, as many as a majority
//!   of the members and of the configuration, all sentinels were replaced: those vote. A single
//!   stranger, such as the only sentinel in reach, which has lost its file, is no electorate.
//!
//! A member leaves when it is silent and at most half of the speaking members list it. So neither a
//! cluster that merges with this one nor a stray sentinel with an old configuration can vote itself
//! in, and the entries that Sentinel keeps of replaced pods ("ghosts") do not keep the living from
//! being a majority.
//!
//! An observer's `+config-update-from X` followed by its switch is two votes, its own and X's,
//! since X's hello with the higher epoch is what made it switch. X's half is an
//! [endorsement](Electorate::endorse): second hand, and superseded by X's own word. Where X has
//! said it itself already, the observer's half is one, until its own next view.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::nodes::MAX_NODES;
use crate::{Epoch, MyId, NodeAddr, View};

/// The most sentinels one master's electorate may have. Far above any real deployment; a bound for
/// a peer that lies.
pub(super) const MAX_VOTERS: usize = 64;

/// After this many expiry times in which strangers speak and no member does, the electorate is
/// taken from the strangers. After the same time a silent member that few list is dismissed, even
/// though no majority of the members is there to do it: with every pod that was replaced the
/// electorate would otherwise grow, until the living can never again be a majority of it.
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
    /// When the question was sent: the vote says nothing about a time before this.
    pub asked_at: Instant,
}

/// How a sentinel came to vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Admission {
    /// It spoke before any majority had decided.
    Founder,
    /// It answers at a configured address, and it and a member list each other, or one of them the
    /// other.
    Configured,
    /// More than half of the speaking members list it.
    Listed,
    /// All earlier members had fallen silent.
    Successor,
}

/// A view with the times and the way it took.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ReceivedView {
    pub view: View,
    /// When its question was sent.
    pub asked_at: Instant,
    /// When it was taken in.
    pub at: Instant,
    /// It was asked at an address of the configuration, not at one that another sentinel told of.
    pub configured: bool,
}

impl ReceivedView {
    fn knows_something(&self) -> bool {
        !self.view.is_empty_state()
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct SentinelRecord {
    /// How and since when it votes; `None` for a stranger.
    member: Option<(Admission, Instant)>,
    received: Option<ReceivedView>,
    endorsed: Option<Vote>,
    /// Since when members speak, but neither it nor enough of them about it.
    unlisted_since: Option<Instant>,
}

/// See the module's header.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Electorate {
    by_id: BTreeMap<MyId, SentinelRecord>,
    /// How many sentinels the configuration leads to.
    expected: usize,
    /// No majority has decided yet.
    founding: bool,
    /// Since when strangers speak and no member does.
    outsiders_since: Option<Instant>,
}

impl Electorate {
    /// An empty one. `expected`: how many sentinels the configuration leads to, as far as is known.
    pub(super) fn new(expected: usize) -> Self {
        Self { by_id: BTreeMap::new(), expected, founding: true, outsiders_since: None }
    }

    /// The configuration leads to this many sentinels now.
    pub(super) fn expect(&mut self, sentinels: usize) {
        self.expected = sentinels.min(MAX_VOTERS);
    }

    /// A majority has decided: from now on a sentinel needs a member that vouches for it.
    pub(super) fn close_founding(&mut self) {
        self.founding = false;
    }

    /// Takes note of a view. Lists longer than anything real are cut, since they are kept and
    /// looked through at every step.
    pub(super) fn record(&mut self, id: &MyId, mut received: ReceivedView) {
        received.view.peers.truncate(MAX_VOTERS);
        received.view.replicas.truncate(MAX_NODES);
        if !self.by_id.contains_key(id) && self.by_id.len() >= MAX_VOTERS {
            return;
        }
        let sentinel = self.by_id.entry(id.clone()).or_default();
        if self.founding && received.knows_something() {
            sentinel.member.get_or_insert((Admission::Founder, received.at));
        }
        sentinel.endorsed = None;
        sentinel.received = Some(received);
    }

    /// One sentinel switched because of another's hello: what either of them says now, `who`, the
    /// other, says too.
    pub(super) fn endorse(&mut self, now: Instant, who: &MyId, addr: NodeAddr, epoch: Epoch) {
        if let Some(sentinel) = self.by_id.get_mut(who)
            && sentinel.received.as_ref().is_none_or(|received| received.view.epoch < epoch)
        {
            sentinel.endorsed =
                Some(Vote { voter: who.clone(), addr, epoch, heard_at: now, asked_at: now });
        }
    }

    /// Drops opinions older than `expiry` and brings the electorate up to date.
    pub(super) fn refresh(&mut self, now: Instant, expiry: Duration) {
        let fresh = |at: Instant| now.saturating_duration_since(at) <= expiry;
        for sentinel in self.by_id.values_mut() {
            sentinel.received = sentinel.received.take().filter(|received| fresh(received.at));
            sentinel.endorsed = sentinel.endorsed.take().filter(|vote| fresh(vote.heard_at));
        }
        self.succeed(now, expiry * PATIENCE);
        self.admit(now);
        self.remove_silent(now, expiry * PATIENCE);
        self.by_id.retain(|_, sentinel| sentinel.member.is_some() || sentinel.received.is_some());
    }

    /// Forgets every opinion: after a stall of this process nothing heard before counts, and
    /// nobody's silence does.
    pub(super) fn forget_views(&mut self) {
        self.outsiders_since = None;
        for sentinel in self.by_id.values_mut() {
            *sentinel = SentinelRecord { member: sentinel.member, ..SentinelRecord::default() };
        }
    }

    /// Takes the electorate from the strangers once they have been the only ones to speak for
    /// `long`. Silence changes nothing, however long: the first sentinel to speak after it gains
    /// nothing by that.
    fn succeed(&mut self, now: Instant, long: Duration) {
        let speaks = |sentinel: &SentinelRecord| {
            sentinel.received.as_ref().is_some_and(ReceivedView::knows_something)
        };
        let member_speaks = self.by_id.values().any(|it| it.member.is_some() && speaks(it));
        let strangers = self.by_id.values().filter(|it| speaks(it)).count();
        if member_speaks || strangers < self.majority().max(self.expected / 2 + 1) {
            self.outsiders_since = None;
        } else if now.saturating_duration_since(*self.outsiders_since.get_or_insert(now)) > long {
            self.outsiders_since = None;
            for sentinel in self.by_id.values_mut() {
                sentinel.member = speaks(sentinel).then_some((Admission::Successor, now));
            }
        }
    }

    /// How many speaking members there are, and how many of them list each sentinel.
    fn listings(&self) -> (usize, BTreeMap<MyId, usize>) {
        let (mut speaking, mut listed) = (0, BTreeMap::<MyId, usize>::new());
        for (_, received) in self.received_from_members() {
            speaking += 1;
            let peers: BTreeSet<&MyId> = received.view.peers.iter().map(|(id, _)| id).collect();
            for peer in peers {
                *listed.entry(peer.clone()).or_default() += 1;
            }
        }
        (speaking, listed)
    }

    fn admit(&mut self, now: Instant) {
        let (speaking, listed) = self.listings();
        for (id, times) in &listed {
            if times * 2 > speaking
                && (self.by_id.contains_key(id) || self.by_id.len() < MAX_VOTERS)
            {
                let sentinel = self.by_id.entry(id.clone()).or_default();
                sentinel.member.get_or_insert((Admission::Listed, now));
            }
        }
        let admitted: Vec<MyId> = self
            .configured_strangers()
            .filter(|(id, received)| {
                listed.contains_key(*id)
                    || received.view.peers.iter().any(|(it, _)| self.is_member(it))
            })
            .map(|(id, _)| id.clone())
            .collect();
        for id in admitted {
            self.by_id.entry(id).or_default().member = Some((Admission::Configured, now));
        }
    }

    fn remove_silent(&mut self, now: Instant, long: Duration) {
        let majority = self.majority();
        let (speaking, listed) = self.listings();
        let most = speaking >= majority;
        self.by_id.retain(|id, sentinel| {
            let few = listed.get(id).copied().unwrap_or(0) * 2 <= speaking;
            if speaking == 0 || sentinel.member.is_none() || sentinel.received.is_some() || !few {
                sentinel.unlisted_since = None;
                return true;
            }
            let since = *sentinel.unlisted_since.get_or_insert(now);
            // Listed by nobody: a majority may drop it at once. Listed by some: only time tells a
            // ghost from a restart.
            let unlisted = !listed.contains_key(id);
            !(most && unlisted) && now.saturating_duration_since(since) <= long
        });
    }

    /// Sentinels that answer at configured addresses, know something and do not vote.
    fn configured_strangers(&self) -> impl Iterator<Item = (&MyId, &ReceivedView)> {
        let strangers = self.by_id.iter().filter(|(_, sentinel)| sentinel.member.is_none());
        let received = strangers
            .filter_map(|(id, sentinel)| sentinel.received.as_ref().map(|received| (id, received)));
        received.filter(|(_, received)| received.configured && received.knows_something())
    }

    /// Whether the configuration leads to a sentinel that no member knows and that knows no member:
    /// it may watch another cluster.
    pub(super) fn has_configured_strangers(&self) -> bool {
        self.configured_strangers().next().is_some()
    }

    fn received_from_members(&self) -> impl Iterator<Item = (&MyId, &ReceivedView)> {
        self.by_id
            .iter()
            .filter(|(_, sentinel)| sentinel.member.is_some())
            .filter_map(|(id, sentinel)| sentinel.received.as_ref().map(|received| (id, received)))
            .filter(|(_, received)| received.knows_something())
    }

    /// The fresh first-hand views of members that are in a state to know anything.
    pub(super) fn member_views(&self) -> impl Iterator<Item = (&MyId, &View)> {
        self.received_from_members().map(|(id, received)| (id, &received.view))
    }

    /// The same, of answers to questions from `since` on.
    pub(super) fn member_views_since(&self, since: Instant) -> impl Iterator<Item = &View> {
        self.received_from_members()
            .filter(move |(_, received)| received.asked_at >= since)
            .map(|(_, received)| &received.view)
    }

    /// Every replica that a member lists.
    pub(super) fn listed_replicas(&self) -> BTreeSet<NodeAddr> {
        self.member_views()
            .flat_map(|(_, view)| view.replicas.iter().map(|replica| replica.addr.clone()))
            .collect()
    }

    /// What a sentinel's last view names and at which epoch, if that is fresh.
    pub(super) fn named_by(&self, id: &MyId) -> Option<(NodeAddr, Epoch)> {
        let received = self.by_id.get(id)?.received.as_ref()?;
        Some((received.view.addr.clone(), received.view.epoch))
    }

    /// Whether `id` belongs to the electorate.
    pub(super) fn is_member(&self, id: &MyId) -> bool {
        self.by_id.get(id).is_some_and(|sentinel| sentinel.member.is_some())
    }

    /// How and since when each member votes.
    pub(super) fn members(&self) -> impl Iterator<Item = (&MyId, Admission, Instant)> {
        self.by_id
            .iter()
            .filter_map(|(id, sentinel)| sentinel.member.map(|(how, since)| (id, how, since)))
    }

    /// Every fresh view with its age's beginning, whether its sentinel votes, and whether it is a
    /// configured one: what is shown, not what is counted.
    pub(super) fn all_views(&self) -> impl Iterator<Item = (&MyId, bool, &ReceivedView)> {
        let received = self
            .by_id
            .iter()
            .filter_map(|(id, it)| it.received.as_ref().map(|received| (id, it, received)));
        received.map(|(id, sentinel, received)| (id, sentinel.member.is_some(), received))
    }

    /// Whether a majority has denied `addr` at `epoch` since `since`: by naming something else, at
    /// most as new and not older than `floor`. A vote that merely expired denies nothing.
    pub(super) fn is_denied(
        &self,
        since: Instant,
        addr: &NodeAddr,
        epoch: Epoch,
        floor: Epoch,
    ) -> bool {
        let denies = |vote: &&Vote| {
            let other = vote.addr != *addr || vote.epoch != epoch;
            other && vote.heard_at >= since && (floor..=epoch).contains(&vote.epoch)
        };
        let votes = self.votes();
        self.is_majority(&votes.iter().filter(denies).map(|vote| &vote.voter).collect())
    }

    /// What the members said themselves in answer to questions from `since` on.
    pub(super) fn own_votes_since(
        &self,
        since: Instant,
    ) -> impl Iterator<Item = (&MyId, &NodeAddr, Epoch)> {
        let words =
            self.received_from_members().filter(move |(_, received)| received.asked_at >= since);
        words.map(|(id, received)| (id, &received.view.addr, received.view.epoch))
    }

    /// At most one vote per MYID: its own word, or what it was endorsed with since.
    pub(super) fn votes(&self) -> Vec<Vote> {
        let members = self.by_id.iter().filter(|(_, sentinel)| sentinel.member.is_some());
        let vote = |(id, sentinel): (&MyId, &SentinelRecord)| {
            let own = sentinel.received.as_ref().filter(|received| received.knows_something()).map(
                |received| Vote {
                    voter: id.clone(),
                    addr: received.view.addr.clone(),
                    epoch: received.view.epoch,
                    heard_at: received.at,
                    asked_at: received.asked_at,
                },
            );
            sentinel.endorsed.clone().or(own)
        };
        members.filter_map(vote).collect()
    }

    /// How many sentinels vote, heard or not.
    pub(super) fn size(&self) -> usize {
        self.by_id.values().filter(|sentinel| sentinel.member.is_some()).count()
    }

    /// How many votes are more than half of the electorate. At least 1.
    pub(super) fn majority(&self) -> usize {
        self.size() / 2 + 1
    }

    /// Whether these voters are a majority: of the electorate; or of the configured sentinels, if
    /// one of them finds in them a majority of the sentinels that it knows itself, as it would have
    /// to for its own election. The second one matters where ghosts that some of them still list,
    /// or a member outside of their cluster, such as a sentinel that lost its file and founded the
    /// electorate, make the electorate larger than the cluster is.
    pub(super) fn is_majority(&self, voters: &BTreeSet<&MyId>) -> bool {
        voters.len() >= self.majority() || self.is_own_majority(voters)
    }

    fn is_own_majority(&self, voters: &BTreeSet<&MyId>) -> bool {
        let could_be_elected = |received: &ReceivedView| {
            let peers: BTreeSet<&MyId> = received.view.peers.iter().map(|(id, _)| id).collect();
            let with = 1 + peers.iter().filter(|id| voters.contains(*id)).count();
            with * 2 > 1 + peers.len()
        };
        let received = |id: &&&MyId| self.by_id.get(**id).and_then(|it| it.received.as_ref());
        voters.len() > 1
            && voters.len() > self.expected / 2
            && voters.iter().any(|id| received(&id).is_some_and(could_be_elected))
    }

    /// Whether these voters are enough to begin with: a majority, also of the sentinels that the
    /// configuration leads to, and no fewer than the quorum that one of them needs to fail over. A
    /// sentinel that lost its file knows its quorum, and nobody else.
    pub(super) fn may_found(&self, voters: &BTreeSet<&MyId>) -> bool {
        let quorum = self
            .member_views()
            .filter(|(id, _)| voters.contains(id))
            .map(|(_, view)| view.quorum)
            .max();
        self.is_majority(voters)
            && voters.len() > self.expected / 2
            && voters.len() >= quorum.unwrap_or(0)
    }

    /// Whether a majority can be heard.
    pub(super) fn majority_answers(&self) -> bool {
        self.is_majority(&self.received_from_members().map(|(id, _)| id).collect())
    }

    /// When the youngest questions were sent that a majority answered.
    pub(super) fn majority_clock(&self) -> Option<Instant> {
        let mut words: Vec<(Instant, &MyId)> =
            self.received_from_members().map(|(id, received)| (received.asked_at, id)).collect();
        words.sort_unstable_by(|one, two| two.cmp(one));
        let mut spoke = BTreeSet::new();
        words
            .into_iter()
            .find(|(_, id)| spoke.insert(*id) && self.is_majority(&spoke))
            .map(|(at, _)| at)
    }

    /// Whether a majority answered questions from `since` on.
    pub(super) fn majority_answered_since(&self, since: Instant) -> bool {
        self.majority_clock().is_some_and(|at| at >= since)
    }

    /// Whether a majority named this itself in answer to questions from `since` on.
    pub(super) fn majority_names_since(
        &self,
        since: Instant,
        addr: &NodeAddr,
        epoch: Epoch,
    ) -> bool {
        let ours =
            self.own_votes_since(since).filter(|(_, named, at)| *named == addr && *at == epoch);
        self.is_majority(&ours.map(|(id, ..)| id).collect())
    }

    /// Whether every member that can be heard says, by its own count of the peers it knows, that it
    /// cannot reach a majority of them. Each is judged by its own list, as its own election would
    /// be. `None` where no view says anything about it: in TILT the count means nothing.
    pub(super) fn provable_minority(&self) -> Option<bool> {
        let cut_off = |view: &View| {
            let (known, up) =
                (1 + view.peers.len(), 1 + view.peers.iter().filter(|(_, up)| *up).count());
            up < known / 2 + 1
        };
        let mut views = self
            .member_views()
            .filter(|(_, view)| !view.tilt)
            .map(|(_, view)| cut_off(view))
            .peekable();
        views.peek()?;
        Some(views.all(|cut_off| cut_off))
    }
}
