//! Repeated switchovers under load: what may be lost in each, by the time that the machine left.

use std::time::{Duration, Instant};

use harness::{Absences, Cluster, Events, Load, Pointsman};

use super::{RATE, WRITERS, coordinates, wait_settled};
use crate::switchover::{TOKEN, order, stderr, stdout};
use crate::warning::Warning;

/// Cores that are away for this long in total delay replies and the master change itself, by which
/// a session may end.
const MUCH_ABSENCE: Duration = Duration::from_millis(300);

/// One of several switchovers under load, as the writers of two proxies saw it.
#[derive(Debug)]
pub(super) struct Round {
    warning: Warning,
    /// The absences of all cores from the order to its end.
    away: Duration,
    errors: u64,
    missing: u64,
    /// Upper bound of the writes that were acknowledged too late to be replicated.
    at_risk: u64,
}

impl Round {
    /// Orders a switchover through one proxy and compares the acknowledged writes of all with the
    /// new master.
    pub(super) fn of(
        cluster: &Cluster,
        one: &Pointsman,
        loads: &[Load],
        absences: &Absences,
    ) -> Self {
        let events = Events::of_all(cluster.sentinels());
        let errors = || loads.iter().map(|load| load.counts().errors).sum::<u64>();
        let (before, asked) = (errors(), Instant::now());
        let done = order(one, &["switchover"], TOKEN);
        let away = absences.between(asked, Instant::now());
        assert!(done.status.success(), "{}{}", stdout(&done), stderr(&done));
        wait_settled(cluster);
        let master = cluster.master().addr();
        let verify = |load: &Load| load.settle(master).expect("a look at the new master").missing;
        let missing = loads.iter().map(verify).sum();
        let warning = Warning::of(&events, absences);
        let pause = |load: &Load| {
            let gaps = load.gaps().into_iter().filter(|gap| gap.to > warning.from);
            gaps.max_by_key(harness::Gap::length).map_or(warning.until, |gap| gap.from)
        };
        let until = loads.iter().map(pause).max().unwrap_or(warning.until).min(warning.until);
        let time = until.saturating_duration_since(warning.from).as_millis();
        let at_risk = u64::from(RATE) * u64::try_from(time).unwrap_or(u64::MAX) / 1000;
        let at_risk = (at_risk + WRITERS as u64) * loads.len() as u64;
        Self { warning, away, errors: errors() - before, missing, at_risk }
    }

    pub(super) fn check(&self) {
        // The promotion is announced at least 50 ms ahead. If the machine leaves nothing of that,
        // the other proxy closes its gate too late, and the old master acknowledges writes that
        // the new one never gets; a coordinated failover loses none even then.
        if coordinates() || self.warning.was_enough("that no acknowledged write is lost") {
            assert_eq!(self.missing, 0, "{self:?}");
        } else {
            assert!(self.missing <= self.at_risk, "{self:?}");
        }
        if self.away < MUCH_ABSENCE && self.warning.was_enough("that no request fails") {
            assert_eq!(self.errors, 0, "{self:?}");
        }
    }
}
