//! The timeline of the demo and its lines of text. Pure: no clock and no terminal.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bench::stats::grouped;
use harness::{Event, Gap};

use super::explain::{Names, explain};

/// The shortest interval without writes that is reported; shorter ones are caused by a busy
/// machine.
const NOTICEABLE: Duration = Duration::from_millis(300);
/// How long a gap waits for the `+switch-master` that explains it.
const EXPLAINED: Duration = Duration::from_secs(2);
/// The full length of the bar.
const BAR: usize = 20;

/// How many of the events and gaps have been printed.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) events: usize,
    pub(super) gaps: usize,
}

/// The state at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Now {
    /// The master's name, read from the sentinels.
    pub(super) master: String,
    /// Whether its process runs.
    pub(super) alive: bool,
    /// Acknowledged writes since the start.
    pub(super) acknowledged: u64,
    /// Errors since the start.
    pub(super) errors: u64,
    /// Writes per second that the clients attempt.
    pub(super) rate: u64,
}

/// The end of the outage.
#[derive(Debug, Clone, Copy)]
pub(super) struct Back {
    pub(super) gap: Gap,
    /// The `+switch-master` before it.
    pub(super) switched: Option<Instant>,
    /// Acknowledged writes at that time.
    pub(super) acknowledged: u64,
}

/// The timeline so far.
#[derive(Debug)]
pub(super) struct Timeline {
    pub(super) start: Instant,
    /// When the demo killed the master.
    pub(super) killed: Option<Instant>,
    /// The first `+switch-master` of each failover.
    switches: Vec<Instant>,
    /// The first write after the kill.
    pub(super) back: Option<Back>,
    names: Names,
    /// Events of the current failover that were printed; up to three sentinels send each.
    told: BTreeSet<String>,
    last: (Duration, u64, u64),
}

impl Timeline {
    pub(super) fn new(start: Instant, names: Names) -> Self {
        Self {
            start,
            killed: None,
            switches: Vec::new(),
            back: None,
            names,
            told: BTreeSet::new(),
            last: (Duration::ZERO, 0, 0),
        }
    }

    pub(super) fn name(&self, addr: SocketAddr) -> String {
        self.names.of(addr)
    }

    /// A line with its time.
    pub(super) fn line(&self, at: Instant, text: &str) -> String {
        format!("{}   {text}", clock(at.saturating_duration_since(self.start)))
    }

    /// The line for an event, if it is new.
    pub(super) fn hear(&mut self, event: &Event) -> Option<String> {
        let text = explain(&event.channel, &event.payload, &self.names)?;
        let subject: Vec<&str> = event.payload.split(' ').take(5).collect();
        let key = format!("{} {}", event.channel, subject.join(" "));
        if self.told.contains(&key) {
            return None;
        }
        if event.channel == "+switch-master" {
            // Later events may occur again in the next failover.
            self.told.clear();
            self.switches.push(event.at);
        }
        self.told.insert(key);
        let said = format!("{:<12}{:<31} {text}", self.names.of(event.from), event.channel);
        Some(self.line(event.at, &said))
    }

    /// The line for an interval without writes that has ended: empty if it was too short, `None` if
    /// the caller should ask again because the event that explains it may still arrive.
    pub(super) fn gap(&mut self, gap: Gap, now: Instant, acknowledged: u64) -> Option<String> {
        if gap.length() < NOTICEABLE {
            return Some(String::new());
        }
        let switched = self.switches.iter().copied().find(|at| *at > gap.from);
        if switched.is_none() && now.saturating_duration_since(gap.to) < EXPLAINED {
            return None;
        }
        if self.back.is_none() && self.killed.is_some_and(|killed| gap.to > killed) {
            self.back = Some(Back { gap, switched, acknowledged });
        }
        let after = switched.map_or(String::new(), |at| {
            format!(", {} the first +switch-master", after(at, gap.to))
        });
        Some(self.line(
            gap.to,
            &format!("clients write again: {} without a write{after}", short(gap.length())),
        ))
    }

    /// The line for one second.
    pub(super) fn second(&mut self, elapsed: Duration, now: &Now) -> String {
        let (before, acknowledged, errors) = self.last;
        let time = elapsed.saturating_sub(before).as_secs().max(1);
        let rate = now.acknowledged.saturating_sub(acknowledged) / time;
        let errors = now.errors.saturating_sub(errors);
        self.last = (elapsed, now.acknowledged, now.errors);
        let master = if now.alive { now.master.clone() } else { format!("{} (dead)", now.master) };
        let errors = match errors {
            0 => String::new(),
            1 => "1 error".to_owned(),
            more => format!("{} errors", grouped(more)),
        };
        let line = format!(
            "{}   {master:<15} {:>8}  {}  {errors}",
            clock(elapsed),
            grouped(rate),
            bar(rate, now.rate)
        );
        line.trim_end().to_owned()
    }
}

/// A time at the left edge.
pub(super) fn clock(time: Duration) -> String {
    format!("{:>7.1} s", time.as_secs_f64())
}

/// A duration with a fitting unit.
pub(super) fn short(time: Duration) -> String {
    if time < Duration::from_millis(10) {
        format!("{:.1} ms", time.as_secs_f64() * 1000.0)
    } else if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.2} s", time.as_secs_f64())
    }
}

/// The time from `from` to `to` as text, possibly negative.
pub(super) fn after(from: Instant, to: Instant) -> String {
    match to.checked_duration_since(from) {
        Some(time) => format!("{} after", short(time)),
        None => format!("{} before", short(from.saturating_duration_since(to))),
    }
}

/// A bar with the length of the rate's share of the whole, padded.
fn bar(rate: u64, whole: u64) -> String {
    let full = u64::try_from(BAR).unwrap_or(u64::MAX);
    let rounded = (rate.saturating_mul(full) + whole / 2) / whole.max(1);
    let length = usize::try_from(rounded).unwrap_or(BAR).min(BAR).max(usize::from(rate > 0));
    format!("{}{}", "▇".repeat(length), " ".repeat(BAR - length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 1, 2, 3], port))
    }

    fn timeline() -> Timeline {
        Timeline::new(
            Instant::now(),
            Names::new([(addr(1), "redis-1".to_owned()), (addr(9), "sentinel-1".to_owned())]),
        )
    }

    fn event(timeline: &Timeline, ms: u64, channel: &str, payload: &str) -> Event {
        let at = timeline.start + Duration::from_millis(ms);
        Event { at, from: addr(9), channel: channel.to_owned(), payload: payload.to_owned() }
    }

    #[test]
    fn prints_an_event_once_per_failover() {
        let mut timeline = timeline();
        let down = event(&timeline, 1000, "+sdown", "master mymaster 127.1.2.3 1");
        let line = timeline.hear(&down).expect("news");
        assert_eq!(
            line,
            "    1.0 s   sentinel-1  +sdown                          redis-1 does not answer"
        );
        assert_eq!(timeline.hear(&down), None);
        let switch = event(&timeline, 2000, "+switch-master", "mymaster 127.1.2.3 1 127.1.2.3 2");
        assert!(timeline.hear(&switch).is_some());
        assert_eq!(timeline.hear(&switch), None);
        assert_eq!(timeline.switches, [switch.at]);
        assert!(timeline.hear(&down).is_some());
    }

    #[test]
    fn prints_a_gap_after_its_switch() {
        let mut timeline = timeline();
        let at = |ms| timeline.start + Duration::from_millis(ms);
        let (killed, gap) = (at(1000), Gap { from: at(1000), to: at(3010) });
        let (soon, late) = (at(3020), at(6000));
        timeline.killed = Some(killed);
        assert_eq!(
            timeline.gap(Gap { from: killed, to: killed + Duration::from_millis(50) }, soon, 5),
            Some(String::new())
        );
        assert_eq!(timeline.gap(gap, soon, 5), None);
        assert!(
            timeline.gap(gap, late, 5).is_some_and(|line| line.ends_with("2.01 s without a write"))
        );
        let switch = event(&timeline, 3000, "+switch-master", "mymaster 127.1.2.3 1 127.1.2.3 2");
        timeline.hear(&switch);
        let line = timeline.gap(gap, soon, 5).expect("explained");
        assert!(
            line.ends_with("2.01 s without a write, 10 ms after the first +switch-master"),
            "{line}"
        );
        assert_eq!(timeline.back.map(|back| back.acknowledged), Some(5));
    }

    #[test]
    fn prints_differences_per_second() {
        let mut timeline = timeline();
        let now = |acknowledged, errors, alive| Now {
            master: "redis-1".to_owned(),
            alive,
            acknowledged,
            errors,
            rate: 1000,
        };
        let line = timeline.second(Duration::from_secs(1), &now(1000, 0, true));
        assert_eq!(line, "    1.0 s   redis-1            1,000  ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇");
        let line = timeline.second(Duration::from_secs(2), &now(1004, 8, false));
        assert_eq!(line, "    2.0 s   redis-1 (dead)         4  ▇                     8 errors");
    }

    #[test]
    fn formats_times() {
        let times =
            [Duration::from_micros(1540), Duration::from_millis(14), Duration::from_millis(2310)];
        assert_eq!(times.map(short), ["1.5 ms", "14 ms", "2.31 s"]);
        let now = Instant::now();
        assert_eq!(after(now + Duration::from_millis(20), now), "20 ms before");
    }
}
