//! The control API of the admin server: pause, resume, switchover.
//!
//! Disabled unless the configuration enables it and sets a token or a Unix socket, because every
//! client of the admin port could otherwise use it. A command is a POST, through the socket (where
//! the kernel identifies the user) or with `Authorization: Bearer TOKEN`; the token is compared in
//! constant time. A switchover takes longer than a response may, so it runs on discovery's runtime
//! and streams its steps as JSON lines; if the client disconnects before the failover is ordered,
//! the switchover is cancelled.
//!
//! Deliberately absent: the implementation of the commands (in `sentinel`), and request bodies: all
//! parameters are in the query.

use std::sync::Arc;
use std::time::{Duration, Instant};

use admin_http::{Handler, Method, Reply, Request, StreamPermit};
use arc_swap::ArcSwap;
use bytes::Bytes;
use sentinel::{DiscoveryHandle, Pause, SwitchoverOptions, SwitchoverStep, switchover};
use serde_json::json;
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::admin::service_registry::{ReportedService, ServiceRegistry};
use crate::config::{Config, Secret, parse_duration};

/// Duration of a pause without a `for` parameter.
const DEFAULT_PAUSE: Duration = Duration::from_secs(30);
/// Maximum duration of a pause: a forgotten one must not stop traffic for a night.
const MAX_PAUSE: Duration = Duration::from_secs(600);

/// Discovery applies a command in its next iteration, so this time suffices.
const APPLY_DEADLINE: Duration = Duration::from_secs(2);

/// A control command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ControlCommand {
    Pause,
    Resume,
    Switchover,
}

/// Who may give commands. A reload changes it. Cheap to clone; all clones share one state.
#[derive(Debug, Clone)]
pub(crate) struct ControlAccess(Arc<ArcSwap<AccessRules>>);

#[derive(Debug)]
struct AccessRules {
    enabled: bool,
    /// Without a token only the control socket accepts commands.
    token: Option<Secret>,
}

impl AccessRules {
    fn of(config: &Config) -> Self {
        let (enabled, token) = (config.admin.control, config.admin.control_token.0.clone());
        Self { enabled, token }
    }
}

impl ControlAccess {
    /// The access as configured.
    pub(crate) fn of(config: &Config) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(AccessRules::of(config))))
    }

    /// Applies a changed configuration. A replaced token is invalid from now on.
    pub(crate) fn set(&self, config: &Config) {
        self.0.store(Arc::new(AccessRules::of(config)));
    }
}

/// The state of the control API.
pub(crate) struct Control {
    access: ControlAccess,
    services: ServiceRegistry,
    runtime: tokio::runtime::Handle,
}

impl Control {
    /// Creates the API. Commands run on the runtime of the caller.
    pub(crate) fn new(access: ControlAccess, services: ServiceRegistry) -> Arc<Self> {
        Arc::new(Self { access, services, runtime: tokio::runtime::Handle::current() })
    }

    /// Adds its paths to the admin server.
    pub(crate) fn add_to(self: &Arc<Self>, server: admin_http::Server) -> admin_http::Server {
        let handler = |command| Arc::new(CommandHandler { control: Arc::clone(self), command });
        server
            .route("/control/pause", handler(ControlCommand::Pause))
            .route("/control/resume", handler(ControlCommand::Resume))
            .route("/control/switchover", handler(ControlCommand::Switchover))
    }

    /// Returns the refusal of a request without permission.
    fn refuse(&self, request: &Request<'_>) -> Option<Reply> {
        let access = self.access.0.load();
        if !access.enabled {
            return Some(Reply::text(404, "control commands are disabled: set admin.control\n"));
        }
        if request.is_from_socket_owner() {
            return None;
        }
        let Some(token) = &access.token else {
            return Some(Reply::text(
                403,
                "control commands are accepted through the control socket only\n",
            ));
        };
        let given =
            request.header("authorization").and_then(|header| header.strip_prefix("Bearer "));
        let is_valid = given
            .is_some_and(|given| constant_time_eq(given.as_bytes(), token.reveal().as_bytes()));
        (!is_valid).then(|| {
            Reply::text(401, "a control command requires the token: Authorization: Bearer TOKEN\n")
        })
    }

    /// A service that is being removed takes no commands.
    fn service(&self, name: Option<&str>) -> Result<Arc<ReportedService>, String> {
        let mut services = self.services.list();
        services.retain(|it| !it.is_leaving);
        let names = || services.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join(", ");
        match (name, services.as_slice()) {
            (None, [only]) => Ok(Arc::clone(only)),
            (None, _) => Err(format!("parameter service is required; services: {}", names())),
            (Some(expected), all) => all
                .iter()
                .find(|it| it.name == expected)
                .cloned()
                .ok_or_else(|| format!("no such service; services: {}", names())),
        }
    }

    /// Responds once discovery has applied the command: from then on the gate is as requested. A
    /// command that is not applied in time is withdrawn, so that it does not take effect after an
    /// error was reported.
    fn respond_when_applied(
        &self,
        handle: &DiscoveryHandle,
        command: sentinel::CommandId,
        done: &serde_json::Value,
        permit: StreamPermit,
    ) -> Reply {
        let (lines, body) = mpsc::channel(1);
        let (handle, done) = (handle.clone(), format!("{done}\n"));
        self.runtime.spawn(async move {
            let since = Instant::now();
            while handle.is_pending(command) && since.elapsed() <= APPLY_DEADLINE {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let answer = if handle.cancel(command) {
                let error = "discovery did not respond, the command was withdrawn; see /alive";
                format!("{}\n", json!({ "ok": false, "error": error }))
            } else {
                done
            };
            // The client may be gone; the command has taken effect anyway.
            let _ = lines.send(answer.into()).await;
        });
        Reply::stream("application/x-ndjson", body, permit)
    }

    fn switch_over(
        &self,
        name: &str,
        handle: &DiscoveryHandle,
        plan: SwitchoverOptions,
        permit: StreamPermit,
    ) -> Reply {
        let (steps, steps_received) = mpsc::channel(16);
        let (lines, body) = mpsc::channel(16);
        let (name, handle) = (name.to_owned(), handle.clone());
        info!(service = name, pause_clients = plan.pause_clients, "switchover started");
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
            let _ = lines.send(format!("{last}\n").into()).await;
        });
        Reply::stream("application/x-ndjson", body, permit)
    }
}

struct CommandHandler {
    control: Arc<Control>,
    command: ControlCommand,
}

impl Handler for CommandHandler {
    fn methods(&self) -> &'static [Method] {
        &[Method::Post]
    }

    fn answer(&self, request: &Request<'_>) -> Reply {
        if let Some(refusal) = self.control.refuse(request) {
            return refusal;
        }
        let service = match self.control.service(parameter(request, "service")) {
            Ok(service) => service,
            Err(problem) => return Reply::text(404, problem + "\n"),
        };
        let (name, handle) = (service.name.as_str(), &service.discovery);
        if self.command != ControlCommand::Switchover && handle.is_switching() {
            return Reply::text(409, "a switchover of this service is in progress\n");
        }
        // Reserved first: a command without a response stream must not be executed.
        let Some(permit) = request.reserve_stream() else { return Reply::no_stream() };
        match self.command {
            ControlCommand::Pause => {
                let duration = match parameter(request, "for").map(parse_duration) {
                    None => DEFAULT_PAUSE,
                    Some(Some(duration)) if !duration.is_zero() && duration <= MAX_PAUSE => {
                        duration
                    }
                    Some(_) => {
                        return Reply::text(400, "write the duration as 30s or 2m, up to 10m\n");
                    }
                };
                let since = Instant::now();
                let command =
                    handle.pause(Pause { since, until: since + duration, ends_with_commit: false });
                info!(
                    service = name,
                    seconds = duration.as_secs_f64(),
                    "traffic paused by command"
                );
                let done =
                    json!({ "ok": true, "service": name, "seconds": duration.as_secs_f64() });
                self.control.respond_when_applied(handle, command, &done, permit)
            }
            ControlCommand::Resume => {
                let command = handle.resume();
                info!(service = name, "traffic resumed by command");
                self.control.respond_when_applied(
                    handle,
                    command,
                    &json!({ "ok": true, "service": name }),
                    permit,
                )
            }
            ControlCommand::Switchover => {
                let pause_clients = match parameter(request, "pause_clients") {
                    None | Some("false") => false,
                    Some("true") => true,
                    Some(_) => return Reply::text(400, "pause_clients must be true or false\n"),
                };
                self.control.switch_over(
                    name,
                    handle,
                    SwitchoverOptions { pause_clients, ..SwitchoverOptions::default() },
                    permit,
                )
            }
        }
    }
}

/// Interval of the empty lines sent while no step happens. The admin server notices a client that
/// left only by writing to it, since one that has merely closed its sending side still expects the
/// response.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_millis(100);

/// Sends the steps as lines until there are no more or the client is gone. The sender of `steps`
/// notices the latter at once, without waiting for the next step.
async fn stream_steps(
    mut steps_received: mpsc::Receiver<SwitchoverStep>,
    lines: mpsc::Sender<Bytes>,
) -> mpsc::Sender<Bytes> {
    loop {
        let it = tokio::select! {
            it = steps_received.recv() => it,
            () = lines.closed() => None,
            () = tokio::time::sleep(KEEP_ALIVE_INTERVAL) => {
                // A line that does not fit is not needed: the channel already has data to write.
                let _ = lines.try_send(Bytes::from_static(b"\n"));
                continue;
            }
        };
        let Some(it) = it else { return lines };
        let line = json!({ "after_ms": millis(it.after), "step": it.step, "text": it.text });
        if lines.send(format!("{line}\n").into()).await.is_err() {
            return lines;
        }
    }
}

/// Returns the value of `name=` in the query. Service names and durations need no decoding.
fn parameter<'a>(request: &'a Request<'_>, name: &str) -> Option<&'a str> {
    let mut pairs = request.query()?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Compares in a time that depends only on the length of `given`.
fn constant_time_eq(given: &[u8], expected: &[u8]) -> bool {
    let mut differ = u8::from(given.len() != expected.len());
    for (at, byte) in given.iter().enumerate() {
        let other = expected.get(at.checked_rem(expected.len()).unwrap_or(0)).copied().unwrap_or(0);
        differ |= byte ^ other;
    }
    differ == 0
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sentinel::SwitchoverStep;
    use tokio::sync::mpsc;

    use super::{constant_time_eq, stream_steps};

    #[tokio::test]
    async fn closes_step_channel_when_client_leaves() {
        let (steps, steps_received) = mpsc::channel(1);
        let (lines, mut body) = mpsc::channel(1);
        let passing = tokio::spawn(stream_steps(steps_received, lines));
        let it = SwitchoverStep {
            after: Duration::from_millis(7),
            step: "hold",
            text: "held".to_owned(),
        };
        steps.send(it).await.unwrap();
        let line = body.recv().await.unwrap();
        assert_eq!(&line[..], b"{\"after_ms\":7,\"step\":\"hold\",\"text\":\"held\"}\n");
        assert!(!steps.is_closed());
        // Between steps, keep-alives are written.
        assert_eq!(&body.recv().await.unwrap()[..], b"\n");
        drop(body);
        // Without another step.
        tokio::time::timeout(Duration::from_secs(5), steps.closed()).await.unwrap();
        drop(passing.await.unwrap());
    }

    #[test]
    fn accepts_complete_token_only() {
        assert!(constant_time_eq(b"secret", b"secret"));
        for other in [&b""[..], b"secre", b"secrets", b"secresecret", b"Secret", b"secretsecret"] {
            assert!(!constant_time_eq(other, b"secret"), "{other:?}");
        }
        assert!(!constant_time_eq(b"x", b""));
    }
}
