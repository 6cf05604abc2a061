//! The last commands of operators per service, for `/history`: what was ordered, when, for how long
//! it ran, and how it ended.
//!
//! Refused requests are absent: they change nothing, and only the right to send them would fill the
//! list. The result is the last line that the operator received, which contains no secret.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use admin_http::StreamPermit;
use serde_json::{Value, json};

/// Commands kept per service.
const CAPACITY: usize = 32;
/// Services whose commands are kept. More than any configuration has; a bound, if services with
/// changing names are added and removed.
const MAX_SERVICES: usize = 1024;

/// The log. Cheap to clone; all clones share one.
#[derive(Debug, Clone, Default)]
pub(crate) struct CommandLog(Arc<Mutex<BTreeMap<String, ServiceCommands>>>);

#[derive(Debug, Default)]
struct ServiceCommands {
    /// The number of the next command.
    next: u64,
    last: VecDeque<LoggedCommand>,
}

#[derive(Debug)]
struct LoggedCommand {
    number: u64,
    command: &'static str,
    parameters: Value,
    at: Instant,
    /// How long it ran, and its result.
    end: Option<(Duration, Value)>,
}

impl CommandLog {
    fn services(&self) -> MutexGuard<'_, BTreeMap<String, ServiceCommands>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a command begins. `parameters` is an object.
    pub(super) fn begin(
        &self,
        service: &str,
        command: &'static str,
        parameters: Value,
    ) -> RunningCommand {
        let mut services = self.services();
        if services.len() >= MAX_SERVICES && !services.contains_key(service) {
            services.pop_first();
        }
        let commands = services.entry(service.to_owned()).or_default();
        let number = commands.next;
        commands.next += 1;
        if commands.last.len() >= CAPACITY {
            commands.last.pop_front();
        }
        let at = Instant::now();
        commands.last.push_back(LoggedCommand { number, command, parameters, at, end: None });
        let result = json!({ "ok": false, "error": "the command was not carried out" });
        RunningCommand { log: self.clone(), service: service.to_owned(), number, result }
    }

    /// The commands of a service, the oldest first.
    pub(crate) fn document(&self, service: &str) -> Value {
        let services = self.services();
        let last = services.get(service).map(|it| &it.last);
        last.into_iter().flatten().map(LoggedCommand::document).collect()
    }
}

impl LoggedCommand {
    fn document(&self) -> Value {
        let seconds = |span: Duration| (span.as_secs_f64() * 1000.0).round() / 1000.0;
        let mut row = json!({
            "command": self.command,
            "age_s": seconds(self.at.elapsed()),
            "parameters": self.parameters,
        });
        if let (Some((took, result)), Some(row)) = (&self.end, row.as_object_mut()) {
            row.insert("took_s".to_owned(), json!(seconds(*took)));
            row.insert("result".to_owned(), result.clone());
        }
        row
    }
}

/// What a command responds with: a stream, and its entry in the log.
pub(super) struct Responder {
    pub(super) permit: StreamPermit,
    pub(super) command: RunningCommand,
}

/// A command in progress.
#[derive(Debug)]
pub(super) struct RunningCommand {
    log: CommandLog,
    pub(super) service: String,
    number: u64,
    result: Value,
}

impl RunningCommand {
    /// Records the result: the last line of the response.
    pub(super) fn end(mut self, result: &Value) {
        self.result = result.clone();
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let mut services = self.log.services();
        let commands = services.get_mut(&self.service).into_iter().flat_map(|it| &mut it.last);
        for command in commands.filter(|it| it.number == self.number) {
            command.end = Some((command.at.elapsed(), self.result.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_last_commands_with_results() {
        let log = CommandLog::default();
        let running = log.begin("a", "switchover", json!({ "to": "10.0.0.2:6379" }));
        let rows = log.document("a");
        assert_eq!(rows[0]["command"], "switchover");
        assert_eq!(rows[0]["parameters"]["to"], "10.0.0.2:6379");
        assert_eq!(rows[0].get("result"), None, "it runs");
        running.end(&json!({ "ok": true }));
        assert_eq!(log.document("a")[0]["result"]["ok"], true);
        assert!(log.document("a")[0]["took_s"].is_f64());
        drop(log.begin("a", "pause", json!({})));
        assert_eq!(log.document("a")[1]["result"]["ok"], false);
        assert_eq!(log.document("b"), json!([]));
        for _ in 0..2 * CAPACITY {
            log.begin("a", "resume", json!({})).end(&json!({ "ok": true }));
        }
        let rows = log.document("a");
        assert_eq!(rows.as_array().map(Vec::len), Some(CAPACITY));
        assert_eq!(rows[0]["command"], "resume", "the oldest ones are dropped");
    }

    #[test]
    fn bounds_services_and_results_of_dropped_commands() {
        let log = CommandLog::default();
        let first = log.begin("0", "pause", json!({}));
        for number in 0..2 * MAX_SERVICES {
            log.begin(&format!("service-{number}"), "pause", json!({})).end(&json!({}));
        }
        assert_eq!(log.services().len(), MAX_SERVICES);
        first.end(&json!({ "ok": true }));
        assert_eq!(log.document("0"), json!([]));
    }
}
