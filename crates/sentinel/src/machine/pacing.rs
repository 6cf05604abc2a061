//! How often one proxy of a large fleet queries sentinels and nodes.
//!
//! Every proxy sees the same events at the same time. What is nothing for one proxy is a stampede
//! for a thousand: at a failover each asked every sentinel 30 times per second and probed each node
//! 50 times per second, at the moment at which sentinels and the new master have the most to do.
//!
//! A sentinel's number of connections gives an upper bound of the fleet's size. Above
//! [`SMALL_FLEET`] the intervals under suspicion grow with it, so that the fleet as a whole costs
//! each sentinel and each node about a tenth of a core, and every proxy keeps a phase of its own:
//! the time at which it was started. A decisive event (`+switch-master`) is exempt, so a fleet of
//! any size switches at once. A fleet that is not large behaves as configured.
//!
//! The number comes from a sentinel and may be wrong. The worst that a false one can do is to make
//! the intervals under suspicion as long as those in normal operation, and these at most
//! [`CALM_PROBE_MAX`].

use std::time::{Duration, Instant};

use crate::MachineRules;

/// Up to this many connections to a sentinel, nothing is spread or stretched.
const SMALL_FLEET: u32 = 20;

/// Interval per connection under suspicion: 1,000 polls of a sentinel per second, of about 100 µs
/// each, and as many probes of a node.
const ALERT_SHARE: Duration = Duration::from_millis(1);

/// Interval per connection between two probes in normal operation.
const CALM_SHARE: Duration = Duration::from_micros(1500);
const CALM_PROBE_MAX: Duration = Duration::from_millis(1500);

/// The minimum interval between two hints of the data plane that are acted upon. It doubles while
/// hints lead to nothing, since some `-READONLY` replies are legitimate.
const HINT_PAUSE_MIN: Duration = Duration::from_millis(100);
/// The maximum interval between two hints that are acted upon.
const HINT_PAUSE_MAX: Duration = Duration::from_secs(5);

/// The state of the pacing of one machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Pacing {
    /// The phase of this proxy.
    origin: Instant,
    /// The number of connections to a sentinel, each at most one proxy.
    pub(super) connections: u32,
    /// When the sentinels were last asked, and when they are asked next.
    asked_at: Option<Instant>,
    pub(super) ask_at: Instant,
    /// Until when hints of the data plane are ignored, and for how long after the next one.
    hint_after: Instant,
    hint_pause: Duration,
}

impl Pacing {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            origin: now,
            connections: 0,
            asked_at: None,
            ask_at: now,
            hint_after: now,
            hint_pause: HINT_PAUSE_MIN,
        }
    }

    /// The sentinels are asked in this step.
    pub(super) fn ask_now(&mut self, now: Instant) {
        self.ask_at = self.ask_at.min(now);
    }

    /// An event that decides nothing by itself: the sentinels are asked soon.
    pub(super) fn ask_soon(&mut self, now: Instant, rules: &MachineRules) {
        self.ask_at = self.ask_at.min(self.earliest_ask(now, rules));
    }

    /// Whether the sentinels are to be asked now.
    pub(super) fn take_ask(&mut self, now: Instant, rules: &MachineRules, is_alert: bool) -> bool {
        let is_due = self.ask_at <= now;
        if is_due {
            (self.asked_at, self.ask_at) = (Some(now), self.ask_after(now, rules, is_alert));
        }
        is_due
    }

    /// Whether a hint of the data plane counts. Each makes the pause after it longer.
    pub(super) fn take_hint(&mut self, now: Instant) -> bool {
        let counts = now >= self.hint_after;
        if counts {
            self.hint_after = now + self.hint_pause;
            self.hint_pause = (self.hint_pause * 2).min(HINT_PAUSE_MAX);
        }
        counts
    }

    /// Nothing is wrong: after a while the pause is short again.
    pub(super) fn calm_hints(&mut self, now: Instant) {
        if now >= self.hint_after + HINT_PAUSE_MAX {
            self.trust_hints();
        }
    }

    /// The pause after the next hint is short.
    pub(super) fn trust_hints(&mut self) {
        self.hint_pause = HINT_PAUSE_MIN;
    }

    #[cfg(test)]
    pub(super) fn hint_pause(&self) -> Duration {
        self.hint_pause
    }

    /// When the sentinels may be asked because of an event that decides nothing by itself.
    fn earliest_ask(&self, now: Instant, rules: &MachineRules) -> Instant {
        let spacing = self.share(ALERT_SHARE).min(rules.poll);
        self.asked_at.map_or(now, |at| now.max(at + spacing))
    }

    /// When the sentinels are asked next without an event.
    fn ask_after(&self, now: Instant, rules: &MachineRules, is_alert: bool) -> Instant {
        let interval = if is_alert {
            rules.poll_suspect.max(self.share(ALERT_SHARE)).min(rules.poll.max(rules.poll_suspect))
        } else {
            rules.poll
        };
        self.in_phase(now, interval)
    }

    /// When a node is probed next without an event; `interval` is the configured one.
    pub(super) fn next_probe(
        &self,
        now: Instant,
        rules: &MachineRules,
        interval: Duration,
        is_alert: bool,
    ) -> Instant {
        let interval = if is_alert {
            interval.max(self.share(ALERT_SHARE).min(rules.probe_master))
        } else {
            interval.max(self.share(CALM_SHARE).min(CALM_PROBE_MAX))
        };
        self.in_phase(now, interval)
    }

    fn is_large(&self) -> bool {
        self.connections > SMALL_FLEET
    }

    fn share(&self, each: Duration) -> Duration {
        if self.is_large() { each.saturating_mul(self.connections) } else { Duration::ZERO }
    }

    /// The next time in this proxy's own phase of `interval`.
    fn in_phase(&self, now: Instant, interval: Duration) -> Instant {
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        if !self.is_large() || interval < Duration::from_micros(1) {
            return now + interval;
        }
        let into = micros(now.saturating_duration_since(self.origin)) % micros(interval);
        now + interval.saturating_sub(Duration::from_micros(into))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet(connections: u32) -> (Pacing, Instant, MachineRules) {
        let now = Instant::now();
        let mut pacing = Pacing::new(now);
        pacing.connections = connections;
        (pacing, now, MachineRules::default())
    }

    #[test]
    fn keeps_configured_intervals_in_small_fleet() {
        let (mut pacing, start, rules) = fleet(SMALL_FLEET);
        let now = start + Duration::from_millis(1234);
        pacing.take_ask(now, &rules, true);
        assert_eq!(pacing.earliest_ask(now, &rules), now);
        assert_eq!(pacing.ask_after(now, &rules, true), now + rules.poll_suspect);
        assert_eq!(pacing.ask_after(now, &rules, false), now + rules.poll);
        let probe = |is_alert| pacing.next_probe(now, &rules, rules.probe_suspect, is_alert);
        assert_eq!(probe(true), now + rules.probe_suspect);
    }

    #[test]
    fn stretches_alert_intervals_with_fleet_up_to_normal_ones() {
        for (connections, ms) in [(100, 100), (400, 400), (1000, 1000), (u32::MAX, 1000)] {
            let (mut pacing, start, rules) = fleet(connections);
            pacing.take_ask(start, &rules, true);
            let spacing = pacing.earliest_ask(start, &rules) - start;
            assert_eq!(spacing, Duration::from_millis(ms), "{connections}");
            assert_eq!(pacing.ask_after(start, &rules, true) - start, spacing, "{connections}");
            let probe = pacing.next_probe(start, &rules, rules.probe_suspect, true) - start;
            assert_eq!(probe, spacing.min(rules.probe_master), "{connections}");
            let calm = pacing.next_probe(start, &rules, rules.probe_master, false) - start;
            assert!((rules.probe_master..=CALM_PROBE_MAX).contains(&calm), "{calm:?}");
        }
    }

    #[test]
    fn spreads_large_fleet_over_the_interval() {
        let rules = MachineRules::default();
        let start = Instant::now();
        let event = start + Duration::from_secs(100);
        // A thousand proxies, started 7 ms after each other, process the same event.
        let mut in_tenth = [0_u32; 10];
        for number in 0..1000 {
            let mut pacing = Pacing::new(start + Duration::from_millis(7) * number);
            pacing.connections = 1000;
            let due = pacing.ask_after(event, &rules, false);
            assert!(due > event && due <= event + rules.poll, "{:?}", due - event);
            let tenth = (due - event - Duration::from_nanos(1)).as_millis() / 100;
            in_tenth[usize::try_from(tenth).unwrap()] += 1;
        }
        assert!(in_tenth.iter().all(|proxies| (90..=110).contains(proxies)), "{in_tenth:?}");
    }
}
