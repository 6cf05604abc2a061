//! Parses the events that a sentinel publishes.
//!
//! Payloads follow `redis:src/sentinel.c:sentinelEvent`: `%@` stands for `<type> <name> <ip>
//! <port>` and, for anything but a master, ` @ <master> <ip> <port>`. Pub/Sub has no delivery
//! guarantee, so a notice only ever causes a poll, suspicion or a hold; no notice changes the
//! target by itself. `+switch-master` and `+config-update-from`, together with the view of the peer
//! that the latter names, make a vote (`machine/learn.rs`).

use crate::{MyId, NodeAddr};

/// A published event about one master.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Notice {
    /// `+switch-master`: this sentinel now names another master.
    Switched {
        /// The address that it names from now on.
        to: NodeAddr,
    },
    /// `+config-update-from`: the peer whose hello made this sentinel switch: the second voter.
    ConfigUpdateFrom {
        /// The peer.
        peer: MyId,
        /// The master that this sentinel named before. Distinguishes this switch from an earlier
        /// one.
        leaving: NodeAddr,
    },
    /// `+selected-slave`, `+failover-state-send-slaveof-noone`: this replica will be promoted in
    /// about 50 to 90 ms.
    CandidateSelected {
        /// The candidate.
        candidate: NodeAddr,
    },
    /// `+failover-state-wait-promotion`: the leader has sent the promotion command, which takes
    /// about 2 ms.
    PromotionOrdered {
        /// The candidate.
        candidate: NodeAddr,
    },
    /// `+promoted-slave`: the leader has observed the promotion and names the candidate from now
    /// on.
    Promoted {
        /// The promoted node.
        candidate: NodeAddr,
    },
    /// `+slave-reconf-done`: a replica follows the new master. The next one, if any, is
    /// reconfigured within 100 ms.
    ReplicaDone,
    /// `-failover-abort-*`: the failover was abandoned.
    Aborted,
    /// `+sdown`, `+odown`, `+try-failover`, `+elected-leader`, `+reboot` and similar, about the
    /// master.
    Trouble,
    /// Any other event that may have changed a view: replicas, peers, epochs, TILT, configuration.
    Changed,
}

/// The channels to subscribe to, besides the optional ones of `link::subscription`. Listed one by
/// one so that an ACL can allow exactly these; a new one belongs to the optional ones.
pub const CHANNELS: &[&str] = &[
    "+switch-master",
    "+config-update-from",
    "+selected-slave",
    "+failover-state-send-slaveof-noone",
    "+failover-state-wait-promotion",
    "+promoted-slave",
    "-failover-abort-not-elected",
    "-failover-abort-no-good-slave",
    "-failover-abort-slave-timeout",
    "+failover-end-for-timeout",
    "+failover-end",
    "+sdown",
    "-sdown",
    "+odown",
    "-odown",
    "+try-failover",
    "+elected-leader",
    "+failover-state-reconf-slaves",
    "+role-change",
    "-role-change",
    "+convert-to-slave",
    "+fix-slave-config",
    "+slave",
    "+slave-reconf-sent",
    "+slave-reconf-inprog",
    "+slave-reconf-done",
    "+reboot",
    "+sentinel",
    "+sentinel-address-switch",
    "+new-epoch",
    "+monitor",
    "-monitor",
    "+reset-master",
    "+set",
    "+tilt",
    "-tilt",
];

/// Limit for a payload, in bytes; Sentinel's own buffer is 1,024.
const LONGEST: usize = 2048;

/// Parses one message. Returns the master's name (`None` for an event about the sentinel itself,
/// such as `+tilt`) and the notice, or `None` for an unknown or malformed message, which the next
/// poll compensates for.
#[must_use]
pub fn parse<'a>(channel: &str, payload: &'a str) -> Option<(Option<&'a str>, Notice)> {
    if payload.len() > LONGEST {
        return None;
    }
    let words: Vec<&str> = payload.split_ascii_whitespace().take(16).collect();
    let word = |at: usize| words.get(at).copied();
    match channel {
        "+switch-master" => {
            let to = NodeAddr::parse(word(3)?, word(4)?)?;
            Some((Some(word(0)?), Notice::Switched { to }))
        }
        "+tilt" | "-tilt" | "+new-epoch" | "+monitor" | "-monitor" | "+set" => {
            Some((None, Notice::Changed))
        }
        _ => {
            let kind = word(0)?;
            let master = if kind == "master" {
                word(1)?
            } else {
                word(5).filter(|_| word(4) == Some("@"))?
            };
            Some((Some(master), about(channel, kind, &words)?))
        }
    }
}

fn about(channel: &str, kind: &str, words: &[&str]) -> Option<Notice> {
    let node = || NodeAddr::parse(words.get(2)?, words.get(3)?);
    let on_master = kind == "master";
    Some(match channel {
        "+config-update-from" => Notice::ConfigUpdateFrom {
            peer: MyId::parse(words.get(1)?)?,
            leaving: NodeAddr::parse(words.get(6)?, words.get(7)?)?,
        },
        "+selected-slave" | "+failover-state-send-slaveof-noone" => {
            Notice::CandidateSelected { candidate: node()? }
        }
        "+failover-state-wait-promotion" => Notice::PromotionOrdered { candidate: node()? },
        "+promoted-slave" => Notice::Promoted { candidate: node()? },
        "+slave-reconf-done" => Notice::ReplicaDone,
        _ if channel.starts_with("-failover-abort") => Notice::Aborted,
        "+sdown" | "+odown" | "+try-failover" | "+elected-leader" | "+reboot" if on_master => {
            Notice::Trouble
        }
        _ => Notice::Changed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(port: u16) -> NodeAddr {
        NodeAddr { host: "10.0.0.2".into(), port }
    }

    #[test]
    fn reads_events_of_a_failover() {
        assert_eq!(
            parse("+switch-master", "mymaster 10.0.0.1 6379 10.0.0.2 6380"),
            Some((Some("mymaster"), Notice::Switched { to: node(6380) }))
        );
        assert_eq!(
            parse("+selected-slave", "slave 10.0.0.2:6380 10.0.0.2 6380 @ mymaster 10.0.0.1 6379"),
            Some((Some("mymaster"), Notice::CandidateSelected { candidate: node(6380) }))
        );
        for (channel, expected) in [
            (
                "+failover-state-send-slaveof-noone",
                Notice::CandidateSelected { candidate: node(6380) },
            ),
            ("+failover-state-wait-promotion", Notice::PromotionOrdered { candidate: node(6380) }),
            ("+promoted-slave", Notice::Promoted { candidate: node(6380) }),
        ] {
            let read = parse(channel, "slave 10.0.0.2:6380 10.0.0.2 6380 @ mymaster 10.0.0.1 6379");
            assert_eq!(read, Some((Some("mymaster"), expected)), "{channel}");
        }
        let done = parse(
            "+slave-reconf-done",
            "slave 10.0.0.3:6380 10.0.0.3 6380 @ mymaster 10.0.0.1 6379",
        );
        assert_eq!(done, Some((Some("mymaster"), Notice::ReplicaDone)));
        let peer = "a".repeat(40);
        assert_eq!(
            parse(
                "+config-update-from",
                &format!("sentinel {peer} 10.0.0.9 26379 @ mymaster 10.0.0.1 6379")
            )
            .map(|(_, notice)| notice),
            Some(Notice::ConfigUpdateFrom {
                peer: MyId::parse(&peer).expect("forty digits"),
                leaving: NodeAddr { host: "10.0.0.1".into(), port: 6379 }
            })
        );
        assert_eq!(
            parse("+odown", "master mymaster 10.0.0.1 6379 #quorum 2/2"),
            Some((Some("mymaster"), Notice::Trouble))
        );
        assert_eq!(
            parse("-failover-abort-no-good-slave", "master mymaster 10.0.0.1 6379"),
            Some((Some("mymaster"), Notice::Aborted))
        );
        for channel in super::super::subscription::OPTIONAL_CHANNELS {
            let read = parse(channel, "master mymaster 10.0.0.1 6379");
            assert_eq!(read, Some((Some("mymaster"), Notice::Aborted)), "{channel}");
        }
    }

    #[test]
    fn reads_end_by_timeout_as_completion() {
        // Not all replicas were reconfigured in time; the promotion stands, and `+switch-master`
        // follows.
        assert_eq!(
            parse("+failover-end-for-timeout", "master mymaster 10.0.0.1 6379"),
            Some((Some("mymaster"), Notice::Changed))
        );
    }

    #[test]
    fn ignores_replica_down_as_master_trouble() {
        assert_eq!(
            parse("+sdown", "slave 10.0.0.2:6380 10.0.0.2 6380 @ mymaster 10.0.0.1 6379"),
            Some((Some("mymaster"), Notice::Changed))
        );
    }

    #[test]
    fn reads_bare_ipv6_and_host_names() {
        let (_, notice) = parse("+switch-master", "m fd00::1 6379 fd00::2 6380").expect("an event");
        assert_eq!(
            notice,
            Notice::Switched { to: NodeAddr { host: "fd00::2".into(), port: 6380 } }
        );
        let (_, notice) =
            parse("+switch-master", "m redis-0.redis 6379 redis-1.redis 6379").expect("an event");
        assert_eq!(
            notice,
            Notice::Switched { to: NodeAddr { host: "redis-1.redis".into(), port: 6379 } }
        );
    }

    #[test]
    fn ignores_malformed_payloads() {
        for payload in [
            "",
            "master",
            "slave a b c",
            "mymaster 1 2 3",
            "m 10.0.0.1 1 10.0.0.2 0",
            "m a 1 b 99999",
        ] {
            assert_eq!(parse("+switch-master", payload), None, "{payload}");
        }
        assert_eq!(parse("+selected-slave", "slave x 10.0.0.2 6380 mymaster"), None);
        assert_eq!(parse("+switch-master", &"x".repeat(5000)), None);
    }
}
