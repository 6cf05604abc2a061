//! The eras of masters, and what each change between them excuses. Pure.
//!
//! An era is the time in which one server is the master. Its end is known from the sentinels'
//! announcements, and its beginning from the server itself, which is asked all the time. Pointsman
//! is not asked.
//!
//! - `pointsman switchover` loses nothing, and no proxy may show the old master's state afterwards:
//!   for the checker there is no change.
//! - `SENTINEL FAILOVER` does not wait for the replicas. What was sent before one of them was
//!   selected may be lost if it lags; what is sent later is held by every proxy.
//! - Any other change may lose what the old master acknowledged until two sentinels announced its
//!   successor. From then on, no proxy may forward to it, or pass on its replies.
//! - A proxy that is stopped, or does not hear two sentinels, switches when it hears them again.
//!   Slow links and processes without CPU time are late, too.

use std::net::SocketAddr;

use super::checker::Change;
use super::operation::Micros;
use super::schedule::{Fault, Part};
use super::switches::Switch;
use super::timeline::{Injection, RoleChange};

/// How late a proxy may receive an event that the harness has received.
const EVENT: Micros = 50_000;
/// How long a proxy may need to switch after two sentinels announced a master.
const SWITCH: Micros = 150_000;
/// How long a reply may be on its way.
const REPLY: Micros = 100_000;
/// How long a proxy may need after its news were delayed: it connects to sentinels again.
const NEWS: Micros = 2_500_000;
/// Processes without CPU for this long may miss the time in which a plain failover holds traffic.
const ABSENT: Micros = 30_000;

/// Why a master was replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// `pointsman switchover`
    Switchover,
    /// `SENTINEL FAILOVER`
    Order,
    Fault,
    /// Sentinels without CPU time find a healthy master down.
    Environment,
}

/// A change of the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Era {
    pub(super) cause: Cause,
    pub(super) old: SocketAddr,
    pub(super) new: SocketAddr,
    pub(super) at: Micros,
    /// What it excuses; `None` for nothing.
    pub(super) excuse: Option<Change>,
}

impl Era {
    pub(super) fn line(&self) -> String {
        let Self { cause, old, new, excuse, .. } = self;
        let excuse = excuse.map_or("nothing may be lost".to_owned(), |it| {
            format!(
                "{old} may execute what was sent until {:.3} s and acknowledge it until {:.3} s",
                seconds(it.until),
                seconds(it.gone)
            )
        });
        format!("two sentinels have announced {new} instead of {old} ({cause:?}): {excuse}")
    }
}

pub(super) fn seconds(micros: Micros) -> f64 {
    std::time::Duration::from_micros(micros).as_secs_f64()
}

/// How long cores were away.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Away {
    pub(super) total: Micros,
    pub(super) longest: Micros,
}

/// What happened in an epoch.
pub(super) struct Evidence<'a> {
    pub(super) switches: &'a [Switch],
    pub(super) faults: &'a [Injection],
    pub(super) roles: &'a [RoleChange],
    /// For how long cores were away between two times.
    pub(super) away: &'a dyn Fn(Micros, Micros) -> Away,
}

impl Evidence<'_> {
    pub(super) fn eras(&self) -> Vec<Era> {
        let mut eras: Vec<Era> = self.switches.iter().map(|it| self.era(it)).collect();
        eras.extend(self.restarts());
        eras.sort_by_key(|it| it.at);
        // Masters leave in the order in which they began.
        let (mut opens, mut gone) = (0, 0);
        for excuse in eras.iter_mut().filter_map(|it| it.excuse.as_mut()) {
            excuse.opens = excuse.opens.max(opens);
            excuse.gone = excuse.gone.max(excuse.until).max(gone);
            (opens, gone) = (excuse.opens, excuse.gone);
        }
        eras
    }

    fn cause(&self, switch: &Switch) -> Cause {
        let before = |act: &&Injection| act.begin <= switch.at;
        let is_lost = |act: &Injection| !act.fault.is_planned() && act.node == Some(switch.old);
        if self.faults.iter().filter(before).any(is_lost) {
            return Cause::Fault;
        }
        let order = self.faults.iter().filter(before).find(|act| {
            let first = self.switches.iter().find(|it| it.at >= act.begin);
            act.fault.is_planned() && act.node == Some(switch.old) && first == Some(switch)
        });
        match order.map(|it| it.fault) {
            Some(Fault::Switchover) => Cause::Switchover,
            Some(_) => Cause::Order,
            None => Cause::Environment,
        }
    }

    /// When proxies may still not have heard of a switch.
    fn delay(&self, switch: &Switch) -> Option<Micros> {
        let since = switch.selected.min(switch.promoted);
        let delays = |act: &&Injection| {
            let end = act.end.unwrap_or(Micros::MAX);
            act.fault.delays_news()
                && act.begin <= switch.majority + SWITCH
                && end.saturating_add(NEWS) >= since
        };
        let end = |act: &Injection| act.end.unwrap_or(switch.majority).max(switch.majority) + NEWS;
        self.faults.iter().filter(delays).map(end).max()
    }

    /// When the successor became a master: the last time it was none, and when it was one.
    fn promotion(&self, switch: &Switch) -> (Micros, Micros) {
        let begins = |turn: &&RoleChange| {
            turn.node == switch.new && turn.is_master && turn.at <= switch.majority + NEWS
        };
        match self.roles.iter().rev().find(begins) {
            Some(turn) if turn.at >= switch.from => (turn.before, turn.at),
            _ => (switch.promoted, switch.at),
        }
    }

    fn era(&self, switch: &Switch) -> Era {
        let cause = self.cause(switch);
        let (opens, promoted) = self.promotion(switch);
        let away = (self.away)(switch.selected.min(opens), switch.majority + SWITCH);
        let delay = self.delay(switch);
        // A server that was disturbed itself may lack what it had not received.
        let about_new =
            |act: &Injection| act.node == Some(switch.new) && act.fault.part() == Part::Replica;
        let is_clean =
            delay.is_none() && !self.faults.iter().any(about_new) && away.longest < ABSENT;
        let change = |until: Micros, gone: Micros| {
            let until = delay.map_or(until, |delay| delay.max(until));
            let gone = gone.max(until + REPLY) + away.total;
            Some(Change { opens, until, gone, empties: false })
        };
        // A master whose clock jumps closes its connections to replicas, which continue later.
        // Pointsman waits for them in a switchover, Sentinel does not.
        let jumped =
            |act: &Injection| act.fault.part() == Part::Clock && act.begin <= switch.majority;
        let is_current = !self.faults.iter().any(jumped);
        let excuse = match cause {
            Cause::Switchover if is_clean => None,
            Cause::Order if is_clean && is_current => {
                change(switch.selected + EVENT, promoted + REPLY)
            }
            _ => change(switch.majority + SWITCH + away.total, 0),
        };
        Era { cause, old: switch.old, new: switch.new, at: switch.majority, excuse }
    }

    /// A replica that is promoted in the step in which it is killed comes back as an empty master,
    /// and the other servers copy that.
    fn restarts(&self) -> Vec<Era> {
        let is_promoted =
            |act: &&Injection| self.switches.iter().any(|it| Some(it.new) == act.node);
        let killed = self.faults.iter().filter(|it| it.fault == Fault::KillReplica);
        let era = |act: &Injection| {
            let (node, until) = (act.node?, act.end.unwrap_or(act.begin) + NEWS);
            let (opens, gone) = (act.begin, until + REPLY);
            // One that is killed before its selection copies the master's data again.
            let was_selected = |it: &Switch| it.new == node && it.selected <= act.begin;
            let empties = self.switches.iter().any(was_selected);
            let excuse = Some(Change { opens, until, gone, empties });
            Some(Era { cause: Cause::Fault, old: node, new: node, at: act.begin, excuse })
        };
        killed.filter(is_promoted).filter_map(era).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = 1_000_000;

    fn node(number: u8) -> SocketAddr {
        SocketAddr::from(([127, 0, 100, number], 6379))
    }

    fn switch() -> Switch {
        let (old, new) = (node(1), node(2));
        Switch {
            at: 5 * SECOND,
            majority: 5 * SECOND + 10_000,
            from: 2 * SECOND,
            selected: 3 * SECOND,
            promoted: 4 * SECOND,
            old,
            new,
        }
    }

    fn act(fault: Fault, number: u8, begin: Micros, end: Micros) -> Injection {
        Injection { fault, node: (number > 0).then(|| node(number)), begin, end: Some(end) }
    }

    fn eras(faults: &[Injection], longest: Micros) -> Vec<Era> {
        let turn = RoleChange {
            node: node(2),
            before: 4 * SECOND + 100,
            at: 4 * SECOND + 200,
            is_master: true,
            replication: "x".to_owned(),
        };
        let (switches, roles) = ([switch()], [turn]);
        Evidence {
            switches: &switches,
            faults,
            roles: &roles,
            away: &|_, _| Away { total: longest, longest },
        }
        .eras()
    }

    #[test]
    fn excuses_nothing_at_a_switchover() {
        let order = act(Fault::Switchover, 1, SECOND, 6 * SECOND);
        assert_eq!(eras(&[order], 0)[0].excuse, None);
        let slow = eras(&[order], 2 * ABSENT);
        assert!(slow[0].excuse.is_some(), "without CPU time nothing is held in time");
        let other = act(Fault::StopProxy, 0, 3 * SECOND, 4 * SECOND);
        let late = eras(&[order, other], 0)[0].excuse.expect("a late proxy");
        assert_eq!(late.until, switch().majority + NEWS);
        let over = act(Fault::StopProxy, 0, 0, SECOND / 10);
        assert_eq!(eras(&[order, over], 0)[0].excuse, None);
    }

    #[test]
    fn excuses_lag_before_selection_at_an_order() {
        let order = act(Fault::PlannedFailover, 1, SECOND, 6 * SECOND);
        let it = &eras(&[order], 0)[0];
        let change = it.excuse.expect("a lag");
        assert_eq!((it.cause, change.until), (Cause::Order, 3 * SECOND + EVENT));
        assert_eq!(change.opens, 4 * SECOND + 100);
        assert_eq!(change.gone, 4 * SECOND + 200 + REPLY);
    }

    #[test]
    fn excuses_loss_until_announcement_at_a_fault() {
        let kill = act(Fault::KillMaster, 1, SECOND, 6 * SECOND);
        let it = &eras(&[kill], 0)[0];
        let change = it.excuse.expect("a loss");
        assert_eq!((it.cause, change.until), (Cause::Fault, switch().majority + SWITCH));
        assert_eq!(eras(&[], 0)[0].cause, Cause::Environment);
    }

    #[test]
    fn expects_empty_master_where_a_promoted_one_was_killed() {
        let order = act(Fault::PlannedFailover, 1, SECOND, 6 * SECOND);
        let killed = act(Fault::KillReplica, 2, 6 * SECOND, 7 * SECOND);
        let found = eras(&[order, killed], 0);
        assert_eq!((found.len(), found[1].old, found[1].new), (2, node(2), node(2)));
        assert!(found[1].excuse.is_some_and(|it| it.empties));
        // Killed before it was selected, it has what the master has.
        let before = act(Fault::KillReplica, 2, 2 * SECOND, 5 * SECOND / 2);
        assert!(eras(&[order, before], 0).iter().all(|it| !it.excuse.is_some_and(|it| it.empties)));
        let other = act(Fault::KillReplica, 3, 6 * SECOND, 7 * SECOND);
        assert_eq!(eras(&[order, other], 0).len(), 1);
    }
}
