//! What each command means for carrying its session over, in words: for the documents and for the
//! check of the configuration.
//!
//! Made from the same tables that classify requests, so that the two cannot differ.

use crate::commands::class::Class;
use crate::commands::table::{ClassLookup, Prefix, special_names};

/// What becomes of a session that sent the command, at a failover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CarryEffect {
    /// The command does not keep it from being carried over.
    Carried,
    /// It is not carried over until something happened, as a phrase.
    Until(&'static str),
    /// It is not carried over any more.
    Never,
    /// The command ends the connection or the server.
    Ends,
}

/// One command of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedCommand {
    /// Its name in capitals, with the arguments that decide.
    pub name: String,
    /// Whether it is one of the many that leave no state on the connection.
    pub ordinary: bool,
    /// What becomes of the session.
    pub verdict: CarryEffect,
    /// Why, as a phrase.
    pub reason: &'static str,
}

/// Arguments that decide, where the tables of names do not hold them.
const WITH_ARGUMENTS: &[&str] = &[
    "CLIENT MAINT_NOTIFICATIONS OFF",
    "CLIENT MAINT_NOTIFICATIONS ON",
    "CLIENT TRACKING OFF",
    "CLIENT TRACKING ON",
    "CLUSTER",
    "CLUSTER SYNCSLOTS",
    "FT.AGGREGATE",
    "FT.CURSOR DEL",
    "FT.CURSOR GC",
    "FT.HYBRID",
    "HIMPORT DISCARD",
    "HIMPORT SET",
    "SCRIPT DEBUG NO",
    "SCRIPT DEBUG SYNC",
    "SCRIPT DEBUG YES",
    "SCRIPT FLUSH",
    "SCRIPT HELP",
    "SCRIPT KILL",
];

/// Every command of the table, by name.
#[must_use]
pub fn listed_commands() -> Vec<ListedCommand> {
    let ordinary =
        crate::commands::ordinary::NAMES.split(' ').map(|name| (name.to_owned(), Class::Ordinary));
    let argued = WITH_ARGUMENTS.iter().map(|name| ((*name).to_owned(), class(name)));
    let mut all: Vec<ListedCommand> =
        special_names().chain(ordinary).chain(argued).map(ListedCommand::new).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

impl ListedCommand {
    fn new((name, class): (String, Class)) -> Self {
        // `DEL` has the reply `+OK` and gives a cursor up.
        let gives_up = name == "FT.CURSOR DEL";
        let (verdict, reason) =
            if gives_up { (CarryEffect::Carried, "gives a cursor up") } else { verdict(class) };
        Self { name, ordinary: class == Class::Ordinary, verdict, reason }
    }
}

fn lookup(words: &str) -> ClassLookup {
    words.split(' ').fold(ClassLookup::START, |lookup, word| lookup.with(word.as_bytes()))
}

fn class(words: &str) -> Class {
    match lookup(words) {
        ClassLookup::After(Prefix::KeyCursor | Prefix::Cursor) => Class::Iterate,
        lookup => lookup.class(),
    }
}

/// Why a command cannot be declared to leave no state, if it cannot.
pub(crate) fn objection(name: &str, sub: Option<&str>) -> Option<&'static str> {
    let lookup = lookup(&sub.map_or_else(|| name.to_owned(), |sub| format!("{name} {sub}")));
    let class = match lookup {
        ClassLookup::Known(class) => class,
        ClassLookup::Iterates(_) => Class::Iterate,
        ClassLookup::After(
            Prefix::Client
            | Prefix::Script
            | Prefix::Cluster
            | Prefix::Himport
            | Prefix::SearchCursor,
        ) => {
            return Some(
                "some of its subcommands leave state on the connection: name one as CONTAINER|SUBCOMMAND",
            );
        }
        ClassLookup::After(Prefix::ClientReply) => Class::ReplyOff,
        ClassLookup::After(Prefix::ClientTracking) => Class::TrackingOn,
        ClassLookup::After(Prefix::ScriptDebug) => Class::Debugger,
        ClassLookup::After(Prefix::Cursor | Prefix::KeyCursor | Prefix::Aggregate) => {
            Class::Iterate
        }
        ClassLookup::After(_) => Class::MaintenanceOn,
    };
    match verdict(class) {
        _ if class == Class::Unknown => None,
        (CarryEffect::Carried, _) => None,
        (_, reason) => Some(reason),
    }
}

/// What a class means, and why.
const fn verdict(class: Class) -> (CarryEffect, &'static str) {
    use CarryEffect::{Carried, Ends, Never, Until};
    match class {
        Class::Ordinary => (Carried, "leaves no state on the connection"),
        Class::Eval => (Carried, "brings its script along; within `MULTI`: never"),
        Class::EvalSha => {
            (Carried, "a missing script is answered by `NOSCRIPT`; within `MULTI`: never")
        }
        Class::Hello
        | Class::Auth
        | Class::Select
        | Class::SetName
        | Class::SetInfo
        | Class::NoEvict
        | Class::NoTouch
        | Class::ReadOnly
        | Class::ReadWrite => (Carried, "its effect is repeated on the new server"),
        Class::Multi => {
            (Until("`EXEC` or `DISCARD`"), "the server has queued commands of the transaction")
        }
        Class::Exec | Class::Discard => (Carried, "ends the transaction and forgets watched keys"),
        Class::Watch => (
            Until("`EXEC`, `DISCARD` or `UNWATCH`"),
            "only the server knows whether a watched key changed",
        ),
        Class::Unwatch => (Carried, "forgets watched keys"),
        Class::Asking => (Until("the next command is answered"), "it holds for the next command"),
        Class::ReplyOn => (Carried, "replies come again"),
        Class::ReplyOff => (
            Until("`CLIENT REPLY ON` is answered"),
            "commands without a reply may be lost unnoticed",
        ),
        Class::ReplySkip => (
            Until("a later command is answered"),
            "a command without a reply may be lost unnoticed",
        ),
        Class::Blocking => (Until("its reply"), "only the client knows whether to wait again"),
        Class::Iterate => (
            Until("the cursor is 0"),
            "a cursor means something else to another server: keys would be missed",
        ),
        Class::Unknown => (Never, "it is not known what the command leaves on the connection"),
        Class::ClientId => (
            Never,
            "another server gives this number to another connection; not for StackExchange.Redis, which only logs it",
        ),
        Class::Script => (
            Never,
            "the client counts on the script cache of this server; not if it was answered `NOSCRIPT` before",
        ),
        Class::Wait => (Never, "it is about the writes of this connection"),
        Class::Subscribe | Class::PSubscribe | Class::SSubscribe => (
            Until("all is unsubscribed"),
            "messages are lost meanwhile; carried with `subscriptions = \"replay\"`",
        ),
        Class::Unsubscribe | Class::PUnsubscribe | Class::SUnsubscribe => {
            (Carried, "ends subscriptions")
        }
        Class::Monitor => (Never, "an endless stream follows"),
        Class::TrackingOn => (
            Until("`CLIENT TRACKING OFF` or `RESET`"),
            "only the server knows which keys the client has cached",
        ),
        Class::TrackingOff => (Carried, "ends tracking"),
        Class::Replication => (Never, "the connection becomes a replication stream"),
        Class::Debugger => (Never, "the connection becomes a debugger's"),
        Class::Quit => (Ends, "the server closes the connection"),
        Class::Reset => (Carried, "clears the state of the connection"),
        Class::Shutdown => (Ends, "the server stops"),
        Class::MaintenanceOn | Class::MaintenanceOnWithoutAddress | Class::MaintenanceOff => (
            Carried,
            "agreed with Pointsman, which goes on sending maintenance_handshake; never if the server itself agreed",
        ),
        Class::ImportPrepare => (
            Until("`HIMPORT DISCARDALL` or `RESET`"),
            "the server keeps the prepared fields for the connection",
        ),
        Class::ImportDiscardAll => (Carried, "forgets the prepared fields"),
        Class::ClientCapability => {
            (Never, "the server keeps it for the connection, and not even `RESET` takes it back")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn lists_every_reviewed_command() {
        let listed_commands: BTreeMap<String, CarryEffect> =
            listed_commands().into_iter().map(|it| (it.name, it.verdict)).collect();
        let mut class = "";
        let mut seen = 0;
        for line in include_str!("../../testdata/commands.txt")
            .lines()
            .filter(|line| !line.starts_with('#'))
        {
            class = line.strip_suffix(':').unwrap_or(class);
            if line.ends_with(':') {
                continue;
            }
            for command in line.split(',').map(str::trim).filter(|it| !it.is_empty()) {
                // The longest beginning that is listed: what follows are keys and cursors.
                let words: Vec<&str> = command.split(' ').collect();
                let found = (1..=words.len())
                    .rev()
                    .find_map(|n| listed_commands.get(&words[..n].join(" ")));
                let found = found.unwrap_or_else(|| panic!("{command} is not listed"));
                let free = matches!(found, CarryEffect::Carried);
                let pinning = [
                    "Iterate",
                    "ClientId",
                    "Script",
                    "Wait",
                    "Multi",
                    "Watch",
                    "Blocking",
                    "Monitor",
                    "ClientCapability",
                ];
                assert!(
                    !free
                        || !pinning.contains(&class)
                        || command.contains(" DEL ")
                        || command.contains("WITHCURSOR"),
                    "{command}"
                );
                assert!(free || class != "Ordinary", "{command}");
                seen += 1;
            }
        }
        assert!(seen > 450 && listed_commands.len() > 450, "{seen} of {}", listed_commands.len());
    }

    #[test]
    fn lists_no_command_twice() {
        let all = listed_commands();
        assert!(all.windows(2).all(|pair| pair[0].name < pair[1].name));
    }
}
