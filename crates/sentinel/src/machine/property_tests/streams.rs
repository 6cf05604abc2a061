//! Random events: views, notices, answers that arrive once, twice or never, hints, waits and
//! stalls.

use proptest::prelude::*;

use super::super::tests::rig::{Letter, id, node};
use crate::{Epoch, MachineRules, Minority, Notice, ProbeFailure};

pub(super) const LETTERS: [Letter; 4] = ['A', 'B', 'C', 'D'];

/// One event of the world. Sentinels 1 to 3 know each other; 4 and 5 are strangers that know only
/// each other.
#[derive(Debug, Clone)]
pub(super) enum Happening {
    View {
        from: u8,
        addr: Letter,
        epoch: Epoch,
        flags: u8,
        peers: Option<Vec<u8>>,
        /// How many milliseconds ago its query was sent.
        age: u64,
    },
    Notice {
        from: Option<u8>,
        notice: Notice,
    },
    /// An open query is answered; `keep` leaves it open, so that the answer arrives twice.
    Answer {
        which: usize,
        answer: ProbeOutcome,
        keep: bool,
    },
    /// An open query is never answered.
    Lose {
        which: usize,
    },
    Prober(Letter),
    Hint,
    /// A sentinel reports its number of connections.
    Connections(u32),
    Pause {
        millis: u64,
        ends_with_commit: bool,
    },
    Resume,
    /// An operator's order, right or wrong.
    Follow {
        addr: Letter,
        millis: u64,
        force: bool,
    },
    Unfollow,
    Wait(u64),
    Stall(u64),
    Suspend,
    SentinelsReplaced,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum ProbeOutcome {
    Master,
    Promoted,
    Unreadable,
    Restarted,
    Loading,
    Replica,
    Failed(ProbeFailure),
}

pub(super) fn letter() -> impl Strategy<Value = Letter> {
    prop::sample::select(LETTERS.to_vec())
}

pub(super) fn notice() -> impl Strategy<Value = Notice> {
    prop_oneof![
        3 => letter().prop_map(|to| Notice::Switched { to: node(to) }),
        3 => (1_u8..=5, letter()).prop_map(|(peer, leaving)| {
            Notice::ConfigUpdateFrom { peer: id(peer), leaving: node(leaving) }
        }),
        2 => letter()
            .prop_map(|candidate| Notice::CandidateSelected { candidate: node(candidate) }),
        1 => letter().prop_map(|candidate| Notice::PromotionOrdered { candidate: node(candidate) }),
        1 => letter().prop_map(|candidate| Notice::Promoted { candidate: node(candidate) }),
        1 => Just(Notice::Aborted),
        1 => Just(Notice::Trouble),
        1 => Just(Notice::Changed),
    ]
}

pub(super) fn probe_outcome() -> impl Strategy<Value = ProbeOutcome> {
    use ProbeFailure::{Denied, Unreachable, Unresponsive, UnusableAddress};
    prop_oneof![
        4 => Just(ProbeOutcome::Master),
        3 => Just(ProbeOutcome::Promoted),
        1 => Just(ProbeOutcome::Unreadable),
        1 => Just(ProbeOutcome::Restarted),
        1 => Just(ProbeOutcome::Loading),
        3 => Just(ProbeOutcome::Replica),
        3 => Just(ProbeOutcome::Failed(Unreachable)),
        1 => prop::sample::select(vec![Unresponsive, Denied, UnusableAddress])
            .prop_map(ProbeOutcome::Failed),
    ]
}

pub(super) fn a_view(any_peers: bool) -> BoxedStrategy<Happening> {
    let peers = if any_peers {
        prop::option::of(prop::collection::vec(1_u8..=9, 0..4)).boxed()
    } else {
        Just(None).boxed()
    };
    let from = prop_oneof![8 => 1_u8..=3, 1 => 4_u8..=5];
    let age = prop_oneof![3 => Just(0_u64), 1 => 1_u64..1250];
    (from, letter(), 4_u64..=8, any::<u8>(), peers, age)
        .prop_map(|(from, addr, epoch, flags, peers, age)| Happening::View {
            from,
            addr,
            epoch,
            flags,
            peers,
            age,
        })
        .boxed()
}

pub(super) fn happening(any_peers: bool) -> impl Strategy<Value = Happening> {
    prop_oneof![
        8 => a_view(any_peers),
        3 => (prop::option::of(1_u8..=5), notice())
            .prop_map(|(from, notice)| Happening::Notice { from, notice }),
        10 => (any::<usize>(), probe_outcome(), prop::bool::weighted(0.1))
            .prop_map(|(which, answer, keep)| Happening::Answer { which, answer, keep }),
        1 => any::<usize>().prop_map(|which| Happening::Lose { which }),
        1 => letter().prop_map(Happening::Prober),
        1 => Just(Happening::Hint),
        1 => prop::sample::select(vec![0, 19, 100, 1000, u32::MAX])
            .prop_map(Happening::Connections),
        1 => (0_u64..20_000, any::<bool>())
            .prop_map(|(millis, ends_with_commit)| Happening::Pause { millis, ends_with_commit }),
        1 => Just(Happening::Resume),
        1 => (letter(), 1_u64..20_000, prop::bool::weighted(0.2))
            .prop_map(|(addr, millis, force)| Happening::Follow { addr, millis, force }),
        1 => prop::bool::weighted(0.3).prop_map(|unfollow| {
            if unfollow { Happening::Unfollow } else { Happening::Wait(0) }
        }),
        4 => prop_oneof![4 => 0_u64..50, 3 => 50_u64..600, 1 => 600_u64..12_000]
            .prop_map(Happening::Wait),
        1 => prop_oneof![9 => Just(1_u64), 1 => 3_000_u64..40_000].prop_map(Happening::Stall),
        1 => Just(Happening::Suspend),
        1 => Just(Happening::SentinelsReplaced),
    ]
}

pub(super) fn rules() -> impl Strategy<Value = MachineRules> {
    let minority =
        prop_oneof![4 => Just(Minority::Keep), 1 => Just(Minority::Hold), 1 => Just(Minority::Cut)];
    minority.prop_map(|minority| MachineRules { minority, ..MachineRules::default() })
}
