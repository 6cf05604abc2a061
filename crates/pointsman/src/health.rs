//! What the probes answer, decided from facts alone.
//!
//! Liveness never looks at Redis: a process whose loops turn is alive, and restarting it would not bring a master back.
//! Readiness stays true through an ordinary failover, because clients that arrive meanwhile are accepted and held; it turns
//! false when no service has had a master for longer than a client may be held, and when the process leaves.
//!
//! With several services in one process, readiness asks whether *any* of them can be served: a pod is taken out of all its
//! Kubernetes Services at once, and one dead master must not take the clients of the others along. For the same reason a
//! service whose replicas serve readers is no reason against readiness while it has no master.

use std::time::Duration;

use drain::Phase;
use probe::Verdict;

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
    /// Why a new client of this service could not be served, if so.
    fn lack(&self) -> Option<String> {
        let stopped_for = self.stopped_for?;
        if self.replicas > 0 {
            // Its readers can be served.
            return None;
        }
        if !self.had_master {
            return Some(format!("{}: no master found yet", self.name));
        }
        (stopped_for > self.hold_timeout).then(|| format!("{}: no master for {} s", self.name, stopped_for.as_secs()))
    }
}

/// Why nobody new can be let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// Every connection that may be open is.
    Connections,
    /// Memory is about to run out.
    Memory,
}

/// Whether the process works as such.
#[must_use]
pub fn alive(loops: &[Loop]) -> Verdict {
    let stuck = loops.iter().filter(|it| it.age > STUCK_AFTER);
    Verdict::unless(stuck.map(|it| format!("{} has not turned for {} ms", it.name, it.age.as_millis())).collect())
}

/// Whether new clients should be sent here.
#[must_use]
pub fn ready(phase: Phase, ready_while_leaving: bool, full: Option<Full>, services: &[Service]) -> Verdict {
    let mut reasons = Vec::new();
    match phase {
        Phase::Serving => {}
        Phase::Leaving if ready_while_leaving => {}
        _ => reasons.push(format!("shutting down: {}", phase.name())),
    }
    match full {
        None => {}
        Some(Full::Connections) => reasons.push("every connection that max_connections allows is taken".to_owned()),
        Some(Full::Memory) => reasons.push("memory is about to run out".to_owned()),
    }
    let lacks: Vec<String> = services.iter().filter_map(Service::lack).collect();
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

    #[test]
    fn replicas_that_serve_readers_are_enough() {
        let without_master = Service { replicas: 1, ..service(Some(60_000), true) };
        assert!(ready(Phase::Serving, false, None, &[without_master]).ok);
    }

    #[test]
    fn a_failover_shorter_than_the_hold_does_not_make_unready() {
        assert!(ready(Phase::Serving, false, None, &[service(Some(9_000), true)]).ok);
        assert!(!ready(Phase::Serving, false, None, &[service(Some(11_000), true)]).ok);
    }

    #[test]
    fn a_process_that_never_found_a_master_is_not_ready_and_says_so() {
        let verdict = ready(Phase::Serving, false, None, &[service(Some(1), false)]);
        assert!(!verdict.ok && verdict.reasons.iter().any(|reason| reason.contains("no master found yet")));
    }

    #[test]
    fn one_dead_master_does_not_take_the_other_services_along() {
        assert!(ready(Phase::Serving, false, None, &[service(Some(60_000), true), service(None, true)]).ok);
        assert!(!ready(Phase::Serving, false, None, &[service(Some(60_000), true), service(Some(60_000), true)]).ok);
    }

    #[test]
    fn who_leaves_is_unready_unless_told_otherwise() {
        let fine = [service(None, true)];
        assert!(!ready(Phase::Leaving, false, None, &fine).ok);
        assert!(ready(Phase::Leaving, true, None, &fine).ok);
        assert!(!ready(Phase::Draining, true, None, &fine).ok);
        assert!(!ready(Phase::Serving, false, Some(Full::Connections), &fine).ok);
        assert!(!ready(Phase::Serving, false, Some(Full::Memory), &fine).ok);
    }

    #[test]
    fn liveness_is_about_loops_and_nothing_else() {
        let turning = Loop { name: "discovery".to_owned(), age: Duration::from_millis(900) };
        let stuck = Loop { name: "worker 1".to_owned(), age: Duration::from_secs(6) };
        assert!(alive(std::slice::from_ref(&turning)).ok);
        let verdict = alive(&[turning, stuck]);
        assert!(!verdict.ok && verdict.reasons.len() == 1 && verdict.reasons.iter().all(|it| it.contains("worker 1")));
    }
}
