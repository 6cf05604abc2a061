//! One poll of a sentinel: the commands, and how the replies become a [`View`].
//!
//! The order matters: the address, then everything else, then the address again. If the two
//! addresses differ, a switch happened during the poll, and the replies in between do not describe
//! a single moment.

use std::time::Duration;

use bytes::{BufMut, BytesMut};
use tls::OutsideText;

use crate::link::auth::Denied;
use crate::link::reply::Reply;
use crate::{Epoch, MyId, NodeAddr, ReplicaView, View};

/// Replies to a poll about one master, in the order of [`COMMANDS`].
pub const REPLIES_PER_POLL: usize = 5;

/// The subcommand, the command's name, and the ACL rule that allows it.
const COMMANDS: [(&str, &str, &str); REPLIES_PER_POLL] = [
    GET_ADDRESS,
    ("master", "SENTINEL MASTER", "+sentinel|master"),
    ("sentinels", "SENTINEL SENTINELS", "+sentinel|sentinels"),
    ("replicas", "SENTINEL REPLICAS", "+sentinel|replicas"),
    GET_ADDRESS,
];
const GET_ADDRESS: (&str, &str, &str) = (
    "get-master-addr-by-name",
    "SENTINEL GET-MASTER-ADDR-BY-NAME",
    "+sentinel|get-master-addr-by-name",
);

/// The configuration section that refusals by sentinels refer to.
pub const SENTINEL_AUTH: &str = "service.sentinel_auth";

/// No sentinel counts further in practice. One that lies could otherwise name an epoch after which
/// there is no next one.
const MAX_EPOCH: Epoch = Epoch::MAX >> 1;

/// Limit for the replicas and for the peers that are read from one reply.
const MAX_LISTED: usize = 64;

/// Two ages of one answer may differ by this although they began at one moment: the sentinel reads
/// its clock for each.
const AT_ONCE: Duration = Duration::from_millis(100);

/// The outcome of a poll about one master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PollOutcome {
    /// A consistent view, and the addresses of the peers.
    View {
        /// The sentinel's view.
        view: View,
        /// The other sentinels, with their addresses.
        peers: Vec<(MyId, NodeAddr)>,
    },
    /// This sentinel does not know the name: it abstains.
    UnknownName,
    /// The address changed during the poll: repeat it.
    Torn,
    /// The sentinel refused a command.
    Denied(Denied),
    /// A reply that cannot be interpreted.
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

/// The commands of a poll about `master`.
#[must_use]
pub fn poll_commands(master: &str) -> [[&str; 3]; REPLIES_PER_POLL] {
    COMMANDS.map(|(subcommand, ..)| ["SENTINEL", subcommand, master])
}

/// Reads the replies to one poll.
#[must_use]
pub fn read_poll(replies: &[Reply], tilt: bool) -> PollOutcome {
    let [before, master, sentinels, replicas, after] = replies else {
        return PollOutcome::Malformed("incomplete replies");
    };
    if let Some(denied) = refusals(replies).next() {
        return PollOutcome::Denied(denied);
    }
    let unknown =
        |reply: &Reply| matches!(reply, Reply::Null) || reply.error().is_some_and(is_unknown_name);
    if unknown(before) || unknown(after) || unknown(master) {
        return PollOutcome::UnknownName;
    }
    let (Some(addr), Some(again)) = (address(before), address(after)) else {
        return PollOutcome::Malformed("GET-MASTER-ADDR-BY-NAME returned no valid address");
    };
    if addr != again {
        return PollOutcome::Torn;
    }
    let number = |name: &str| master.field(name).and_then(|text| text.parse::<u64>().ok());
    let Some(epoch) = number("config-epoch").map(|it: Epoch| it.min(MAX_EPOCH)) else {
        return PollOutcome::Malformed("SENTINEL MASTER returned no config-epoch");
    };
    let (Some(sentinels), Some(replicas)) = (sentinels.list(), replicas.list()) else {
        return PollOutcome::Malformed("SENTINEL SENTINELS or REPLICAS returned no list");
    };
    let flag = |name: &str| has_flag(master, name);
    let listed: Vec<(MyId, bool, NodeAddr)> =
        sentinels.iter().take(MAX_LISTED).filter_map(peer).collect();
    // From the promotion to `+switch-master` the new master is still an entry of the replicas.
    let of_addr = |entry: &&Reply| entry_address(entry).as_ref() == Some(&addr);
    let promoted = replicas.iter().find(of_addr);
    let process = promoted.unwrap_or(master);
    let run_id: Box<str> = OutsideText::from(process.field("runid").unwrap_or_default()).into();
    let age = |name| process.field(name)?.parse().ok().map(Duration::from_millis);
    // A sentinel forgets the `run_id` at a failover, too, until its next INFO, up to ten seconds
    // later. It pings the new master meanwhile.
    let began = age("role-reported-time").unwrap_or_default();
    let (knows_process, is_answer) = (!run_id.is_empty(), |it: &Duration| *it + AT_ONCE < began);
    let view = View {
        epoch,
        down: is_down(process),
        objectively_down: has_flag(process, "o_down"),
        failing_over: flag("failover_in_progress"),
        promoted: flag("failover_in_progress") && promoted.is_some(),
        rebooted: flag("master_reboot"),
        pong_age: age("last-ok-ping-reply")
            .filter(|it| knows_process || is_answer(it))
            .unwrap_or(Duration::MAX),
        info_age: age("info-refresh").filter(|_| knows_process).unwrap_or(Duration::MAX),
        run_id,
        tilt,
        quorum: master.field("quorum").and_then(|text| text.parse().ok()).unwrap_or(0),
        peers: listed.iter().map(|(id, up, _)| (id.clone(), *up)).collect(),
        replicas: replicas_of(&addr, master, replicas),
        addr,
    };
    let peers = listed.into_iter().map(|(id, _, addr)| (id, addr)).collect();
    PollOutcome::View { view, peers }
}

/// The refused commands of a poll, in order.
pub fn refusals(replies: &[Reply]) -> impl Iterator<Item = Denied> {
    replies.iter().zip(COMMANDS).filter_map(|(reply, (_, command, rule))| {
        reply.error().and_then(|line| Denied::read(line, command, rule, SENTINEL_AUTH))
    })
}

/// Reads `sentinel_tilt` from `INFO sentinel`. A sentinel whose ACL does not allow INFO is assumed
/// not to be in TILT.
#[must_use]
pub fn read_tilt(info: &Reply) -> bool {
    info.info("sentinel_tilt") == Some("1")
}

/// Reads `connected_clients`, which only an `INFO` without a section contains. A number that does
/// not fit is no number.
pub(crate) fn read_connections(info: &Reply) -> Option<u32> {
    info.info("connected_clients")?.parse().ok()
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

/// Whether the `flags` of a server in a list of Sentinel contain this one.
#[must_use]
pub fn has_flag(reply: &Reply, flag: &str) -> bool {
    reply.field("flags").is_some_and(|flags| flags.split(',').any(|it| it == flag))
}

/// The announced address in the entry of a master, a replica or a sentinel.
#[must_use]
pub fn entry_address(reply: &Reply) -> Option<NodeAddr> {
    NodeAddr::parse(reply.field("ip")?, reply.field("port")?)
}

/// The MYID of a peer, whether it is up, and its address. A peer with port 0 does not count:
/// another sentinel was since heard at its address, which means it was replaced. Sentinel keeps
/// such entries until `SENTINEL RESET`, and a majority that includes them might never be reached. A
/// newly discovered peer is not connected yet, which does not mean that it is down.
fn peer(reply: &Reply) -> Option<(MyId, bool, NodeAddr)> {
    let addr = entry_address(reply)?;
    let up = !has_flag(reply, "s_down");
    Some((MyId::parse(reply.field("runid")?)?, up, addr))
}

/// The sentinel's own opinion of a replica, from its `PING`s, which are at most a second old. Its
/// `master-link-status` and `role-reported` come from its last `INFO`, up to ten seconds old, so
/// node probers ask the replica itself for those.
fn replica(reply: &Reply) -> Option<ReplicaView> {
    Some(ReplicaView { addr: entry_address(reply)?, healthy: is_healthy(reply) })
}

/// Whether the sentinel reaches the server of this entry, and does not find it down.
#[must_use]
pub fn is_healthy(node: &Reply) -> bool {
    !is_down(node) && !has_flag(node, "disconnected")
}

/// Whether the sentinel considers the server of this entry down.
pub(crate) fn is_down(node: &Reply) -> bool {
    has_flag(node, "s_down") || has_flag(node, "o_down")
}

/// The replicas of the master at `addr`. From the promotion to `+switch-master`, which may take
/// more than a second, the leader already names the new master but still lists the replicas of the
/// old one: the new master is among them, and the old master, which is about to become a replica,
/// is not. Without this correction no view would list the old master in that time.
fn replicas_of(addr: &NodeAddr, master: &Reply, listed: &[Reply]) -> Vec<ReplicaView> {
    let outgoing = entry_address(master)
        .filter(|recorded| recorded != addr && has_flag(master, "failover_in_progress"));
    let outgoing = outgoing.map(|addr| ReplicaView { addr, healthy: is_healthy(master) });
    let listed =
        listed.iter().take(MAX_LISTED).filter_map(replica).filter(|replica| replica.addr != *addr);
    listed.chain(outgoing).collect()
}

/// The problem of a poll about `master`, for operators.
pub(crate) fn poll_error(round: &PollOutcome, master: &str) -> Option<String> {
    match round {
        PollOutcome::View { .. } | PollOutcome::Torn => None,
        PollOutcome::UnknownName => Some(format!(
            "it monitors no master named {master}: check `master` (by default `name`), or that \
             sentinel's configuration"
        )),
        PollOutcome::Denied(denied) => Some(denied.to_string()),
        PollOutcome::Malformed(what) => Some((*what).to_owned()),
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

    #[test]
    fn reads_client_count_unless_refused_or_absurd() {
        let info = |count: &str| {
            text(&format!("# Clients\r\nconnected_clients:{count}\r\nblocked_clients:7\r\n"))
        };
        assert_eq!(read_connections(&info("21")), Some(21));
        assert_eq!(read_connections(&info("4294967295")), Some(u32::MAX));
        for absurd in ["4294967296", "-1", "", "1e3"] {
            assert_eq!(read_connections(&info(absurd)), None, "{absurd:?}");
        }
        assert_eq!(read_connections(&text("# Sentinel\r\nsentinel_tilt:0\r\n")), None);
        let refused = Reply::Error("NOPERM this user has no permissions".into());
        assert_eq!(read_connections(&refused), None);
    }

    fn round(before: &[&str], after: &[&str]) -> [Reply; REPLIES_PER_POLL] {
        round_with("master,s_down", before, after)
    }

    fn round_with(flags: &str, before: &[&str], after: &[&str]) -> [Reply; REPLIES_PER_POLL] {
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
    fn reads_address_and_epoch_from_their_commands() {
        let PollOutcome::View { view, peers } =
            read_poll(&round(&["10.0.0.1", "6379"], &["10.0.0.1", "6379"]), true)
        else {
            panic!("a view")
        };
        assert_eq!((view.addr.to_string().as_str(), view.epoch), ("10.0.0.1:6379", 7));
        assert!(view.down && view.tilt && !view.failing_over && !view.rebooted && view.quorum == 2);
        assert_eq!(view.peers.iter().map(|(_, up)| *up).collect::<Vec<_>>(), [false]);
        // Its link is down according to an old INFO only.
        assert!(view.replicas.first().is_some_and(|replica| replica.healthy));
        assert_eq!(peers.len(), 1);
    }

    /// The fields of a real sentinel that has not read the master's `INFO` yet.
    #[test]
    fn tells_an_answer_from_the_beginning_of_pings() {
        let pong = |run_id: &str, last: &str, began: &str| {
            let mut replies = round(&["10.0.0.1", "6379"], &["10.0.0.1", "6379"]);
            let times = ["last-ok-ping-reply", last, "role-reported-time", began];
            replies[1] = list(&[&["config-epoch", "7", "runid", run_id], &times[..]].concat());
            match read_poll(&replies, false) {
                PollOutcome::View { view, .. } => view.pong_age,
                _ => panic!("a view"),
            }
        };
        assert_eq!(pong("", "312", "1404"), Duration::from_millis(312), "after a failover");
        assert_eq!(pong("", "3012", "3013"), Duration::MAX, "never answered");
        assert_eq!(pong("r", "3012", "3013"), Duration::from_millis(3012));
        assert_eq!(pong("", "3012", ""), Duration::MAX);
    }

    /// The sentinel names the promoted replica, and its entry of the master is still the old one's.
    #[test]
    fn reads_process_of_promoted_replica_before_switch_event() {
        let run_id = |addr: &[&str]| {
            let mut replies = round_with("master,failover_in_progress", addr, addr);
            let promoted = ["ip", "10.0.0.2", "port", "6379", "runid", "promoted"];
            replies[3] = Reply::List(vec![list(&promoted)]);
            match read_poll(&replies, false) {
                PollOutcome::View { view, .. } => view.run_id,
                _ => panic!("a view"),
            }
        };
        assert_eq!(&*run_id(&["10.9.9.9", "1"]), "r");
        assert_eq!(&*run_id(&["10.0.0.2", "6379"]), "promoted");
    }

    #[test]
    fn bounds_an_epoch_that_has_no_next_one() {
        let epoch = |text: &str| {
            let mut replies = round(&["10.0.0.1", "6379"], &["10.0.0.1", "6379"]);
            replies[1] = list(&["config-epoch", text]);
            match read_poll(&replies, false) {
                PollOutcome::View { view, .. } => Some(view.epoch),
                _ => None,
            }
        };
        assert_eq!(epoch("7"), Some(7));
        assert!(epoch(&u64::MAX.to_string()).unwrap().checked_add(1).is_some());
        for absurd in ["18446744073709551616", "-1", "7.5", ""] {
            assert_eq!(epoch(absurd), None, "{absurd:?}");
        }
    }

    #[test]
    fn lists_old_master_as_replica_before_switch_event() {
        let listed = |flags: &str, addr: &[&str]| {
            let PollOutcome::View { view, .. } = read_poll(&round_with(flags, addr, addr), false)
            else {
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
            "without a failover in progress the address in MASTER is ignored"
        );
    }

    #[test]
    fn failover_before_switch_event_is_that_of_the_old_master() {
        let view = |addr: &[&str]| {
            let round = round_with("master,o_down,failover_in_progress", addr, addr);
            let PollOutcome::View { view, .. } = read_poll(&round, false) else { panic!("a view") };
            view
        };
        let begun = view(&["10.9.9.9", "1"]);
        assert!(begun.down && begun.failing_over && begun.replaces(&begun.addr));
        let promoted = view(&["10.0.0.2", "6379"]);
        assert!(!promoted.down && promoted.failing_over && !promoted.replaces(&promoted.addr));
    }

    #[test]
    fn counts_peer_that_is_not_connected_yet() {
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
        let PollOutcome::View { view, .. } = read_poll(&answers, false) else { panic!("a view") };
        assert_eq!(view.peers.iter().map(|(_, up)| *up).collect::<Vec<_>>(), [true]);
    }

    #[test]
    fn ignores_peer_whose_address_was_taken_over() {
        let mut answers = round(&["10.0.0.1", "6379"], &["10.0.0.1", "6379"]);
        answers[2] =
            Reply::List(vec![list(&["ip", "10.0.0.8", "port", "0", "runid", &"b".repeat(40)])]);
        let PollOutcome::View { view, peers } = read_poll(&answers, false) else {
            panic!("a view")
        };
        assert!(view.peers.is_empty() && peers.is_empty());
    }

    #[test]
    fn detects_switch_during_poll() {
        assert_eq!(
            read_poll(&round(&["10.0.0.1", "6379"], &["10.0.0.2", "6379"]), false),
            PollOutcome::Torn
        );
    }

    #[test]
    fn abstains_on_unknown_name_and_rejects_bad_address() {
        let mut answers = round(&["10.0.0.1", "6379"], &["10.0.0.1", "6379"]);
        answers[0] = Reply::Null;
        assert_eq!(read_poll(&answers, false), PollOutcome::UnknownName);
        for address in [&["10.0.0.1", "0"][..], &["10.0.0.1"], &["", "1"], &["10.0.0.1", "70000"]] {
            assert!(
                matches!(read_poll(&round(address, address), false), PollOutcome::Malformed(_)),
                "{address:?}"
            );
        }
        assert!(matches!(read_poll(&answers[..2], false), PollOutcome::Malformed(_)));
    }

    #[test]
    fn refusal_names_rule_to_add() {
        let mut answers = round(&["10.0.0.1", "6379"], &["10.0.0.1", "6379"]);
        answers[3] = Reply::Error("NOPERM this user has no permissions".into());
        let PollOutcome::Denied(denied) = read_poll(&answers, false) else { panic!("a refusal") };
        assert!(denied.to_string().contains("+sentinel|replicas"), "{denied}");
    }

    #[test]
    fn encodes_commands_as_arrays_of_bulk_strings() {
        let mut out = BytesMut::new();
        put_command(&mut out, &["PING", "é"]);
        assert_eq!(&out[..], "*2\r\n$4\r\nPING\r\n$2\r\né\r\n".as_bytes());
    }
}
