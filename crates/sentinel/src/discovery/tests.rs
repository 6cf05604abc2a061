//! When connections are updated. Everything else is tested with real sockets, in `tests/driver`.

use std::io;

use target::TargetWriter;

use super::*;
use crate::discovery::config::DiscoveryConfig;
use crate::link::login::Access;
use crate::{Credentials, DiscoverySettings, NodeAddr};

const LONG: Duration = Duration::from_secs(60);
const TIMEOUTS: Timeouts =
    Timeouts { connect: LONG, command: LONG, reconnect_min: LONG, reconnect_max: LONG, user: LONG };

fn watch(name: &str, seeds: u16, target_writer: TargetWriter) -> DiscoveryConfig {
    DiscoveryConfig {
        name: name.into(),
        master_name: name.into(),
        sentinels: (1..=seeds).map(|port| NodeAddr { host: "seed.example".into(), port }).collect(),
        settings: settings_with(None),
        target_writer,
        commands: Default::default(),
        replicas: None,
        sentinel_pool: None,
    }
}

fn settings_with(sentinel_auth: Option<Credentials>) -> DiscoverySettings {
    DiscoverySettings { sentinel_auth, probe_timeout: LONG, learn: true, ..Default::default() }
}

fn secret(password: &str) -> Option<Credentials> {
    Some(Credentials::new(None, password))
}

fn set_up(
    watches: Vec<DiscoveryConfig>,
    resolver: &Resolver,
) -> (Discovery, DiscoveryControl, Vec<DiscoveryHandle>) {
    let (mut discovery, mut control) = Discovery::new(TIMEOUTS, &[], resolver);
    let handles = watches.into_iter().map(|watch| control.add(watch).1).collect();
    discovery.apply_changes(control.take());
    (discovery, control, handles)
}

#[tokio::test]
async fn keeps_links_of_services_that_change_credentials() {
    let resolver = Resolver::new(|_, _| Err(io::Error::other("NXDOMAIN")));
    let ((one, _reader), (two, _reader_of_two)) = (TargetWriter::new(), TargetWriter::new());
    let watches = vec![watch("one", 2, one), watch("two", 1, two)];
    let (mut discovery, mut control, handles) = set_up(watches, &resolver);
    // The first seed of each service leads to the same sentinel.
    let addr = |host: u8| vec![SocketAddr::from(([127, 0, 0, host], 1))];
    for (seed, host) in [(0, 1), (1, 2), (2, 1)] {
        discovery.handle_message(DriverMessage::Seed(seed, addr(host)));
    }
    discovery.reconcile(Instant::now());
    let links = |it: &Discovery, service| -> Vec<_> {
        it.links.for_service(service).map(|link| (link.id, link.services.clone())).collect()
    };
    let before = (links(&discovery, 0), links(&discovery, 1));
    assert_eq!((before.0.len(), before.1.len()), (2, 1), "one link is shared");
    // Both services: all links stay.
    control.change(0, settings_with(secret("new")));
    control.change(1, settings_with(secret("new")));
    discovery.apply_changes(control.take());
    assert_eq!((links(&discovery, 0), links(&discovery, 1)), before);
    // Only the first one: its own link stays, and it leaves the shared one.
    control.change(0, settings_with(secret("newer")));
    discovery.apply_changes(control.take());
    let after = links(&discovery, 0);
    assert_eq!(after.len(), 2);
    assert!(after.contains(&before.0[1]), "{after:?} {before:?}");
    assert_eq!(links(&discovery, 1), [(before.1[0].0, [1].into())]);
    let used = handles[0].connection_settings().sentinel_auth.load();
    assert!(used.is(Access::plain(secret("newer").as_ref())), "switchovers use it as well");
    assert!(
        discovery
            .links
            .login(discovery.services[&1].auth)
            .is(Access::plain(secret("new").as_ref()))
    );
}

#[tokio::test]
async fn applies_secret_and_services_of_a_reload_together() {
    let resolver = Resolver::new(|_, _| Err(io::Error::other("NXDOMAIN")));
    let writer = || TargetWriter::new().0;
    let with = |name, password| DiscoveryConfig {
        settings: settings_with(secret(password)),
        ..watch(name, 1, writer())
    };
    let watches = vec![with("one", "old"), with("two", "old")];
    let (mut discovery, mut control, _handles) = set_up(watches, &resolver);
    let addr = || vec![SocketAddr::from(([127, 0, 0, 1], 1))];
    discovery.handle_message(DriverMessage::Seed(0, addr()));
    discovery.handle_message(DriverMessage::Seed(1, addr()));
    discovery.reconcile(Instant::now());
    let links = |it: &Discovery| -> Vec<_> {
        it.links.for_service(0).map(|link| (link.id, link.services.clone())).collect()
    };
    let link = links(&discovery)[0].0;
    // One secret is rotated, a service goes, and another one comes with the new secret.
    let (three, handle) = control.add(with("three", "new"));
    control.change(0, settings_with(secret("new")));
    control.remove(1);
    assert!(discovery.changes.try_recv().is_err(), "nothing applies before the whole");
    control.apply();
    let batch = discovery.changes.try_recv().expect("one batch");
    discovery.apply_changes(batch);
    assert!(discovery.changes.try_recv().is_err());
    discovery.handle_message(DriverMessage::Seed(2, addr()));
    discovery.reconcile(Instant::now());
    assert_eq!(
        links(&discovery),
        [(link, [0, three].into())],
        "the connection stays, and is shared"
    );
    assert!(
        handle.connection_settings().sentinel_auth.load().is(Access::plain(secret("new").as_ref()))
    );
    assert_eq!(discovery.links.logins.len(), 1, "one secret, one login");
    // A removed service leaves no credentials.
    control.change(three, settings_with(secret("newer")));
    control.apply();
    let batch = discovery.changes.try_recv().expect("one batch");
    discovery.apply_changes(batch);
    assert_eq!(discovery.links.logins.len(), 2);
    control.remove(three);
    control.apply();
    let batch = discovery.changes.try_recv().expect("one batch");
    discovery.apply_changes(batch);
    assert_eq!(discovery.links.logins.len(), 1, "its secret is wiped");
    assert!(
        discovery
            .links
            .login(discovery.services[&0].auth)
            .is(Access::plain(secret("new").as_ref()))
    );
    assert_eq!(links(&discovery), [(link, [0].into())]);
}

#[tokio::test]
async fn dials_seeds_at_once_and_limits_learned_sentinels() {
    // No name resolves; the test provides the addresses. It never awaits, so no other task runs.
    let resolver = Resolver::new(|_, _| Err(io::Error::other("NXDOMAIN")));
    let (target_writer, _route) = TargetWriter::new();
    let watch = watch("mymaster", 3, target_writer);
    let (mut discovery, _control, _handles) = set_up(vec![watch], &resolver);
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
