//! Orders over the admin server: pause, resume, switchover.
//!
//! Off unless the configuration turns it on and names a token or a Unix socket, because whoever
//! reaches the admin port can otherwise only read. An order is a POST, through the socket (then the
//! kernel has said whose it is) or with `Authorization: Bearer TOKEN`; the token is compared in a
//! time that does not depend on where it differs. What runs for longer than an answer may take, a
//! switchover, runs on the runtime of discovery and tells its steps as lines of JSON; if whoever
//! asked goes away before the failover was ordered, it is taken back.
//!
//! Deliberately absent: what the orders do (that is `sentinel`), and bodies: everything is in the
//! query.

use std::sync::Arc;
use std::time::{Duration, Instant};

use admin_http::{Handler, Method, Reply, Request, StreamPermit};
use bytes::Bytes;
use sentinel::{Handle, Pause, Plan, Told, switchover};
use serde_json::json;
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::config::{Secret, parse_duration};

/// How long traffic is held if an order does not say.
const PAUSE: Duration = Duration::from_secs(30);
/// The longest pause: whoever forgets it must not have stopped traffic for a night.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// Discovery takes an order with its next turn.
const TAKEN_WITHIN: Duration = Duration::from_secs(2);

/// What an order is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Pause,
    Resume,
    Switchover,
}

/// Everything that orders need.
pub(crate) struct Control {
    /// Without one orders are taken through the socket only.
    token: Option<Secret>,
    services: Vec<(String, Handle)>,
    runtime: tokio::runtime::Handle,
}

impl Control {
    /// Orders run on the runtime of the caller.
    pub(crate) fn new(token: Option<Secret>, services: Vec<(String, Handle)>) -> Arc<Self> {
        Arc::new(Self { token, services, runtime: tokio::runtime::Handle::current() })
    }

    /// Adds its paths to the admin server.
    pub(crate) fn add_to(self: &Arc<Self>, server: admin_http::Server) -> admin_http::Server {
        let path = |order| Arc::new(Path { control: Arc::clone(self), order });
        server
            .route("/control/pause", path(Order::Pause))
            .route("/control/resume", path(Order::Resume))
            .route("/control/switchover", path(Order::Switchover))
    }

    /// What an order is told that nobody may give.
    fn refuse(&self, request: &Request<'_>) -> Option<Reply> {
        if request.is_from_socket_owner() {
            return None;
        }
        let Some(token) = &self.token else {
            return Some(Reply::text(403, "orders are taken through the control socket only\n"));
        };
        let given =
            request.header("authorization").and_then(|header| header.strip_prefix("Bearer "));
        let right = given.is_some_and(|given| same(given.as_bytes(), token.reveal().as_bytes()));
        (!right).then(|| {
            Reply::text(401, "an order needs the control token: Authorization: Bearer TOKEN\n")
        })
    }

    fn service(&self, name: Option<&str>) -> Result<&(String, Handle), String> {
        let names =
            || self.services.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        match (name, self.services.as_slice()) {
            (None, [only]) => Ok(only),
            (None, _) => Err(format!("say which service: {}", names())),
            (Some(wanted), all) => all
                .iter()
                .find(|(name, _)| name == wanted)
                .ok_or_else(|| format!("no such service; there is {}", names())),
        }
    }

    /// Answers once discovery has taken the order: from then on the gate is as was ordered. An
    /// order that is not taken in time is taken back, so that it is not carried out after it was
    /// answered.
    fn when_taken(
        &self,
        handle: &Handle,
        order: sentinel::Order,
        done: &serde_json::Value,
        permit: StreamPermit,
    ) -> Reply {
        let (lines, body) = mpsc::channel(1);
        let (handle, done) = (handle.clone(), format!("{done}\n"));
        self.runtime.spawn(async move {
            let since = Instant::now();
            while handle.is_waiting(order) && since.elapsed() <= TAKEN_WITHIN {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let answer = if handle.withdraw(order) {
                let error = "discovery does not take the order, which was taken back; see /alive";
                format!("{}\n", json!({ "ok": false, "error": error }))
            } else {
                done
            };
            // Whoever asked may have gone; the order stands all the same.
            let _ = lines.send(answer.into()).await;
        });
        Reply::stream("application/x-ndjson", body, permit)
    }

    fn switch_over(&self, name: &str, handle: &Handle, plan: Plan, permit: StreamPermit) -> Reply {
        let (steps, told) = mpsc::channel(16);
        let (lines, body) = mpsc::channel(16);
        let (name, handle) = (name.to_owned(), handle.clone());
        info!(service = name, pause_clients = plan.pause_clients, "a switchover was ordered");
        self.runtime.spawn(async move {
            let (done, lines) = tokio::join!(switchover(&handle, plan, steps), pass_on(told, lines));
            let last = match &done {
                Ok(outcome) => {
                    info!(service = name, from = %outcome.from, to = %outcome.to, held_ms = millis(outcome.held), "switched over");
                    json!({ "ok": true, "from": outcome.from.to_string(), "to": outcome.to.to_string(),
                        "generation": outcome.generation, "held_ms": millis(outcome.held),
                        "sentinel_ms": millis(outcome.sentinel) })
                }
                Err(reason) => {
                    warn!(service = name, "no switchover: {reason}");
                    json!({ "ok": false, "error": reason.to_string() })
                }
            };
            let _ = lines.send(format!("{last}\n").into()).await;
        });
        Reply::stream("application/x-ndjson", body, permit)
    }
}

struct Path {
    control: Arc<Control>,
    order: Order,
}

impl Handler for Path {
    fn methods(&self) -> &'static [Method] {
        &[Method::Post]
    }

    fn answer(&self, request: &Request<'_>) -> Reply {
        if let Some(refusal) = self.control.refuse(request) {
            return refusal;
        }
        let (name, handle) = match self.control.service(parameter(request, "service")) {
            Ok(service) => service,
            Err(problem) => return Reply::text(404, problem + "\n"),
        };
        if self.order != Order::Switchover && handle.is_switching() {
            return Reply::text(
                409,
                "a switchover of this service is under way and ends by itself\n",
            );
        }
        // Before anything is executed: what cannot be answered is not carried out.
        let Some(permit) = request.reserve_stream() else { return Reply::no_stream() };
        match self.order {
            Order::Pause => {
                let span = match parameter(request, "for").map(parse_duration) {
                    None => PAUSE,
                    Some(Some(span)) if !span.is_zero() && span <= LONGEST_PAUSE => span,
                    Some(_) => return Reply::text(400, "write the time as 30s or 2m, up to 10m\n"),
                };
                let since = Instant::now();
                let order =
                    handle.pause(Pause { since, until: since + span, ends_with_commit: false });
                info!(service = name, seconds = span.as_secs_f64(), "paused by order");
                let done = json!({ "ok": true, "service": name, "seconds": span.as_secs_f64() });
                self.control.when_taken(handle, order, &done, permit)
            }
            Order::Resume => {
                let order = handle.resume();
                info!(service = name, "resumed by order");
                self.control.when_taken(
                    handle,
                    order,
                    &json!({ "ok": true, "service": name }),
                    permit,
                )
            }
            Order::Switchover => {
                let pause_clients = match parameter(request, "pause_clients") {
                    None | Some("false") => false,
                    Some("true") => true,
                    Some(_) => return Reply::text(400, "pause_clients is true or false\n"),
                };
                self.control.switch_over(
                    name,
                    handle,
                    Plan { pause_clients, ..Plan::default() },
                    permit,
                )
            }
        }
    }
}

/// How often somebody who waits for the next step is sent an empty line. The admin server hears of
/// a client that left only by writing to it, since one that has merely finished sending still wants
/// its answer.
const STILL_THERE: Duration = Duration::from_millis(100);

/// Passes the steps on as lines, until there are no more or nobody listens: then the other end of
/// `told` notices that too, which must not wait for the next step.
async fn pass_on(
    mut told: mpsc::Receiver<Told>,
    lines: mpsc::Sender<Bytes>,
) -> mpsc::Sender<Bytes> {
    loop {
        let it = tokio::select! {
            it = told.recv() => it,
            () = lines.closed() => None,
            () = tokio::time::sleep(STILL_THERE) => {
                // One that does not fit is not needed: there is something to be written already.
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

/// The value of `name=` in the query. Names of services and durations need no decoding.
fn parameter<'a>(request: &'a Request<'_>, name: &str) -> Option<&'a str> {
    let mut pairs = request.query()?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Whether the two are equal, in a time that only depends on the first one's length.
fn same(given: &[u8], wanted: &[u8]) -> bool {
    let mut differ = u8::from(given.len() != wanted.len());
    for (at, byte) in given.iter().enumerate() {
        let other = wanted.get(at.checked_rem(wanted.len()).unwrap_or(0)).copied().unwrap_or(0);
        differ |= byte ^ other;
    }
    differ == 0
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sentinel::Told;
    use tokio::sync::mpsc;

    use super::{pass_on, same};

    #[tokio::test]
    async fn who_tells_the_steps_notices_at_once_that_nobody_listens() {
        let (steps, told) = mpsc::channel(1);
        let (lines, mut body) = mpsc::channel(1);
        let passing = tokio::spawn(pass_on(told, lines));
        let it = Told { after: Duration::from_millis(7), step: "hold", text: "held".to_owned() };
        steps.send(it).await.unwrap();
        let line = body.recv().await.unwrap();
        assert_eq!(&line[..], b"{\"after_ms\":7,\"step\":\"hold\",\"text\":\"held\"}\n");
        assert!(!steps.is_closed());
        // While nothing is to be told, the client is written to.
        assert_eq!(&body.recv().await.unwrap()[..], b"\n");
        drop(body);
        // Without another step.
        tokio::time::timeout(Duration::from_secs(5), steps.closed()).await.unwrap();
        drop(passing.await.unwrap());
    }

    #[test]
    fn only_the_whole_token_is_the_token() {
        assert!(same(b"secret", b"secret"));
        for other in [&b""[..], b"secre", b"secrets", b"secresecret", b"Secret", b"secretsecret"] {
            assert!(!same(other, b"secret"), "{other:?}");
        }
        assert!(!same(b"x", b""));
    }
}
