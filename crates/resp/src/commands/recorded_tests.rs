//! The command table against the commands that servers really have, as `cargo xtask test --servers`
//! records them in `testdata/servers`, one file per version.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::class::Class;
use super::table::ClassLookup;

/// Commands of servers that are deliberately not in the table: they pin the session.
const UNKNOWN: [(&str, &str); 5] = [
    ("HOST:", "the first word of an HTTP request; the server closes the connection"),
    ("POST", "the first word of an HTTP request; the server closes the connection"),
    ("STRALGO", "of Redis 6 only, replaced by LCS"),
    ("TRIMSLOTS", "sent by masters to replicas of a cluster"),
    ("XIDMPRECORD", "sent by masters to replicas"),
];

/// The commands of each version, each with the flags that the server gives it.
fn recorded() -> BTreeMap<String, BTreeMap<String, Vec<String>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/servers");
    let read = |path: &Path| {
        let text = std::fs::read_to_string(path).expect("a list");
        let entry = |line: &str| {
            let (name, flags) = line.split_once(": ").unwrap_or((line, ""));
            (name.to_owned(), flags.split_whitespace().map(str::to_owned).collect())
        };
        text.lines().filter(|line| !line.starts_with('#')).map(entry).collect()
    };
    std::fs::read_dir(folder)
        .expect("the folder")
        .map(|it| it.expect("an entry").path())
        .map(|path| (path.file_stem().expect("a name").to_string_lossy().into_owned(), read(&path)))
        .collect()
}

/// The names in the reviewed list, which other tests compare with the table.
fn reviewed() -> BTreeSet<String> {
    let names = include_str!("../../testdata/commands.txt").lines();
    let names = names.filter(|line| !line.starts_with('#') && !line.ends_with(':'));
    names.flat_map(|line| line.split(',')).map(|name| name.trim().to_owned()).collect()
}

fn class(command: &str) -> Class {
    let lookup = ClassLookup::START;
    command.split(' ').fold(lookup, |lookup, word| lookup.with(word.as_bytes())).class()
}

/// Every command of every server was reviewed, by its name, as a whole family (`ACL`), or with
/// further arguments; or it is one of the few that pin.
#[test]
fn reviews_every_command_of_every_server() {
    let (reviewed, recorded) = (reviewed(), recorded());
    assert!(recorded.len() > 9, "only {} servers", recorded.len());
    let is_reviewed = |name: &str| {
        let family = name.split(' ').next().unwrap_or(name);
        let longer = format!("{name} ");
        reviewed.contains(name)
            || reviewed.contains(family)
            || reviewed.range(longer.clone()..).next().is_some_and(|it| it.starts_with(&longer))
    };
    let mut others = BTreeSet::new();
    for (server, commands) in &recorded {
        assert!(commands.len() > 200, "{server} has only {} commands", commands.len());
        for name in commands.keys().filter(|name| !is_reviewed(name)) {
            assert_eq!(class(name), Class::Unknown, "{name} of {server}");
            others.insert(name.as_str());
        }
    }
    assert_eq!(others, UNKNOWN.map(|(name, _)| name).into(), "commands not reviewed");
}

/// The servers' own flags say the same as the table.
#[test]
fn agrees_with_flags_of_servers() {
    let mut blocking = 0;
    for (server, commands) in recorded() {
        for (name, flags) in commands {
            let class = class(&name);
            if flags.iter().any(|flag| flag == "blocking") {
                blocking += 1;
                assert!(matches!(class, Class::Blocking | Class::Wait), "{name} of {server}");
            }
            let subscribes = name.ends_with("SUBSCRIBE");
            if flags.iter().any(|flag| flag == "pubsub") && subscribes {
                assert_eq!(format!("{class:?}").to_uppercase(), name, "{server}");
            }
            // The others publish, or look.
            assert!(
                subscribes || !format!("{class:?}").ends_with("ubscribe"),
                "{name} of {server}"
            );
        }
    }
    assert!(blocking > 100, "only {blocking} commands");
}
