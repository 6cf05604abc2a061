//! The electorate: which sentinels may vote on the master, how and when they were admitted, and
//! what each said last.
//!
//! Votes are counted by MYID, never by address: a sentinel reached under two names has one vote,
//! and a pod that inherits an IP address inherits no vote.
//!
//! The configured sentinels are the root of trust, since anyone who may publish to
//! `__sentinel__:hello` can make them list any number of others. "Configured" means that it answers
//! at an address of the configuration ([`Admission`]):
//!
//! - **Configured.** At a start, every sentinel that answers at a configured address and knows
//!   anything. Later, one that a member lists or that lists a member. If all were replaced, a
//!   majority of the configured addresses that agrees on the committed master, or on another one
//!   with replicas, is the electorate at once, whatever its MYIDs.
//! - **Learned.** A sentinel that more than half of the connected configured members list as their
//!   peer; while these are no majority of the configured sentinels, more than half of all connected
//!   members have to list it as well. A member whose connection ended has no say here, although its
//!   vote counts until it expires. It is dialled at the addresses in the lists of configured
//!   sentinels, while one of these is connected.
//!
//! Learned members raise the number that a majority needs, and stand in for configured ones that
//! are gone. They never outvote them: a majority needs more than half of the configured members
//! that answer, and a vote for something that none of these names is not counted. Without a
//! majority of the configured sentinels only a node that continues the history of the committed
//! master can be committed ([`Electorate::vouches_for`]).
//!
//! A member is removed when it is silent and at most half of the answering configured members list
//! it. One that answers that it does not know the master's name (`SENTINEL REMOVE`, a lost file)
//! abstains; it is removed only if those that know the name are more than half of the configured
//! sentinels. The entries that Sentinel keeps of replaced pods ("ghosts") do not prevent the
//! running sentinels from being a majority.
//!
//! An observer's `+config-update-from X` followed by its switch is two votes, its own and that of
//! X, since the hello of X with the higher epoch made it switch. The vote of X is an
//! [endorsement](Electorate::endorse): second-hand, and superseded by X's own view. If X has voted
//! itself already, the observer's vote is the endorsement, until the observer's own next view.

mod majority;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::nodes::MAX_NODES;
use crate::labelled::labelled;
use crate::{Epoch, MyId, NodeAddr, View};

/// The maximum number of sentinels in one electorate. Far above any real deployment; a bound
/// against a peer that lies.
pub(super) const MAX_VOTERS: usize = 64;

/// After this many expiry periods a silent member that few members list is removed, even if no
/// majority of the members answers. Otherwise the electorate would grow with every replaced pod,
/// until the running sentinels could never be a majority again.
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
}

labelled! {
    /// Why a sentinel votes.
    pub enum Admission {
        /// It answers at an address of the configuration.
        Configured = "configured",
        /// The configured sentinels list it.
        Learned = "learned",
    }
}

/// A view with its times and its source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ReceivedView {
    /// The text by which it names the master. `view.addr` is that of the committed process, if the
    /// text leads to it; see `names`.
    pub named: NodeAddr,
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

    /// Whether what was of this age in the answer happened at or after `since`.
    fn is_since(&self, since: Instant, age: Duration) -> bool {
        self.asked_at.checked_sub(age) >= Some(since)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct SentinelRecord {
    /// Why and since when it votes; `None` if it has no vote.
    member: Option<(Admission, Instant)>,
    received: Option<ReceivedView>,
    /// It has answered, at any time.
    heard: bool,
    endorsed: Option<Vote>,
    /// The connection to it ended after its last answer.
    lost: bool,
    /// Another sentinel has answered at its address since then.
    displaced: bool,
    /// Its address was one of the configuration, and is no longer.
    former: bool,
    /// When it answered last that it does not know the master's name.
    abstained_at: Option<Instant>,
    /// Since when members answer, but neither it does nor do enough of them list it.
    unlisted_since: Option<Instant>,
}

impl SentinelRecord {
    fn is_configured(&self) -> bool {
        matches!(self.member, Some((Admission::Configured, _)))
    }
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
    /// The [quorum](Self::usual_quorum) of the configured members when one answered last.
    quorum: usize,
}

impl Electorate {
    /// An empty electorate. `expected` is the number of sentinels that the configuration resolves
    /// to, as far as known.
    pub(super) fn new(expected: usize) -> Self {
        Self { by_id: BTreeMap::new(), expected, founding: true, refounding: false, quorum: 0 }
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

    /// Whether no master was ever named by enough sentinels to start with.
    pub(super) fn is_founding(&self) -> bool {
        self.founding && !self.refounding
    }

    /// Stores a view. Lists that are longer than any real one are truncated, since they are kept
    /// and scanned at every step. Learned sentinels take no place from configured ones.
    pub(super) fn record(&mut self, id: &MyId, mut received: ReceivedView) {
        received.view.peers.truncate(MAX_VOTERS);
        received.view.replicas.truncate(MAX_NODES);
        if !self.by_id.contains_key(id) && self.by_id.len() >= MAX_VOTERS {
            let place =
                self.by_id.iter().find(|(_, it)| received.configured && !it.is_configured());
            let Some(place) = place.map(|(id, _)| id.clone()) else { return };
            self.by_id.remove(&place);
        }
        let sentinel = self.by_id.entry(id.clone()).or_default();
        if self.founding && received.configured && received.knows_something() {
            sentinel.member.get_or_insert((Admission::Configured, received.at));
        }
        sentinel.former = !received.configured && (sentinel.former || sentinel.is_configured());
        if let Some((why, _)) = &mut sentinel.member {
            *why = if received.configured { Admission::Configured } else { Admission::Learned };
        }
        (sentinel.endorsed, sentinel.abstained_at) = (None, None);
        (sentinel.lost, sentinel.displaced) = (false, false);
        (sentinel.received, sentinel.heard) = (Some(received), true);
    }

    /// The connection to this sentinel ended. Its view is a vote until it expires, since a
    /// connection can be lost without a fault, but until its next answer it has no say in who else
    /// is a member: the views of replaced pods must not keep their successors out.
    pub(super) fn record_loss(&mut self, id: &MyId) {
        if let Some(sentinel) = self.by_id.get_mut(id) {
            sentinel.lost = true;
        }
    }

    /// Another sentinel answers at the address of this one, which answers nowhere else: its views
    /// are void. Otherwise a single address could vote under many identities.
    pub(super) fn displace(&mut self, id: &MyId) {
        if let Some(sentinel) = self.by_id.get_mut(id) {
            (sentinel.received, sentinel.endorsed, sentinel.displaced) = (None, None, true);
        }
    }

    /// Whether another sentinel answers at its address. Its process may be elsewhere.
    pub(super) fn is_displaced(&self, id: &MyId) -> bool {
        self.by_id.get(id).is_some_and(|sentinel| sentinel.displaced)
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
            sentinel.endorsed = Some(Vote { voter: who.clone(), addr, epoch, received_at: now });
        }
    }

    /// Drops expired views and updates the membership. `current` is the committed master, unless it
    /// is gone.
    pub(super) fn refresh(&mut self, now: Instant, expiry: Duration, current: Option<&NodeAddr>) {
        let fresh = |at: Instant| now.saturating_duration_since(at) <= expiry;
        for sentinel in self.by_id.values_mut() {
            sentinel.received = sentinel.received.take().filter(|received| fresh(received.at));
            sentinel.endorsed = sentinel.endorsed.take().filter(|vote| fresh(vote.received_at));
            sentinel.abstained_at = sentinel.abstained_at.filter(|at| fresh(*at));
        }
        self.admit_configured(now, current);
        self.admit_learned(now);
        self.quorum = self.usual_quorum().unwrap_or(self.quorum);
        self.remove_silent(now, expiry * PATIENCE);
        self.by_id.retain(|_, sentinel| sentinel.member.is_some() || sentinel.received.is_some());
    }

    /// Drops all views: after a stall nothing received before counts, and no sentinel's silence
    /// does.
    pub(super) fn forget_views(&mut self) {
        for sentinel in self.by_id.values_mut() {
            let SentinelRecord { member, heard, former, .. } = *sentinel;
            *sentinel = SentinelRecord { member, heard, former, ..SentinelRecord::default() };
        }
    }

    /// Which answering members list each sentinel.
    fn listings(&self) -> BTreeMap<MyId, BTreeSet<MyId>> {
        let mut listings = BTreeMap::<MyId, BTreeSet<MyId>>::new();
        for (id, received) in self.received_from_members() {
            for (peer, _) in &received.view.peers {
                listings.entry(peer.clone()).or_default().insert(id.clone());
            }
        }
        listings
    }

    fn admit_learned(&mut self, now: Instant) {
        let connected = self.roots().filter(|(id, _)| !self.is_lost(id)).count();
        let rooted = connected > self.expected / 2;
        for (id, listers) in self.listings() {
            let enough = self.is_listed(&listers) && (rooted || self.is_known(&listers));
            if enough && (self.by_id.contains_key(&id) || self.by_id.len() < MAX_VOTERS) {
                let sentinel = self.by_id.entry(id).or_default();
                sentinel.member.get_or_insert((Admission::Learned, now));
            }
        }
    }

    /// Whether more than half of the connected configured members are among `listers`; if none of
    /// them is connected, more than half of the connected members.
    fn is_listed(&self, listers: &BTreeSet<MyId>) -> bool {
        let roots = self.roots().map(|(id, _)| id);
        self.are_most_connected(listers, roots).unwrap_or_else(|| self.is_known(listers))
    }

    /// Whether more than half of the connected members are among `listers`.
    fn is_known(&self, listers: &BTreeSet<MyId>) -> bool {
        let members = self.received_from_members().map(|(id, _)| id);
        self.are_most_connected(listers, members).unwrap_or(false)
    }

    /// Whether more than half of the connected ones of `sentinels` are among `listers`; `None` if
    /// none is connected.
    fn are_most_connected<'a>(
        &self,
        listers: &BTreeSet<MyId>,
        sentinels: impl Iterator<Item = &'a MyId>,
    ) -> Option<bool> {
        let (mut connected, mut ours) = (0, 0);
        for id in sentinels.filter(|id| !self.is_lost(id)) {
            (connected, ours) = (connected + 1, ours + usize::from(listers.contains(id)));
        }
        (connected > 0).then_some(ours * 2 > connected)
    }

    fn is_lost(&self, id: &MyId) -> bool {
        self.by_id.get(id).is_some_and(|sentinel| sentinel.lost)
    }

    fn admit_configured(&mut self, now: Instant, current: Option<&NodeAddr>) {
        if self.configured_strangers().next().is_none() {
            return;
        }
        let listings = self.listings();
        let agreed = self.agreed_address(current);
        let admitted = self.configured_strangers().filter(|(id, received)| {
            listings.contains_key(*id)
                || received.view.peers.iter().any(|(it, _)| self.is_member(it))
                || agreed.as_ref() == Some(&received.view.addr)
        });
        for id in admitted.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.by_id.entry(id).or_default().member = Some((Admission::Configured, now));
        }
    }

    /// The master that a majority of the configured addresses and at least the quorum of its
    /// sentinels name, with or without votes. It has to be the committed one or to have replicas:
    /// sentinels that lost their files may have been given the address of an empty server. If the
    /// committed one is gone, any will do. No other one while a configured member stands by the
    /// committed one: not all were replaced, and the rest may watch another cluster.
    fn agreed_address(&self, current: Option<&NodeAddr>) -> Option<NodeAddr> {
        let answers = || {
            let received = self.by_id.values().filter_map(|it| it.received.as_ref());
            received.filter(|it| it.configured && it.knows_something())
        };
        let addr = answers()
            .map(|it| &it.view.addr)
            .max_by_key(|addr| answers().filter(|it| it.view.addr == **addr).count())?;
        let agreeing = || answers().filter(|it| it.view.addr == *addr);
        let (ours, all) = (agreeing().count(), answers().count());
        let quorum = agreeing().map(|it| it.view.quorum).max().unwrap_or(0);
        let stands = |current: &NodeAddr| {
            self.roots().any(|(id, it)| it.view.addr == *current && !self.is_lost(id))
        };
        let credible = current.is_none_or(|current| current == addr)
            || (agreeing().all(|it| !it.view.replicas.is_empty()) && !current.is_some_and(stands));
        (ours > self.expected / 2 && ours * 2 > all && ours >= quorum && credible)
            .then(|| addr.clone())
    }

    fn remove_silent(&mut self, now: Instant, long: Duration) {
        let speaking: BTreeSet<&MyId> = self.received_from_members().map(|(id, _)| id).collect();
        let most = speaking.len() >= self.majority() || self.is_root_majority(&speaking);
        // If most sentinels lost the name and the rest were RESET, the rest list nobody: they must
        // not become an electorate of their own.
        let few_know = self.roots().count() <= self.expected / 2;
        let anyone_speaks = !speaking.is_empty();
        let listings = self.listings();
        let listed: BTreeSet<MyId> = listings
            .iter()
            .filter(|(_, listers)| self.is_listed(listers))
            .map(|(id, _)| id.clone())
            .collect();
        let strangers = self.former_strangers();
        self.by_id.retain(|id, sentinel| {
            let abstains = few_know && sentinel.abstained_at.is_some();
            let is_stranger = strangers.contains(id);
            let speaks = (sentinel.received.is_some() && !is_stranger) || abstains;
            if !anyone_speaks || sentinel.member.is_none() || speaks || listed.contains(id) {
                sentinel.unlisted_since = None;
                return true;
            }
            let since = *sentinel.unlisted_since.get_or_insert(now);
            // A member that no other lists can be removed by a majority at once. If some list it,
            // only time distinguishes a ghost from a restart.
            let unlisted = is_stranger || !listings.contains_key(id);
            !(most && unlisted) && now.saturating_duration_since(since) <= long
        });
    }

    /// Members at former addresses that know no configured one and that none of those knows,
    /// although most of them list others: sentinels of another cluster, whose pods were given these
    /// addresses. A sentinel that has just started is known to the others before it knows them.
    fn former_strangers(&self) -> BTreeSet<MyId> {
        let roots: Vec<_> = self.roots().filter(|(id, _)| !self.is_lost(id)).collect();
        let lists = |it: &ReceivedView, id: &MyId| it.view.peers.iter().any(|(peer, _)| peer == id);
        if roots.iter().filter(|(_, it)| !it.view.peers.is_empty()).count() * 2 <= roots.len() {
            return BTreeSet::new();
        }
        let knows = |id: &MyId, it: &SentinelRecord| {
            let received = it.received.as_ref();
            roots.iter().any(|(root, of_root)| {
                lists(of_root, id) || received.is_some_and(|it| lists(it, root))
            })
        };
        let former = self.by_id.iter().filter(|(id, it)| it.former && !knows(id, it));
        former.map(|(id, _)| id.clone()).collect()
    }

    /// Sentinels that answer at configured addresses, know something and have no vote.
    fn configured_strangers(&self) -> impl Iterator<Item = (&MyId, &ReceivedView)> {
        let known = self.all_views().filter(|(.., it)| it.configured && it.knows_something());
        known.filter(|(_, member, _)| !member).map(|(id, _, received)| (id, received))
    }

    /// Whether the configuration leads to a sentinel that no member knows and that knows no member:
    /// it may watch another cluster.
    pub(super) fn has_configured_strangers(&self) -> bool {
        self.configured_strangers().next().is_some()
    }

    fn received_from_members(&self) -> impl Iterator<Item = (&MyId, &ReceivedView)> {
        let known = self.all_views().filter(|(_, member, it)| *member && it.knows_something());
        known.map(|(id, _, received)| (id, received))
    }

    /// The unexpired first-hand views of members that know anything.
    pub(super) fn member_views(&self) -> impl Iterator<Item = (&MyId, &View)> {
        self.received_from_members().map(|(id, received)| (id, &received.view))
    }

    /// What they answered to queries sent at or after `since`.
    fn received_since(
        &self,
        since: Option<Instant>,
    ) -> impl Iterator<Item = (&MyId, &ReceivedView)> {
        self.received_from_members().filter(move |(_, it)| since <= Some(it.asked_at))
    }

    /// The [views](Self::member_views) in answer to queries sent at or after `since`.
    pub(super) fn member_views_since(
        &self,
        since: Instant,
    ) -> impl Iterator<Item = (&MyId, &View)> {
        self.received_since(Some(since)).map(|(id, it)| (id, &it.view))
    }

    /// Whether this sentinel sees that process at the address that it names.
    pub(super) fn sees(&self, id: &MyId, run_id: &str) -> bool {
        let received = self.by_id.get(id).and_then(|it| it.received.as_ref());
        received.is_some_and(|it| *it.view.run_id == *run_id)
    }

    /// Whether any member sees that process at the address that it names.
    pub(super) fn is_seen(&self, run_id: &str) -> bool {
        self.member_views().any(|(_, view)| *view.run_id == *run_id)
    }

    /// Whether this sentinel reported that the master answered its PING at or after `since`.
    pub(super) fn has_reached_since(&self, id: &MyId, since: Instant) -> bool {
        let received = self.by_id.get(id).and_then(|it| it.received.as_ref());
        received.is_some_and(|it| it.is_since(since, it.view.pong_age))
    }

    /// The views of members that have read the `run_id` in them at or after `since`.
    pub(super) fn informed_since(&self, since: Instant) -> impl Iterator<Item = (&MyId, &View)> {
        let informed = move |it: &ReceivedView| it.is_since(since, it.view.info_age);
        let all = self.received_from_members().filter(move |(_, it)| informed(it));
        all.map(|(id, it)| (id, &it.view))
    }

    /// Whether a sentinel is heard about the state of master and peers. Only configured ones are:
    /// anybody may have announced the others. Not if fewer are configured than a failover needs.
    pub(super) fn is_trusted(&self, configured: bool) -> bool {
        configured || self.depends_on_learned() || self.roots().next().is_none()
    }

    /// Whether this member is [trusted](Self::is_trusted), by where it answered last.
    pub(super) fn trusts(&self, id: &MyId) -> bool {
        let received = self.by_id.get(id).and_then(|it| it.received.as_ref());
        self.is_member(id) && self.is_trusted(received.is_some_and(|it| it.configured))
    }

    /// The [views](Self::member_views) that are trusted about the state of master and peers,
    /// limited to answers to queries sent at or after `since`.
    pub(super) fn trusted_views(&self, since: Option<Instant>) -> impl Iterator<Item = &View> {
        let all = self.is_trusted(false);
        let trusted = self.received_since(since).filter(move |(_, it)| it.configured || all);
        trusted.map(|(_, it)| &it.view)
    }

    /// The quorum that most of the answering configured members need for a failover, or more: one
    /// of them with a typing error does not decide for all.
    fn usual_quorum(&self) -> Option<usize> {
        let mut all: Vec<usize> = self.roots().map(|(_, received)| received.view.quorum).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied()
    }

    /// Whether fewer sentinels are configured than a failover needs.
    pub(super) fn depends_on_learned(&self) -> bool {
        self.expected < self.quorum
    }

    /// The configured members that answer.
    fn roots(&self) -> impl Iterator<Item = (&MyId, &ReceivedView)> {
        self.received_from_members().filter(|(_, received)| received.configured)
    }

    /// Whether a sentinel may add to what is known of the nodes: a configured one, or any while no
    /// configured member answers.
    pub(super) fn may_list_nodes(&self, configured: bool) -> bool {
        configured || self.roots().next().is_none()
    }

    /// Every replica that more than half of the answering configured members list; if none of them
    /// answers, that any member lists.
    pub(super) fn listed_replicas(&self) -> BTreeSet<NodeAddr> {
        match self.roots().count() {
            0 => listed_by_more_than(0, self.member_views().map(|(_, view)| view)),
            roots => {
                listed_by_more_than(roots / 2, self.roots().map(|(_, received)| &received.view))
            }
        }
    }

    /// Whether this sentinel lists a node as a replica of its master.
    pub(super) fn is_listed_by(&self, replica: &NodeAddr, id: &MyId) -> bool {
        let lists = |view: &View| view.replicas.iter().any(|it| it.addr == *replica);
        self.member_views().any(|(it, view)| it == id && lists(view))
    }

    /// The replicas of this master that a majority of the configured sentinels lists, answering or
    /// not, and of those that answer.
    pub(super) fn vouched_replicas(&self, master: &NodeAddr) -> BTreeSet<NodeAddr> {
        let views = self.roots().map(|(_, received)| &received.view);
        let half = self.expected.max(self.roots().count()) / 2;
        listed_by_more_than(half, views.filter(|view| view.addr == *master))
    }

    /// The replicas of this master that most of those sentinels list which name it and
    /// [may list nodes](Self::may_list_nodes).
    pub(super) fn usual_replicas_of(&self, addr: &NodeAddr) -> BTreeSet<NodeAddr> {
        let views = || {
            let named = self.received_from_members().filter(|(_, it)| it.view.addr == *addr);
            named.filter(|(_, it)| self.may_list_nodes(it.configured)).map(|(_, it)| &it.view)
        };
        listed_by_more_than(views().count() / 2, views())
    }

    /// The replicas of this master, as listed by sentinels that
    /// [may list nodes](Self::may_list_nodes).
    pub(super) fn replicas_of(&self, addr: &NodeAddr) -> impl Iterator<Item = NodeAddr> {
        let views = self.received_from_members().filter(|(_, received)| {
            received.view.addr == *addr && self.may_list_nodes(received.configured)
        });
        views.flat_map(|(_, received)| received.view.replicas.iter().map(|it| it.addr.clone()))
    }

    /// The texts by which members name a master at `epoch` or before, other than `usual`.
    pub(super) fn other_texts(&self, usual: &NodeAddr, epoch: Epoch) -> BTreeSet<NodeAddr> {
        let others = self.received_from_members().filter(|(_, it)| {
            it.view.epoch <= epoch && (it.named != *usual || it.view.addr != *usual)
        });
        others.map(|(_, it)| it.named.clone()).collect()
    }

    /// Whether a majority names its master by this text at this epoch.
    pub(super) fn majority_says(&self, text: &NodeAddr, epoch: Epoch) -> bool {
        let ours = self
            .received_from_members()
            .filter(|(_, received)| received.named == *text && received.view.epoch == epoch);
        self.is_majority(&ours.map(|(id, _)| id).collect())
    }

    /// Reads each of the `texts` as `usual` in the views at `epoch` or before, and every other text
    /// as it stands.
    pub(super) fn read_texts_as(
        &mut self,
        texts: &BTreeSet<NodeAddr>,
        usual: &NodeAddr,
        epoch: Epoch,
    ) {
        for received in self.by_id.values_mut().filter_map(|it| it.received.as_mut()) {
            let same = received.view.epoch <= epoch && texts.contains(&received.named);
            let addr = if same { usual } else { &received.named };
            if received.view.addr != *addr {
                received.view.addr = addr.clone();
            }
        }
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

    /// Why and since when each member votes.
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

/// The replicas in more than `least` of these views.
fn listed_by_more_than<'a>(
    least: usize,
    views: impl Iterator<Item = &'a View>,
) -> BTreeSet<NodeAddr> {
    let mut listings: BTreeMap<&NodeAddr, usize> = BTreeMap::new();
    for view in views {
        let listed: BTreeSet<&NodeAddr> = view.replicas.iter().map(|it| &it.addr).collect();
        listed.into_iter().for_each(|addr| *listings.entry(addr).or_default() += 1);
    }
    let listed = listings.into_iter().filter(|(_, listers)| *listers > least);
    listed.map(|(addr, _)| addr.clone()).collect()
}
