//! When connections are updated. Everything else is tested with real sockets, in `tests/driver`.

use std::io;

use std::collections::BTreeMap;

use target::TargetWriter;

use super::*;
use crate::{MachineRules, NodeAddr};

#[tokio::test]
async fn dials_seeds_at_once_and_limits_learned_sentinels() {
    // No name resolves; the test provides the addresses. It never awaits, so no other task runs.
    let resolver = Resolver::new(|_, _| Err(io::Error::other("NXDOMAIN")));
    let (long, (target_writer, _route)) = (Duration::from_secs(60), TargetWriter::new());
    let timeouts = Timeouts {
        connect: long,
        command: long,
        reconnect_min: long,
        reconnect_max: long,
        user: long,
    };
    let watch = DiscoveryConfig {
        name: "mymaster".into(),
        sentinels: (1..=3).map(|port| NodeAddr { host: "seed.example".into(), port }).collect(),
        sentinel_auth: None,
        auth: None,
        rules: MachineRules::default(),
        probe_timeout: long,
        learn: true,
        address_map: BTreeMap::new(),
        target_writer,
        replicas: None,
        sentinel_pool: None,
    };
    let (mut discovery, _control, _handles) =
        Discovery::with_resolver(vec![watch], timeouts, &[], &resolver);
    let addr = |host: u8| vec![SocketAddr::from(([127, 0, 0, host], 1))];
    let is_due = |it: &Discovery| it.reconcile_at.is_some_and(|at| at <= Instant::now());
    for (number, host) in (0..3).zip(1..) {
        discovery.handle_message(DriverMessage::Seed(number, addr(host)));
        assert!(is_due(&discovery), "seed {number} is delayed");
        discovery.reconcile(Instant::now());
        assert_eq!(discovery.links.for_service(0).count(), number + 1);
    }
    let last = discovery.reconciled_at.expect("just now");
    discovery.reconcile_soon();
    assert!(
        discovery.reconcile_at.is_some_and(|at| at >= last + RECONCILE_EVERY),
        "learned sentinels are not limited"
    );
    discovery.handle_message(DriverMessage::Seed(0, addr(9)));
    assert!(is_due(&discovery), "the limit of learned sentinels delays a seed");
}
