//! The votes of the electorate, and what a majority of it says.

use std::collections::BTreeSet;
use std::time::Instant;

use super::{Electorate, ReceivedView, SentinelRecord, Vote};
use crate::{Epoch, MyId, NodeAddr, View};

impl Electorate {
    /// Whether a majority has denied `addr` at `epoch` since `since`: by naming something else that
    /// is at most as new and not older than `floor`. A vote that merely expired denies nothing.
    pub(in crate::machine) fn is_denied(
        &self,
        since: Instant,
        addr: &NodeAddr,
        epoch: Epoch,
        floor: Epoch,
    ) -> bool {
        let denies = |vote: &&Vote| {
            let other = vote.addr != *addr || vote.epoch != epoch;
            other && vote.received_at >= since && (floor..=epoch).contains(&vote.epoch)
        };
        let votes = self.votes(None);
        self.is_majority(&votes.iter().filter(denies).map(|vote| &vote.voter).collect())
    }

    /// The members' own votes in answer to queries sent at or after `since`, as far as they
    /// count (see [`votes`](Self::votes)).
    pub(in crate::machine) fn own_votes_since(
        &self,
        since: Instant,
    ) -> impl Iterator<Item = (&MyId, &NodeAddr, Epoch)> {
        let (views, named) = (self.member_views_since(since), self.named_by_roots());
        views.map(|(id, view)| (id, &view.addr, view.epoch)).filter(move |(_, addr, epoch)| {
            named.is_empty() || named.contains(&((*addr).clone(), *epoch))
        })
    }

    /// What the answering configured members vote for.
    fn named_by_roots(&self) -> BTreeSet<(NodeAddr, Epoch)> {
        let roots: BTreeSet<&MyId> = self.roots().map(|(id, _)| id).collect();
        let votes = self.all_votes().into_iter().filter(|vote| roots.contains(&vote.voter));
        votes.map(|vote| (vote.addr, vote.epoch)).collect()
    }

    /// The votes that count: those for what an answering configured member names as well, or, if
    /// none answers, all. One for the `committed` master always counts.
    pub(in crate::machine) fn votes(&self, committed: Option<(&NodeAddr, Epoch)>) -> Vec<Vote> {
        let (mut votes, named) = (self.all_votes(), self.named_by_roots());
        votes.retain(|vote| {
            named.is_empty()
                || committed == Some((&vote.addr, vote.epoch))
                || named.contains(&(vote.addr.clone(), vote.epoch))
        });
        votes
    }

    /// At most one vote per MYID: its own view, or a later endorsement.
    fn all_votes(&self) -> Vec<Vote> {
        let members = self.by_id.iter().filter(|(_, sentinel)| sentinel.member.is_some());
        let vote = |(id, sentinel): (&MyId, &SentinelRecord)| {
            let own = sentinel.received.as_ref().filter(|received| received.knows_something()).map(
                |received| Vote {
                    voter: id.clone(),
                    addr: received.view.addr.clone(),
                    epoch: received.view.epoch,
                    received_at: received.at,
                },
            );
            sentinel.endorsed.clone().or(own)
        };
        members.filter_map(vote).collect()
    }

    /// The number of members, reachable or not.
    pub(in crate::machine) fn size(&self) -> usize {
        self.by_id.values().filter(|sentinel| sentinel.member.is_some()).count()
    }

    /// The number of votes that is more than half of the electorate; at least 1.
    pub(in crate::machine) fn majority(&self) -> usize {
        self.size() / 2 + 1
    }

    /// Whether these voters are a majority of the electorate, and include more than half of the
    /// configured members that answer. They also are a majority of the electorate if they are one
    /// of the configured sentinels and one of them finds among them a majority of the sentinels
    /// that it knows itself, as its own election would require; a configured one, if most of those
    /// answer. The second rule matters if ghosts that some of them still list, or a member outside
    /// of their cluster, make the electorate larger than the cluster.
    pub(in crate::machine) fn is_majority(&self, voters: &BTreeSet<&MyId>) -> bool {
        let (roots, ours) = self.count_roots(voters);
        let rooted = roots > self.expected / 2;
        (roots == 0 || ours * 2 > roots)
            && (voters.len() >= self.majority() || self.is_own_majority(voters, rooted))
    }

    /// The same, whichever of the members they are. It is sufficient to conclude that the network
    /// works: a configured member that has just been lost still has a view. If a configured one is
    /// among them, only such a one proves it. However many others are listed, most of the
    /// configured ones are enough. However few are listed, fewer than half as many as are
    /// configured are not: a sentinel that was RESET lists nobody.
    fn are_enough(&self, voters: &BTreeSet<&MyId>) -> bool {
        let (_, ours) = self.count_roots(voters);
        let rooted = ours > 0 && !self.depends_on_learned();
        (voters.len() >= self.majority() && voters.len() > self.expected / 2)
            || self.is_own_majority(voters, rooted)
            || self.is_root_majority(voters)
    }

    /// The answering configured members, and those among `voters`.
    fn count_roots(&self, voters: &BTreeSet<&MyId>) -> (usize, usize) {
        let ours = self.roots().filter(|(id, _)| voters.contains(id)).count();
        (self.roots().count(), ours)
    }

    /// Whether these voters include a majority of the configured sentinels, answering or not, and
    /// are at least the quorum that those need for a failover. A sentinel that lost its file knows
    /// its quorum but no peers.
    pub(in crate::machine) fn is_root_majority(&self, voters: &BTreeSet<&MyId>) -> bool {
        let (_, ours) = self.count_roots(voters);
        ours > self.expected / 2 && voters.len() >= self.usual_quorum().unwrap_or(0)
    }

    /// Whether these voters may decide: a majority, and after other sentinels were configured as
    /// many as at a start. A majority of the configured sentinels may as well if all that answer
    /// agree: however many others are listed, they cannot prevent it.
    pub(in crate::machine) fn may_decide(&self, voters: &BTreeSet<&MyId>) -> bool {
        if self.refounding {
            return self.may_found(voters);
        }
        let (roots, ours) = self.count_roots(voters);
        self.is_majority(voters) || (roots == ours && self.is_root_majority(voters))
    }

    fn is_own_majority(&self, voters: &BTreeSet<&MyId>, rooted: bool) -> bool {
        let could_be_elected = |received: &ReceivedView| {
            let peers: BTreeSet<&MyId> = received.view.peers.iter().map(|(id, _)| id).collect();
            let with = 1 + peers.iter().filter(|id| voters.contains(*id)).count();
            with * 2 > 1 + peers.len()
        };
        let received = |id: &&&MyId| {
            let received = self.by_id.get(**id).and_then(|it| it.received.as_ref());
            received.filter(|received| received.configured || !rooted)
        };
        voters.len() > 1
            && voters.len() > self.expected / 2
            && voters.iter().any(|id| received(&id).is_some_and(could_be_elected))
    }

    /// Whether these voters are enough to start with: a majority, also of the configured sentinels.
    pub(in crate::machine) fn may_found(&self, voters: &BTreeSet<&MyId>) -> bool {
        self.is_majority(voters) && self.is_root_majority(voters)
    }

    /// Whether a majority of the configured sentinels, answering or not, and of those that answer
    /// name this master themselves. Without that, the node has to prove that it belongs.
    pub(in crate::machine) fn vouches_for(&self, addr: &NodeAddr) -> bool {
        let ours = self.roots().filter(|(_, received)| received.view.addr == *addr).count();
        ours > self.expected / 2 && ours * 2 > self.roots().count()
    }

    /// Whether these voters are enough to start with once all others had time to answer: most of
    /// the configured sentinels, and their quorum. However many others are listed, they cannot
    /// prevent it: otherwise one of the configured would decide alone.
    pub(in crate::machine) fn may_found_late(&self, voters: &BTreeSet<&MyId>) -> bool {
        self.are_most_roots(voters) && self.is_root_majority(voters)
    }

    /// Whether these voters are more than half of the configured sentinels, answering or not, and
    /// of those that answer.
    pub(in crate::machine) fn are_most_roots(&self, voters: &BTreeSet<&MyId>) -> bool {
        let (roots, ours) = self.count_roots(voters);
        ours > self.expected / 2 && ours * 2 > roots
    }

    /// Whether a majority answers; before the first decision, or if `strict`, one that may found.
    pub(in crate::machine) fn has_majority(&self, strict: bool) -> bool {
        let voters = self.received_from_members().map(|(id, _)| id).collect();
        if self.founding || strict { self.may_found(&voters) } else { self.is_majority(&voters) }
    }

    /// The members that have not answered lately and that none of those that did sees up, if these
    /// are a majority: they are gone, and Sentinel keeps listing them.
    pub(in crate::machine) fn absent(&self) -> BTreeSet<MyId> {
        let answering: BTreeSet<&MyId> = self.received_from_members().map(|(id, _)| id).collect();
        if !self.may_decide(&answering) {
            return BTreeSet::new();
        }
        let peers = self.member_views().flat_map(|(_, view)| {
            view.peers.iter().filter(|(_, up)| *up || view.tilt).map(|(id, _)| id)
        });
        let seen: BTreeSet<&MyId> = peers.chain(answering.iter().copied()).collect();
        self.members().map(|(id, ..)| id).filter(|id| !seen.contains(id)).cloned().collect()
    }

    /// Whether a majority answers.
    pub(in crate::machine) fn majority_answers(&self) -> bool {
        self.are_enough(&self.received_from_members().map(|(id, _)| id).collect())
    }

    /// When the most recent queries were sent that a majority answered.
    pub(in crate::machine) fn majority_answered_at(&self) -> Option<Instant> {
        self.majority_since(|received| received.asked_at)
    }

    /// Whether answers of a majority arrived at or after `since`, however late they were.
    pub(in crate::machine) fn is_majority_heard_since(&self, since: Instant) -> bool {
        self.majority_since(|received| received.at).is_some_and(|at| at >= since)
    }

    fn majority_since(&self, time: impl Fn(&ReceivedView) -> Instant) -> Option<Instant> {
        let mut views: Vec<(Instant, &MyId)> =
            self.received_from_members().map(|(id, received)| (time(received), id)).collect();
        views.sort_unstable_by(|one, two| two.cmp(one));
        let mut spoke = BTreeSet::new();
        views
            .into_iter()
            .find(|(_, id)| spoke.insert(*id) && self.are_enough(&spoke))
            .map(|(at, _)| at)
    }

    /// Whether a majority named this first-hand in answer to queries sent at or after `since`.
    pub(in crate::machine) fn majority_names_since(
        &self,
        since: Instant,
        addr: &NodeAddr,
        epoch: Epoch,
    ) -> bool {
        let ours =
            self.own_votes_since(since).filter(|(_, named, at)| *named == addr && *at == epoch);
        let ours = ours.map(|(id, ..)| id).collect();
        self.is_majority(&ours) && self.are_enough(&ours)
    }

    /// Whether every trusted member reports, by its own list, that it cannot reach a majority of
    /// the sentinels; if it reaches most of the configured ones, that a majority is out of its
    /// reach, and could replace the master there. `None` if no view says anything about it: in
    /// TILT the count means nothing.
    ///
    /// There are no more configured sentinels than addresses of them, whatever former ones are
    /// listed. Learned ones count once they have answered: anybody may have announced others.
    pub(in crate::machine) fn provable_minority(&self) -> Option<bool> {
        let is_learned = |id: &MyId| {
            self.by_id.get(id).is_some_and(|sentinel| sentinel.heard && !sentinel.is_configured())
        };
        let cut_off = |view: &View| {
            let (learned, ours): (Vec<_>, Vec<_>) =
                view.peers.iter().partition(|(id, _)| is_learned(id));
            let up = |peers: &[&(MyId, bool)]| peers.iter().filter(|(_, up)| *up).count();
            let listed = 1 + view.peers.len();
            let (configured, reached) = (self.expected.min(listed), 1 + up(&ours));
            let known = listed.min(configured + learned.len());
            let lost = known.saturating_sub(reached + up(&learned));
            if reached * 2 > configured { lost > known / 2 } else { lost >= known.div_ceil(2) }
        };
        let views = self.trusted_views(None).filter(|view| !view.tilt);
        let mut views = views.map(cut_off).peekable();
        views.peek()?;
        Some(views.all(|cut_off| cut_off))
    }
}
