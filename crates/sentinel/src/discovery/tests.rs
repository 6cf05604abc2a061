//! When the connections are brought in line. All else is tested with real sockets, in
//! `tests/driver`.

use std::io;

use super::*;

#[tokio::test]
async fn each_seed_is_dialled_as_soon_as_its_address_is_known_and_hearsay_has_its_time() {
    // Only the test knows an address. It never waits, so nothing else here has a turn.
    let resolver = Resolver::new(|_, _| Err(io::Error::other("NXDOMAIN")));
    let (long, (points, _route)) = (Duration::from_secs(60), TargetWriter::new());
    let timeouts = Timeouts {
        connect: long,
        command: long,
        reconnect_min: long,
        reconnect_max: long,
        user: long,
    };
    let watch = Watch {
        name: "mymaster".into(),
        sentinels: (1..=3).map(|port| NodeAddr { host: "seed.example".into(), port }).collect(),
        sentinel_auth: None,
        auth: None,
        rules: Rules::default(),
        probe_timeout: long,
        learn: true,
        address_map: BTreeMap::new(),
        points,
        replicas: None,
    };
    let (mut discovery, _handles) = Discovery::with_resolver(vec![watch], timeouts, &[], &resolver);
    let addr = |host: u8| vec![SocketAddr::from(([127, 0, 0, host], 1))];
    let is_due = |it: &Discovery| it.reconcile_at.is_some_and(|at| at <= Instant::now());
    for (number, host) in (0..3).zip(1..) {
        discovery.take(Incoming::Seed(number, addr(host)));
        assert!(is_due(&discovery), "seed {number} has to wait");
        discovery.reconcile(Instant::now());
        assert_eq!(discovery.links.for_service(0).count(), number + 1);
    }
    let last = discovery.reconciled_at.expect("just now");
    discovery.reconcile_soon();
    assert!(
        discovery.reconcile_at.is_some_and(|at| at >= last + RECONCILE_EVERY),
        "hearsay does not wait"
    );
    discovery.take(Incoming::Seed(0, addr(9)));
    assert!(is_due(&discovery), "a seed waits for hearsay");
}
