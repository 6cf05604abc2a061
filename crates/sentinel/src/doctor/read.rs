//! From a sentinel's replies to an [`Account`]: what is asked, and how each answer is read.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;

use super::observed::{Account, NoAnswer, ObservedPeer, ObservedReplica, Says, Word};
use crate::link::auth::Denied;
use crate::link::poll::{self, QUESTIONS, Round, SENTINEL_AUTH, has_flag, put_command, put_round};
use crate::link::reply::Reply;
use crate::{MyId, NodeAddr};

/// The most entries that are read of one list.
const MAX_LISTED: usize = 64;

/// What stands before and behind the round of questions: each command with the rule that allows it.
const BEFORE: [(&str, &str); 3] =
    [("CLIENT SETNAME", "+client|setname"), ("SENTINEL MYID", "+sentinel|myid"), ("INFO", "+info")];
const BEHIND: [(&str, &str); 2] =
    [("SENTINEL CKQUORUM", "+sentinel|ckquorum"), ("SUBSCRIBE", "+subscribe &*")];

/// How many replies [`put_questions`] brings.
pub(super) const REPLIES: usize = BEFORE.len() + QUESTIONS + BEHIND.len();

/// Appends every question. The subscription comes last: with RESP2 nothing can be asked after it.
pub(super) fn put_questions(out: &mut BytesMut, master: &str) {
    put_command(out, &["CLIENT", "SETNAME", "pointsman-doctor"]);
    put_command(out, &["SENTINEL", "MYID"]);
    put_command(out, &["INFO", "sentinel"]);
    put_round(out, master);
    put_command(out, &["SENTINEL", "CKQUORUM", master]);
    put_command(out, &["SUBSCRIBE", "+switch-master"]);
}

/// Reads the replies to [`put_questions`].
pub(super) fn read(
    replies: &[Reply],
    reached: SocketAddr,
    resp3: bool,
) -> Result<Account, NoAnswer> {
    let (before, rest) = replies.split_at_checked(BEFORE.len()).ok_or(NoAnswer::Stranger)?;
    let (round, behind) = rest.split_at_checked(QUESTIONS).ok_or(NoAnswer::Stranger)?;
    let [_, my_id, info] = before else { return Err(NoAnswer::Stranger) };
    let denied = |(reply, (command, rule)): (&Reply, (&'static str, &'static str))| {
        reply.error().and_then(|line| Denied::read(line, command, rule, SENTINEL_AUTH))
    };
    let mut refused: Vec<Denied> = before.iter().zip(BEFORE).filter_map(denied).collect();
    refused.extend(poll::refusals(round));
    refused.extend(behind.iter().zip(BEHIND).filter_map(denied));
    let id = match my_id.text().and_then(MyId::parse) {
        Some(id) => id,
        None if my_id.error().is_some_and(|line| line.starts_with("DENIED")) => {
            let what = "it lets nobody in from elsewhere (protected mode): set bind and a password there, or protected-mode no";
            return Err(NoAnswer::Unreachable(what.to_owned()));
        }
        // Without an identity nothing that it says can be counted; a refusal is told as one.
        None => {
            return Err(refused
                .into_iter()
                .find(is_about_identity)
                .map_or(NoAnswer::Stranger, NoAnswer::Denied));
        }
    };
    let ckquorum = behind.first().and_then(|reply| match reply.error() {
        Some(line) => line.starts_with("NOQUORUM").then(|| Err(printable(line))),
        None => Some(Ok(())),
    });
    let says = match poll::read_round(round, false) {
        Round::View { view, .. } => {
            Says::Knows(Box::new(word(round, (view.addr, view.epoch), ckquorum)))
        }
        Round::UnknownName => Says::Unknown,
        Round::Torn => Says::Malformed(
            "its answer changed while it was asked: a failover is going on; ask again",
        ),
        Round::Denied(_) => Says::Refused,
        Round::Malformed(what) => Says::Malformed(what),
    };
    Ok(Account {
        id,
        reached,
        resp3,
        refused,
        tilt: poll::read_tilt(info),
        watched: watched(info),
        says,
    })
}

fn is_about_identity(denied: &Denied) -> bool {
    match denied {
        Denied::NotPermitted { command, .. } => *command == "SENTINEL MYID",
        _ => true,
    }
}

fn word(
    round: &[Reply],
    (addr, epoch): (NodeAddr, u64),
    ckquorum: Option<Result<(), String>>,
) -> Word {
    let empty: &[Reply] = &[];
    let part = |at: usize| round.get(at);
    let list = |at: usize| part(at).and_then(Reply::list).unwrap_or(empty).iter().take(MAX_LISTED);
    let field = |key: &str| part(1).and_then(|master| master.field(key));
    let number = |key: &str| field(key).and_then(|text| text.parse::<u64>().ok());
    let flag = |name: &str| part(1).is_some_and(|master| has_flag(master, name));
    Word {
        addr,
        epoch,
        down: flag("s_down") || flag("o_down"),
        failing_over: flag("failover_in_progress"),
        quorum: number("quorum"),
        down_after: number("down-after-milliseconds").map(Duration::from_millis),
        failover_timeout: number("failover-timeout").map(Duration::from_millis),
        peers: list(2).map(peer).collect(),
        replicas: list(3).filter_map(replica).collect(),
        ckquorum,
    }
}

fn address(reply: &Reply) -> Option<NodeAddr> {
    NodeAddr::parse(reply.field("ip")?, reply.field("port")?)
}

fn peer(reply: &Reply) -> ObservedPeer {
    let addr = address(reply);
    let up = addr.is_some() && !has_flag(reply, "s_down") && !has_flag(reply, "disconnected");
    ObservedPeer { id: reply.field("runid").and_then(MyId::parse), addr, up }
}

fn replica(reply: &Reply) -> Option<ObservedReplica> {
    let down = ["s_down", "o_down", "disconnected"].iter().any(|flag| has_flag(reply, flag));
    let linked = reply.field("master-link-status") == Some("ok");
    let priority = reply.field("slave-priority").and_then(|text| text.parse().ok());
    Some(ObservedReplica { addr: address(reply)?, down, linked, priority })
}

/// The names in lines such as `master0:name=mymaster,status=ok,address=…`.
fn watched(info: &Reply) -> Vec<String> {
    let name = |line: &str| {
        let (key, value) = line.split_once(":name=")?;
        let number = key.strip_prefix("master")?;
        number
            .bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| printable(value.split(',').next().unwrap_or(value)))
    };
    info.text()
        .map(|text| text.lines().filter_map(name).take(MAX_LISTED).collect())
        .unwrap_or_default()
}

/// What a peer said, fit to be shown: bounded, and without anything that moves a cursor.
fn printable(text: &str) -> String {
    text.chars().take(200).map(|c| if c.is_control() { '?' } else { c }).collect()
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
    fn an_account_has_everything_that_a_person_would_look_up() {
        let replies = replies();
        assert_eq!(replies.len(), REPLIES);
        let account = read(&replies, reached(), true).expect("an account");
        assert!(account.tilt && account.refused.is_empty());
        assert_eq!(account.watched, ["cache", "my?x"], "what a peer says cannot move a cursor");
        let Says::Knows(word) = account.says else { panic!("it knows the master") };
        assert_eq!(
            (word.addr.to_string().as_str(), word.epoch, word.quorum),
            ("10.0.0.1:6379", 7, Some(2))
        );
        assert_eq!(word.down_after, Some(Duration::from_secs(5)));
        assert!(
            !word.peers[0].up && word.replicas[0].priority == Some(0) && !word.replicas[0].linked
        );
        assert!(matches!(word.ckquorum, Some(Err(why)) if why.contains("NOQUORUM")));
    }

    #[test]
    fn every_refused_command_is_told_and_not_only_the_first() {
        let mut replies = replies();
        for at in [2, 5, 8, 9] {
            replies[at] = Reply::Error("NOPERM this user has no permissions".into());
        }
        let account = read(&replies, reached(), true).expect("an account");
        let rules: Vec<&str> = account
            .refused
            .iter()
            .filter_map(|it| match it {
                Denied::NotPermitted { rule, .. } => Some(*rule),
                _ => None,
            })
            .collect();
        assert_eq!(rules, ["+info", "+sentinel|sentinels", "+sentinel|ckquorum", "+subscribe &*"]);
        assert!(matches!(account.says, Says::Refused));
    }

    #[test]
    fn a_redis_server_is_no_sentinel_and_too_few_answers_are_none() {
        let mut replies = replies();
        replies[1] = Reply::Error("ERR unknown command 'SENTINEL'".into());
        assert_eq!(read(&replies, reached(), true).err(), Some(NoAnswer::Stranger));
        assert_eq!(read(&replies[..4], reached(), true).err(), Some(NoAnswer::Stranger));
    }
}
