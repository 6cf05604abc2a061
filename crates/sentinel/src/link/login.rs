//! Credentials that several connections share and that may be replaced at any time.
//!
//! [`Login`] is held by everything that opens connections to one set of servers; [`ServerLogin`] is
//! one server's part of it. All decisions are made by `Rotation`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::NodeAddr;
use crate::link::auth::{Credentials, Denied};
use crate::link::rotation::{CredentialStatus, CredentialsId, Presented, Rotation, ServerId};

#[derive(Debug)]
struct SharedLogin {
    rotation: Mutex<Rotation>,
    newest: watch::Sender<CredentialsId>,
}

/// Shared credentials. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Login(Arc<SharedLogin>);

impl Login {
    pub(crate) fn new(credentials: Option<Credentials>) -> Self {
        Self::with(Rotation::new(credentials))
    }

    fn with(rotation: Rotation) -> Self {
        let newest = watch::Sender::new(rotation.newest().id);
        Self(Arc::new(SharedLogin { rotation: Mutex::new(rotation), newest }))
    }

    /// Other credentials for some of the servers; the present ones are the fallback.
    pub(crate) fn branch(&self, credentials: Option<&Credentials>) -> Self {
        Self::with(self.rotation().branch(credentials))
    }

    fn rotation(&self) -> MutexGuard<'_, Rotation> {
        // Only an allocation can panic while it is held; the rotation is consistent either way.
        self.0.rotation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the credentials. Established connections learn of it.
    pub(crate) fn replace(&self, credentials: Option<&Credentials>) {
        let newest = {
            let mut rotation = self.rotation();
            if !rotation.replace(credentials) {
                return;
            }
            rotation.newest().id
        };
        self.0.newest.send_replace(newest);
    }

    /// Whether these are the configured credentials.
    pub(crate) fn is(&self, credentials: Option<&Credentials>) -> bool {
        self.rotation().newest().credentials.as_ref() == credentials
    }

    /// The credentials of a new connection to `addr`, as one of its users.
    pub(crate) fn register(&self, addr: NodeAddr) -> ServerLogin {
        let server = self.rotation().add(addr.clone());
        ServerLogin { login: self.clone(), addr, server }
    }

    /// The state for operators, of the servers for which `of` holds.
    pub(crate) fn status(&self, of: impl Fn(&NodeAddr) -> bool) -> CredentialStatus {
        self.rotation().status(of)
    }
}

/// The credentials for one server, for as long as something connects to it.
#[derive(Debug)]
pub(crate) struct ServerLogin {
    login: Login,
    addr: NodeAddr,
    server: ServerId,
}

impl ServerLogin {
    /// The address of the server.
    pub(crate) fn addr(&self) -> &NodeAddr {
        &self.addr
    }

    /// The credentials for a new connection.
    pub(crate) fn present(&self) -> Presented {
        self.login.rotation().present(self.server)
    }

    /// The configured credentials.
    pub(crate) fn newest(&self) -> Presented {
        self.login.rotation().newest().clone()
    }

    /// Whether a connection with these credentials is up to date.
    pub(crate) fn is_newest(&self, id: CredentialsId) -> bool {
        self.login.rotation().newest().id == id
    }

    /// The server accepted these credentials.
    pub(crate) fn accept(&self, id: CredentialsId) {
        self.login.rotation().accept(self.server, id);
    }

    /// Records a refusal. Returns whether other credentials may be accepted.
    pub(crate) fn refuse(&self, id: CredentialsId, denied: &Denied) -> bool {
        !denied.is_server_wide() && self.login.rotation().refuse(self.server, id, denied)
    }

    /// Notices replaced credentials from now on.
    pub(crate) fn changes(&self) -> LoginChanges {
        LoginChanges(self.login.0.newest.subscribe())
    }
}

/// Notices that credentials were replaced.
#[derive(Debug)]
pub(crate) struct LoginChanges(watch::Receiver<CredentialsId>);

impl LoginChanges {
    /// Waits until the credentials are replaced. Cancel-safe.
    pub(crate) async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for ServerLogin {
    fn drop(&mut self) {
        self.login.rotation().remove(self.server);
    }
}
