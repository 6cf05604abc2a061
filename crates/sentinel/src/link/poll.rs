//! What a sentinel is asked in one round, and how its answers become a [`View`].
//!
//! The order matters: the address, then everything else, then the address again. If the two differ,
//! a switch went through the middle of the round and the answers between belong to no single
//! moment.

use bytes::{BufMut, BytesMut};

use crate::link::auth::Denied;
use crate::link::reply::Reply;
use crate::{MyId, NodeAddr, ReplicaView, View};

/// Answers to one round about one master, in this order.
pub(crate) const QUESTIONS: usize = 5;

const SUBCOMMANDS: [(&str, &str, &str); QUESTIONS] = [
    (
        "get-master-addr-by-name",
        "SENTINEL GET-MASTER-ADDR-BY-NAME",
        "+sentinel|get-master-addr-by-name",
    ),
    ("master", "SENTINEL MASTER", "+sentinel|master"),
    ("sentinels", "SENTINEL SENTINELS", "+sentinel|sentinels"),
    ("replicas", "SENTINEL REPLICAS", "+sentinel|replicas"),
    (
        "get-master-addr-by-name",
        "SENTINEL GET-MASTER-ADDR-BY-NAME",
        "+sentinel|get-master-addr-by-name",
    ),
];

/// The configuration section that sentinels' refusals point to.
pub(crate) const SENTINEL_AUTH: &str = "service.sentinel_auth";

/// The most replicas and the most peers that are read from one answer.
const MAX_LISTED: usize = 64;

/// A sentinel as its peer lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its MYID.
    pub id: MyId,
    /// Where it is said to be.
    pub addr: NodeAddr,
}

/// What a round about one master came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Round {
    /// A consistent view, and where the peers are.
    View {
        /// What it holds to be true.
        view: View,
        /// The other sentinels, with their addresses.
        peers: Vec<Peer>,
    },
    /// This sentinel does not know the name: it abstains.
    UnknownName,
    /// The address changed during the round: ask again.
    Torn,
    /// It refused.
    Denied(Denied),
    /// It answered something that is no answer.
    Malformed(&'static str),
}

/// Appends a command as a RESP array of bulk strings.
pub(crate) fn put_command(out: &mut BytesMut, words: &[&str]) {
    out.put_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.put_slice(format!("${}\r\n", word.len()).as_bytes());
        out.put_slice(word.as_bytes());
        out.put_slice(b"\r\n");
    }
}

/// Appends the questions about `master`.
pub(crate) fn put_round(out: &mut BytesMut, master: &str) {
    for (subcommand, ..) in SUBCOMMANDS {
        put_command(out, &["SENTINEL", subcommand, master]);
    }
}

/// Reads the answers to one round of questions.
#[must_use]
pub fn read_round(replies: &[Reply], tilt: bool) -> Round {
    let [before, master, sentinels, replicas, after] = replies else {
        return Round::Malformed("too few answers");
    };
    if let Some(denied) = refusals(replies).next() {
        return Round::Denied(denied);
    }
    let unknown =
        |reply: &Reply| matches!(reply, Reply::Null) || reply.error().is_some_and(is_unknown_name);
    if unknown(before) || unknown(after) || unknown(master) {
        return Round::UnknownName;
    }
    let (Some(addr), Some(again)) = (address(before), address(after)) else {
        return Round::Malformed("GET-MASTER-ADDR-BY-NAME gave no usable address");
    };
    if addr != again {
        return Round::Torn;
    }
    let Some(epoch) = master.field("config-epoch").and_then(|text| text.parse().ok()) else {
        return Round::Malformed("MASTER gave no config-epoch");
    };
    let (Some(sentinels), Some(replicas)) = (sentinels.list(), replicas.list()) else {
        return Round::Malformed("SENTINELS or REPLICAS gave no list");
    };
    let flag = |name: &str| has_flag(master, name);
    let listed: Vec<(MyId, bool, NodeAddr)> =
        sentinels.iter().take(MAX_LISTED).filter_map(peer).collect();
    let view = View {
        epoch,
        run_id: master.field("runid").unwrap_or_default().into(),
        down: flag("s_down") || flag("o_down"),
        failing_over: flag("failover_in_progress"),
        rebooted: flag("master_reboot"),
        tilt,
        quorum: master.field("quorum").and_then(|text| text.parse().ok()).unwrap_or(0),
        peers: listed.iter().map(|(id, up, _)| (id.clone(), *up)).collect(),
        replicas: replicas_of(&addr, master, replicas),
        addr,
    };
    let peers = listed.into_iter().map(|(id, _, addr)| Peer { id, addr }).collect();
    Round::View { view, peers }
}

/// What was refused of a round, in the order of the questions.
pub(crate) fn refusals(replies: &[Reply]) -> impl Iterator<Item = Denied> {
    replies.iter().zip(SUBCOMMANDS).filter_map(|(reply, (_, command, rule))| {
        reply.error().and_then(|line| Denied::read(line, command, rule, SENTINEL_AUTH))
    })
}

/// Reads `sentinel_tilt` from `INFO sentinel`. A sentinel that does not allow INFO is taken not to
/// be in TILT.
pub(crate) fn read_tilt(info: &Reply) -> bool {
    info.text().is_some_and(|text| text.lines().any(|line| line.trim_end() == "sentinel_tilt:1"))
}

fn is_unknown_name(line: &str) -> bool {
    line.contains("No such master with that name")
}

fn address(reply: &Reply) -> Option<NodeAddr> {
    match reply.list()? {
        [host, port] => NodeAddr::parse(host.text()?, port.text()?),
        _ => None,
    }
}

pub(crate) fn has_flag(reply: &Reply, flag: &str) -> bool {
    reply.field("flags").is_some_and(|flags| flags.split(',').any(|it| it == flag))
}

/// Its MYID, whether it is up, and where it is. A peer with port 0 is none: another one has been
/// heard at its address since, so it was replaced there. Sentinel keeps such entries until a
/// `SENTINEL RESET`, and a majority counted with them may never be reached. One that was only just
/// heard of is not connected yet: that is no sign that it is down.
fn peer(reply: &Reply) -> Option<(MyId, bool, NodeAddr)> {
    let addr = NodeAddr::parse(reply.field("ip")?, reply.field("port")?)?;
    let up = !has_flag(reply, "s_down");
    Some((MyId::parse(reply.field("runid")?)?, up, addr))
}

/// What a sentinel holds of a replica by its own `PING`s, which are a second old at most. Its
/// `master-link-status` and `role-reported` are from its last `INFO`, up to ten seconds old: of
/// these the replica itself is asked.
fn replica(reply: &Reply) -> Option<ReplicaView> {
    let addr = NodeAddr::parse(reply.field("ip")?, reply.field("port")?)?;
    Some(ReplicaView { addr, healthy: is_healthy(reply) })
}

fn is_healthy(node: &Reply) -> bool {
    !["s_down", "o_down", "disconnected"].iter().any(|flag| has_flag(node, flag))
}

/// The replicas of the master at `addr`. From the promotion to `+switch-master`, which may be a
/// second and more, the leader names the new master already, but holds what it lists by the old
/// one: the new master among the replicas, and the old master, which is about to be one, only in
/// its place. Read as it stands, nobody would list the old master then.
fn replicas_of(addr: &NodeAddr, master: &Reply, listed: &[Reply]) -> Vec<ReplicaView> {
    let held_by = master
        .field("ip")
        .zip(master.field("port"))
        .and_then(|(ip, port)| NodeAddr::parse(ip, port));
    let outgoing =
        held_by.filter(|held_by| held_by != addr && has_flag(master, "failover_in_progress"));
    let outgoing = outgoing.map(|addr| ReplicaView { addr, healthy: is_healthy(master) });
    let listed =
        listed.iter().take(MAX_LISTED).filter_map(replica).filter(|replica| replica.addr != *addr);
    listed.chain(outgoing).collect()
}

/// What is wrong with a round about `master`, for people.
pub(crate) fn trouble_of(round: &Round, master: &str) -> Option<String> {
    match round {
        Round::View { .. } | Round::Torn => None,
        Round::UnknownName => Some(format!(
            "it watches no master named {master}: check `name`, or that sentinel's configuration"
        )),
        Round::Denied(denied) => Some(denied.to_string()),
        Round::Malformed(what) => Some((*what).to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(word: &str) -> Reply {
        Reply::Text(bytes::Bytes::copy_from_slice(word.as_bytes()))
    }

    fn list(words: &[&str]) -> Reply {
        Reply::List(words.iter().map(|word| text(word)).collect())
    }

    fn round(before: &[&str], after: &[&str]) -> [Reply; QUESTIONS] {
        round_with("master,s_down", before, after)
    }

    fn round_with(flags: &str, before: &[&str], after: &[&str]) -> [Reply; QUESTIONS] {
        let id = "b".repeat(40);
        [
            list(before),
            list(&[
                "name",
                "m",
                "ip",
                "10.9.9.9",
                "port",
                "1",
                "config-epoch",
                "7",
                "quorum",
                "2",
                "flags",
                flags,
                "runid",
                "r",
            ]),
            Reply::List(vec![list(&[
                "ip",
                "10.0.0.8",
                "port",
                "26379",
                "runid",
                &id,
                "flags",
                "sentinel,s_down,disconnected",
            ])]),
            Reply::List(vec![list(&[
                "ip",
                "10.0.0.2",
                "port",
                "6379",
                "flags",
                "slave",
                "master-link-status",
                "err",
                "some-new-key",
                "x",
            ])]),
            list(after),
        ]
    }

    #[test]
    fn the_address_comes_from_get_master_addr_and_the_epoch_from_master() {
        let Round::View { view, peers } =
            read_round(&round(&["10.0.0.1", "6379"], &["10.0.0.1", "6379"]), true)
        else {
            panic!("a view")
        };
        assert_eq!((view.addr.to_string().as_str(), view.epoch), ("10.0.0.1:6379", 7));
        assert!(view.down && view.tilt && !view.failing_over && !view.rebooted && view.quorum == 2);
        assert_eq!(view.peers.iter().map(|(_, up)| *up).collect::<Vec<_>>(), [false]);
        // Its link is down by an old INFO only.
        assert!(view.replicas.first().is_some_and(|replica| replica.healthy));
        assert_eq!(peers.len(), 1);
    }

    #[test]
    fn before_the_switch_is_told_the_leader_lists_the_old_master_as_the_replica_it_will_be() {
        let listed = |flags: &str, addr: &[&str]| {
            let Round::View { view, .. } = read_round(&round_with(flags, addr, addr), false) else {
                panic!("a view")
            };
            let names = view.replicas.iter().map(|it| (it.addr.to_string(), it.healthy));
            names.collect::<Vec<_>>()
        };
        let (old, replica) = ("10.9.9.9:1".to_owned(), "10.0.0.2:6379".to_owned());
        let (calm, switching) = ("master", "master,s_down,failover_in_progress");
        assert_eq!(listed(switching, &["10.9.9.9", "1"]), [(replica, true)]);
        assert_eq!(listed(switching, &["10.0.0.2", "6379"]), [(old, false)]);
        assert_eq!(
            listed(calm, &["10.0.0.2", "6379"]),
            [],
            "where no failover is under way the address of MASTER means nothing"
        );
    }

    #[test]
    fn counts_a_peer_that_is_not_connected_yet() {
        let mut answers = round(&["10.0.0.1", "6379"], &["10.0.0.1", "6379"]);
        let flags = [
            "ip",
            "10.0.0.8",
            "port",
            "26379",
            "runid",
            &"b".repeat(40),
            "flags",
            "sentinel,disconnected",
        ];
        answers[2] = Reply::List(vec![list(&flags)]);
        let Round::View { view, .. } = read_round(&answers, false) else { panic!("a view") };
        assert_eq!(view.peers.iter().map(|(_, up)| *up).collect::<Vec<_>>(), [true]);
    }

    #[test]
    fn a_peer_whose_address_is_anothers_now_does_not_count() {
        let mut answers = round(&["10.0.0.1", "6379"], &["10.0.0.1", "6379"]);
        answers[2] =
            Reply::List(vec![list(&["ip", "10.0.0.8", "port", "0", "runid", &"b".repeat(40)])]);
        let Round::View { view, peers } = read_round(&answers, false) else { panic!("a view") };
        assert!(view.peers.is_empty() && peers.is_empty());
    }

    #[test]
    fn a_switch_in_the_middle_tears_the_round() {
        assert_eq!(
            read_round(&round(&["10.0.0.1", "6379"], &["10.0.0.2", "6379"]), false),
            Round::Torn
        );
    }

    #[test]
    fn an_unknown_name_abstains_and_nonsense_is_no_view() {
        let mut answers = round(&["10.0.0.1", "6379"], &["10.0.0.1", "6379"]);
        answers[0] = Reply::Null;
        assert_eq!(read_round(&answers, false), Round::UnknownName);
        for address in [&["10.0.0.1", "0"][..], &["10.0.0.1"], &["", "1"], &["10.0.0.1", "70000"]] {
            assert!(
                matches!(read_round(&round(address, address), false), Round::Malformed(_)),
                "{address:?}"
            );
        }
        assert!(matches!(read_round(&answers[..2], false), Round::Malformed(_)));
    }

    #[test]
    fn a_refusal_names_what_to_allow() {
        let mut answers = round(&["10.0.0.1", "6379"], &["10.0.0.1", "6379"]);
        answers[3] = Reply::Error("NOPERM this user has no permissions".into());
        let Round::Denied(denied) = read_round(&answers, false) else { panic!("a refusal") };
        assert!(denied.to_string().contains("+sentinel|replicas"), "{denied}");
    }

    #[test]
    fn commands_are_arrays_of_bulk_strings() {
        let mut out = BytesMut::new();
        put_command(&mut out, &["PING", "é"]);
        assert_eq!(&out[..], "*2\r\n$4\r\nPING\r\n$2\r\né\r\n".as_bytes());
    }
}
