//! Logs what becomes of changed credentials: which servers refuse them, and when all use them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use tracing::{info, warn};

use crate::discovery::snapshot::DiscoverySnapshot;
use crate::link::auth::Denied;
use crate::rate_limiter::RateLimiter;
use crate::{CredentialStatus, NodeAddr};

/// The state that was logged last.
#[derive(Debug, Default)]
pub(crate) struct CredentialLog {
    nodes: LoggedCredentials,
    sentinels: LoggedCredentials,
}

#[derive(Debug, Default)]
struct LoggedCredentials {
    refused: BTreeMap<NodeAddr, Denied>,
    outdated: bool,
}

impl CredentialLog {
    /// Logs what differs from the last call.
    pub(crate) fn update(
        &mut self,
        now: Instant,
        service: &Arc<str>,
        snapshot: &DiscoverySnapshot,
        log_limiter: &mut RateLimiter,
    ) {
        let mut all = |logged: &mut LoggedCredentials, status, section, servers| {
            for (addr, denied) in logged.note(status) {
                let service = Arc::clone(service);
                log_limiter.log(now, move |suppressed| match denied {
                    Some(denied) => warn!(
                        %service, server = %addr, suppressed, keys = section,
                        "server refuses the changed credentials, using those before: {denied}"
                    ),
                    None => info!(
                        %service, server = %addr, suppressed, keys = section,
                        "server accepts the changed credentials"
                    ),
                });
            }
            if std::mem::replace(&mut logged.outdated, status.outdated > 0) && !logged.outdated {
                let service = Arc::clone(service);
                log_limiter.log(now, move |suppressed| {
                    info!(%service, suppressed, keys = section, "{servers} use the changed credentials");
                });
            }
        };
        all(&mut self.nodes, &snapshot.auth, "service.auth", "all redis nodes");
        all(&mut self.sentinels, &snapshot.sentinel_auth, "service.sentinel_auth", "all sentinels");
    }
}

impl LoggedCredentials {
    /// The servers whose refusal is new, and those that refuse no longer. A refusal without older
    /// credentials is logged as the server's failure.
    fn note(&mut self, status: &CredentialStatus) -> Vec<(NodeAddr, Option<Denied>)> {
        let refused: BTreeMap<NodeAddr, Denied> = status
            .refused
            .iter()
            .filter(|it| it.fallback)
            .map(|it| (it.addr.clone(), it.denied.clone()))
            .collect();
        let news = refused.iter().filter(|(addr, denied)| self.refused.get(*addr) != Some(*denied));
        let ended = self.refused.keys().filter(|addr| !refused.contains_key(*addr));
        let changes = news
            .map(|(addr, denied)| (addr.clone(), Some(denied.clone())))
            .chain(ended.map(|addr| (addr.clone(), None)))
            .collect();
        self.refused = refused;
        changes
    }
}
