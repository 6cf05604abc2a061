//! What the votes come to.
//!
//! The highest config-epoch wins, because Sentinel itself only ever moves to a higher one; among
//! votes at the same epoch the majority of distinct sentinels does. Reachability, arrival order and
//! the number of connections play no part.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::electorate::Vote;
use crate::{Epoch, MyId, NodeAddr};

/// Whether these voters are a majority.
pub(super) type IsMajority<'a> = &'a dyn Fn(&BTreeSet<&MyId>) -> bool;

/// An address that some voters name at the highest epoch that counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The address.
    pub addr: NodeAddr,
    /// The epoch it is named at.
    pub epoch: Epoch,
    /// How many distinct voters name it at that epoch.
    pub votes: usize,
    /// Whether these are a majority.
    pub majority: bool,
    /// When a voter whose vote counts last named another address, or this one at a lower epoch;
    /// `None` if none does.
    pub contradicted_at: Option<Instant>,
}

/// The outcome of a count.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum VoteOutcome {
    /// No vote that counts.
    Silence,
    /// The committed address at the committed epoch.
    Confirmed {
        /// Voters for it.
        votes: usize,
        /// More than half of the electorate.
        majority: bool,
        /// Some voter names another address at the same epoch; perhaps all who speak at that epoch
        /// do.
        split: bool,
    },
    /// Something else than what is committed, at a higher epoch; or at the same epoch, by a
    /// majority.
    Claimed(Claim),
    /// Every vote is below the committed epoch: either all are stale, or the sentinels were
    /// configured anew.
    Regressed(Claim),
}

/// Counts. `committed` is what was last published, if anything.
pub(super) fn count(
    votes: &[Vote],
    majority: IsMajority<'_>,
    committed: Option<(&NodeAddr, Epoch)>,
) -> VoteOutcome {
    let floor = committed.map_or(0, |(_, epoch)| epoch);
    let counting: Vec<&Vote> = votes.iter().filter(|vote| vote.epoch >= floor).collect();
    if counting.is_empty() {
        let all: Vec<&Vote> = votes.iter().collect();
        return leading(&all, majority, None).map_or(VoteOutcome::Silence, VoteOutcome::Regressed);
    }
    let favourite = committed.map(|(addr, _)| addr);
    let Some(claim) = leading(&counting, majority, favourite) else { return VoteOutcome::Silence };
    match committed {
        Some((addr, epoch)) if claim.epoch == epoch && (claim.addr == *addr || !claim.majority) => {
            // The same epoch and no majority for anything else: keep what stands.
            let votes = voters(&counting, addr, epoch);
            VoteOutcome::Confirmed {
                votes: votes.len(),
                majority: majority(&votes),
                split: votes.len() < counting.len(),
            }
        }
        _ => VoteOutcome::Claimed(claim),
    }
}

/// The address with most votes at the highest epoch. Ties go to `favourite`, then to the smaller
/// address, so that every proxy of a fleet breaks them alike.
fn leading(
    votes: &[&Vote],
    majority: IsMajority<'_>,
    favourite: Option<&NodeAddr>,
) -> Option<Claim> {
    let epoch = votes.iter().map(|vote| vote.epoch).max()?;
    let mut tally: BTreeMap<&NodeAddr, usize> = BTreeMap::new();
    for vote in votes.iter().filter(|vote| vote.epoch == epoch) {
        *tally.entry(&vote.addr).or_default() += 1;
    }
    let addr = tally
        .iter()
        .max_by(|(one, votes_one), (two, votes_two)| {
            let liked = |addr: &NodeAddr| favourite == Some(addr);
            votes_one
                .cmp(votes_two)
                .then_with(|| liked(one).cmp(&liked(two)))
                .then_with(|| two.cmp(one))
        })
        .map(|(addr, _)| (*addr).clone())?;
    let voters = voters(votes, &addr, epoch);
    let other = |vote: &&&Vote| vote.addr != addr || vote.epoch != epoch;
    let contradicted_at = votes.iter().filter(other).map(|vote| vote.heard_at).max();
    let (votes, majority) = (voters.len(), majority(&voters));
    Some(Claim { addr, epoch, votes, majority, contradicted_at })
}

fn voters<'a>(votes: &[&'a Vote], addr: &NodeAddr, epoch: Epoch) -> BTreeSet<&'a MyId> {
    votes
        .iter()
        .filter(|vote| vote.epoch == epoch && vote.addr == *addr)
        .map(|vote| &vote.voter)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MyId;

    fn node(port: u16) -> NodeAddr {
        NodeAddr { host: "10.0.0.1".into(), port }
    }

    fn vote(at: Instant, voter: u8, port: u16, epoch: Epoch) -> Vote {
        let voter = MyId::parse(&format!("{voter:040x}")).expect("forty digits");
        Vote { voter, addr: node(port), epoch, heard_at: at, asked_at: at }
    }

    fn two(voters: &BTreeSet<&MyId>) -> bool {
        voters.len() >= 2
    }

    #[test]
    fn the_highest_epoch_wins_over_the_larger_number() {
        let at = Instant::now();
        let votes = [vote(at, 1, 1, 5), vote(at, 2, 1, 5), vote(at, 3, 2, 6)];
        let VoteOutcome::Claimed(claim) = count(&votes, &two, Some((&node(1), 5))) else {
            panic!("a claim")
        };
        assert_eq!((claim.addr, claim.epoch, claim.votes, claim.majority), (node(2), 6, 1, false));
        assert_eq!(claim.contradicted_at, Some(at));
    }

    #[test]
    fn votes_below_the_committed_epoch_do_not_count() {
        let at = Instant::now();
        let votes = [vote(at, 1, 1, 4), vote(at, 2, 1, 4), vote(at, 3, 2, 5)];
        assert_eq!(
            count(&votes, &two, Some((&node(2), 5))),
            VoteOutcome::Confirmed { votes: 1, majority: false, split: false }
        );
        assert!(
            matches!(count(&votes[..2], &two, Some((&node(2), 5))), VoteOutcome::Regressed(claim) if claim.majority)
        );
    }

    #[test]
    fn at_the_same_epoch_only_a_majority_moves_the_points() {
        let at = Instant::now();
        let one = [vote(at, 1, 1, 5), vote(at, 2, 2, 5)];
        assert_eq!(
            count(&one, &two, Some((&node(1), 5))),
            VoteOutcome::Confirmed { votes: 1, majority: false, split: true }
        );
        let most = [vote(at, 1, 1, 5), vote(at, 2, 2, 5), vote(at, 3, 2, 5)];
        assert!(
            matches!(count(&most, &two, Some((&node(1), 5))), VoteOutcome::Claimed(claim) if claim.addr == node(2))
        );
    }

    #[test]
    fn no_vote_is_silence() {
        assert_eq!(count(&[], &two, None), VoteOutcome::Silence);
        assert_eq!(count(&[], &two, Some((&node(1), 3))), VoteOutcome::Silence);
    }
}
