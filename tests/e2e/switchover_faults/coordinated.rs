//! Coordinated failovers, which sentinels of Valkey 9 lead: the master stops accepting writes and
//! hands over. Every test says so and ends where the servers have no such failovers.

use std::time::{Duration, Instant};

use harness::{Absences, Client, Cluster, Events, Load, wait_until};

use super::{AFTER_THE_ABORT, PATIENCE, coordinates, for_a_while, loads, nothing_is_lost, ordered};
use crate::switchover::{TOKEN, controlled, order, stderr, stdout};

/// From the order to the first write that passes after a handover that failed: the discovery
/// machine holds for three seconds after a selection.
const AFTER_A_FAILED_HANDOVER: Duration = Duration::from_secs(8);

#[allow(clippy::print_stderr, reason = "what could not be tested is told")]
fn is_supported() -> bool {
    let supported = coordinates();
    if !supported {
        eprintln!("NOT TESTED: these servers have no coordinated failovers");
    }
    supported
}

#[test]
fn loses_no_direct_write_in_a_coordinated_failover() {
    if !is_supported() {
        return;
    }
    let cluster = Cluster::builder().start();
    let pointsman = controlled(&cluster);
    let mut direct =
        Load::to(cluster.master().addr()).writers(8).rate(2000).prefix("direct").start();
    wait_until("some writes", PATIENCE, || direct.counts().acknowledged > 500);
    let done = order(&pointsman, &["switchover"], TOKEN);
    assert!(done.status.success(), "{}{}", stdout(&done), stderr(&done));
    assert!(stdout(&done).contains("that the master carries out"), "{}", stdout(&done));
    direct.stop();
    let verdict = direct.verify(cluster.master().addr()).expect("a look at the new master");
    eprintln!("{verdict:?}");
    assert!(verdict.acknowledged > 500 && verdict.missing == 0, "{verdict:?}");
}

#[test]
fn resumes_writes_when_the_order_cannot_be_sent() {
    if !is_supported() {
        return;
    }
    // Sentinel sends no order with less than a second left of this time, and aborts at once.
    let cluster = Cluster::builder().failover_timeout(Duration::from_millis(900)).start();
    let pointsman = controlled(&cluster);
    let (events, absences) = (Events::of_all(cluster.sentinels()), Absences::watch());
    let old = cluster.master().addr();
    let mut loads = loads(&[&pointsman], 8);
    let order = ordered(&pointsman, &["switchover"]);
    let abort = events.wait_for("-failover-abort-master-timeout", PATIENCE);
    let acknowledged = loads[0].counts().acknowledged;
    wait_until("writes to resume", PATIENCE, || {
        loads[0].counts().acknowledged > acknowledged + 100
    });
    let done = order.wait_with_output().expect("the order ends");
    let pause = loads[0].gaps().into_iter().find(|gap| gap.to > abort.at);
    let late = pause.map_or(Duration::ZERO, |gap| {
        let late = gap.to.saturating_duration_since(abort.at);
        late.saturating_sub(absences.between(abort.at, gap.to))
    });
    eprintln!("writes resumed {late:?} after the abort; {}{}", stdout(&done), stderr(&done));
    assert!(!done.status.success() && stderr(&done).contains("abort"), "{}", stderr(&done));
    // Without the event the discovery machine would hold for three seconds after the selection.
    assert!(late < AFTER_THE_ABORT, "{late:?}");
    assert_eq!(loads[0].counts().errors, 0, "{:?}", loads[0].errors());
    nothing_is_lost(&mut loads, old);
}

/// Orders a switchover that the master does not complete, and checks that writes resume.
#[allow(clippy::print_stderr, reason = "the measured time is told")]
fn resumes_after_a_failed_handover(forbid: impl Fn(&Cluster)) {
    // The sentinel waits this long, and the master's clients stay paused as long.
    let cluster = Cluster::builder().failover_timeout(Duration::from_secs(60)).start();
    let pointsman = controlled(&cluster);
    let absences = Absences::watch();
    let old = cluster.master();
    forbid(&cluster);
    let asked = Instant::now();
    let order = ordered(&pointsman, &["switchover"]);
    let done = order.wait_with_output().expect("the order ends");
    let written = |mut client: Client| {
        client.set_timeout(PATIENCE).expect("a patient client");
        assert!(client.cmd(&["SET", "after", "1"]).expect("a reply").is_ok());
    };
    written(pointsman.client());
    written(old.client());
    let now = Instant::now();
    let took = (now - asked).saturating_sub(absences.between(asked, now));
    eprintln!("writes resumed {took:?} after the order; {}{}", stdout(&done), stderr(&done));
    assert!(!done.status.success(), "{}", stdout(&done));
    for part in ["does not carry out", "+failover +client|pause +client|unpause"] {
        assert!(stderr(&done).contains(part), "{}", stderr(&done));
    }
    assert!(took < AFTER_A_FAILED_HANDOVER, "{took:?}");
    assert_eq!(cluster.master().addr(), old.addr());
}

#[test]
fn resumes_writes_when_the_master_refuses_the_order() {
    if is_supported() {
        resumes_after_a_failed_handover(|cluster| {
            cluster.master().ask(&["ACL", "SETUSER", "default", "-failover"]).expect("a rule");
        });
    }
}

#[test]
fn resumes_writes_when_the_replica_rejects_the_handover() {
    if is_supported() {
        resumes_after_a_failed_handover(|cluster| {
            // The link that exists stays; the master's own PSYNC is refused, so it stays master.
            for replica in cluster.nodes().iter().filter(|it| it.addr() != cluster.master().addr())
            {
                replica.ask(&["ACL", "SETUSER", "default", "-psync"]).expect("a rule");
            }
            for_a_while(Duration::from_millis(100));
        });
    }
}
