//! Decides which observations of clients are excused by which fault. Pure.
//!
//! Clients report what they did not expect while no fault was known to them, and every loss. At the
//! end of a step it is known what the soak did and which failovers the sentinels performed:
//!
//! - A failover that follows no fault of the soak is the environment's: sentinels that got no CPU
//!   for two seconds find a healthy master down. Redis may then lose writes as in any unplanned
//!   failover, and sessions may end. Such failovers are counted and reported. They excuse nothing
//!   else.
//! - `SENTINEL FAILOVER` promotes a replica without waiting for it. A write that was sent before
//!   the replica was selected, and acknowledged before the promotion, is gone if the replica lags,
//!   as it does without CPU time. The proxy holds what is sent later. `pointsman switchover` waits
//!   for the replicas, so that no write may be lost.
//! - Otherwise, an acknowledged write may be gone only if the master that acknowledged it was
//!   replaced without handing over, and only if it was acknowledged before that. A later
//!   acknowledgement came from a master that had been superseded.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::schedule::Fault;
use super::switches::{Sighting, Switch, switches};

/// A reply of a failed master may still be on its way for this long; no successor is promoted
/// earlier than Sentinel's `down-after-milliseconds` of two seconds.
const ON_ITS_WAY: Duration = Duration::from_millis(1500);
/// How late the proxy may receive an event that the soak has received.
const EVENT: Duration = Duration::from_millis(50);
/// A fault that the soak brought about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Deed {
    pub(super) fault: Fault,
    /// The server it was about; `None` for sentinels, the proxy and clients.
    pub(super) node: Option<SocketAddr>,
    pub(super) begin: Instant,
    pub(super) end: Option<Instant>,
}

/// Why a master was replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    Planned,
    Fault,
    Environment,
}

/// The last acknowledged write of a client: when it was sent, and when the reply arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Acknowledged {
    pub(super) sent: Instant,
    pub(super) at: Instant,
}

/// What a client observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Suspicion {
    pub(super) at: Instant,
    pub(super) step: u64,
    pub(super) what: String,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An error reply, an end of a connection, or something missing, without a known fault.
    Unexplained,
    /// Acknowledged writes that are gone.
    Lost { count: u64, last: Option<Acknowledged> },
}

/// What follows from a suspicion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ruling {
    /// Redis may lose this many writes in the fault of the soak.
    LostByFault(u64),
    /// Lost in a `SENTINEL FAILOVER` with a replica that lags.
    LostByLag(u64),
    /// Lost in a failover without a fault of the soak.
    LostByEnvironment(u64),
    /// A failover without a fault of the soak explains it.
    Environment,
    Finding(String),
}

/// Everything that happened since the previous judgement.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) deeds: Vec<Deed>,
    pub(super) switches: Vec<Switch>,
}

impl History {
    /// With the master in force at `since`; earlier sightings show only how a failover began.
    pub(super) fn new(
        deeds: Vec<Deed>,
        sightings: &[Sighting],
        since: Instant,
        master: SocketAddr,
    ) -> Self {
        Self { deeds, switches: switches(sightings, since, master) }
    }

    pub(super) fn cause(&self, switch: &Switch) -> Cause {
        let about = |deed: &&Deed| deed.begin <= switch.at && deed.node.is_some();
        let lost = |deed: &Deed| !deed.fault.is_planned() && deed.node == Some(switch.old);
        if self.deeds.iter().filter(about).any(lost) {
            return Cause::Fault;
        }
        let planned = self.deeds.iter().filter(about).any(|deed| {
            let first = self.switches.iter().find(|it| it.at >= deed.begin);
            deed.fault.is_planned() && deed.node == Some(switch.old) && first == Some(switch)
        });
        if planned { Cause::Planned } else { Cause::Environment }
    }

    fn by_environment(&self) -> impl Iterator<Item = &Switch> {
        self.switches.iter().filter(|it| self.cause(it) == Cause::Environment)
    }

    /// The last acknowledgement that a fault excuses.
    fn excused_until(&self, deed: &Deed) -> Option<Instant> {
        if deed.fault.may_lose_writes() {
            return Some(deed.begin + ON_ITS_WAY);
        }
        // A replica that was killed or stopped and is promoted all the same may lack what the
        // former master acknowledged, and takes with it what it acknowledged itself before.
        let promoted = self.switches.iter().filter(|it| Some(it.new) == deed.node);
        promoted.map(|it| it.at.max(deed.begin) + ON_ITS_WAY).max()
    }

    pub(super) fn judge(&self, it: &Suspicion) -> Ruling {
        match it.kind {
            Kind::Unexplained => {
                let over = |switch: &Switch| switch.from <= it.at;
                if self.by_environment().any(over) {
                    Ruling::Environment
                } else {
                    Ruling::Finding(format!("step {}: {}", it.step, it.what))
                }
            }
            Kind::Lost { count, last } => self.judge_loss(it, count, last),
        }
    }

    /// Whether a write is gone because `SENTINEL FAILOVER` promoted a replica that lagged.
    fn is_lag(&self, it: &Suspicion, last: Option<Acknowledged>) -> bool {
        let ordered = |switch: &&Switch| {
            switch.from <= it.at
                && self.deeds.iter().any(|deed| {
                    deed.fault == Fault::PlannedFailover
                        && deed.node == Some(switch.old)
                        && deed.begin <= switch.at
                })
        };
        // What a stopped proxy had not forwarded yet was sent by its client long before.
        let stopped = |switch: &Switch| {
            self.deeds.iter().any(|deed| {
                deed.fault == Fault::StopProxy
                    && deed.begin <= switch.at
                    && deed.end.is_none_or(|end| end >= switch.selected)
            })
        };
        self.switches.iter().filter(ordered).filter(|it| !stopped(it)).any(|switch| {
            last.is_none_or(|last| {
                last.sent <= switch.selected + EVENT && last.at <= switch.promoted + EVENT
            })
        })
    }

    fn judge_loss(&self, it: &Suspicion, count: u64, last: Option<Acknowledged>) -> Ruling {
        let began: Vec<&Deed> = self.deeds.iter().filter(|deed| deed.begin <= it.at).collect();
        let within = |until: Instant| last.is_none_or(|last| last.at <= until);
        let limits: Vec<Instant> = began.iter().filter_map(|it| self.excused_until(it)).collect();
        if limits.iter().any(|until| within(*until)) {
            return Ruling::LostByFault(count);
        }
        let switched = |switch: &&Switch| switch.from <= it.at;
        if self.by_environment().filter(switched).any(|it| within(it.at + ON_ITS_WAY)) {
            return Ruling::LostByEnvironment(count);
        }
        if self.is_lag(it, last) {
            return Ruling::LostByLag(count);
        }
        let late = limits.iter().max().zip(last).map(|(until, last)| {
            let late = last.at.saturating_duration_since(*until - ON_ITS_WAY);
            format!(", acknowledged {} ms after the fault", late.as_millis())
        });
        let late = late.unwrap_or_default();
        let what = &it.what;
        Ruling::Finding(format!(
            "step {}: {what}: {count} acknowledged writes are gone{late}",
            it.step
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn node(number: u8) -> SocketAddr {
        SocketAddr::from(([127, 0, 100, number], 6379))
    }

    fn switched(at: Instant, old: u8, new: u8) -> Vec<Sighting> {
        let payload = format!("m 127.0.100.{old} 6379 127.0.100.{new} 6379");
        let one = |sentinel: u8| Sighting {
            at,
            from: SocketAddr::from(([127, 0, 101, sentinel], 26379)),
            channel: "+switch-master".to_owned(),
            payload: payload.clone(),
        };
        vec![one(1), one(2)]
    }

    /// Selected after one second, asked to take over after two, announced after three.
    fn selected(start: Instant, old: u8, new: u8) -> Vec<Sighting> {
        let step = |channel: &str, seconds: u32| Sighting {
            at: start + seconds * SECOND,
            from: node(9),
            channel: channel.to_owned(),
            payload: format!(
                "slave 127.0.100.{new}:6379 127.0.100.{new} 6379 @ m 127.0.100.{old} 6379"
            ),
        };
        let mut all = vec![step("+selected-slave", 1), step("+failover-state-wait-promotion", 2)];
        all.extend(switched(start + 3 * SECOND, old, new));
        all
    }

    fn deed(fault: Fault, number: u8, begin: Instant) -> Deed {
        Deed { fault, node: Some(node(number)), begin, end: None }
    }

    fn lost(at: Instant, last: Instant) -> Suspicion {
        let kind = Kind::Lost { count: 3, last: Some(Acknowledged { sent: last, at: last }) };
        Suspicion { at, step: 1, what: "client".to_owned(), kind }
    }

    fn ended(at: Instant) -> Suspicion {
        let what = "connection lost".to_owned();
        Suspicion { at, step: 1, what, kind: Kind::Unexplained }
    }

    fn is_finding(ruling: &Ruling) -> bool {
        matches!(ruling, Ruling::Finding(_))
    }

    #[test]
    fn excuses_loss_before_death_of_the_master_only() {
        let start = Instant::now();
        let kill = vec![deed(Fault::KillMaster, 1, start)];
        let history = History::new(kill, &switched(start + 3 * SECOND, 1, 2), start, node(1));
        let found = start + 5 * SECOND;
        assert_eq!(history.judge(&lost(found, start)), Ruling::LostByFault(3));
        assert!(is_finding(&history.judge(&lost(found, start + 2 * SECOND))));
        assert!(is_finding(&history.judge(&ended(found))), "the client knew of no fault");
    }

    #[test]
    fn excuses_no_loss_in_a_switchover() {
        let start = Instant::now();
        let order = vec![deed(Fault::Switchover, 1, start)];
        let history = History::new(order, &selected(start, 1, 2), start, node(1));
        assert_eq!(history.cause(&history.switches[0]), Cause::Planned);
        assert!(is_finding(&history.judge(&lost(start + 5 * SECOND, start))));
    }

    #[test]
    fn excuses_lag_of_writes_sent_before_selection() {
        let start = Instant::now();
        let order = vec![deed(Fault::PlannedFailover, 1, start)];
        let history = History::new(order, &selected(start, 1, 2), start, node(1));
        let at = |sent, acknowledged| {
            let last = Some(Acknowledged { sent, at: acknowledged });
            let (what, kind) = ("client".to_owned(), Kind::Lost { count: 3, last });
            Suspicion { at: start + 5 * SECOND, step: 1, what, kind }
        };
        let (one, two) = (start + SECOND, start + 2 * SECOND);
        assert_eq!(history.judge(&at(one, two)), Ruling::LostByLag(3));
        assert!(is_finding(&history.judge(&at(one + SECOND / 10, two))), "it was to be held");
        assert!(is_finding(&history.judge(&at(one, two + SECOND))), "after the promotion");
        let stop = Deed { node: None, ..deed(Fault::StopProxy, 1, start) };
        let order = vec![deed(Fault::PlannedFailover, 1, start), stop];
        let history = History::new(order, &selected(start, 1, 2), start, node(1));
        assert!(is_finding(&history.judge(&at(one, two))), "forwarded when the proxy woke");
    }

    #[test]
    fn excuses_loss_of_a_master_killed_after_promotion() {
        let start = Instant::now();
        let deeds = vec![
            deed(Fault::PlannedFailover, 1, start),
            deed(Fault::KillReplica, 2, start + 2 * SECOND),
        ];
        let mut seen = switched(start + SECOND, 1, 2);
        seen.extend(switched(start + 6 * SECOND, 2, 3));
        let history = History::new(deeds, &seen, start, node(1));
        let causes: Vec<Cause> = history.switches.iter().map(|it| history.cause(it)).collect();
        assert_eq!(causes, [Cause::Planned, Cause::Fault]);
        let found = start + 8 * SECOND;
        assert_eq!(history.judge(&lost(found, start + 2 * SECOND)), Ruling::LostByFault(3));
        assert!(is_finding(&history.judge(&lost(found, start + 5 * SECOND))));
    }

    #[test]
    fn excuses_nothing_for_a_replica_not_promoted() {
        let start = Instant::now();
        let deeds = vec![deed(Fault::Switchover, 1, start), deed(Fault::KillReplica, 3, start)];
        let history = History::new(deeds, &switched(start + SECOND, 1, 2), start, node(1));
        assert!(is_finding(&history.judge(&lost(start + 2 * SECOND, start))));
    }

    #[test]
    fn recognises_failovers_without_a_fault() {
        let start = Instant::now();
        let mut seen = vec![Sighting {
            at: start,
            from: node(9),
            channel: "+sdown".to_owned(),
            payload: "master m 127.0.100.1 6379".to_owned(),
        }];
        seen.extend(switched(start + 2 * SECOND, 1, 2));
        let history = History::new(Vec::new(), &seen, start, node(1));
        assert_eq!(history.cause(&history.switches[0]), Cause::Environment);
        assert_eq!(history.judge(&ended(start + SECOND)), Ruling::Environment);
        assert!(is_finding(&history.judge(&ended(start - SECOND))), "before the first sign");
        let found = start + 3 * SECOND;
        assert_eq!(history.judge(&lost(found, start + SECOND)), Ruling::LostByEnvironment(3));
        assert!(is_finding(&history.judge(&lost(found, start + 4 * SECOND))));
    }

    #[test]
    fn counts_second_failover_after_a_planned_one_as_environment() {
        let start = Instant::now();
        let mut seen = switched(start + SECOND, 1, 2);
        seen.extend(switched(start + 9 * SECOND, 2, 1));
        let order = vec![deed(Fault::PlannedFailover, 1, start)];
        let history = History::new(order, &seen, start, node(1));
        let causes: Vec<Cause> = history.switches.iter().map(|it| history.cause(it)).collect();
        assert_eq!(causes, [Cause::Planned, Cause::Environment]);
    }

    #[test]
    fn ignores_old_switches_announced_again() {
        let start = Instant::now();
        let mut seen = switched(start, 1, 2);
        seen.extend(switched(start + 5 * SECOND, 1, 2));
        seen.push(switched(start + 6 * SECOND, 2, 3).remove(0));
        let history = History::new(Vec::new(), &seen, start, node(1));
        assert_eq!(history.switches.len(), 1, "the last one was announced by one sentinel only");
    }
}
