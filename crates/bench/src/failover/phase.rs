//! Where in Sentinel's own rhythm the cause falls.
//!
//! A sentinel pings each server once a second, and counts a hang from the first ping that stays
//! unanswered: the same SIGSTOP is noticed up to a second earlier or later, depending on when it
//! comes. One proxy starts slower than another, so without care each would always meet the same
//! moment of that second, and the difference would look like the proxy's. So the cause is aimed at
//! given ages of the last ping, the same ones for all, and the ages that it really met are written
//! down.

use std::time::{Duration, Instant};

use harness::{Cluster, Event, Node};
use serde_json::{Map, Value, json};

/// Sentinel's ping period.
const PERIOD: Duration = Duration::from_secs(1);
/// How near to the aim is near enough.
const NEAR: Duration = Duration::from_millis(25);
/// What Sentinel says on its way to a new master.
const MILESTONES: [&str; 6] =
    ["+sdown", "+odown", "+try-failover", "+elected-leader", "+selected-slave", "+switch-master"];

/// The age of the last ping to aim at: the middles of as many equal parts of the period as there
/// are runs.
pub(super) fn aim(run: u32, runs: u32) -> Duration {
    PERIOD * (2 * run.saturating_sub(1) + 1) / (2 * runs.max(1))
}

/// Whether the last ping is as old as it should be.
pub(super) fn near(age: Duration, aim: Duration) -> bool {
    age >= aim && age < aim + NEAR
}

/// How long ago a sentinel got the master's last answer to a ping.
pub(super) fn age(cluster: &Cluster, sentinel: &Node) -> Option<Duration> {
    let master = sentinel.ask_briefly(&["SENTINEL", "MASTER", cluster.name()]).ok()?;
    let ms = master.field("last-ok-ping-reply")?.int()?;
    u64::try_from(ms).ok().map(Duration::from_millis)
}

/// The first of each milestone after `cause`, in milliseconds; of the servers, only what concerns
/// the old master.
pub(super) fn milestones(events: &[Event], cause: Instant) -> Value {
    let first = |channel: &str| {
        let ours = |event: &&Event| {
            let of_master = channel != "+sdown" || event.payload.starts_with("master ");
            event.channel == channel && event.at >= cause && of_master
        };
        events
            .iter()
            .find(ours)
            .map(|event| event.at.saturating_duration_since(cause).as_secs_f64() * 1000.0)
    };
    let pairs = MILESTONES
        .iter()
        .map(|channel| ((*channel).to_owned(), json!(first(channel).map(f64::round))));
    Value::Object(pairs.collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_aims_over_the_ping_period() {
        let aims: Vec<_> = (1..=5).map(|run| aim(run, 5).as_millis()).collect();
        assert_eq!(aims, [100, 300, 500, 700, 900]);
        assert_eq!(aim(1, 1), Duration::from_millis(500));
    }

    #[test]
    fn accepts_only_slightly_late_pings() {
        let ms = Duration::from_millis;
        assert!(near(ms(300), ms(300)) && near(ms(310), ms(300)));
        assert!(!near(ms(299), ms(300)) && !near(ms(340), ms(300)));
    }

    #[test]
    fn takes_first_milestones_about_the_master() {
        let cause = Instant::now();
        let event = |ms: u64, channel: &str, payload: &str| Event {
            at: cause + Duration::from_millis(ms),
            from: ([127, 0, 0, 1], 1).into(),
            channel: channel.to_owned(),
            payload: payload.to_owned(),
        };
        let events = [
            event(5, "+sdown", "slave a"),
            event(20, "+sdown", "master m"),
            event(30, "+sdown", "master m"),
        ];
        let found = milestones(&events, cause);
        assert_eq!(found["+sdown"], 20.0);
        assert!(found["+odown"].is_null());
    }
}
