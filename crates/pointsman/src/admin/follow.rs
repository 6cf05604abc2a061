//! The commands `follow` and `unfollow` of the control API: their parameters, and the words for
//! what an order led to.
//!
//! Discovery decides on an order after it has queried the node, so its answer is read from the
//! snapshots. Each answer says what is followed, what ends it, and what happens then.

use std::time::{Duration, Instant};

use sentinel::{
    CommandId, DiscoveryHandle, DiscoverySnapshot, FollowRefusal, Followed, Minority, NodeAddr,
    ProbeFailure, Role,
};
use serde_json::{Value as Json, json};

use crate::config::{format_duration, parse_duration};

/// Duration of an override without a `for` parameter.
const DEFAULT_OVERRIDE: Duration = Duration::from_secs(600);
/// Maximum duration of an override; another order renews it.
const MAX_OVERRIDE: Duration = Duration::from_secs(24 * 3600);
/// A node gets three seconds to answer; discovery applies a command in its next iteration.
const ANSWER_DEADLINE: Duration = Duration::from_secs(6);

/// An order to follow a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) addr: NodeAddr,
    pub(super) lasts: Duration,
    pub(super) force: bool,
}

impl Order {
    /// Reads the parameters of a request.
    ///
    /// # Errors
    ///
    /// What to write instead.
    pub(super) fn read<'a>(parameter: impl Fn(&str) -> Option<&'a str>) -> Result<Self, String> {
        let (host, port) = (parameter("host").unwrap_or(""), parameter("port").unwrap_or(""));
        let Some(addr) = NodeAddr::parse(host, port) else {
            return Err("write the node as host and port, for example 10.0.0.2:6379".to_owned());
        };
        let lasts = parameter("for").map_or(Some(DEFAULT_OVERRIDE), |it| parse_duration(it).ok());
        let Some(lasts) = lasts.filter(|it| !it.is_zero() && *it <= MAX_OVERRIDE) else {
            return Err("write the duration as 10m or 2h, up to 24h".to_owned());
        };
        let Ok(force) = parameter("force").map_or(Ok(false), str::parse) else {
            return Err("force must be true or false".to_owned());
        };
        Ok(Self { addr, lasts, force })
    }
}

/// What an order led to: lines for the operator, or why it was refused.
pub(super) type Outcome = Result<Vec<String>, String>;

/// Gives an order, and waits for its answer.
pub(super) async fn follow(name: &str, handle: &DiscoveryHandle, order: Order) -> Outcome {
    let before = handle.snapshot();
    let command = handle.follow(order.addr.clone(), order.lasts, order.force);
    let since = Instant::now();
    loop {
        let seen = handle.snapshot();
        let answer = seen.overrides.answers.iter().find(|(id, _)| *id == command.number());
        match answer {
            Some((_, Ok(followed))) => return Ok(report(name, &order, *followed, &before, &seen)),
            Some((_, Err(refusal))) => return Err(refused(name, &order, refusal, &seen)),
            None if since.elapsed() > ANSWER_DEADLINE => return Err(withdraw(handle, command)),
            None => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

fn withdraw(handle: &DiscoveryHandle, command: CommandId) -> String {
    if handle.cancel(command) {
        "discovery did not respond, the order was withdrawn; see /alive".to_owned()
    } else {
        "discovery gave no answer to the order; see `pointsman status`".to_owned()
    }
}

fn report(
    name: &str,
    order: &Order,
    followed: Followed,
    before: &DiscoverySnapshot,
    seen: &DiscoverySnapshot,
) -> Vec<String> {
    let (addr, lasts) = (&order.addr, format_duration(order.lasts));
    let generation = seen.master.as_ref().map_or(0, |master| master.generation);
    let last = before.master.as_ref().filter(|last| last.addr != *addr);
    let mut lines = vec![match (followed, last) {
        (Followed::Confirmed, _) => {
            format!("{addr} was the master already and is confirmed for {lasts}")
        }
        (Followed::Switched, Some(last)) => format!(
            "following {addr} for {lasts} as generation {generation}, connections to {} are fenced",
            last.addr
        ),
        (Followed::Switched, None) => {
            format!("following {addr} for {lasts} as generation {generation}")
        }
    }];
    if before.nodes.iter().any(|it| Some(&it.addr) == last.map(|it| &it.addr) && is_master(it))
        && let Some(last) = last
    {
        lines.push(format!(
            "WARNING: {} answers as a master, too; what is written to it is not on {addr}: run \
             REPLICAOF {} {} there",
            last.addr, addr.host, addr.port
        ));
    }
    if before.master.is_none() && before.counts.commits == 0 {
        lines.push(format!(
            "WARNING: this process knew no master before: nothing shows that {addr} holds the \
             right data"
        ));
    }
    if seen.holding {
        lines.push("traffic is paused by an operator: `pointsman resume` releases it".to_owned());
    }
    lines.push(format!(
        "ends when a majority of the sentinels confirms a master, after {lasts}, or with \
         `pointsman unfollow {name}`; {}",
        then(seen.overrides.minority)
    ));
    lines.push(
        "each proxy needs this order; let the sentinels monitor this master before they start \
         again"
            .to_owned(),
    );
    lines
}

fn is_master(node: &sentinel::NodeSnapshot) -> bool {
    let report = node.probe.as_ref().and_then(|probe| probe.outcome.as_ref().ok());
    report.is_some_and(|report| report.role == Role::Master)
}

/// What happens when an override ends while the sentinels are still lost.
pub(super) fn then(minority: Minority) -> &'static str {
    match minority {
        Minority::Keep => "then the master stays in force (minority = \"keep\")",
        Minority::Hold => "then traffic is held until a majority is back (minority = \"hold\")",
        Minority::Cut => "then sessions are closed until a majority is back (minority = \"cut\")",
    }
}

/// The reason of a refusal, with a remedy.
fn refused(name: &str, order: &Order, refusal: &FollowRefusal, seen: &DiscoverySnapshot) -> String {
    let addr = &order.addr;
    match refusal {
        FollowRefusal::MajorityAnswers => majority(name, seen),
        FollowRefusal::MasterChange => {
            "a master change is in progress: wait ten seconds, then see `pointsman status`".into()
        }
        FollowRefusal::Switchover => {
            "a switchover of this service is in progress: wait for its end".to_owned()
        }
        FollowRefusal::RoleNotQueried => {
            "the role of a node is not queried with this verify setting: set verify = \"role\" \
             and restart"
                .to_owned()
        }
        FollowRefusal::Replica { master } => format!(
            "{addr} is a replica of {master}: if it is to be the master, run REPLICAOF NO ONE on \
             it first"
        ),
        FollowRefusal::NotRedis => format!("{addr} reports no role: is it a Redis server?"),
        FollowRefusal::NotReady => format!(
            "{addr} is a master but does not answer PING with PONG, for example because it is \
             loading its data: wait, then repeat the order"
        ),
        FollowRefusal::OtherHistory { of } => format!(
            "{addr} does not continue the replication history of the last master {of}, so it may \
             hold another data set: check its data; if it is the right one, for example a \
             restored backup, repeat the order with --force"
        ),
        FollowRefusal::UnknownHistory { of } => format!(
            "the replication history of {addr} or of the last master {of} is unknown: permit \
             +info to the probe user, or check the data and repeat the order with --force"
        ),
        FollowRefusal::Failed(failure) => failed(addr, *failure),
        FollowRefusal::Replaced => "another command replaced this order".to_owned(),
    }
}

fn failed(addr: &NodeAddr, failure: ProbeFailure) -> String {
    match failure {
        ProbeFailure::Unreachable => {
            format!("{addr} cannot be reached from here: check the address and the network")
        }
        ProbeFailure::Unresponsive => format!("{addr} accepts connections but gives no answer"),
        ProbeFailure::ConnectionRejected => format!(
            "{addr} rejects new connections: it has reached maxclients, or is in protected mode"
        ),
        ProbeFailure::Busy => format!(
            "{addr} answers -BUSY: a script runs too long; SCRIPT KILL there, or wait, and repeat \
             the order"
        ),
        ProbeFailure::Denied => format!(
            "{addr} refuses ROLE, PING or the credentials: check user and password of the \
             service, and permit +role and +ping"
        ),
        ProbeFailure::UnusableAddress => {
            format!("{addr} leads back to this proxy: give the address of the Redis server")
        }
        ProbeFailure::OutsideNodes => {
            format!("{addr} is outside service.nodes: add it there, or give another address")
        }
    }
}

fn majority(name: &str, seen: &DiscoverySnapshot) -> String {
    let mut named: Vec<String> = seen
        .sentinels
        .iter()
        .filter(|it| it.member)
        .filter_map(|it| it.view.as_ref().map(|(addr, ..)| addr.to_string()))
        .collect();
    named.sort_unstable();
    named.dedup();
    let (voters, majority) = seen.quorum;
    if named.is_empty() {
        return "a majority of the sentinels answered within the last seconds: if they are lost, \
                repeat the order in five seconds"
            .to_owned();
    }
    format!(
        "a majority of the sentinels answers ({majority} of {voters} are enough) and names {}: \
         use `pointsman switchover {name}`; if they name the wrong master, correct them with \
         SENTINEL REMOVE and SENTINEL MONITOR",
        named.join(", ")
    )
}

/// The lines of a response: one step for each line, then the result.
pub(super) fn lines(after: Duration, outcome: &Outcome) -> Vec<Json> {
    let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
    let step = |text: &String| json!({ "after_ms": after_ms, "step": "follow", "text": text });
    let last = match outcome {
        Ok(_) => json!({ "ok": true }),
        Err(error) => json!({ "ok": false, "error": error }),
    };
    outcome.iter().flatten().map(step).chain([last]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &'static str)]) -> Result<Order, String> {
        Order::read(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| *value))
    }

    #[test]
    fn reads_address_and_bounded_duration() {
        let plain = read(&[("host", "Redis-1"), ("port", "6379")]).unwrap();
        assert_eq!(plain.addr.to_string(), "redis-1:6379");
        assert_eq!((plain.lasts, plain.force), (DEFAULT_OVERRIDE, false));
        let all = [("host", "fd00::1"), ("port", "1"), ("for", "24h"), ("force", "true")];
        let all = read(&all).unwrap();
        assert_eq!((all.addr.to_string().as_str(), all.force), ("[fd00::1]:1", true));
        let addr = [("host", "a"), ("port", "1")];
        for wrong in [("for", "25h"), ("for", "0s"), ("for", "soon"), ("force", "yes")] {
            assert!(read(&[addr[0], addr[1], wrong]).is_err(), "{wrong:?}");
        }
        for wrong in [("", "1"), ("a", "0"), ("a", "")] {
            assert!(read(&[("host", wrong.0), ("port", wrong.1)]).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn writes_steps_before_the_result() {
        let outcome = Ok(vec!["one".to_owned(), "two".to_owned()]);
        let text = |after, outcome: &Outcome| {
            lines(after, outcome).iter().map(|line| format!("{line}\n")).collect::<String>()
        };
        assert_eq!(
            text(Duration::from_millis(7), &outcome),
            "{\"after_ms\":7,\"step\":\"follow\",\"text\":\"one\"}\n\
             {\"after_ms\":7,\"step\":\"follow\",\"text\":\"two\"}\n{\"ok\":true}\n"
        );
        let refused = Err("no".to_owned());
        assert_eq!(text(Duration::ZERO, &refused), "{\"error\":\"no\",\"ok\":false}\n");
    }
}
