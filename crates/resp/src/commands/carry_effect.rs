//! The effect of each command on carrying its session, in words, for the documents and for the
//! check of the configuration.
//!
//! Derived from the tables that classify requests, so that the two cannot differ.

use crate::commands::class::Class;
use crate::commands::table::{ClassLookup, Prefix, special_names};

/// The effect of a command on its session at a failover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CarryEffect {
    /// The session can be carried.
    Carried,
    /// The session is pinned until an event, given as a phrase.
    Until(&'static str),
    /// The session can never be carried afterwards.
    Never,
    /// The command ends the connection or the server.
    Ends,
}

/// One command of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedCommand {
    /// Its name in upper case, with the arguments that determine the effect.
    pub name: String,
    /// Whether it is an ordinary command, which leaves no state on the connection.
    pub ordinary: bool,
    /// The effect on the session.
    pub effect: CarryEffect,
    /// The reason, as a phrase.
    pub reason: &'static str,
}

/// Commands whose arguments determine the effect and are not in the tables of names.
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

/// All commands of the table, sorted by name.
#[must_use]
pub fn listed_commands() -> Vec<ListedCommand> {
    let ordinary =
        crate::commands::ordinary::NAMES.split(' ').map(|name| (name.to_owned(), Class::Ordinary));
    let argued = WITH_ARGUMENTS.iter().map(|name| ((*name).to_owned(), class(name)));
    let mut all: Vec<ListedCommand> = special_names()
        .chain(ordinary)
        .chain(argued)
        .map(|(name, class)| ListedCommand::new(name, class))
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

impl ListedCommand {
    fn new(name: String, class: Class) -> Self {
        // `DEL` has the reply `+OK` and deletes a cursor.
        let deletes_cursor = name == "FT.CURSOR DEL";
        let (effect, reason) =
            if deletes_cursor { (CarryEffect::Carried, "deletes a cursor") } else { effect(class) };
        Self {
            name,
            ordinary: matches!(class, Class::Ordinary | Class::ClientInfo),
            effect,
            reason,
        }
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

/// Why a command cannot be declared stateless; `None` if it can.
pub(crate) fn objection(name: &str, sub: Option<&str>) -> Option<&'static str> {
    let lookup = lookup(&sub.map_or_else(|| name.to_owned(), |sub| format!("{name} {sub}")));
    let class = match lookup {
        ClassLookup::Known(class) => class,
        ClassLookup::Iterates(_) => Class::Iterate,
        ClassLookup::Refused(_) => Class::Refused,
        ClassLookup::After(
            Prefix::Client
            | Prefix::Script
            | Prefix::Cluster
            | Prefix::Himport
            | Prefix::SearchCursor,
        ) => {
            return Some(
                "some of its subcommands leave state on the connection: declare a subcommand as \
                 CONTAINER|SUBCOMMAND",
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
    match effect(class) {
        _ if class == Class::Unknown => None,
        (CarryEffect::Carried, _) => None,
        (_, reason) => Some(reason),
    }
}

const UNANSWERED: &str = "a command without a reply may be lost without notice";
const CURSOR: &str = "a cursor is valid only on its server: on another one, keys would be missed";
const CLIENT_ID: &str = "another server gives this ID to another connection; does not apply to \
                         StackExchange.Redis, which only logs it";
const SCRIPT_CACHE: &str = "the client relies on the script cache of this server; does not apply \
                            after it received `NOSCRIPT`";
const HANDSHAKE: &str = "Pointsman agreed to it and continues to send notifications; never if the \
                         server itself agreed";

/// The effect of a class, and the reason.
const fn effect(class: Class) -> (CarryEffect, &'static str) {
    use CarryEffect::{Carried, Ends, Never, Until};
    match class {
        Class::Ordinary | Class::ClientInfo | Class::Refused => {
            (Carried, "leaves no state on the connection")
        }
        Class::Eval => (Carried, "contains its script; within `MULTI`: never"),
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
        | Class::ReadWrite => (Carried, "its effect is replayed on the new server"),
        Class::Multi => {
            (Until("`EXEC` or `DISCARD`"), "the server has queued commands of the transaction")
        }
        Class::Exec | Class::Discard => (Carried, "ends the transaction and unwatches all keys"),
        Class::Watch => (
            Until("`EXEC`, `DISCARD` or `UNWATCH`"),
            "only this server knows whether a watched key changed",
        ),
        Class::Unwatch => (Carried, "unwatches all keys"),
        Class::Asking => (Until("the next command is answered"), "it applies to the next command"),
        Class::ReplyOn => (Carried, "replies are sent again"),
        Class::ReplyOff => (Until("`CLIENT REPLY ON` is answered"), UNANSWERED),
        Class::ReplySkip => (Until("a later command is answered"), UNANSWERED),
        Class::Blocking => (Until("its reply"), "only the client knows whether to wait again"),
        Class::Iterate => (Until("the cursor is 0"), CURSOR),
        Class::Unknown => (Never, "it is not known what the command leaves on the connection"),
        Class::ClientId => (Never, CLIENT_ID),
        Class::Script => (Never, SCRIPT_CACHE),
        Class::Wait => (Never, "it refers to the writes of this connection"),
        Class::Subscribe | Class::PSubscribe | Class::SSubscribe => (
            Until("all subscriptions have ended"),
            "messages may be lost; carried with `subscriptions = \"replay\"`",
        ),
        Class::Unsubscribe | Class::PUnsubscribe | Class::SUnsubscribe => {
            (Carried, "ends subscriptions")
        }
        Class::Monitor => (Never, "an endless stream of lines follows"),
        Class::TrackingOn => (
            Until("`CLIENT TRACKING OFF` or `RESET`"),
            "only this server knows which keys the client has cached",
        ),
        Class::TrackingOff => (Carried, "ends tracking"),
        Class::Replication => (Never, "the connection becomes a replication stream"),
        Class::Debugger => (Never, "the connection becomes a debugger session"),
        Class::Quit => (Ends, "the server closes the connection"),
        Class::Reset => (Carried, "clears the state of the connection"),
        Class::Shutdown => (Ends, "the server stops"),
        Class::MaintenanceOn | Class::MaintenanceOnWithoutAddress | Class::MaintenanceOff => {
            (Carried, HANDSHAKE)
        }
        Class::ImportPrepare => (
            Until("`HIMPORT DISCARDALL` or `RESET`"),
            "the server keeps the prepared fields for the connection",
        ),
        Class::ImportDiscardAll => (Carried, "removes the prepared fields"),
        Class::ClientCapability => {
            (Never, "the server keeps it for the connection, even after `RESET`")
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
            listed_commands().into_iter().map(|it| (it.name, it.effect)).collect();
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
                // The longest listed prefix; keys and cursors follow it.
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
