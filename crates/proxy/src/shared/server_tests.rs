//! The built-in decisions against a real server: its own command table, and what each shared
//! command does to the connection that sends it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::shared::commands::Commands;
use crate::shared::server_table::{ask_table, read_table};
use harness::{Binary, Launch, Process, Value, encode, parse, wait_until};
use resp::{CommandInfo, PromotionReason, Sharing, StatelessCommands, is_unlisted, sharing_of};

struct Server {
    _process: Process,
    _folder: tempfile::TempDir,
    connection: UnixStream,
    buffer: Vec<u8>,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("redis.sock");
        let launch = Launch {
            name: "redis".to_owned(),
            program: Binary::Server.in_folder(folder.path()),
            args: ["--port", "0", "--save", "", "--unixsocket"]
                .map(Into::into)
                .into_iter()
                .chain([socket.clone().into_os_string()])
                .collect(),
            env: Vec::new(),
            folder: folder.path().to_owned(),
        };
        let process = Process::start(&launch);
        let connection = connect(&socket);
        Self { _process: process, _folder: folder, connection, buffer: Vec::new() }
    }

    fn send<A: AsRef<[u8]>>(&mut self, words: &[A]) {
        self.connection.write_all(&encode(words)).expect("a write");
    }

    fn value(&mut self) -> Value {
        self.reply().0
    }

    /// A reply, and its bytes.
    fn reply(&mut self) -> (Value, Vec<u8>) {
        loop {
            if let Some((value, len)) = parse(&self.buffer).expect("RESP") {
                return (value, self.buffer.drain(..len).collect());
            }
            let mut piece = [0; 64 * 1024];
            let len = self.connection.read(&mut piece).expect("a reply");
            assert!(len > 0, "the server closed the connection");
            self.buffer.extend_from_slice(&piece[..len]);
        }
    }

    fn ask<A: AsRef<[u8]>>(&mut self, words: &[A]) -> Value {
        self.send(words);
        self.value()
    }
}

fn connect(socket: &Path) -> UnixStream {
    let mut connection = None;
    wait_until("redis-server listens", Duration::from_secs(20), || {
        connection = UnixStream::connect(socket).ok();
        connection.is_some()
    });
    let connection = connection.expect("a connection");
    connection.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    connection
}

fn texts(value: &Value) -> Vec<String> {
    value.items().iter().filter_map(Value::text).map(str::to_owned).collect()
}

/// One entry of the table, without containers that only have subcommands.
struct Listed {
    name: String,
    flags: BTreeSet<String>,
    arity: i64,
}

fn listed(entries: &[Value], found: &mut Vec<Listed>) {
    for entry in entries {
        let fields = entry.items();
        let subcommands = fields.get(9).map(Value::items).unwrap_or_default();
        if subcommands.is_empty() {
            found.push(Listed {
                name: fields[0].text().expect("a name").to_owned(),
                flags: texts(&fields[2]).into_iter().chain(texts(&fields[6])).collect(),
                arity: fields[1].int().expect("a number"),
            });
        }
        listed(subcommands, found);
    }
}

/// Shared commands that scripts may not call, and why that is no reason against sharing them.
const NOT_IN_SCRIPTS: [(&str, &str); 9] = [
    ("eval", "scripts do not nest"),
    ("eval_ro", "scripts do not nest"),
    ("evalsha", "scripts do not nest"),
    ("evalsha_ro", "scripts do not nest"),
    ("fcall", "scripts do not nest"),
    ("fcall_ro", "scripts do not nest"),
    ("role", "a query about the server"),
    ("script|exists", "the cache is the server's"),
    ("script|load", "the cache is the server's"),
];

/// Shared commands of groups that are otherwise about connections.
const OF_CONNECTIONS: [&str; 7] =
    ["echo", "ping", "publish", "pubsub|channels", "pubsub|numpat", "pubsub|numsub", "spublish"];

#[test]
fn agrees_with_the_table_of_the_server() {
    let mut server = Server::start();
    let table = server.ask(&["COMMAND"]);
    let names: BTreeSet<String> = texts(&server.ask(&["COMMAND", "LIST"])).into_iter().collect();
    let docs = server.ask(&["COMMAND", "DOCS"]);
    let mut commands = Vec::new();
    listed(table.items(), &mut commands);
    assert!(commands.len() > 300 && names.len() > 200, "{} and {}", commands.len(), names.len());
    let top: BTreeSet<String> =
        commands.iter().filter_map(|it| it.name.split('|').next()).map(str::to_owned).collect();
    assert_eq!(top, names.iter().map(|name| name.split('|').next().unwrap().to_owned()).collect());
    let mut groups: BTreeMap<String, String> = BTreeMap::new();
    for pair in docs.items().chunks_exact(2) {
        let group = pair[1].field("group").and_then(Value::text).expect("a group");
        groups.insert(pair[0].text().expect("a name").to_owned(), group.to_owned());
    }
    let (mut shared, mut unscripted) = (0, BTreeSet::new());
    let mut of_connections = BTreeSet::new();
    for command in &commands {
        let name = &command.name;
        let sharing = sharing_of(&name.replace('|', " "));
        assert_ne!(sharing, Sharing::Promotes(PromotionReason::Unknown), "{name}");
        if !matches!(sharing, Sharing::Shared | Sharing::SharedScript) {
            continue;
        }
        shared += 1;
        for flag in ["admin", "blocking", "no_multi", "module", "asking"] {
            assert!(!command.flags.contains(flag), "{name} has the flag {flag}");
        }
        if command.flags.contains("noscript") {
            unscripted.insert(name.as_str());
        }
        let group = &groups[name.split('|').next().expect("a name")];
        assert_ne!(group, "transactions", "{name}");
        if ["connection", "pubsub", "cluster"].contains(&group.as_str()) {
            of_connections.insert(name.as_str());
        }
    }
    assert!(shared > 180, "only {shared} commands are shared");
    assert_eq!(unscripted, NOT_IN_SCRIPTS.iter().map(|it| it.0).collect());
    assert!(OF_CONNECTIONS.iter().all(|name| of_connections.contains(name)), "{of_connections:?}");
    of_connections.retain(|name| !OF_CONNECTIONS.contains(name) && !name.starts_with("pubsub|"));
    assert!(of_connections.is_empty(), "{of_connections:?}");
    // What the server says of the names changes nothing of the built-in table.
    server.connection.write_all(&ask_table()).expect("a write");
    let table = read_table(&server.reply().1).expect("a table");
    assert!(table.iter().flatten().count() > 180);
    assert_eq!(Commands::new(&table), Commands::default());
}

/// The rule for commands that the table lacks, applied to those that it has: it never carries a
/// session that the table would keep.
#[test]
fn carries_no_command_that_the_table_pins() {
    fn infos(entries: &[Value], found: &mut Vec<CommandInfo>) {
        for entry in entries {
            let fields = entry.items();
            infos(fields.get(9).map(Value::items).unwrap_or_default(), found);
            let has_keys = fields[3].int() != Some(0)
                || fields.get(8).is_some_and(|specs| !specs.items().is_empty());
            let flags = texts(&fields[2]).into_iter().chain(texts(&fields[6])).collect();
            let name = fields[0].text().expect("a name").to_owned();
            found.push(CommandInfo { name, has_keys, flags });
        }
    }
    let mut found = Vec::new();
    infos(Server::start().ask(&["COMMAND"]).items(), &mut found);
    let carried: Vec<&CommandInfo> = found.iter().filter(|it| it.is_stateless()).collect();
    assert!(carried.len() > 150, "{} of {}", carried.len(), found.len());
    for command in carried {
        let name = &command.name;
        assert!(StatelessCommands::check(name).is_ok(), "the table pins {name}");
        assert!(!is_unlisted(name.split('|').next().unwrap_or_default()), "{name}");
    }
}

/// What the server keeps for a connection, as `CLIENT INFO` shows it.
fn connection_state(server: &mut Server) -> Vec<String> {
    const STATE: [&str; 10] =
        ["id", "name", "flags", "db", "sub", "psub", "multi", "user", "redir", "resp"];
    let info = server.ask(&["CLIENT", "INFO"]);
    let fields = info.text().expect("a line").split_whitespace();
    fields
        .filter(|field| STATE.iter().any(|name| field.starts_with(&format!("{name}="))))
        .map(str::to_owned)
        .collect()
}

/// Every command that may be shared, with plain arguments, gets exactly one reply and leaves its
/// connection as it was.
#[test]
fn leaves_the_connection_as_it_was() {
    for resp3 in [false, true] {
        let mut server = Server::start();
        if resp3 {
            server.ask(&["HELLO", "3"]);
        }
        let mut commands = Vec::new();
        listed(server.ask(&["COMMAND"]).items(), &mut commands);
        let before = connection_state(&mut server);
        let (mut sent, mut succeeded) = (0, 0);
        for command in commands {
            let words: Vec<String> = command.name.split('|').map(str::to_owned).collect();
            let sharing = sharing_of(&words.join(" "));
            if !matches!(sharing, Sharing::Shared | Sharing::SharedScript) {
                continue;
            }
            // With the fewest arguments, and with one more if it takes any number.
            let fewest = usize::try_from(command.arity.unsigned_abs()).expect("a small number");
            for count in [fewest, fewest + 1] {
                server.ask(&["FLUSHALL"]);
                let mut words = words.clone();
                words.resize(count.max(words.len()), "1".to_owned());
                server.send(&words);
                let nonce = format!("after {words:?}");
                server.send(&["ECHO", &nonce]);
                succeeded += i32::from(!server.value().is_error());
                assert_eq!(server.value().text(), Some(nonce.as_str()), "one reply each");
                sent += 1;
            }
            assert_eq!(connection_state(&mut server), before, "after {}", command.name);
        }
        assert!(sent > 360 && succeeded > 150, "{succeeded} of {sent} succeeded");
    }
}
