//! Sums of the counters of all workers.

use super::*;

#[test]
fn sums_workers_and_separates_services() {
    let stats = Stats::default();
    let [one, two] = ["a", "b"].map(|name| ServiceCounters::new(Arc::from(name), 2));
    stats.add(one.clone());
    stats.add(two.clone());
    for worker in 0..2 {
        let counters = one.of_worker(worker).unwrap();
        counters.accepted.add(2);
        counters.closed.increment(EndReason::Fenced as usize);
        counters.bytes_in.add(10);
    }
    two.of_worker(0).unwrap().dial_failures.increment(DialFailure::Unreachable as usize);
    let (a, b) = (stats.service("a").unwrap(), stats.service("b").unwrap());
    assert_eq!((a.accepted, a.open(), a.closed_for(EndReason::Fenced), a.bytes_in), (4, 2, 2, 20));
    assert_eq!(b.dial_failures, [0, 0, 1, 0, 0, 0, 0]);
    assert_eq!((b.accepted, b.open()), (0, 0));
    two.of_worker(1).unwrap().accepted.add(5);
    assert_eq!(stats.open_on_workers(), [1, 6]);
    assert!(one.of_worker(2).is_none());
    stats.remove(&one);
    assert!(stats.service("a").is_none() && stats.service("b").is_some());
    assert_eq!(stats.open_on_workers(), [0, 5]);
}
