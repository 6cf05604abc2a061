//! Records the commands that a server has, for the tests of the command table.
//!
//! The lists are the server's own words: a new command shows up in the diff of a review, and the
//! tests of the crate `resp` require that it is known there or pins its session.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use harness::{Address, Client, Family, Launch, Process, Value, wait_until};
use setup::files;

use super::fetch::Programs;
use super::origins::Server;

/// A server on a busy machine starts within this time.
const PATIENCE: Duration = Duration::from_secs(30);
/// The flags that say something about the connection.
const FLAGS: [&str; 2] = ["blocking", "pubsub"];

/// Writes the commands of a server into the test data of the crate `resp`.
///
/// # Errors
/// A message for people: the file cannot be written.
pub(super) fn record(server: &Server, programs: &Programs) -> Result<usize, String> {
    let commands = listed(&ask(server, programs)?);
    let path = folder().join(format!("{}.txt", server.name));
    files::write(&path, text(server, &commands))?;
    Ok(commands.len())
}

fn folder() -> PathBuf {
    setup::root().join("crates/resp/testdata/servers")
}

/// The reply of a freshly started server to COMMAND.
fn ask(server: &Server, programs: &Programs) -> Result<Value, String> {
    let folder = files::temporary()?;
    let addr = Address::claim(Family::Ipv4).port();
    let (ip, port) = (addr.ip().to_string(), addr.port().to_string());
    let args = ["--bind", &ip, "--port", &port, "--save", ""];
    let process = Process::start(&Launch {
        name: server.name.clone(),
        program: programs.server.clone(),
        args: args.iter().map(Into::into).collect(),
        env: Vec::new(),
        folder: folder.path().to_owned(),
    });
    let mut client = wait_until("the server to listen", PATIENCE, || {
        assert!(process.is_running(), "{} ended: {}", server.name, process.log());
        Client::connect(addr)
    });
    client.cmd(&["COMMAND"]).map_err(|error| format!("COMMAND: {error}"))
}

/// The names of all commands and subcommands, with the flags of interest.
fn listed(reply: &Value) -> BTreeMap<String, Vec<&'static str>> {
    let mut found = BTreeMap::new();
    let mut open: Vec<&Value> = reply.items().iter().collect();
    while let Some(entry) = open.pop() {
        let fields = entry.items();
        let Some(name) = fields.first().and_then(Value::text) else { continue };
        let flags: Vec<&str> = fields
            .get(2)
            .map(|flags| flags.items().iter().filter_map(Value::text).collect())
            .unwrap_or_default();
        let kept = FLAGS.into_iter().filter(|flag| flags.contains(flag)).collect();
        found.insert(name.to_ascii_uppercase().replace('|', " "), kept);
        // Since Redis 7.0.
        open.extend(fields.get(9).map(Value::items).unwrap_or_default());
    }
    found
}

fn text(server: &Server, commands: &BTreeMap<String, Vec<&str>>) -> String {
    let mut text = format!(
        "# Commands of {}, as COMMAND lists them, with their flags {}.\n\
         # Written by `cargo xtask test --servers {}`.\n",
        server.title(),
        FLAGS.join(" and "),
        server.name
    );
    for (name, flags) in commands {
        let flags = if flags.is_empty() { String::new() } else { format!(": {}", flags.join(" ")) };
        let _ = writeln!(text, "{name}{flags}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(all: &[&str]) -> Value {
        Value::Array(all.iter().map(|word| Value::Simple((*word).to_owned())).collect())
    }

    #[test]
    fn lists_commands_and_subcommands_with_flags() {
        let entry = |name: &str, flags: &[&str], inner: Vec<Value>| {
            let number = || Value::Int(0);
            Value::Array(vec![
                Value::Bulk(name.as_bytes().to_vec()),
                number(),
                words(flags),
                number(),
                number(),
                number(),
                words(&[]),
                words(&[]),
                words(&[]),
                Value::Array(inner),
            ])
        };
        let inner = vec![entry("client|id", &["noscript", "no_multi"], Vec::new())];
        let reply = Value::Array(vec![
            entry("blpop", &["write", "blocking"], Vec::new()),
            entry("client", &[], inner),
            // Redis 6.2 has fewer fields.
            Value::Array(vec![Value::Bulk(b"get".to_vec()), Value::Int(2), words(&["readonly"])]),
        ]);
        let found = listed(&reply);
        let expected = [
            ("BLPOP", vec!["blocking"]),
            ("CLIENT", vec![]),
            ("CLIENT ID", vec![]),
            ("GET", vec![]),
        ];
        assert_eq!(found, expected.map(|(name, flags)| (name.to_owned(), flags)).into());
    }
}
