//! What the probes answer, decided from facts alone.
//!
//! Liveness never looks at Redis: a process whose loops turn is alive, and restarting it would not
//! bring a master back.
//!
//! Readiness says whether new clients should be sent here rather than elsewhere, so the question is
//! what they would find elsewhere. A master is lost by all instances together. An instance without
//! one holds its clients, and answers them with an error that they try again after; a Service whose
//! instances are all unready refuses them, and keeps refusing for some seconds after the new master
//! is there. So an instance that has known a master stays ready without one, unless the
//! configuration says otherwise ([`Rules::without_master`]): then it turns unready when nothing
//! could be sent to a master for longer than a client may be held, which keeps clients from an
//! instance that alone cannot reach Redis.
//!
//! | Situation | Stays ready (default) | Turns unready |
//! |---|---|---|
//! | a failover longer than the hold | clients are held, then answered | clients are refused by every instance |
//! | no Redis and no sentinel at all | clients are held, then answered | clients are refused by every instance |
//! | one of N instances is cut off | one new client in N waits for the hold and has to try again | all are served |
//! | no master was ever found | unready | unready |
//! | it is leaving, or full | unready | unready |
//!
//! With several services in one process, readiness asks whether *any* of them can be served: a pod
//! is taken out of all its Kubernetes Services at once, and one dead master must not take the
//! clients of the others along. For the same reason a service whose replicas serve readers is no
//! reason against readiness while it has no master.

use std::time::Duration;

use admin_http::Verdict;
use drain::Phase;

/// A loop that has not turned for this long is stuck. All of them turn at least once a second.
pub const STUCK_AFTER: Duration = Duration::from_secs(5);

/// One event loop of the process.
#[derive(Debug, Clone)]
pub struct Loop {
    /// For people: `worker 3`, `discovery`.
    pub name: String,
    /// Since it last turned.
    pub age: Duration,
}

/// One service, as far as readiness is concerned.
#[derive(Debug, Clone)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// For how long nothing could be sent to a master; `None` while all flows.
    pub stopped_for: Option<Duration>,
    /// It had a master at some time.
    pub had_master: bool,
    /// How long a client may be held.
    pub hold_timeout: Duration,
    /// Replicas that serve readers.
    pub replicas: usize,
}

impl Service {
    /// Why a new client of this service should go elsewhere, if so.
    fn lack(&self, rules: Rules) -> Option<String> {
        let stopped_for = self.stopped_for?;
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
        (stopped_for > self.hold_timeout)
            .then(|| format!("{}: no master for {} s", self.name, stopped_for.as_secs()))
    }
}

/// What the configuration says of readiness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// A process that leaves is ready while it accepts.
    pub while_leaving: bool,
    /// A process whose masters were known and are gone is ready.
    pub without_master: bool,
}

/// Why nobody new can be let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// Every connection that may be open is.
    Connections,
    /// Memory is about to run out.
    Memory,
    /// The limit on open files carries no more.
    Files,
}

/// Whether the process works as such.
#[must_use]
pub fn alive(loops: &[Loop]) -> Verdict {
    let stuck = loops.iter().filter(|it| it.age > STUCK_AFTER);
    Verdict::unless(
        stuck
            .map(|it| format!("{} has not turned for {} ms", it.name, it.age.as_millis()))
            .collect(),
    )
}

/// Whether new clients should be sent here.
#[must_use]
pub fn ready(phase: Phase, rules: Rules, full: Option<Full>, services: &[Service]) -> Verdict {
    let mut reasons = Vec::new();
    match phase {
        Phase::Serving => {}
        Phase::Leaving if rules.while_leaving => {}
        _ => reasons.push(format!("shutting down: {}", phase.name())),
    }
    match full {
        None => {}
        Some(Full::Connections) => {
            reasons.push("every connection that max_connections allows is taken".to_owned())
        }
        Some(Full::Memory) => reasons.push("memory is about to run out".to_owned()),
        Some(Full::Files) => {
            reasons.push("every connection that the limit on open files allows is taken".to_owned())
        }
    }
    let lacks: Vec<String> = services.iter().filter_map(|service| service.lack(rules)).collect();
    if !services.is_empty() && lacks.len() == services.len() {
        reasons.extend(lacks);
    }
    Verdict::unless(reasons)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(stopped_ms: Option<u64>, had_master: bool) -> Service {
        Service {
            name: "m".to_owned(),
            stopped_for: stopped_ms.map(Duration::from_millis),
            had_master,
            hold_timeout: Duration::from_secs(10),
            replicas: 0,
        }
    }

    const STAYS: Rules = Rules { while_leaving: false, without_master: true };
    const TURNS: Rules = Rules { while_leaving: false, without_master: false };

    fn is_ready(rules: Rules, services: &[Service]) -> bool {
        ready(Phase::Serving, rules, None, services).ok
    }

    #[test]
    fn replicas_that_serve_readers_are_enough() {
        for had_master in [true, false] {
            let without_master = Service { replicas: 1, ..service(Some(60_000), had_master) };
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
            // One service is enough for the others that have not found theirs.
            assert!(is_ready(rules, &[service(Some(60_000), false), service(None, true)]));
        }
        assert!(is_ready(STAYS, &[service(Some(60_000), false), service(Some(60_000), true)]));
        assert!(!is_ready(TURNS, &[service(Some(60_000), false), service(Some(60_000), true)]));
    }

    #[test]
    fn one_dead_master_does_not_take_the_other_services_along() {
        assert!(is_ready(TURNS, &[service(Some(60_000), true), service(None, true)]));
        assert!(!is_ready(TURNS, &[service(Some(60_000), true), service(Some(60_000), true)]));
    }

    #[test]
    fn who_leaves_is_unready_unless_told_otherwise() {
        for fine in [[service(None, true)], [service(Some(60_000), true)]] {
            let leaving = Rules { while_leaving: true, ..STAYS };
            assert!(!ready(Phase::Leaving, STAYS, None, &fine).ok);
            assert!(ready(Phase::Leaving, leaving, None, &fine).ok);
            assert!(!ready(Phase::Draining, leaving, None, &fine).ok);
            assert!(!ready(Phase::Serving, STAYS, Some(Full::Connections), &fine).ok);
            assert!(!ready(Phase::Serving, STAYS, Some(Full::Memory), &fine).ok);
        }
    }

    #[test]
    fn liveness_is_about_loops_and_nothing_else() {
        let turning = Loop { name: "discovery".to_owned(), age: Duration::from_millis(900) };
        let stuck = Loop { name: "worker 1".to_owned(), age: Duration::from_secs(6) };
        assert!(alive(std::slice::from_ref(&turning)).ok);
        let verdict = alive(&[turning, stuck]);
        assert!(
            !verdict.ok
                && verdict.reasons.len() == 1
                && verdict.reasons.iter().all(|it| it.contains("worker 1"))
        );
    }
}
