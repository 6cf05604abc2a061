//! Decides the verdicts of the health probes from facts alone.
//!
//! Liveness never depends on Redis: a process whose event loops iterate is alive, and a restart
//! would not bring a master back.
//!
//! Readiness decides whether new clients are sent to this instance or to another one, so it depends
//! on what they would find there. All instances lose a master together. An instance without a
//! master holds its clients, and then answers them with an error on which they retry; a Kubernetes
//! Service whose instances are all unready refuses them, and continues to refuse for some seconds
//! after the new master is known. An instance that has known a master therefore stays ready without
//! one, unless configured otherwise ([`ReadinessRules::without_master`]): then it turns unready
//! when nothing could be sent to a master for longer than a client may be held, which keeps clients
//! away from an instance that is the only one without access to Redis.
//!
//! | Situation | Stays ready (default) | Turns unready |
//! |---|---|---|
//! | failover longer than the hold | clients held, then answered | every instance refuses clients |
//! | no Redis and no sentinel | clients held, then answered | every instance refuses clients |
//! | one of N instances isolated | one new client in N is held and has to retry | all are served |
//! | no master found yet | unready | unready |
//! | shutting down, or full | unready | unready |
//!
//! With several services in one process, readiness depends on whether *any* of them can be served:
//! a pod is removed from all its Kubernetes Services at once, and one dead master must not affect
//! the clients of the other services. For the same reason a service whose replicas serve readers
//! does not make the process unready while it has no master.

use std::time::Duration;

use admin_http::Verdict;
use drain::Phase;

/// An event loop that has not iterated for this long is stuck. All loops iterate at least once per
/// second.
pub(crate) const STUCK_AFTER: Duration = Duration::from_secs(5);

/// One event loop of the process.
#[derive(Debug, Clone)]
pub(crate) struct EventLoop {
    /// Its display name: `worker 3`, `discovery`.
    pub name: String,
    /// Time since its last iteration.
    pub age: Duration,
}

/// The readiness of one service.
#[derive(Debug, Clone)]
pub(crate) struct ServiceHealth {
    /// Its name.
    pub name: String,
    /// For how long no request could be sent to a master; `None` while traffic flows.
    pub outage: Option<Duration>,
    /// Whether it ever had a master.
    pub had_master: bool,
    /// How long a client may be held.
    pub hold_timeout: Duration,
    /// Number of replicas that serve readers.
    pub replicas: usize,
}

impl ServiceHealth {
    /// Returns why new clients of this service should use another instance, if they should.
    fn unready_reason(&self, rules: ReadinessRules) -> Option<String> {
        let outage = self.outage?;
        if self.replicas > 0 {
            // Its readers can be served.
            return None;
        }
        if !self.had_master {
            return Some(format!("{}: no master found yet", self.name));
        }
        if rules.without_master {
            return None;
        }
        (outage > self.hold_timeout)
            .then(|| format!("{}: no master for {} s", self.name, outage.as_secs()))
    }
}

/// The configured rules of readiness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadinessRules {
    /// Whether a process stays ready in the accepting phase of a shutdown.
    pub while_leaving: bool,
    /// Whether a process stays ready without a master that it had before.
    pub without_master: bool,
}

/// Decides whether the process is alive.
pub(crate) fn alive(loops: &[EventLoop]) -> Verdict {
    let stuck = loops.iter().filter(|it| it.age > STUCK_AFTER);
    Verdict::unless(
        stuck
            .map(|it| format!("{} has not iterated for {} ms", it.name, it.age.as_millis()))
            .collect(),
    )
}

/// Decides whether new clients should be sent to this process. `full`: why it accepts none.
pub(crate) fn ready(
    phase: Phase,
    rules: ReadinessRules,
    full: Option<&str>,
    services: &[ServiceHealth],
) -> Verdict {
    let mut reasons = Vec::new();
    match phase {
        Phase::Serving => {}
        Phase::Leaving if rules.while_leaving => {}
        _ => reasons.push(format!("shutting down: {}", phase.name())),
    }
    reasons.extend(full.map(str::to_owned));
    let unready: Vec<String> =
        services.iter().filter_map(|service| service.unready_reason(rules)).collect();
    if !services.is_empty() && unready.len() == services.len() {
        reasons.extend(unready);
    }
    Verdict::unless(reasons)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(stopped_ms: Option<u64>, had_master: bool) -> ServiceHealth {
        ServiceHealth {
            name: "m".to_owned(),
            outage: stopped_ms.map(Duration::from_millis),
            had_master,
            hold_timeout: Duration::from_secs(10),
            replicas: 0,
        }
    }

    const STAYS: ReadinessRules = ReadinessRules { while_leaving: false, without_master: true };
    const TURNS: ReadinessRules = ReadinessRules { while_leaving: false, without_master: false };

    fn is_ready(rules: ReadinessRules, services: &[ServiceHealth]) -> bool {
        ready(Phase::Serving, rules, None, services).ok
    }

    #[test]
    fn is_ready_if_replicas_serve_readers() {
        for had_master in [true, false] {
            let without_master = ServiceHealth { replicas: 1, ..service(Some(60_000), had_master) };
            assert!(
                is_ready(TURNS, std::slice::from_ref(&without_master))
                    && is_ready(STAYS, &[without_master])
            );
        }
    }

    #[test]
    fn stays_ready_without_master_by_default() {
        for gone_for in [1, 9_000, 11_000, 3_600_000] {
            assert!(is_ready(STAYS, &[service(Some(gone_for), true)]), "{gone_for} ms");
        }
        // All masters of all services.
        assert!(is_ready(STAYS, &[service(Some(60_000), true), service(Some(60_000), true)]));
    }

    #[test]
    fn turns_unready_after_hold_if_configured() {
        assert!(is_ready(TURNS, &[service(Some(9_000), true)]));
        let verdict = ready(Phase::Serving, TURNS, None, &[service(Some(11_000), true)]);
        assert!(
            !verdict.ok
                && verdict.reasons.iter().any(|reason| reason.contains("no master for 11 s"))
        );
    }

    #[test]
    fn is_unready_until_first_master() {
        for rules in [STAYS, TURNS] {
            let verdict = ready(Phase::Serving, rules, None, &[service(Some(1), false)]);
            assert!(
                !verdict.ok
                    && verdict.reasons.iter().any(|reason| reason.contains("no master found yet"))
            );
            // One service with a master suffices.
            assert!(is_ready(rules, &[service(Some(60_000), false), service(None, true)]));
        }
        assert!(is_ready(STAYS, &[service(Some(60_000), false), service(Some(60_000), true)]));
        assert!(!is_ready(TURNS, &[service(Some(60_000), false), service(Some(60_000), true)]));
    }

    #[test]
    fn stays_ready_if_one_of_two_masters_is_lost() {
        assert!(is_ready(TURNS, &[service(Some(60_000), true), service(None, true)]));
        assert!(!is_ready(TURNS, &[service(Some(60_000), true), service(Some(60_000), true)]));
    }

    #[test]
    fn is_unready_while_leaving_unless_configured() {
        for fine in [[service(None, true)], [service(Some(60_000), true)]] {
            let leaving = ReadinessRules { while_leaving: true, ..STAYS };
            assert!(!ready(Phase::Leaving, STAYS, None, &fine).ok);
            assert!(ready(Phase::Leaving, leaving, None, &fine).ok);
            assert!(!ready(Phase::Draining, leaving, None, &fine).ok);
            assert!(!ready(Phase::Serving, STAYS, Some("max_connections is reached"), &fine).ok);
        }
    }

    #[test]
    fn decides_liveness_by_event_loops_alone() {
        let turning = EventLoop { name: "discovery".to_owned(), age: Duration::from_millis(900) };
        let stuck = EventLoop { name: "worker 1".to_owned(), age: Duration::from_secs(6) };
        assert!(alive(std::slice::from_ref(&turning)).ok);
        let verdict = alive(&[turning, stuck]);
        assert!(
            !verdict.ok
                && verdict.reasons.len() == 1
                && verdict.reasons.iter().all(|it| it.contains("worker 1"))
        );
    }
}
