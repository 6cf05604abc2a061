//! Clients of shared connections receive what they would receive from a server of their own.

use proptest::prelude::{ProptestConfig, any, prop, proptest};

use crate::shared::isolation::rig::{Seen, run};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Any commands, pieces, order of events, held gates, lost connections and clients that leave.
    #[test]
    fn gives_each_client_its_own_replies(steps in prop::collection::vec(any::<u8>(), 0..1500)) {
        run(&steps);
    }
}

/// A long run of every kind of step, which must exercise every rule.
#[test]
fn reaches_every_kind_of_event() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let steps: Vec<u8> = (0..200_000)
        .map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        })
        .collect();
    let seen = steps.chunks(4_000).map(run).fold(Seen::default(), Seen::add);
    assert!(seen.executed > 1_000 && seen.held > 100, "{seen:?}");
    assert!(seen.rested > 20 && seen.retired > 20, "{seen:?}");
    assert!(seen.lost > 20 && seen.left > 20 && seen.ended > 20, "{seen:?}");
    assert!(seen.promoted > 20 && seen.returned > 5, "{seen:?}");
    assert!(seen.desynchronised > 5, "{seen:?}");
}
