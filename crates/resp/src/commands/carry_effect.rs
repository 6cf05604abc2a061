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
        let (effect, reason) = if deletes_cursor {
            (CarryEffect::Carried, "deletes a cursor")
        } else {
            class.carry_effect()
        };
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
        lookup => lookup.class(),
    };
    match class.carry_effect() {
        _ if class == Class::Unknown => None,
        (CarryEffect::Carried, _) => None,
        (_, reason) => Some(reason),
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
