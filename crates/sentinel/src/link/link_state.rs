//! What is known of a link: whether it is up, with which version of TLS, and what is wrong.

use std::net::SocketAddr;

use tls::Version;
use tracing::{info, warn};

use crate::MyId;
use crate::clock;
use crate::link::connection::Protocol;
use crate::link::links::{Link, describe};
use crate::link::messages::LinkError;

impl Link {
    /// The connection is established. Returns the sentinel that answered here before, if it was
    /// another one.
    pub(crate) fn on_up(
        &mut self,
        id: MyId,
        addr: SocketAddr,
        protocol: Protocol,
        events: bool,
        tls: Option<Version>,
    ) -> Option<MyId> {
        let (sentinel, my_id) = (self.addr.clone(), id.clone());
        let protocol = match protocol {
            Protocol::Resp2 => "resp2",
            Protocol::Resp3 => "resp3",
        };
        if self.up.is_none() || self.problem.is_some() {
            self.log_limiter.log(clock::now(), move |suppressed| {
                info!(
                    %sentinel, id = my_id.short(), protocol, events, suppressed,
                    tls = tls.map_or("off", Version::label),
                    "sentinel connected"
                );
            });
        }
        let before = self.last_id.replace(id.clone()).filter(|before| *before != id);
        self.up = Some((id, addr));
        (self.events, self.tls) = (events, tls);
        (self.problem, self.tls_fault) = (None, None);
        before
    }

    /// The connection ended, or could not be made.
    pub(crate) fn on_down(&mut self, error: &LinkError) {
        let was_up = self.up.take().is_some();
        self.tls = None;
        self.record(was_up, describe(error), error);
        self.poll_errors.clear();
    }

    /// New connections fail, while the present one works. What concerns credentials is reported by
    /// their rotation.
    pub(crate) fn on_unrenewed(&mut self, error: &LinkError) {
        if matches!(error, LinkError::Denied(denied) if !denied.is_server_wide()) {
            (self.problem, self.tls_fault) = (None, None);
        } else {
            let problem =
                format!("new connections fail, one from before works: {}", describe(error));
            self.record(false, problem, error);
        }
    }

    fn record(&mut self, is_news: bool, problem: String, error: &LinkError) {
        if is_news || self.problem.as_ref() != Some(&problem) {
            self.warn(&problem);
        }
        self.problem = Some(problem);
        self.tls_fault = match error {
            LinkError::Tls(fault) => Some(fault.kind),
            _ => None,
        };
    }

    /// Logs, rate-limited, that this sentinel is unavailable.
    pub(crate) fn warn(&mut self, problem: &str) {
        let (sentinel, problem) = (self.addr.clone(), problem.to_owned());
        self.log_limiter.log(clock::now(), move |suppressed| {
            warn!(%sentinel, suppressed, %problem, "sentinel unavailable");
        });
    }

    /// Records what is wrong with its answers about one service, and logs a change.
    pub(crate) fn set_poll_error(&mut self, service: usize, trouble: Option<String>) {
        if self.poll_errors.get(&service) == trouble.as_ref() {
            return;
        }
        match trouble {
            None => drop(self.poll_errors.remove(&service)),
            Some(trouble) => {
                self.warn(&trouble);
                self.poll_errors.insert(service, trouble);
            }
        }
    }

    /// The problem of this link as far as this service is concerned, for operators.
    pub(crate) fn problem_for(&self, service: usize) -> Option<String> {
        let unsubscribed = (self.up.is_some() && !self.events).then(|| {
            "its ACL does not allow SUBSCRIBE: switches are found by polling only".to_owned()
        });
        let withheld = |problem: String| {
            let cure = "name it in sentinels, set nodes, or use sentinel_tls";
            format!("{problem} (a listed sentinel gets no password from here: {cure})")
        };
        let problem = self.problem.clone();
        let problem = if self.anonymous { problem.map(withheld) } else { problem };
        problem.or_else(|| self.poll_errors.get(&service).cloned()).or(unsubscribed)
    }
}
