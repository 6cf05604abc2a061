//! Counting of the votes.
//!
//! The highest config-epoch wins, because Sentinel itself only ever moves to a higher one. Among
//! votes at the same epoch, the majority of distinct sentinels wins. A majority above the committed
//! epoch wins over fewer votes at a still higher one, so that no few can prevent a switch.
//! Reachability, order of arrival and the number of connections play no role.

use std::collections::{BTreeMap, BTreeSet};

use super::electorate::Vote;
use crate::{Epoch, MyId, NodeAddr};

/// Tests whether these voters are a majority.
pub(super) type IsMajority<'a> = &'a dyn Fn(&BTreeSet<&MyId>) -> bool;

/// An address that voters name at the highest epoch that counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The address.
    pub addr: NodeAddr,
    /// The epoch at which it is named.
    pub epoch: Epoch,
    /// Whether they are a majority.
    pub majority: bool,
}

/// The result of a vote count.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum VoteOutcome {
    /// No vote counts.
    Silence,
    /// The committed address at the committed epoch.
    Confirmed {
        /// More than half of the electorate.
        majority: bool,
        /// At least one voter names another address at the same epoch; possibly all voters at that
        /// epoch do.
        split: bool,
    },
    /// Something other than the committed master: at a higher epoch, or at the same epoch by a
    /// majority.
    Claimed(Claim),
    /// Every vote is below the committed epoch: either all are stale, or the sentinels were
    /// reconfigured from scratch.
    Regressed(Claim),
}

/// Counts the votes. `committed` is the master that was published last, if any.
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
    let decided = committed.and_then(|(_, epoch)| decided(votes, majority, epoch + 1));
    let claim = decided.or_else(|| leading(&counting, majority, favourite));
    let Some(claim) = claim else { return VoteOutcome::Silence };
    match committed {
        Some((addr, epoch)) if claim.epoch == epoch && (claim.addr == *addr || !claim.majority) => {
            // The same epoch, and no majority for anything else: the committed master stands.
            let votes = voters(&counting, addr, epoch);
            let split = votes.len() < counting.len();
            VoteOutcome::Confirmed { majority: majority(&votes), split }
        }
        _ => VoteOutcome::Claimed(claim),
    }
}

/// What a majority names at the highest epoch at which one agrees, from `floor` on.
pub(super) fn decided(votes: &[Vote], majority: IsMajority<'_>, floor: Epoch) -> Option<Claim> {
    let epochs: BTreeSet<Epoch> = votes.iter().map(|vote| vote.epoch).collect();
    epochs.into_iter().rev().take_while(|epoch| *epoch >= floor).find_map(|epoch| {
        let known: Vec<&Vote> = votes.iter().filter(|vote| vote.epoch <= epoch).collect();
        leading(&known, majority, None).filter(|claim| claim.majority)
    })
}

/// The address that a majority names at the highest epoch, or else the one with most votes there:
/// learned sentinels may outnumber a majority of the configured ones. Ties go to `favourite`, then
/// to the smaller address, so that all proxies of a fleet resolve them in the same way.
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
            let wins = |addr: &NodeAddr| majority(&voters(votes, addr, epoch));
            wins(one)
                .cmp(&wins(two))
                .then_with(|| votes_one.cmp(votes_two))
                .then_with(|| liked(one).cmp(&liked(two)))
                .then_with(|| two.cmp(one))
        })
        .map(|(addr, _)| (*addr).clone())?;
    let majority = majority(&voters(votes, &addr, epoch));
    Some(Claim { addr, epoch, majority })
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
    use std::time::Instant;

    use super::*;
    use crate::MyId;

    fn node(port: u16) -> NodeAddr {
        NodeAddr { host: "10.0.0.1".into(), port }
    }

    fn vote(at: Instant, voter: u8, port: u16, epoch: Epoch) -> Vote {
        let voter = MyId::parse(&format!("{voter:040x}")).expect("forty digits");
        Vote { voter, addr: node(port), epoch, received_at: at }
    }

    fn is_majority(voters: &BTreeSet<&MyId>) -> bool {
        voters.len() >= 2
    }

    #[test]
    fn prefers_the_highest_epoch_over_more_votes() {
        let at = Instant::now();
        let votes = [vote(at, 1, 1, 5), vote(at, 2, 1, 5), vote(at, 3, 2, 6)];
        let VoteOutcome::Claimed(claim) = count(&votes, &is_majority, Some((&node(1), 5))) else {
            panic!("a claim")
        };
        assert_eq!((claim.addr, claim.epoch, claim.majority), (node(2), 6, false));
    }

    #[test]
    fn ignores_votes_below_the_committed_epoch() {
        let at = Instant::now();
        let votes = [vote(at, 1, 1, 4), vote(at, 2, 1, 4), vote(at, 3, 2, 5)];
        assert_eq!(
            count(&votes, &is_majority, Some((&node(2), 5))),
            VoteOutcome::Confirmed { majority: false, split: false }
        );
        let outcome = count(&votes[..2], &is_majority, Some((&node(2), 5)));
        assert!(matches!(outcome, VoteOutcome::Regressed(claim) if claim.majority));
    }

    #[test]
    fn requires_a_majority_at_the_committed_epoch() {
        let at = Instant::now();
        let one = [vote(at, 1, 1, 5), vote(at, 2, 2, 5)];
        assert_eq!(
            count(&one, &is_majority, Some((&node(1), 5))),
            VoteOutcome::Confirmed { majority: false, split: true }
        );
        let most = [vote(at, 1, 1, 5), vote(at, 2, 2, 5), vote(at, 3, 2, 5)];
        let outcome = count(&most, &is_majority, Some((&node(1), 5)));
        assert!(matches!(outcome, VoteOutcome::Claimed(claim) if claim.addr == node(2)));
    }

    #[test]
    fn prefers_a_majority_to_a_higher_epoch() {
        let at = Instant::now();
        let votes = [vote(at, 1, 2, 6), vote(at, 2, 2, 6), vote(at, 3, 9, 99)];
        let outcome = count(&votes, &is_majority, Some((&node(1), 5)));
        assert!(matches!(outcome, VoteOutcome::Claimed(claim) if claim.addr == node(2)));
        // A newer claim without a majority is not hidden by those that have not heard of it.
        let outcome = count(&votes, &is_majority, Some((&node(2), 6)));
        assert!(matches!(outcome, VoteOutcome::Claimed(claim) if claim.addr == node(9)));
    }

    #[test]
    fn reports_silence_without_votes() {
        assert_eq!(count(&[], &is_majority, None), VoteOutcome::Silence);
        assert_eq!(count(&[], &is_majority, Some((&node(1), 3))), VoteOutcome::Silence);
    }
}
