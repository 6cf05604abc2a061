//! Starts the fault at a given phase of Sentinel's ping period.
//!
//! A sentinel pings each server once per second, and measures a hang from the first unanswered
//! ping: the same SIGSTOP is detected up to a second earlier or later, depending on its time. One
//! proxy starts slower than another, so without control each would always meet the same phase, and
//! the difference would look like the proxy's. So the fault is started at given ages of the last
//! ping, the same ones for all proxies, and the actual ages are recorded.

use std::time::{Duration, Instant};

use harness::{Cluster, Event, Node};
use serde_json::{Map, Value, json};

/// Sentinel's ping period.
const PERIOD: Duration = Duration::from_secs(1);
/// The tolerance of the age.
const NEAR: Duration = Duration::from_millis(25);
/// Events of Sentinel on its way to a new master.
const MILESTONES: [&str; 6] =
    ["+sdown", "+odown", "+try-failover", "+elected-leader", "+selected-slave", "+switch-master"];

/// The intended age of the last ping: the middle of the run's share of the period.
pub(super) fn aim(run: u32, runs: u32) -> Duration {
    PERIOD * (2 * run.saturating_sub(1) + 1) / (2 * runs.max(1))
}

/// Whether the age is close enough to the intended one.
pub(super) fn near(age: Duration, aim: Duration) -> bool {
    age >= aim && age < aim + NEAR
}

/// Time since a sentinel got the master's last reply to a ping.
pub(super) fn age(cluster: &Cluster, sentinel: &Node) -> Option<Duration> {
    let master = sentinel.ask_briefly(&["SENTINEL", "MASTER", cluster.name()]).ok()?;
    let ms = master.field("last-ok-ping-reply")?.int()?;
    u64::try_from(ms).ok().map(Duration::from_millis)
}

/// The first event of each kind after the fault, in milliseconds; of events about servers, only
/// those about the old master.
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
