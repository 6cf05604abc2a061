//! The electorate: which sentinels may vote on the master, how and when they were admitted, and
//! what each said last.
//!
//! Votes are counted by MYID, never by address: a sentinel reached under two names has one vote,
//! and a pod that inherits an IP address inherits no vote. There are four ways to be admitted
//! ([`Admission`]):
//!
//! - **Founder.** Until a majority has decided once, every sentinel that knows anything is
//!   admitted, since there is no member to confirm it. A decision without a majority does not end
//!   this phase. Otherwise the one sentinel that answered first would remain an electorate of one,
//!   and a sentinel that lost its file answers as fast as any other.
//! - **Configured.** Later, a sentinel that answers at a configured address is admitted if it and a
//!   member know each other.
//! - **Listed.** A sentinel that more than half of the answering members list as their peer.
//! - **Successor.** If no member has answered for a long time but others do, at least a majority of
//!   the members and of the configuration, all sentinels were replaced, and those vote. A single
//!   stranger, such as the only reachable sentinel after it lost its file, is not an electorate.
//!
//! A member is removed when it is silent and at most half of the answering members list it. One
//! that answers that it does not know the master's name (`SENTINEL REMOVE`, a lost file) abstains;
//! it is removed only if those that know the name are more than half of the configured sentinels. A
//! cluster that merges with this one, or a stray sentinel with an old configuration, therefore
//! cannot vote itself in, and the entries that Sentinel keeps of replaced pods ("ghosts") do not
//! prevent the running sentinels from being a majority.
//!
//! An observer's `+config-update-from X` followed by its switch is two votes, its own and that of
//! X, since the hello of X with the higher epoch made it switch. The vote of X is an
//! [endorsement](Electorate::endorse): second-hand, and superseded by X's own view. If X has voted
//! itself already, the observer's vote is the endorsement, until the observer's own next view.

mod majority;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::nodes::MAX_NODES;
use crate::{Epoch, MyId, NodeAddr, View};

/// The maximum number of sentinels in one electorate. Far above any real deployment; a bound
/// against a peer that lies.
pub(super) const MAX_VOTERS: usize = 64;

/// After this many expiry periods in which outsiders answer and no member does, the outsiders
/// become the electorate. After the same time a silent member that few members list is removed,
/// even if no majority of the members answers. Otherwise the electorate would grow with every
/// replaced pod, until the running sentinels could never be a majority again.
const PATIENCE: u32 = 6;

/// The current vote of one sentinel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Vote {
    /// The voter.
    pub voter: MyId,
    /// The address it names.
    pub addr: NodeAddr,
    /// The config-epoch.
    pub epoch: Epoch,
    /// When it was received.
    pub received_at: Instant,
    /// When the query was sent: the vote says nothing about the time before this.
    pub asked_at: Instant,
}

/// How a sentinel was admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Admission {
    /// It answered before any majority had decided.
    Founder,
    /// It answers at a configured address, and it and a member list each other, or one of them the
    /// other.
    Configured,
    /// More than half of the answering members list it.
    Listed,
    /// All earlier members had fallen silent.
    Successor,
}

/// A view with its times and its source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ReceivedView {
    pub view: View,
    /// When its query was sent.
    pub asked_at: Instant,
    /// When it was received.
    pub at: Instant,
    /// The sentinel was queried at an address of the configuration, not at one learned from another
    /// sentinel.
    pub configured: bool,
}

impl ReceivedView {
    fn knows_something(&self) -> bool {
        !self.view.is_empty_state()
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct SentinelRecord {
    /// How and when it was admitted; `None` if it has no vote.
    member: Option<(Admission, Instant)>,
    received: Option<ReceivedView>,
    endorsed: Option<Vote>,
    /// When it answered last that it does not know the master's name.
    abstained_at: Option<Instant>,
    /// Since when members answer, but neither it does nor do enough of them list it.
    unlisted_since: Option<Instant>,
}

/// The electorate; see the module documentation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Electorate {
    by_id: BTreeMap<MyId, SentinelRecord>,
    /// The number of sentinels that the configuration resolves to.
    expected: usize,
    /// No majority has decided yet.
    founding: bool,
    /// The same, after other sentinels were configured: a master is published, and no few of the
    /// new sentinels may replace it.
    refounding: bool,
    /// Since when outsiders answer and no member does.
    outsiders_since: Option<Instant>,
}

impl Electorate {
    /// An empty electorate. `expected` is the number of sentinels that the configuration resolves
    /// to, as far as known.
    pub(super) fn new(expected: usize) -> Self {
        Self {
            by_id: BTreeMap::new(),
            expected,
            founding: true,
            refounding: false,
            outsiders_since: None,
        }
    }

    /// The configuration now resolves to this many sentinels.
    pub(super) fn expect(&mut self, sentinels: usize) {
        self.expected = sentinels.min(MAX_VOTERS);
    }

    /// A majority has decided: from now on a sentinel needs a member that confirms it.
    pub(super) fn close_founding(&mut self) {
        (self.founding, self.refounding) = (false, false);
    }

    /// Other sentinels were configured: they form a new electorate. Until a majority of them has
    /// decided, it takes as many as a start does.
    pub(super) fn refound(&mut self, expected: usize) {
        *self = Self { refounding: true, ..Self::new(expected.min(MAX_VOTERS)) };
    }

    /// Stores a view. Lists that are longer than any real one are truncated, since they are kept
    /// and scanned at every step.
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
        (sentinel.endorsed, sentinel.abstained_at) = (None, None);
        sentinel.received = Some(received);
    }

    /// A sentinel at a configured address does not know the name any more: its last view is void.
    /// It stays a member, since it is there and may be made to know the name again.
    pub(super) fn record_abstention(&mut self, now: Instant, id: &MyId) {
        if let Some(sentinel) = self.by_id.get_mut(id) {
            (sentinel.received, sentinel.endorsed) = (None, None);
            sentinel.abstained_at = Some(now);
        }
    }

    /// A sentinel switched because of another's hello: `who` names the same as the other.
    pub(super) fn endorse(&mut self, now: Instant, who: &MyId, addr: NodeAddr, epoch: Epoch) {
        if let Some(sentinel) = self.by_id.get_mut(who)
            && sentinel.received.as_ref().is_none_or(|received| received.view.epoch < epoch)
        {
            sentinel.endorsed =
                Some(Vote { voter: who.clone(), addr, epoch, received_at: now, asked_at: now });
        }
    }

    /// Drops expired views and updates the membership.
    pub(super) fn refresh(&mut self, now: Instant, expiry: Duration) {
        let fresh = |at: Instant| now.saturating_duration_since(at) <= expiry;
        for sentinel in self.by_id.values_mut() {
            sentinel.received = sentinel.received.take().filter(|received| fresh(received.at));
            sentinel.endorsed = sentinel.endorsed.take().filter(|vote| fresh(vote.received_at));
            sentinel.abstained_at = sentinel.abstained_at.filter(|at| fresh(*at));
        }
        self.succeed(now, expiry * PATIENCE);
        self.admit(now);
        self.remove_silent(now, expiry * PATIENCE);
        self.by_id.retain(|_, sentinel| sentinel.member.is_some() || sentinel.received.is_some());
    }

    /// Drops all views: after a stall nothing received before counts, and no sentinel's silence
    /// does.
    pub(super) fn forget_views(&mut self) {
        self.outsiders_since = None;
        for sentinel in self.by_id.values_mut() {
            *sentinel = SentinelRecord { member: sentinel.member, ..SentinelRecord::default() };
        }
    }

    /// Makes the outsiders the electorate once they have been the only ones to answer for `long`.
    /// Silence changes nothing, however long it lasts: the first sentinel to answer after it gains
    /// nothing.
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

    /// The number of answering members, and how many of them list each sentinel.
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
        // If most sentinels lost the name and the rest were RESET, the rest list nobody: they must
        // not become an electorate of their own.
        let few_know = speaking <= self.expected / 2;
        self.by_id.retain(|id, sentinel| {
            let few = listed.get(id).copied().unwrap_or(0) * 2 <= speaking;
            let abstains = few_know && sentinel.abstained_at.is_some();
            let speaks = sentinel.received.is_some() || abstains;
            if speaking == 0 || sentinel.member.is_none() || speaks || !few {
                sentinel.unlisted_since = None;
                return true;
            }
            let since = *sentinel.unlisted_since.get_or_insert(now);
            // A member that no other lists can be removed by a majority at once. If some list it,
            // only time distinguishes a ghost from a restart.
            let unlisted = !listed.contains_key(id);
            !(most && unlisted) && now.saturating_duration_since(since) <= long
        });
    }

    /// Sentinels that answer at configured addresses, know something and have no vote.
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

    /// The unexpired first-hand views of members that know anything.
    pub(super) fn member_views(&self) -> impl Iterator<Item = (&MyId, &View)> {
        self.received_from_members().map(|(id, received)| (id, &received.view))
    }

    /// The same, limited to answers to queries sent at or after `since`.
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

    /// The address and epoch in a sentinel's last view, if that is unexpired.
    pub(super) fn named_by(&self, id: &MyId) -> Option<(NodeAddr, Epoch)> {
        let received = self.by_id.get(id)?.received.as_ref()?;
        Some((received.view.addr.clone(), received.view.epoch))
    }

    /// Whether `id` belongs to the electorate.
    pub(super) fn is_member(&self, id: &MyId) -> bool {
        self.by_id.get(id).is_some_and(|sentinel| sentinel.member.is_some())
    }

    /// How and when each member was admitted.
    pub(super) fn members(&self) -> impl Iterator<Item = (&MyId, Admission, Instant)> {
        self.by_id
            .iter()
            .filter_map(|(id, sentinel)| sentinel.member.map(|(how, since)| (id, how, since)))
    }

    /// Each unexpired view and whether its sentinel votes; for display, not for counting.
    pub(super) fn all_views(&self) -> impl Iterator<Item = (&MyId, bool, &ReceivedView)> {
        let received = self
            .by_id
            .iter()
            .filter_map(|(id, it)| it.received.as_ref().map(|received| (id, it, received)));
        received.map(|(id, sentinel, received)| (id, sentinel.member.is_some(), received))
    }
}
