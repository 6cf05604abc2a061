//! The control API of the admin server: pause, resume, switchover, follow, unfollow.
//!
//! Disabled unless the configuration enables it and sets a token or a Unix socket, because every
//! client of the admin port could otherwise use it. A command is a POST, through the socket (where
//! the kernel identifies the user) or with `Authorization: Bearer TOKEN`; the token is compared in
//! constant time, and wrong ones are limited by source. A switchover takes longer than a response
//! may, so it runs on discovery's runtime and streams its steps as JSON lines; if the client
//! disconnects before the failover is ordered, the switchover is cancelled. The other commands are
//! not executed either for a client that has disconnected: a process that was stopped may read one
//! long after its operator has given up.
//!
//! All parameters are in the query; there are no request bodies. The commands themselves are in
//! `sentinel`.

mod access;
mod command_log;
#[cfg(any(test, fuzzing))]
pub(crate) mod rig;
mod steps;
mod token_attempts;

use std::sync::Arc;
use std::time::{Duration, Instant};

use admin_http::{Method, Reply, Request};
use sentinel::{CommandId, DiscoveryHandle, NodeAddr, Pause, SwitchoverOptions, switchover};
use serde_json::{Value as Json, json};
use tokio::sync::mpsc;
use tracing::{info, warn};

pub(crate) use self::access::ControlAccess;
pub(crate) use self::access::TokenRefusals;
pub(crate) use self::command_log::CommandLog;
use self::command_log::Responder;
use self::steps::{is_connected, stream_steps};
use super::follow::{self, Order};
use crate::admin::service_registry::{ReportedService, ServiceRegistry};
use crate::config::parse_duration;

/// Duration of a pause without a `for` parameter.
const DEFAULT_PAUSE: Duration = Duration::from_secs(30);
/// Maximum duration of a pause: a forgotten one must not stop traffic for a night.
const MAX_PAUSE: Duration = Duration::from_secs(600);

/// Discovery applies a command in its next iteration, so this time suffices.
const APPLY_DEADLINE: Duration = Duration::from_secs(2);

const ABANDONED: &str = "the requester disconnected before the command was executed";
const SWITCHING: &str = "a switchover of this service is in progress";

/// Why an order is refused that a successor would not know.
const TAKEN_OVER: &str = "another process is taking over and would not know of this order: stop \
                          that process, or wait until it serves";
const WITHDRAWN: &str = "discovery did not respond, the command was withdrawn; see /alive";

/// A control command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ControlCommand {
    Pause,
    Resume,
    Switchover,
    Follow,
    Unfollow,
}

/// The state of the control API.
pub(crate) struct Control {
    /// Decides who may give commands.
    pub(crate) access: ControlAccess,
    services: ServiceRegistry,
    log: CommandLog,
    runtime: tokio::runtime::Handle,
}

impl Control {
    /// Creates the API. Commands run on the runtime of the caller.
    pub(crate) fn new(
        access: ControlAccess,
        services: ServiceRegistry,
        log: CommandLog,
    ) -> Arc<Self> {
        Arc::new(Self { access, services, log, runtime: tokio::runtime::Handle::current() })
    }

    /// Adds its paths to the admin server.
    pub(crate) fn add_to(self: &Arc<Self>, server: admin_http::Server) -> admin_http::Server {
        let commands = [
            ("/control/pause", ControlCommand::Pause),
            ("/control/resume", ControlCommand::Resume),
            ("/control/switchover", ControlCommand::Switchover),
            ("/control/follow", ControlCommand::Follow),
            ("/control/unfollow", ControlCommand::Unfollow),
        ];
        commands.into_iter().fold(server, |server, (path, command)| {
            let control = Arc::clone(self);
            server.route(path, Method::Post, move |request| control.answer(request, command))
        })
    }

    /// The service of this name, or the only one. A service that is being removed takes no
    /// commands.
    pub(crate) fn service(&self, name: Option<&str>) -> Result<Arc<ReportedService>, String> {
        let (leaving, services): (Vec<_>, Vec<_>) =
            self.services.list().into_iter().partition(|it| it.is_leaving);
        if let Some(removed) = leaving.iter().find(|it| Some(it.name.as_str()) == name)
            && !services.iter().any(|it| it.name == removed.name)
        {
            return Err(format!(
                "service {} was removed from the configuration, and takes no commands while its \
                 sessions leave",
                removed.name
            ));
        }
        let names = || services.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join(", ");
        if name.is_none() && services.len() != 1 {
            return Err(format!("parameter service is required; services: {}", names()));
        }
        let found = services.iter().find(|it| name.is_none_or(|name| it.name == name));
        found.cloned().ok_or_else(|| format!("no such service; services: {}", names()))
    }

    /// Responds with the lines that `work` returns, the last of which is its result.
    fn respond(
        &self,
        responder: Responder,
        work: impl Future<Output = Vec<Json>> + Send + 'static,
    ) -> Reply {
        let (lines, body) = mpsc::channel(1);
        let Responder { permit, command } = responder;
        self.runtime.spawn(async move {
            let answer = if is_connected(&lines).await {
                work.await
            } else {
                warn!(service = command.service, "command cancelled: {ABANDONED}");
                vec![json!({ "ok": false, "error": ABANDONED })]
            };
            if let Some(last) = answer.last() {
                command.end(last);
            }
            let text: String = answer.iter().map(|line| format!("{line}\n")).collect();
            // The client may be gone; the command has taken effect anyway.
            let _ = lines.send(text.into()).await;
        });
        Reply::stream("application/x-ndjson", body, permit)
    }

    /// Gives discovery a command, and responds once it is applied: from then on the gate is as
    /// requested. A command that is not applied in time is withdrawn, so that it does not take
    /// effect after an error was reported.
    fn respond_when_applied(
        &self,
        handle: &DiscoveryHandle,
        give: impl FnOnce(&DiscoveryHandle) -> CommandId + Send + 'static,
        done: Vec<Json>,
        responder: Responder,
    ) -> Reply {
        let handle = handle.clone();
        self.respond(responder, async move {
            if handle.is_switching() {
                return vec![json!({ "ok": false, "error": SWITCHING })];
            }
            let (command, since) = (give(&handle), Instant::now());
            while handle.is_pending(command) && since.elapsed() <= APPLY_DEADLINE {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            match handle.cancel(command) {
                true => vec![json!({ "ok": false, "error": WITHDRAWN })],
                false => done,
            }
        })
    }

    /// Follows a node by an operator's order, and responds with what the order led to.
    fn follow(
        &self,
        name: &str,
        handle: &DiscoveryHandle,
        order: Order,
        responder: Responder,
    ) -> Reply {
        let (name, handle, since) = (name.to_owned(), handle.clone(), Instant::now());
        let addr = order.addr.to_string();
        warn!(service = name, addr, force = order.force, "order received: follow this master");
        self.respond(responder, async move {
            let outcome = follow::follow(&name, &handle, order).await;
            if let Err(reason) = &outcome {
                warn!(service = name, addr, "order refused: {reason}");
            }
            follow::lines(since.elapsed(), &outcome)
        })
    }

    /// Ends an override. Without one this succeeds, too, so that one loop serves a fleet.
    fn unfollow(&self, name: &str, handle: &DiscoveryHandle, responder: Responder) -> Reply {
        let overrides = &handle.snapshot().overrides;
        let text = match &overrides.in_force {
            Some(it) => {
                let then = follow::then(overrides.minority);
                format!("{} is not followed any more; {then}", it.addr)
            }
            None => "no override was in force".to_owned(),
        };
        info!(service = name, "order received: end the override");
        let step = json!({ "after_ms": 0, "step": "unfollow", "text": text });
        let done = json!({ "ok": true, "service": name });
        self.respond_when_applied(handle, DiscoveryHandle::unfollow, vec![step, done], responder)
    }

    fn switch_over(
        &self,
        name: &str,
        handle: &DiscoveryHandle,
        plan: SwitchoverOptions,
        responder: Responder,
    ) -> Reply {
        let Responder { permit, command } = responder;
        let (steps, steps_received) = mpsc::channel(16);
        let (lines, body) = mpsc::channel(16);
        let (name, handle) = (name.to_owned(), handle.clone());
        let to = plan.to.as_ref().map_or("any".to_owned(), ToString::to_string);
        info!(service = name, to, pause_clients = plan.pause_clients, "switchover started");
        self.runtime.spawn(async move {
            let switchover = switchover(&handle, plan, steps);
            let (done, lines) = tokio::join!(switchover, stream_steps(steps_received, lines));
            let last = match &done {
                Ok(outcome) => {
                    let (from, to) = (outcome.from.to_string(), outcome.to.to_string());
                    let held_ms = millis(outcome.held);
                    info!(service = name, from, to, held_ms, "switchover complete");
                    json!({
                        "ok": true,
                        "from": from,
                        "to": to,
                        "generation": outcome.generation,
                        "held_ms": held_ms,
                        "sentinel_ms": millis(outcome.sentinel),
                    })
                }
                Err(reason) => {
                    warn!(service = name, "switchover failed: {reason}");
                    json!({ "ok": false, "error": reason.to_string() })
                }
            };
            command.end(&last);
            let _ = lines.send(format!("{last}\n").into()).await;
        });
        Reply::stream("application/x-ndjson", body, permit)
    }

    fn answer(&self, request: &Request<'_>, command: ControlCommand) -> Result<Reply, Reply> {
        self.access.authorize_command(request)?;
        let service = self.service(parameter(request, "service"));
        let service = service.map_err(|problem| Reply::text(404, problem + "\n"))?;
        let (name, handle) = (service.name.as_str(), &service.discovery);
        if command != ControlCommand::Switchover && handle.is_switching() {
            return Err(Reply::text(409, format!("{SWITCHING}\n")));
        }
        let lasts = matches!(command, ControlCommand::Pause | ControlCommand::Follow);
        if lasts && self.services.is_offered() {
            return Err(Reply::text(409, format!("{TAKEN_OVER}\n")));
        }
        // Reserved first: a command without a response stream must not be executed.
        let permit = request.reserve_stream().ok_or_else(Reply::no_stream)?;
        let logged = |command, parameters| Responder {
            permit,
            command: self.log.begin(name, command, parameters),
        };
        Ok(match command {
            ControlCommand::Pause => self.pause(request, name, handle, logged)?,
            ControlCommand::Resume => {
                info!(service = name, "traffic resumed by command");
                let (responder, give) = (logged("resume", json!({})), DiscoveryHandle::resume);
                let done = json!({ "ok": true, "service": name });
                self.respond_when_applied(handle, give, vec![done], responder)
            }
            ControlCommand::Follow => {
                let order = Order::read(|name| parameter(request, name));
                let order = order.map_err(|problem| Reply::text(400, problem + "\n"))?;
                let parameters = json!({ "to": order.addr.to_string(), "force": order.force });
                self.follow(name, handle, order, logged("follow", parameters))
            }
            ControlCommand::Unfollow => self.unfollow(name, handle, logged("unfollow", json!({}))),
            ControlCommand::Switchover => {
                let pause_clients =
                    parameter(request, "pause_clients").map_or(Ok(false), str::parse);
                let wrong = |_| Reply::text(400, "pause_clients must be true or false\n");
                let pause_clients = pause_clients.map_err(wrong)?;
                let to = parameter(request, "to").map(|it| {
                    node_addr(it)
                        .ok_or_else(|| Reply::text(400, "write the replica as host:port\n"))
                });
                let to = to.transpose()?;
                let requested = to.as_ref().map(ToString::to_string);
                let parameters = json!({ "to": requested, "pause_clients": pause_clients });
                let plan = SwitchoverOptions { pause_clients, to };
                self.switch_over(name, handle, plan, logged("switchover", parameters))
            }
        })
    }

    fn pause(
        &self,
        request: &Request<'_>,
        name: &str,
        handle: &DiscoveryHandle,
        logged: impl FnOnce(&'static str, Json) -> Responder,
    ) -> Result<Reply, Reply> {
        let given = parameter(request, "for").map(|it| parse_duration(it).ok());
        let duration = given.unwrap_or(Some(DEFAULT_PAUSE));
        let Some(duration) = duration.filter(|it| !it.is_zero() && *it <= MAX_PAUSE) else {
            return Err(Reply::text(400, "write the duration as 30s or 2m, up to 10m\n"));
        };
        let seconds = given.flatten().map(|it| it.as_secs_f64());
        let (responder, since) = (logged("pause", json!({ "seconds": seconds })), Instant::now());
        let pause = Pause { since, until: since + duration, ends_with_commit: false };
        info!(service = name, seconds = duration.as_secs_f64(), "order received: pause traffic");
        let done = json!({ "ok": true, "service": name, "seconds": duration.as_secs_f64() });
        let give = move |handle: &DiscoveryHandle| handle.pause(pause);
        Ok(self.respond_when_applied(handle, give, vec![done], responder))
    }
}

/// Parses host:port; an IPv6 address may have brackets.
fn node_addr(text: &str) -> Option<NodeAddr> {
    let (host, port) = text.rsplit_once(':')?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    NodeAddr::parse(bare.unwrap_or(host), port)
}

/// Returns the value of `name=` in the query. Service names and durations need no decoding.
pub(crate) fn parameter<'a>(request: &'a Request<'_>, name: &str) -> Option<&'a str> {
    let mut pairs = request.query()?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::node_addr;

    #[test]
    fn reads_replica_with_and_without_brackets() {
        for (text, shown) in [
            ("10.0.0.1:6379", Some("10.0.0.1:6379")),
            ("[::1]:6379", Some("[::1]:6379")),
            ("::1:6379", Some("[::1]:6379")),
            ("Redis-1.local:6379", Some("redis-1.local:6379")),
            ("redis-1", None),
            (":6379", None),
            ("redis-1:0", None),
        ] {
            assert_eq!(node_addr(text).map(|it| it.to_string()).as_deref(), shown, "{text}");
        }
    }
}
