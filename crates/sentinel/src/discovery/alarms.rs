//! Conditions among the servers that last and that an operator has to end: each begins and ends,
//! with a delay that separates it from what happens in every restart and failover. Pure.
//!
//! They change nothing about the target. What a sentinel that does not know the name, or a listed
//! one that is gone, means for votes is decided by the machine's electorate.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::labelled::labelled;

/// The maximum number of servers in one alarm.
const MAX_SUBJECTS: usize = 64;

/// The number of alarms that are remembered after their end.
const MAX_ENDED: usize = 16;

labelled! {
    /// The kinds of alarms.
    pub enum Alarm {
        /// Connected sentinels do not know the master's name, and those that do are no majority.
        NameUnknown = "name_unknown",
        /// A configured sentinel answers, and no other sentinel lists it.
        Unlisted = "unlisted",
        /// Sentinels that are listed, are down everywhere and are not configured. They count
        /// towards the majority that a failover needs.
        Ghosts = "ghosts",
        /// Addresses of nodes or sentinels are announced that the option `nodes` does not permit.
        OutsideNodes = "outside_nodes",
        /// The sentinels list a listener of this process as a replica: a replica follows it, and
        /// announces its address. They make each listed replica follow the master, and so the
        /// master itself, to which this process connects them.
        FollowedByReplica = "followed_by_replica",
        /// A promoted node lacks writes that replicas have confirmed to clients, with `durability`.
        LacksConfirmed = "lacks_confirmed",
    }
}

impl Alarm {
    /// The condition and its consequence.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            Self::NameUnknown => {
                "too few sentinels know the master's name for a majority: check service.master; a \
                 failover is not seen"
            }
            Self::Unlisted => {
                "no other sentinel lists a configured sentinel: it takes no part in failovers"
            }
            Self::Ghosts => {
                "sentinels that are gone are still listed and count towards the majority"
            }
            Self::OutsideNodes => {
                "sentinels announce addresses outside `nodes`, which are not dialled: add them if \
                 they are yours; otherwise find out who announced them"
            }
            Self::FollowedByReplica => {
                "a replica follows this proxy, so the sentinels list the proxy as a replica, and \
                 are about to demote the master through it: REPLICAOF the master itself there"
            }
            Self::LacksConfirmed => {
                "a promoted node lacks writes that were confirmed to clients: it is followed after \
                 hold_timeout, unless another one is promoted"
            }
        }
    }

    /// How long the condition lasts before the alarm begins.
    fn delay(self) -> Duration {
        match self {
            // A vote expires after five seconds. A sentinel that is removed and monitored anew in a
            // repair knows the name again within one.
            Self::NameUnknown => Duration::from_secs(5),
            // Sentinels say hello every 2 s; one that joined was listed by all after 2.0 s. Five
            // hellos, since a busy one may miss some.
            Self::Unlisted => Duration::from_secs(10),
            // As long as the electorate waits before it removes a silent member: a restart is over.
            Self::Ghosts => Duration::from_secs(30),
            // Nothing that passes by itself brings it about.
            Self::OutsideNodes => Duration::ZERO,
            // The master is demoted within ten seconds after the sentinels have listed the replica.
            Self::FollowedByReplica | Self::LacksConfirmed => Duration::ZERO,
        }
    }
}

/// What is true at one moment: the servers, by address or ID, to which each condition applies.
pub(crate) type Conditions = BTreeMap<Alarm, BTreeSet<String>>;

/// An alarm that is on, or was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlarmRecord {
    /// Its kind.
    pub alarm: Alarm,
    /// When the condition began, which is earlier than the alarm by its delay.
    pub since: Instant,
    /// When it ended; `None` while it is on.
    pub ended_at: Option<Instant>,
    /// The servers concerned, now or last.
    pub sentinels: Vec<String>,
}

/// The alarms of one service.
#[derive(Debug, Default)]
pub(crate) struct Alarms {
    /// Since when each condition applies to each sentinel.
    pending: BTreeMap<(Alarm, String), Instant>,
    active: BTreeMap<Alarm, AlarmRecord>,
    ended: VecDeque<AlarmRecord>,
}

impl Alarms {
    /// Takes the conditions at `now`. Returns the alarms that began or ended.
    pub(crate) fn update(&mut self, now: Instant, conditions: &Conditions) -> Vec<AlarmRecord> {
        self.pending.retain(|(alarm, subject), _| {
            conditions.get(alarm).is_some_and(|subjects| subjects.contains(subject))
        });
        let mut changes = Vec::new();
        for alarm in Alarm::ALL {
            for subject in conditions.get(&alarm).into_iter().flatten().take(MAX_SUBJECTS) {
                self.pending.entry((alarm, subject.clone())).or_insert(now);
            }
            let pending = self.pending.iter().filter(|((kind, _), _)| *kind == alarm);
            let lasting = pending
                .filter(|(_, since)| now.saturating_duration_since(**since) >= alarm.delay());
            let (subjects, begun): (Vec<String>, Vec<Instant>) =
                lasting.map(|((_, subject), since)| (subject.clone(), *since)).unzip();
            match (begun.into_iter().min(), self.active.get_mut(&alarm)) {
                (Some(_), Some(active)) => active.sentinels = subjects,
                (Some(since), None) => {
                    let record = AlarmRecord { alarm, since, ended_at: None, sentinels: subjects };
                    changes.push(record.clone());
                    self.active.insert(alarm, record);
                }
                (None, Some(_)) => {
                    if let Some(active) = self.active.remove(&alarm) {
                        let record = AlarmRecord { ended_at: Some(now), ..active };
                        changes.push(record.clone());
                        self.ended.push_back(record);
                        if self.ended.len() > MAX_ENDED {
                            self.ended.pop_front();
                        }
                    }
                }
                (None, None) => {}
            }
        }
        changes
    }

    /// After the process was suspended nothing is known about the time in between.
    pub(crate) fn restart_delays(&mut self) {
        self.pending.clear();
    }

    /// The alarms: those that ended, oldest first, then those that are on.
    pub(crate) fn records(&self) -> Vec<AlarmRecord> {
        self.ended.iter().chain(self.active.values()).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> BTreeSet<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn begins_after_the_delay_and_ends_at_once() {
        let (start, mut alarms) = (Instant::now(), Alarms::default());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let unlisted = Conditions::from([(Alarm::Unlisted, names(&["a"]))]);
        assert_eq!(alarms.update(at(0), &unlisted), []);
        assert_eq!(alarms.update(at(9), &unlisted), [], "a sentinel that has just started");
        let began = alarms.update(at(10), &unlisted);
        assert_eq!(began.len(), 1);
        assert_eq!(
            (began[0].alarm, began[0].since, began[0].ended_at),
            (Alarm::Unlisted, at(0), None)
        );
        assert_eq!(began[0].sentinels, ["a"]);
        assert_eq!(alarms.update(at(20), &unlisted), [], "once");
        let ended = alarms.update(at(21), &Conditions::default());
        assert_eq!((ended.len(), ended[0].ended_at), (1, Some(at(21))));
        assert_eq!(alarms.records(), ended, "it is remembered");
    }

    #[test]
    fn interruption_restarts_the_delay() {
        let (start, mut alarms) = (Instant::now(), Alarms::default());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let unknown = Conditions::from([(Alarm::NameUnknown, names(&["a", "b"]))]);
        alarms.update(at(0), &unknown);
        alarms.update(at(4), &Conditions::default());
        assert_eq!(alarms.update(at(5), &unknown), []);
        assert_eq!(alarms.update(at(9), &unknown), []);
        assert_eq!(alarms.update(at(10), &unknown)[0].sentinels, ["a", "b"]);
        alarms.restart_delays();
        assert_eq!(alarms.update(at(11), &unknown)[0].ended_at, Some(at(11)), "suspended");
    }

    #[test]
    fn keeps_each_alarm_apart_and_everything_bounded() {
        let (start, mut alarms) = (Instant::now(), Alarms::default());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let many = (0..500).map(|number| format!("{number:03}")).collect();
        let all = Conditions::from([
            (Alarm::NameUnknown, names(&["a"])),
            (Alarm::Unlisted, names(&["b"])),
            (Alarm::Ghosts, many),
            (Alarm::OutsideNodes, names(&["c"])),
            (Alarm::FollowedByReplica, names(&["d"])),
            (Alarm::LacksConfirmed, names(&["e"])),
        ]);
        let at_once: Vec<Alarm> = alarms.update(at(0), &all).iter().map(|it| it.alarm).collect();
        assert_eq!(at_once, [Alarm::OutsideNodes, Alarm::FollowedByReplica, Alarm::LacksConfirmed]);
        let began: Vec<Alarm> = alarms.update(at(30), &all).iter().map(|it| it.alarm).collect();
        assert_eq!(began, [Alarm::NameUnknown, Alarm::Unlisted, Alarm::Ghosts]);
        assert_eq!(alarms.records()[2].sentinels.len(), MAX_SUBJECTS);
        for round in 0..40 {
            alarms.update(at(100 + round * 60), &Conditions::default());
            alarms.update(at(110 + round * 60), &all);
            alarms.update(at(140 + round * 60), &all);
        }
        assert_eq!(alarms.records().len(), MAX_ENDED + Alarm::ALL.len());
    }
}
