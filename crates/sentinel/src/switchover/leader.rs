//! Reads the events and answers of the sentinel that leads the requested failover, and follows
//! that failover by them.
//!
//! The sentinel that accepts `SENTINEL FAILOVER` is the leader of that failover without an election
//! (`redis:src/sentinel.c:sentinelFailoverWaitStart`); a coordinated one needs the election, and
//! `-failover-abort-not-elected` ends it if another sentinel wins. So its own events, read on a
//! dedicated connection, distinguish this failover from every other one. Events may get lost; its
//! answers carry the same information a little later.
//!
//! A new master counts as the result of the command only if the leader had selected that replica,
//! at the epoch at which the failover began.

use std::time::Duration;

use super::participants::Participants;
use crate::NodeAddr;
use crate::link::notice::{self, Notice};
use crate::link::poll::{entry_address, has_flag, is_down};
use crate::link::reply::Reply;

/// The channels that [`read_event`] understands, besides the optional ones of
/// `link::subscription`.
pub(super) const CHANNELS: &[&str] = &[
    "+new-epoch",
    "+try-failover",
    "+selected-slave",
    "+promoted-slave",
    "-failover-abort-not-elected",
    "-failover-abort-no-good-slave",
    "-failover-abort-slave-timeout",
];

/// An event of the leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LeaderEvent {
    /// The epoch that it uses from now on; a failover that begins next has this epoch.
    Epoch(u64),
    /// The failover begins.
    Begun,
    /// This replica will be promoted.
    Selected(NodeAddr),
    /// The promotion was observed. From here on the failover completes, if necessary by
    /// `+failover-end-for-timeout`, which is no abort.
    Promoted(NodeAddr),
    /// The failover was aborted, with nothing promoted as far as this sentinel knows. Holds the
    /// event's name.
    Aborted(Box<str>),
}

/// Reads a published event; `None` for an event about another master, or an irrelevant one.
pub(super) fn read_event(channel: &str, payload: &str, master: &str) -> Option<LeaderEvent> {
    if channel == "+new-epoch" {
        return payload.split_ascii_whitespace().next()?.parse().ok().map(LeaderEvent::Epoch);
    }
    match notice::parse(channel, payload).filter(|(about, _)| *about == Some(master))?.1 {
        Notice::Trouble if channel == "+try-failover" => Some(LeaderEvent::Begun),
        Notice::CandidateSelected { candidate } => Some(LeaderEvent::Selected(candidate)),
        Notice::Promoted { candidate } => Some(LeaderEvent::Promoted(candidate)),
        Notice::Aborted => Some(LeaderEvent::Aborted(channel.into())),
        _ => None,
    }
}

/// The leader's view of the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LeaderView {
    /// The master. During its own failover a leader reports the old one until `+switch-master`.
    pub(super) master: NodeAddr,
    /// The config-epoch: that of the failover from the promotion on.
    pub(super) epoch: u64,
    /// A failover is in progress on this sentinel.
    pub(super) failing_over: bool,
    /// It considers the master down.
    pub(super) down: bool,
    /// The selected replica, while the failover lasts.
    pub(super) selected: Option<NodeAddr>,
    /// A node without an answer for this long is considered down.
    pub(super) down_after: Option<Duration>,
    /// The replicas as it would choose among them.
    pub(super) replicas: Vec<ListedReplica>,
}

/// A replica as a sentinel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ListedReplica {
    pub(super) addr: NodeAddr,
    /// Its `replica-priority` at the sentinel's last INFO. 0: never to be promoted.
    pub(super) priority: u64,
    /// Time since that INFO.
    pub(super) info_age: Option<Duration>,
    /// Why the sentinel would not promote it, other than by priority.
    pub(super) unfit: Option<&'static str>,
}

fn millis(entry: &Reply, key: &str) -> Option<Duration> {
    entry.field(key)?.parse().ok().map(Duration::from_millis)
}

/// Reads an element of `SENTINEL REPLICAS`. The reasons are those of
/// `redis:src/sentinel.c:sentinelSelectSlave`, and a broken link, for which that waits longer.
fn listed_replica(reply: &Reply) -> Option<ListedReplica> {
    let unfit = [
        (is_down(reply), "it considers it down"),
        (has_flag(reply, "disconnected"), "it is not connected to it"),
        (reply.field("master-link-status") == Some("err"), "its link to the master is down"),
    ];
    Some(ListedReplica {
        addr: entry_address(reply)?,
        priority: reply.field("slave-priority")?.parse().ok()?,
        info_age: millis(reply, "info-refresh"),
        unfit: unfit.into_iter().find_map(|(is_unfit, reason)| is_unfit.then_some(reason)),
    })
}

/// Reads the answers to `SENTINEL MASTER` and `SENTINEL REPLICAS`.
pub(super) fn read_view(master: &Reply, replicas: &Reply) -> Option<LeaderView> {
    let replicas = replicas.list()?;
    Some(LeaderView {
        master: entry_address(master)?,
        epoch: master.field("config-epoch")?.parse().ok()?,
        failing_over: has_flag(master, "failover_in_progress"),
        down: is_down(master),
        selected: replicas.iter().find(|it| has_flag(it, "promoted")).and_then(entry_address),
        down_after: millis(master, "down-after-milliseconds"),
        replicas: replicas.iter().filter_map(listed_replica).collect(),
    })
}

/// The requested failover, from its command on. It ends the hold when Sentinel gives up, and
/// distinguishes this failover from every other one.
#[derive(Debug, Default)]
pub(super) struct Failover {
    /// The epoch that the leader took last; that of the failover once it has begun.
    epoch: Option<u64>,
    begun: bool,
    selected: Option<NodeAddr>,
    promoted: bool,
}

impl Failover {
    /// A replica was selected: from here on the discovery machine holds by itself.
    pub(super) fn is_selected(&self) -> bool {
        self.selected.is_some()
    }

    /// Whether this master is the result of the command.
    pub(super) fn led_to(&self, to: &NodeAddr, epoch: u64) -> bool {
        self.selected.as_ref() == Some(to) && self.epoch.is_none_or(|it| it == epoch)
    }

    /// Processes an event received after the command, and returns it if it is news about this
    /// failover: a selection, a promotion or an abort. Events before `Begun` belong to another one.
    pub(super) fn event(&mut self, event: LeaderEvent) -> Option<LeaderEvent> {
        match &event {
            LeaderEvent::Epoch(epoch) if !self.begun => self.epoch = Some(*epoch),
            LeaderEvent::Begun => self.begun = true,
            LeaderEvent::Selected(node) if self.begun => return self.select(node.clone()),
            LeaderEvent::Promoted(node)
                if self.selected.as_ref() == Some(node) && !self.promoted =>
            {
                self.promoted = true;
                return Some(event);
            }
            LeaderEvent::Aborted(_) if self.begun && !self.promoted => return Some(event),
            // After a promotion it completes, whether every replica was reconfigured in time or
            // not.
            _ => {}
        }
        None
    }

    /// Processes an answer to a poll that was sent after the command was accepted. Returns the
    /// event that it shows, if that is news.
    pub(super) fn view(&mut self, view: LeaderView, before: &Participants) -> Option<LeaderEvent> {
        match view.selected {
            Some(node) if view.failing_over => {
                // The config-epoch rises with the promotion.
                if view.epoch > before.master.epoch {
                    self.epoch.get_or_insert(view.epoch);
                }
                self.select(node)
            }
            None if !view.failing_over && view.master == before.master.addr && !self.promoted => {
                let problem = "no failover is in progress on this sentinel";
                Some(LeaderEvent::Aborted(problem.into()))
            }
            _ => None,
        }
    }

    fn select(&mut self, node: NodeAddr) -> Option<LeaderEvent> {
        let is_news = self.selected.is_none();
        is_news.then(|| LeaderEvent::Selected(self.selected.insert(node).clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::subscription::OPTIONAL_CHANNELS;

    fn node(port: u16) -> NodeAddr {
        NodeAddr { host: "10.0.0.2".into(), port }
    }

    #[test]
    fn reads_events_of_one_master_only() {
        let slave = "slave 10.0.0.2:2 10.0.0.2 2 @ mymaster 10.0.0.2 1";
        let on = |channel: &str, payload: &str| read_event(channel, payload, "mymaster");
        assert_eq!(on("+new-epoch", "7"), Some(LeaderEvent::Epoch(7)));
        assert_eq!(on("+try-failover", "master mymaster 10.0.0.2 1"), Some(LeaderEvent::Begun));
        assert_eq!(on("+try-failover", "master other 10.0.0.2 1"), None);
        assert_eq!(on("+selected-slave", slave), Some(LeaderEvent::Selected(node(2))));
        assert_eq!(on("+promoted-slave", slave), Some(LeaderEvent::Promoted(node(2))));
        assert_eq!(read_event("+selected-slave", slave, "other"), None);
        for malformed in ["", "slave", "slave x y z @ mymaster 10.0.0.2 1", "master"] {
            assert_eq!(on("+selected-slave", malformed), None, "{malformed}");
        }
    }

    #[test]
    fn listens_to_channels_of_the_documented_acl_only() {
        // An ACL that allows what a link subscribes to allows this, too.
        for channel in CHANNELS {
            assert!(notice::CHANNELS.contains(channel), "{channel}");
        }
    }

    #[test]
    fn reads_no_end_by_timeout_as_abort() {
        let on = |channel: &str| read_event(channel, "master mymaster 10.0.0.2 1", "mymaster");
        assert_eq!((on("+failover-end-for-timeout"), on("+failover-end")), (None, None));
        for channel in CHANNELS.iter().chain(OPTIONAL_CHANNELS).filter(|it| it.starts_with('-')) {
            assert_eq!(on(channel), Some(LeaderEvent::Aborted((*channel).into())));
        }
    }

    #[test]
    fn reads_selected_replica_from_answers() {
        let text = |text: &str| Reply::Text(text.to_owned().into());
        let map = |pairs: &[(&str, &str)]| {
            Reply::List(pairs.iter().flat_map(|(k, v)| [text(k), text(v)]).collect())
        };
        let master = |flags| {
            map(&[
                ("ip", "10.0.0.2"),
                ("port", "1"),
                ("flags", flags),
                ("config-epoch", "6"),
                ("down-after-milliseconds", "2000"),
            ])
        };
        let replica = |port, flags| {
            map(&[
                ("ip", "10.0.0.2"),
                ("port", port),
                ("flags", flags),
                ("info-refresh", "2500"),
                ("master-link-status", "ok"),
                ("slave-priority", "7"),
            ])
        };
        let replicas = Reply::List(vec![replica("3", "slave"), replica("2", "slave,promoted")]);
        let view =
            read_view(&master("master,failover_in_progress,force_failover"), &replicas).unwrap();
        assert!(view.failing_over && !view.down);
        assert_eq!((view.master, view.epoch, view.selected), (node(1), 6, Some(node(2))));
        assert_eq!(view.down_after, Some(Duration::from_secs(2)));
        let fit = |port, unfit| ListedReplica {
            addr: node(port),
            priority: 7,
            info_age: Some(Duration::from_millis(2500)),
            unfit,
        };
        assert_eq!(view.replicas, [fit(3, None), fit(2, None)]);
        let calm = Reply::List(vec![replica("2", "slave"), replica("4", "s_down,slave")]);
        let listed = read_view(&master("master"), &calm).unwrap().replicas;
        assert_eq!(listed, [fit(2, None), fit(4, Some("it considers it down"))]);
        let view = read_view(&master("s_down,master"), &calm).unwrap();
        assert!(!view.failing_over && view.down && view.selected.is_none());
        assert_eq!(
            read_view(&Reply::Error("ERR No such master with that name".into()), &calm),
            None
        );
    }
}
