//! Every command of a server through shared connections: the replies of a direct connection, and
//! promoted for the reason that the documents name.
//!
//! Two servers of the same version execute the examples of `shared_commands/examples.txt`, each
//! example on a connection of its own: one directly, the other one through Pointsman. A command
//! that the server has and the examples have not fails the test, so a new version of a server is
//! noticed.

use std::collections::BTreeMap;
use std::mem::discriminant;

use harness::{Client, Cluster, Pointsman, Value};

use crate::tls_clients::small;
use crate::{builder, metric};

const SHARED_REQUESTS: &str = "pointsman_shared_requests_total{service=\"mymaster\"}";
const EXAMPLES: &str = include_str!("shared_commands/examples.txt");

/// One command.
#[derive(Debug)]
struct Example {
    name: &'static str,
    /// Why a session gets a connection of its own, as in the metrics.
    promoted: Option<&'static str>,
    /// The words of each request, and whether the content of its reply may differ.
    requests: Vec<(bool, Vec<&'static str>)>,
}

impl Example {
    fn parse(line: &'static str) -> Self {
        if let Some((name, _reason)) = line.split_once("! ") {
            return Self { name, promoted: None, requests: Vec::new() };
        }
        let (head, requests) = line.split_once(": ").unwrap_or_else(|| panic!("{line}"));
        let (name, promoted) = match head.split_once(" [") {
            Some((name, reason)) => (name, Some(reason.trim_end_matches(']'))),
            None => (head, None),
        };
        let request = |text: &'static str| {
            let text = text.trim();
            (text.starts_with('~'), text.trim_start_matches('~').split(' ').collect())
        };
        Self { name, promoted, requests: requests.split(';').map(request).collect() }
    }

    fn all() -> Vec<Self> {
        let lines = EXAMPLES.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        lines.map(Self::parse).collect()
    }

    /// Whether it has the command, or the subcommand, of this name.
    fn shows(&self, name: &str) -> bool {
        let Some((command, subcommand)) = name.split_once('|') else { return self.name == name };
        let is_it = |words: &Vec<&str>| {
            words.get(1).is_some_and(|second| second.eq_ignore_ascii_case(subcommand))
        };
        self.name == command && self.requests.iter().any(|(_, words)| is_it(words))
    }

    fn play(&self, mut client: Client) -> Vec<Value> {
        let requests = self.requests.iter();
        requests
            .map(|(_, words)| {
                client.cmd(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
            })
            .collect()
    }
}

/// The names of a server's commands, and those of subcommands as `client|id`. Redis 6.2 has no
/// `COMMAND LIST` and names no subcommands.
fn commands(client: &mut Client) -> Vec<String> {
    let list = client.cmd(&["COMMAND", "LIST"]).expect("its commands");
    let all = client.cmd(&["COMMAND"]).expect("its commands");
    let names = all.items().iter().filter_map(|command| command.items().first()?.text());
    let listed = list.items().iter().filter_map(Value::text);
    names.chain(listed).map(str::to_ascii_lowercase).collect()
}

/// The promotions so far, by reason.
fn promotions(pointsman: &Pointsman) -> BTreeMap<String, f64> {
    const SERIES: &str = "pointsman_shared_promotions_total{service=\"mymaster\",reason=\"";
    let (_, text) = pointsman.get("/metrics").expect("metrics");
    let one = |line: &str| {
        let (reason, count) = line.strip_prefix(SERIES)?.split_once("\"} ")?;
        Some((reason.to_owned(), count.parse().ok()?))
    };
    text.lines().filter_map(one).collect()
}

#[test]
fn answers_every_command_as_a_direct_connection() {
    let (direct, behind) = (small(), small());
    let pointsman = builder(&behind).service_line("upstream = \"shared\"").start();
    let known = commands(&mut direct.master().client());
    let examples = Example::all();
    let missing: Vec<_> =
        known.iter().filter(|name| !examples.iter().any(|example| example.shows(name))).collect();
    assert!(known.len() > 200 && missing.is_empty(), "no example of {missing:?}");
    let mut wrong = Vec::new();
    let (mut before, mut shared) = (promotions(&pointsman), 0.0);
    for example in examples.iter().filter(|it| known.iter().any(|name| name == it.name)) {
        let (expected, found) =
            (example.play(direct.master().client()), example.play(pointsman.client()));
        for ((may_differ, words), (expected, found)) in
            example.requests.iter().zip(expected.iter().zip(&found))
        {
            let alike = discriminant(expected) == discriminant(found);
            if !alike || (!may_differ && expected != found) {
                wrong.push(format!("{words:?}: {expected:?} and {found:?}"));
            }
        }
        let after = promotions(&pointsman);
        let grown: Vec<&str> = after
            .iter()
            .filter(|(reason, count)| before.get(*reason) != Some(count))
            .map(|(reason, _)| reason.as_str())
            .collect();
        let first = example.promoted.into_iter().collect::<Vec<_>>();
        if grown != first {
            wrong.push(format!("{}: promoted for {grown:?} and not {first:?}", example.name));
        }
        let count = metric(&pointsman, SHARED_REQUESTS).unwrap_or_default();
        let own = shared + example.requests.len() as f64;
        if example.promoted.is_none() && count < own {
            wrong.push(format!("{}: {count} requests were shared and not {own}", example.name));
        }
        (before, shared) = (after, count);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_same_data(&direct, &behind);
}

/// Whether both servers have the same keys with the same values in the end.
#[track_caller]
fn assert_same_data(one: &Cluster, other: &Cluster) {
    let keys = |cluster: &Cluster| {
        let reply = cluster.master().ask(&["KEYS", "*"]).expect("its keys");
        let mut keys: Vec<_> =
            reply.items().iter().filter_map(|it| it.text().map(str::to_owned)).collect();
        keys.sort();
        keys
    };
    let all = keys(one);
    assert_eq!(all, keys(other));
    assert!(all.len() > 100, "{}", all.len());
    for key in all {
        assert_eq!(value(one, &key), value(other, &key), "{key}");
    }
}

/// The value of a key. Serialized streams and hashes contain times, and sets have no order.
fn value(cluster: &Cluster, key: &str) -> Vec<Value> {
    let ask = |words: &[&str]| cluster.master().ask(words).expect("its value");
    let items = |words: &[&str]| ask(words).items().to_vec();
    match ask(&["TYPE", key]).text() {
        Some("set") => {
            let mut members = items(&["SMEMBERS", key]);
            members.sort_by(|one, other| one.text().cmp(&other.text()));
            members
        }
        Some("hash") => items(&["HGETALL", key]),
        Some("stream") => items(&["XRANGE", key, "-", "+"]),
        _ => vec![ask(&["DUMP", key])],
    }
}
