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

use crate::builder;
use crate::tls_clients::small;

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

    fn play(&self, mut client: Client) -> Vec<Value> {
        let requests = self.requests.iter();
        requests
            .map(|(_, words)| {
                client.cmd(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
            })
            .collect()
    }
}

/// The names of a server's commands. Redis 6.2 has no `COMMAND LIST`.
fn commands(client: &mut Client) -> Vec<String> {
    let reply = client.cmd(&["COMMAND"]).expect("its commands");
    let names = reply.items().iter().filter_map(|command| command.items().first()?.text());
    names.map(str::to_ascii_lowercase).collect()
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
        known.iter().filter(|name| !examples.iter().any(|it| it.name == name.as_str())).collect();
    assert!(known.len() > 200 && missing.is_empty(), "no example of {missing:?}");
    let mut wrong = Vec::new();
    let mut before = promotions(&pointsman);
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
        before = after;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_same_data(&direct, &behind);
}

/// Whether both servers have the same keys in the end.
fn assert_same_data(one: &Cluster, other: &Cluster) {
    let keys = |cluster: &Cluster| {
        let reply = cluster.master().ask(&["KEYS", "*"]).expect("its keys");
        let mut keys: Vec<_> =
            reply.items().iter().map(|it| it.text().map(str::to_owned)).collect();
        keys.sort();
        keys
    };
    assert_eq!(keys(one), keys(other));
}
