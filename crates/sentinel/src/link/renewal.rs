//! Replaces an established connection after its credentials were replaced.
//!
//! Redis keeps a connection authenticated when its password changes, so nothing is urgent. A second
//! connection is opened with the new credentials and does the same work once; only then does it
//! replace the first. Wrong credentials are therefore noticed, within seconds, without losing sight
//! of the server. The attempts of one process share a permit, so the servers see them one after
//! another. They begin after a random pause, so that the proxies of a fleet do not come in step.
//!
//! Over TLS a connection is replaced from time to time, too: one from before shows nothing of the
//! certificates that a new one meets.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use crate::link::backoff::Backoff;
use crate::link::expiry;
use crate::link::rotation::CredentialsId;

/// The first attempt begins within this time.
const SPREAD: Duration = Duration::from_secs(1);
/// Bounds of the pause after a refusal or a failure; it grows with each.
const RETRY_MIN: Duration = Duration::from_secs(4);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// A connection over TLS is replaced within this time.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Lets one renewal of a process run at a time.
#[derive(Debug, Clone, Default)]
pub(crate) struct RenewalPermit(Arc<Mutex<()>>);

impl RenewalPermit {
    /// Runs `attempt` when no other renewal does.
    pub(crate) async fn run<T>(self, attempt: impl Future<Output = T>) -> T {
        let _alone = self.0.lock().await;
        attempt.await
    }
}

/// What to do next.
pub(crate) enum RenewalStep<T> {
    /// An attempt is due: start one.
    Due,
    /// An attempt has ended.
    Ended(T),
}

/// The schedule of one connection's renewal, and the attempt in progress.
pub(crate) struct Renewal<'a, T> {
    at: Option<Instant>,
    pause: Backoff,
    attempt: Option<Pin<Box<dyn Future<Output = T> + Send + 'a>>>,
}

impl<'a, T> Renewal<'a, T> {
    /// `outdated`: the connection was opened with older credentials.
    pub(crate) fn new(outdated: bool) -> Self {
        let mut renewal =
            Self { at: None, pause: Backoff::new(RETRY_MIN, RETRY_MAX), attempt: None };
        if outdated {
            renewal.retry_later();
        }
        renewal
    }

    /// Waits for the next step. Cancel-safe: an attempt in progress continues with the next call.
    pub(crate) async fn next(
        &mut self,
        changes: &mut watch::Receiver<CredentialsId>,
        over_tls: bool,
    ) -> RenewalStep<T> {
        loop {
            if over_tls && !self.is_pending() {
                self.pause.reset();
                self.at =
                    Some(Instant::now() + CHECK_INTERVAL.mul_f64(1.0 - fastrand::f64() / 2.0));
            }
            let (at, attempt) = (self.at, &mut self.attempt);
            let ended = async {
                match attempt {
                    Some(attempt) => attempt.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Ok(()) = changes.changed() => self.begin_soon(),
                outcome = ended => {
                    self.attempt = None;
                    return RenewalStep::Ended(outcome);
                }
                () = expiry(at) => {
                    self.at = None;
                    return RenewalStep::Due;
                }
            }
        }
    }

    /// The credentials were replaced. An attempt with those before them is not needed any more.
    pub(crate) fn begin_soon(&mut self) {
        self.attempt = None;
        self.pause.reset();
        self.at = Some(Instant::now() + SPREAD.mul_f64(fastrand::f64()));
    }

    /// Starts an attempt, which [`Self::next`] continues.
    pub(crate) fn start(&mut self, attempt: impl Future<Output = T> + Send + 'a) {
        self.attempt = Some(Box::pin(attempt));
    }

    /// Whether an attempt is scheduled or in progress.
    pub(crate) fn is_pending(&self) -> bool {
        self.at.is_some() || self.attempt.is_some()
    }

    /// The next attempt is due after a pause.
    pub(crate) fn retry_later(&mut self) {
        self.at = Some(Instant::now() + self.pause.pause());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::auth::Credentials;
    use crate::link::login::{Access, Login};

    #[tokio::test(start_paused = true)]
    async fn attempts_again_with_growing_pauses_until_replaced() {
        let login = Login::new(Access::plain(Some(&Credentials::new(None, "old"))), None);
        let server = login.register(crate::NodeAddr { host: "h".into(), port: 1 });
        let mut changes = server.changes();
        let mut renewal: Renewal<'_, u8> = Renewal::new(false);
        let idle = tokio::time::timeout(RETRY_MAX * 2, renewal.next(&mut changes, false)).await;
        assert!(idle.is_err(), "nothing to do");
        login.replace(Access::plain(Some(&Credentials::new(None, "new"))));
        let changed_at = Instant::now();
        assert!(matches!(renewal.next(&mut changes, false).await, RenewalStep::Due));
        assert!(changed_at.elapsed() <= SPREAD);
        let mut attempts = 0;
        while changed_at.elapsed() < Duration::from_secs(600) {
            renewal.start(std::future::ready(1));
            assert!(matches!(renewal.next(&mut changes, false).await, RenewalStep::Ended(1)));
            renewal.retry_later();
            assert!(matches!(renewal.next(&mut changes, false).await, RenewalStep::Due));
            attempts += 1;
        }
        assert!((10..120).contains(&attempts), "{attempts}");
        // A hanging attempt ends with the next change.
        renewal.start(std::future::pending());
        login.replace(Access::plain(Some(&Credentials::new(None, "newer"))));
        assert!(matches!(renewal.next(&mut changes, false).await, RenewalStep::Due));
    }

    #[tokio::test(start_paused = true)]
    async fn runs_one_renewal_at_a_time() {
        let (permit, busy) = (RenewalPermit::default(), Arc::new(Mutex::new(())));
        let attempts: Vec<_> = (0..5)
            .map(|_| {
                let (permit, busy) = (permit.clone(), Arc::clone(&busy));
                tokio::spawn(permit.run(async move {
                    let _alone = busy.try_lock().expect("another renewal runs");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }))
            })
            .collect();
        for attempt in attempts {
            attempt.await.expect("alone");
        }
    }
}
