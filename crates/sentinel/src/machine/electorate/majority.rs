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
        let votes = self.votes();
        self.is_majority(&votes.iter().filter(denies).map(|vote| &vote.voter).collect())
    }

    /// The members' own votes in answer to queries sent at or after `since`.
    pub(in crate::machine) fn own_votes_since(
        &self,
        since: Instant,
    ) -> impl Iterator<Item = (&MyId, &NodeAddr, Epoch)> {
        let views =
            self.received_from_members().filter(move |(_, received)| received.asked_at >= since);
        views.map(|(id, received)| (id, &received.view.addr, received.view.epoch))
    }

    /// At most one vote per MYID: its own view, or a later endorsement.
    pub(in crate::machine) fn votes(&self) -> Vec<Vote> {
        let members = self.by_id.iter().filter(|(_, sentinel)| sentinel.member.is_some());
        let vote = |(id, sentinel): (&MyId, &SentinelRecord)| {
            let own = sentinel.received.as_ref().filter(|received| received.knows_something()).map(
                |received| Vote {
                    voter: id.clone(),
                    addr: received.view.addr.clone(),
                    epoch: received.view.epoch,
                    received_at: received.at,
                    asked_at: received.asked_at,
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

    /// Whether these voters are a majority of the electorate. They also are if they are a majority
    /// of the configured sentinels and one of them finds among them a majority of the sentinels
    /// that it knows itself, as its own election would require. The second rule matters if ghosts
    /// that some of them still list, or a member outside of their cluster (such as a sentinel that
    /// lost its file and founded the electorate), make the electorate larger than the cluster.
    pub(in crate::machine) fn is_majority(&self, voters: &BTreeSet<&MyId>) -> bool {
        voters.len() >= self.majority() || self.is_own_majority(voters)
    }

    /// Whether these voters may decide: a majority, and after other sentinels were configured as
    /// many as at a start.
    pub(in crate::machine) fn may_decide(&self, voters: &BTreeSet<&MyId>) -> bool {
        if self.refounding { self.may_found(voters) } else { self.is_majority(voters) }
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

    /// Whether these voters are enough to start with: a majority, also of the sentinels that the
    /// configuration resolves to, and at least the quorum that one of them needs for a failover. A
    /// sentinel that lost its file knows its quorum but no peers.
    pub(in crate::machine) fn may_found(&self, voters: &BTreeSet<&MyId>) -> bool {
        let quorum = self
            .member_views()
            .filter(|(id, _)| voters.contains(id))
            .map(|(_, view)| view.quorum)
            .max();
        self.is_majority(voters)
            && voters.len() > self.expected / 2
            && voters.len() >= quorum.unwrap_or(0)
    }

    /// Whether a majority answers; before the first decision, or if `strict`, one that may found.
    pub(in crate::machine) fn has_majority(&self, strict: bool) -> bool {
        let voters = self.received_from_members().map(|(id, _)| id).collect();
        if self.founding || strict { self.may_found(&voters) } else { self.is_majority(&voters) }
    }

    /// Whether a majority answers.
    pub(in crate::machine) fn majority_answers(&self) -> bool {
        self.is_majority(&self.received_from_members().map(|(id, _)| id).collect())
    }

    /// When the most recent queries were sent that a majority answered.
    pub(in crate::machine) fn majority_answered_at(&self) -> Option<Instant> {
        let mut views: Vec<(Instant, &MyId)> =
            self.received_from_members().map(|(id, received)| (received.asked_at, id)).collect();
        views.sort_unstable_by(|one, two| two.cmp(one));
        let mut spoke = BTreeSet::new();
        views
            .into_iter()
            .find(|(_, id)| spoke.insert(*id) && self.is_majority(&spoke))
            .map(|(at, _)| at)
    }

    /// Whether a majority answered queries sent at or after `since`.
    pub(in crate::machine) fn majority_answered_since(&self, since: Instant) -> bool {
        self.majority_answered_at().is_some_and(|at| at >= since)
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
        self.is_majority(&ours.map(|(id, ..)| id).collect())
    }

    /// Whether every answering member reports, by its own count of the peers it knows, that it
    /// cannot reach a majority of them. Each is judged by its own list, as in its own election.
    /// `None` if no view says anything about it: in TILT the count means nothing.
    pub(in crate::machine) fn provable_minority(&self) -> Option<bool> {
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
