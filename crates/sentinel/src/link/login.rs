//! Credentials that several connections share and that may be replaced at any time.
//!
//! [`Login`] is held by everything that opens connections to one set of servers; [`ServerLogin`] is
//! one server's part of it. They also know how to connect: in plain text or over TLS. All
//! decisions are made by `Rotation`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tls::ClientTls;
use tokio::sync::watch;

use crate::NodeAddr;
use crate::link::auth::{Credentials, Denied};
use crate::link::rotation::{CredentialStatus, CredentialsId, Presented, Rotation, ServerId};
use crate::net::host::Host;
use crate::net::transport::Transport;

#[derive(Debug)]
struct SharedLogin {
    rotation: Mutex<Rotation>,
    newest: watch::Sender<CredentialsId>,
    transport: Transport,
}

/// What a set of servers is connected to with.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Access<'a> {
    pub(crate) credentials: Option<&'a Credentials>,
    pub(crate) tls: Option<&'a ClientTls>,
}

#[cfg(test)]
impl<'a> Access<'a> {
    /// In plain text.
    pub(crate) fn plain(credentials: Option<&'a Credentials>) -> Self {
        Self { credentials, tls: None }
    }
}

/// Shared credentials. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Login(Arc<SharedLogin>);

impl Login {
    pub(crate) fn new(access: Access<'_>, host: Option<&Arc<dyn Host>>) -> Self {
        let transport = Transport::new(access.tls.cloned()).on(host);
        Self::with(Rotation::new(access.credentials.cloned()), transport)
    }

    fn with(rotation: Rotation, transport: Transport) -> Self {
        let newest = watch::Sender::new(rotation.newest().id);
        Self(Arc::new(SharedLogin { rotation: Mutex::new(rotation), newest, transport }))
    }

    /// How to connect to the servers.
    pub(crate) fn transport(&self) -> &Transport {
        &self.0.transport
    }

    /// Other credentials for some of the servers; the present ones are the fallback.
    pub(crate) fn branch(&self, access: Access<'_>) -> Self {
        let transport = self.0.transport.branch(access.tls);
        Self::with(self.rotation().branch(access.credentials), transport)
    }

    fn rotation(&self) -> MutexGuard<'_, Rotation> {
        // Only an allocation can panic while it is held; the rotation is consistent either way.
        self.0.rotation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the credentials, and how to connect. Established connections learn of it.
    pub(crate) fn replace(&self, access: Access<'_>) {
        let same_transport = self.0.transport.is(access.tls);
        self.0.transport.set(access.tls);
        let newest = {
            let mut rotation = self.rotation();
            if !rotation.replace(access.credentials) {
                if same_transport {
                    return;
                }
                rotation.renew();
            }
            rotation.newest().id
        };
        self.0.newest.send_replace(newest);
    }

    /// Whether this is what is configured.
    pub(crate) fn is(&self, access: Access<'_>) -> bool {
        self.rotation().newest().credentials.as_ref() == access.credentials
            && self.0.transport.is(access.tls)
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
    pub(crate) addr: NodeAddr,
    server: ServerId,
}

impl ServerLogin {
    /// How to connect to the server.
    pub(crate) fn transport(&self) -> &Transport {
        self.login.transport()
    }

    pub(crate) fn is_over_tls(&self) -> bool {
        !self.transport().is(None)
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

    /// Notices replaced credentials from now on, as long as `self` exists.
    pub(crate) fn changes(&self) -> watch::Receiver<CredentialsId> {
        self.login.0.newest.subscribe()
    }
}

impl Drop for ServerLogin {
    fn drop(&mut self) {
        self.login.rotation().remove(self.server);
    }
}
