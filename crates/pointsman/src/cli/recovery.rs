//! Restores priorities if the pointsman that changed them for a switchover is killed.
//!
//! A `switchover --to` reports the values before it changes them. If its response ends without a
//! result, nobody else knows them: this process restores them with the credentials of the local
//! configuration, and prints the command for each node where that fails.

use std::ffi::OsString;

use sentinel::doctor::Examination;
use sentinel::{Credentials, NodeAddr, PriorityChange, restore_priorities};
use serde_json::{Value as Json, json};
use tls::ClientTls;

use super::args::ControlArgs;
use crate::config::{self, Flags};
use crate::process::settings;

/// The priorities that are changed, as far as the response shows.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    changes: Vec<PriorityChange>,
}

impl Recovery {
    /// Reads a line of the response.
    pub(super) fn observe(&mut self, document: &Json) {
        if document.get("ok").is_some() {
            // It ended, and either restored them or reports what is left.
            self.changes.clear();
        } else if let Some(changes) = document.get("changes").and_then(Json::as_array) {
            self.changes = changes.iter().filter_map(change).collect();
        }
    }

    /// Restores what is left, and returns a line for each node, as text and as JSON.
    pub(super) fn restore(
        self,
        args: &ControlArgs,
        env: &[(OsString, OsString)],
    ) -> Vec<(String, String)> {
        if self.changes.is_empty() {
            return Vec::new();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let results = match runtime {
            Ok(runtime) => runtime.block_on(restore_priorities(access(args, env), self.changes)),
            Err(error) => {
                let failed = |it| (it, Err(error.to_string()));
                self.changes.into_iter().map(failed).collect()
            }
        };
        results.iter().map(|(change, result)| line(change, result)).collect()
    }
}

fn change(it: &Json) -> Option<PriorityChange> {
    let text = |key| it.get(key).and_then(Json::as_str);
    let (host, port) = text("node")?.rsplit_once(':')?;
    Some(PriorityChange {
        node: NodeAddr::parse(host.trim_matches(['[', ']']), port)?,
        dialled: text("addr")?.parse().ok()?,
        from: it.get("from")?.as_u64()?,
        to: it.get("to")?.as_u64()?,
    })
}

/// The credentials for the nodes of the service and the settings of TLS, if the local configuration
/// contains them.
fn access(
    args: &ControlArgs,
    env: &[(OsString, OsString)],
) -> (Option<Credentials>, Option<ClientTls>) {
    examination(args, env).map(|it| (it.auth, it.redis_tls)).unwrap_or_default()
}

fn examination(args: &ControlArgs, env: &[(OsString, OsString)]) -> Option<Examination> {
    let flags = Flags { config: args.config.clone(), ..Flags::default() };
    let loaded = config::load(&flags, env.iter().cloned());
    let config = loaded.config().ok()?;
    let is_it = |name: &str| args.service.as_deref().is_none_or(|wanted| wanted == name);
    let service = config.services.iter().find(|service| is_it(&service.name))?;
    Some(settings::examination(service, Vec::new()))
}

fn line(change: &PriorityChange, result: &Result<(), String>) -> (String, String) {
    let (node, from, remedy) = (change.node.to_string(), change.from, change.remedy());
    match result {
        Ok(()) => (
            format!(
                "the pointsman ended without a result; replica-priority of {node} is {from} again"
            ),
            json!({ "step": "restore", "node": node, "restored": true }).to_string(),
        ),
        Err(problem) => (
            format!(
                "the pointsman ended without a result, and replica-priority of {node} is not \
                 restored: {problem}; run: {remedy}"
            ),
            json!({
                "step": "restore",
                "node": node,
                "restored": false,
                "problem": problem,
                "remedy": remedy,
            })
            .to_string(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_changes_until_the_result() {
        let mut recovery = Recovery::default();
        recovery.observe(&json!({ "step": "check", "text": "" }));
        assert!(recovery.changes.is_empty());
        let node = json!({ "node": "[::1]:7", "addr": "[::1]:7", "from": 100, "to": 99 });
        recovery.observe(&json!({ "step": "prefer", "text": "", "changes": [node] }));
        let change = recovery.changes.first().cloned().expect("a change");
        assert_eq!((change.from, change.to, change.node.to_string()), (100, 99, "[::1]:7".into()));
        assert_eq!(change.remedy(), "redis-cli -h ::1 -p 7 CONFIG SET replica-priority 100");
        recovery.observe(&json!({ "step": "hold", "text": "" }));
        assert_eq!(recovery.changes.len(), 1);
        recovery.observe(&json!({ "ok": false, "error": "aborted" }));
        assert!(recovery.changes.is_empty());
    }

    #[test]
    fn prints_the_command_where_it_cannot_restore() {
        let dialled = "127.0.0.1:7".parse().expect("an address");
        let change = PriorityChange { node: NodeAddr::from(dialled), dialled, from: 5, to: 1 };
        let (text, document) = line(&change, &Err("no route".to_owned()));
        for shown in [text, document] {
            assert!(shown.contains("CONFIG SET replica-priority 5") && shown.contains("no route"));
        }
    }
}
