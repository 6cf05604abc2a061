//! Reads a sentinel's replies into a [`SentinelAnswer`]: the commands, and how each reply is read.

use std::net::SocketAddr;
use std::time::Duration;

use tls::OutsideText;

use sentinel::connections::{
    CHANNELS, PollOutcome, REPLIES_PER_POLL, Reply, SENTINEL_AUTH, entry_address, has_flag,
    is_healthy, poll_commands, read_poll, read_tilt, refusals,
};
use sentinel::{Denied, MyId, NodeAddr, Verify, View};

use super::acl;
use crate::observed::{
    ExamineError, MasterAnswer, NodeDetails, ObservedMaster, ObservedPeer, ObservedReplica,
    SentinelAnswer, Watched, WriteGuard,
};

/// Limit for the entries that are read of one list.
const MAX_LISTED: usize = 64;

/// The commands before and after the poll, each with the ACL rule that allows it.
const BEFORE: [(&str, &str); 4] = [
    ("CLIENT SETNAME", "+client|setname"),
    ("SENTINEL MYID", "+sentinel|myid"),
    ("INFO", "+info"),
    ("INFO", "+info"),
];
const AFTER: [(&str, &str); 2] =
    [("SENTINEL CKQUORUM", "+sentinel|ckquorum"), ("SUBSCRIBE", "+subscribe &*")];

/// Every command. The subscription comes last: RESP2 allows no other command after it.
pub(super) fn questions(master: &str) -> Vec<Vec<&str>> {
    let before =
        ["CLIENT SETNAME pointsman-doctor", "SENTINEL MYID", "INFO sentinel", "INFO server"];
    let before = before.into_iter().map(|line| line.split(' ').collect());
    let after = [vec!["SENTINEL", "CKQUORUM", master], [&["SUBSCRIBE"], CHANNELS].concat()];
    before.chain(poll_commands(master).map(Vec::from)).chain(after).collect()
}

/// Reads the replies to the [`questions`].
pub(super) fn read(
    replies: &[Reply],
    reached: SocketAddr,
    resp3: bool,
) -> Result<SentinelAnswer, ExamineError> {
    let Some((before @ [_, my_id, info, server], rest)) = replies.split_first_chunk() else {
        return Err(ExamineError::UnexpectedServer);
    };
    let (poll_replies, after) =
        rest.split_first_chunk::<REPLIES_PER_POLL>().ok_or(ExamineError::UnexpectedServer)?;
    let denied = |(reply, (command, rule)): (&Reply, (&'static str, &'static str))| {
        reply.error().and_then(|line| Denied::read(line, command, rule, SENTINEL_AUTH))
    };
    let mut refused: Vec<Denied> = before.iter().zip(BEFORE).filter_map(denied).collect();
    refused.extend(refusals(poll_replies));
    refused.extend(after.iter().zip(AFTER).filter_map(denied));
    let id = match my_id.text().and_then(MyId::parse) {
        Some(id) => id,
        None if my_id.error().is_some_and(|line| line.starts_with("DENIED")) => {
            let what = "it accepts connections from its own host only (protected mode): set bind \
                        and a password there, or protected-mode no";
            return Err(ExamineError::Unreachable(what.to_owned()));
        }
        // Without an identity no answer counts; a refusal is reported as such.
        None => {
            let denied = refused.into_iter().find(|it| {
                !matches!(it, Denied::NotPermitted { command, .. } if *command != "SENTINEL MYID")
            });
            return Err(denied.map_or(ExamineError::UnexpectedServer, ExamineError::Denied));
        }
    };
    let ckquorum = after.first().and_then(|reply| match reply.error() {
        Some(line) => line.starts_with("NOQUORUM").then(|| Err(line.to_string())),
        None => Some(Ok(())),
    });
    let master = match read_poll(poll_replies, false) {
        PollOutcome::View { view, .. } => {
            MasterAnswer::Known(Box::new(read_master(poll_replies, view, ckquorum)))
        }
        PollOutcome::UnknownName => MasterAnswer::UnknownName,
        PollOutcome::Torn => MasterAnswer::Malformed(
            "the master changed during the poll: a failover is in progress; run the doctor again",
        ),
        PollOutcome::Denied(_) => MasterAnswer::Denied,
        PollOutcome::Malformed(what) => MasterAnswer::Malformed(what),
    };
    Ok(SentinelAnswer {
        id,
        reached,
        resp3,
        refused,
        tilt: read_tilt(info),
        watched: watched(info),
        run_id: server.info("run_id").map(OutsideText::from),
        config_file: server.info("config_file").filter(|it| !it.is_empty()).map(OutsideText::from),
        master,
    })
}

/// Completes the view of discovery by what only the doctor uses.
fn read_master(
    [_, master, peers, replicas, _]: &[Reply; REPLIES_PER_POLL],
    view: View,
    ckquorum: Option<Result<(), String>>,
) -> ObservedMaster {
    let number = |key: &str| master.field(key).and_then(|text| text.parse::<u64>().ok());
    let has_script = |key: &str| master.field(key).is_some_and(|path| !path.is_empty());
    ObservedMaster {
        addr: view.addr,
        epoch: view.epoch,
        down: view.down,
        run_id: view.run_id,
        failing_over: view.failing_over,
        quorum: number("quorum"),
        down_after: number("down-after-milliseconds").map(Duration::from_millis),
        failover_timeout: number("failover-timeout").map(Duration::from_millis),
        parallel_syncs: number("parallel-syncs"),
        scripts: has_script("notification-script") || has_script("client-reconfig-script"),
        peers: listed(peers).map(peer).collect(),
        replicas: listed(replicas).filter_map(replica).collect(),
        ckquorum,
    }
}

fn listed(reply: &Reply) -> impl Iterator<Item = &Reply> {
    reply.list().unwrap_or_default().iter().take(MAX_LISTED)
}

fn peer(reply: &Reply) -> ObservedPeer {
    let addr = entry_address(reply);
    let up = addr.is_some() && !has_flag(reply, "s_down") && !has_flag(reply, "disconnected");
    ObservedPeer { id: reply.field("runid").and_then(MyId::parse), addr, up }
}

fn replica(reply: &Reply) -> Option<ObservedReplica> {
    Some(ObservedReplica {
        addr: entry_address(reply)?,
        down: !is_healthy(reply),
        linked: reply.field("master-link-status") == Some("ok"),
        priority: reply.field("slave-priority").and_then(|text| text.parse().ok()),
    })
}

/// The masters in lines such as `master0:name=mymaster,status=ok,address=10.0.0.1:6379,…`.
fn watched(info: &Reply) -> Vec<Watched> {
    let read = |line: &str| {
        let (key, fields) = line.split_once(":name=")?;
        let number = key.strip_prefix("master")?;
        let addr = fields.split(',').find_map(|it| it.strip_prefix("address="));
        let addr = addr.and_then(|it| it.rsplit_once(':'));
        number.bytes().all(|byte| byte.is_ascii_digit()).then(|| Watched {
            name: fields.split(',').next().unwrap_or(fields).into(),
            addr: addr.and_then(|(host, port)| NodeAddr::parse(host, port)),
        })
    };
    info.text().unwrap_or_default().lines().filter_map(read).take(MAX_LISTED).collect()
}

/// What a node is asked after a probe that it has answered.
const NODE_QUESTIONS: &[&[&str]] = &[
    &["PING"],
    &["ROLE"],
    &["INFO", "replication"],
    &["CONFIG", "GET", "min-replicas-to-write"],
    &["CONFIG", "GET", "save"],
    &["CONFIG", "GET", "appendonly"],
    &["ACL", "LIST"],
    // The last one, since the list may be longer than a reply may be.
    &["CLIENT", "LIST", "TYPE", "PUBSUB"],
];

/// The part of them that may be sent to a node.
pub(super) fn node_questions(verify: Verify) -> &'static [&'static [&'static str]] {
    match verify {
        Verify::Role => NODE_QUESTIONS,
        Verify::Ping => NODE_QUESTIONS.get(..1).unwrap_or_default(),
        Verify::Tcp => &[],
    }
}

/// Reads the replies to the [`node_questions`], as far as they came.
pub(super) fn read_details(replies: &[Reply]) -> NodeDetails {
    let at = |number: usize| replies.get(number).unwrap_or(&Reply::Null);
    // An error about an unknown command goes on with its arguments.
    let words = |line: &str| line.split(", with args").next().map(OutsideText::from);
    let error = |number: usize| at(number).error().and_then(words);
    let value = |number: usize, key: &str| at(number).field(key);
    let persists = match (value(4, "save"), value(5, "appendonly")) {
        (_, Some("yes")) => Some(true),
        (Some(save), Some(_)) => Some(!save.is_empty()),
        _ => None,
    };
    NodeDetails {
        ping: at(0).text().filter(|it| *it != "PONG").map(OutsideText::from).or_else(|| error(0)),
        role_error: error(1),
        info_error: error(2),
        write_guard: read_write_guard(at(2), at(3)),
        persists,
        users: acl::read_users(at(6)),
        sentinel_users: acl::read_sentinel_users(at(7)),
    }
}

/// `INFO` tells whether there is a guard; the number needs `CONFIG GET`, which a narrow ACL
/// refuses: that is no fault.
fn read_write_guard(info: &Reply, config: &Reply) -> Option<WriteGuard> {
    info.info("role")?;
    let good = info.info("min_slaves_good_slaves").and_then(|text| text.parse().ok());
    let to_write = config.field("min-replicas-to-write").and_then(|text| text.parse().ok());
    Some(WriteGuard { to_write, good })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(view: &str) -> Reply {
        Reply::Text(bytes::Bytes::copy_from_slice(view.as_bytes()))
    }

    fn list(views: &[&str]) -> Reply {
        Reply::List(views.iter().map(|view| text(view)).collect())
    }

    fn replies() -> Vec<Reply> {
        let at = ["10.0.0.1", "6379"];
        let id = "b".repeat(40);
        let master = [
            "quorum",
            "2",
            "config-epoch",
            "7",
            "flags",
            "master",
            "down-after-milliseconds",
            "5000",
            "parallel-syncs",
            "4",
            "client-reconfig-script",
            "/notify",
        ];
        let peer = ["ip", "10.0.0.8", "port", "26379", "runid", &id, "flags", "sentinel,s_down"];
        let replica = [
            "ip",
            "10.0.0.2",
            "port",
            "6379",
            "flags",
            "slave",
            "master-link-status",
            "err",
            "slave-priority",
            "0",
        ];
        vec![
            text("OK"),
            text(&"a".repeat(40)),
            text(
                "# Sentinel\r\nsentinel_tilt:1\r\nmaster0:name=cache,status=ok\r\nmaster1:name=my\u{1b}x,status=ok\r\n",
            ),
            text("# Server\r\nredis_version:7.0.15\r\nconfig_file:/etc/redis/s.conf\r\n"),
            list(&at),
            list(&master),
            Reply::List(vec![list(&peer)]),
            Reply::List(vec![list(&replica)]),
            list(&at),
            Reply::Error("NOQUORUM 1 usable Sentinels. Not enough available Sentinels".into()),
            Reply::Push(vec![text("subscribe"), text("+switch-master"), Reply::Number(1)]),
        ]
    }

    fn reached() -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 9], 26379))
    }

    #[test]
    fn reads_complete_answer_of_sentinel() {
        let replies = replies();
        assert_eq!(replies.len(), questions("m").len());
        let answer = read(&replies, reached(), true).expect("an answer");
        assert!(answer.tilt && answer.refused.is_empty());
        let watched: Vec<String> = answer.watched.iter().map(|it| it.name.to_string()).collect();
        assert_eq!(watched, ["cache", "my\\u{1b}x"], "control characters are escaped");
        let MasterAnswer::Known(view) = answer.master else { panic!("it knows the master") };
        assert_eq!(
            (view.addr.to_string().as_str(), view.epoch, view.quorum),
            ("10.0.0.1:6379", 7, Some(2))
        );
        assert_eq!(view.down_after, Some(Duration::from_secs(5)));
        assert_eq!((view.parallel_syncs, view.scripts), (Some(4), true));
        assert_eq!(answer.config_file.as_deref(), Some("/etc/redis/s.conf"));
        assert!(
            !view.peers[0].up && view.replicas[0].priority == Some(0) && !view.replicas[0].linked
        );
        assert!(matches!(view.ckquorum, Some(Err(error)) if error.contains("NOQUORUM")));
    }

    #[test]
    fn lists_every_refused_command() {
        let mut replies = replies();
        for at in [2, 3, 6, 9, 10] {
            replies[at] = Reply::Error("NOPERM this user has no permissions".into());
        }
        let answer = read(&replies, reached(), true).expect("an answer");
        let rules: Vec<&str> = answer
            .refused
            .iter()
            .filter_map(|it| match it {
                Denied::NotPermitted { rule, .. } => Some(*rule),
                _ => None,
            })
            .collect();
        assert_eq!(
            rules,
            ["+info", "+info", "+sentinel|sentinels", "+sentinel|ckquorum", "+subscribe &*"]
        );
        assert!(matches!(answer.master, MasterAnswer::Denied));
    }

    #[test]
    fn reads_write_guard_with_and_without_config() {
        let info = |extra: &str| text(&format!("# Replication\r\nrole:master\r\n{extra}"));
        let config = list(&["min-replicas-to-write", "2"]);
        let guard = |[info, config]: [Reply; 2]| read_write_guard(&info, &config);
        let on = info("min_slaves_good_slaves:1\r\n");
        let expected = WriteGuard { to_write: Some(2), good: Some(1) };
        assert_eq!(guard([on.clone(), config.clone()]), Some(expected));
        let refused = Reply::Error("NOPERM this user has no permissions".into());
        let expected = WriteGuard { to_write: None, good: Some(1) };
        assert_eq!(guard([on, refused.clone()]), Some(expected));
        assert_eq!(guard([info(""), config]).map(|it| it.good), Some(None));
        assert_eq!(guard([refused.clone(), refused]), None, "nothing is known without INFO");
    }

    #[test]
    fn reads_details_of_a_node_as_far_as_they_came() {
        let config = |key: &str, value: &str| list(&[key, value]);
        let error = |line: &str| Reply::Error(line.into());
        let replies = [
            error("ERR unknown command 'PING', with args beginning with: "),
            error("ERR unknown command 'ROLE', with args beginning with: 'secret' "),
            text("# Replication\r\nrole:master\r\n"),
            error("NOPERM this user has no permissions"),
            config("save", ""),
            config("appendonly", "no"),
            list(&["user default on nopass ~* &* +@all"]),
            text("id=1 name=sentinel-a-pubsub user=default\n"),
        ];
        assert_eq!(replies.len(), node_questions(Verify::Role).len());
        let details = read_details(&replies);
        assert_eq!(details.ping.as_deref(), Some("ERR unknown command 'PING'"));
        assert_eq!(details.role_error.as_deref(), Some("ERR unknown command 'ROLE'"));
        assert_eq!((details.info_error, details.persists), (None, Some(false)));
        assert!(details.users.is_some_and(|it| it.len() == 1 && it[0].announces));
        assert_eq!(details.sentinel_users.len(), 1);
        // What a narrow ACL refuses is unknown, and so is what did not come in time.
        let details = read_details(&[text("PONG")]);
        assert!(details.ping.is_none() && details.persists.is_none() && details.users.is_none());
        assert_eq!(node_questions(Verify::Ping), [["PING"]]);
        assert!(node_questions(Verify::Tcp).is_empty());
    }

    #[test]
    fn reads_addresses_of_monitored_masters() {
        let info = text(
            "# Sentinel\r\nmaster0:name=m,status=ok,address=10.0.0.1:6379,slaves=2\r\n\
             master1:name=n,status=ok,address=::1:6380,slaves=2\r\n",
        );
        let addrs: Vec<Option<String>> =
            watched(&info).iter().map(|it| it.addr.as_ref().map(ToString::to_string)).collect();
        assert_eq!(addrs, [Some("10.0.0.1:6379".to_owned()), Some("[::1]:6380".to_owned())]);
    }

    #[test]
    fn rejects_redis_server_and_incomplete_replies() {
        let mut replies = replies();
        replies[1] = Reply::Error("ERR unknown command 'SENTINEL'".into());
        assert_eq!(read(&replies, reached(), true).err(), Some(ExamineError::UnexpectedServer));
        assert_eq!(
            read(&replies[..4], reached(), true).err(),
            Some(ExamineError::UnexpectedServer)
        );
    }
}
