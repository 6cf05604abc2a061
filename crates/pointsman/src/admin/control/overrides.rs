//! The commands that begin and end an override of lost sentinels.

use std::time::Instant;

use admin_http::Reply;
use sentinel::DiscoveryHandle;
use serde_json::json;
use tokio::sync::mpsc;
use tracing::{info, warn};

use super::{Control, Responder};
use crate::admin::follow::{self, Order};

impl Control {
    /// Follows a node by an operator's order, and responds with what the order led to.
    pub(super) fn follow(
        &self,
        name: &str,
        handle: &DiscoveryHandle,
        order: Order,
        responder: Responder,
    ) -> Reply {
        let Responder { permit, command } = responder;
        let (lines, body) = mpsc::channel(1);
        let (name, handle, since) = (name.to_owned(), handle.clone(), Instant::now());
        let addr = order.addr.to_string();
        warn!(service = name, addr, force = order.force, "order received: follow this master");
        self.runtime.spawn(async move {
            let outcome = follow::follow(&name, &handle, order).await;
            if let Err(reason) = &outcome {
                warn!(service = name, addr, "order refused: {reason}");
            }
            let text = follow::lines("follow", since.elapsed(), &outcome);
            let last = text.lines().last().and_then(|it| serde_json::from_str(it).ok());
            command.end(&last.unwrap_or_default());
            let _ = lines.send(text.into()).await;
        });
        Reply::stream("application/x-ndjson", body, permit)
    }

    /// Ends an override. Without one this succeeds, too, so that one loop serves a fleet.
    pub(super) fn unfollow(
        &self,
        name: &str,
        handle: &DiscoveryHandle,
        responder: Responder,
    ) -> Reply {
        let overrides = &handle.snapshot().overrides;
        let text = match &overrides.in_force {
            Some(it) => {
                format!(
                    "{} is not followed any more; {}",
                    it.addr,
                    follow::then(overrides.minority)
                )
            }
            None => "no override was in force".to_owned(),
        };
        let command = handle.unfollow();
        info!(service = name, "order received: end the override");
        let step = json!({ "after_ms": 0, "step": "unfollow", "text": text });
        let done = json!({ "ok": true, "service": name });
        self.respond_when_applied(handle, command, vec![step, done], responder)
    }
}
