//! How the servers of one set are connected to: in plain text, or over TLS.
//!
//! A certificate is issued for a name, and connections are dialled by address. The names under
//! which addresses were found are therefore kept here, for connections that know only the address.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tls::{CertificateFacts, ClientTls};
use tokio::net::TcpStream;

use crate::net::host::Host;
use crate::net::stream::Stream;

/// Maximum number of names that are kept. Beyond it, addresses themselves are verified.
const MAX_NAMES: usize = 1024;

#[derive(Debug, Default)]
struct State {
    tls: Option<ClientTls>,
    names: BTreeMap<SocketAddr, Arc<str>>,
    host: Option<Arc<dyn Host>>,
}

/// How to connect. Cheap to clone; all clones share it.
#[derive(Debug, Clone, Default)]
pub struct Transport(Arc<Mutex<State>>);

impl Transport {
    /// Over TLS with these settings; in plain text without any.
    #[must_use]
    pub fn new(tls: Option<ClientTls>) -> Self {
        Self(Arc::new(Mutex::new(State { tls, ..State::default() })))
    }

    /// Connections of this host, if it is not the operating system.
    pub(crate) fn on(self, host: Option<&Arc<dyn Host>>) -> Self {
        self.state().host = host.cloned();
        self
    }

    /// The host, if it is not the operating system.
    pub(crate) fn host(&self) -> Option<Arc<dyn Host>> {
        self.state().host.clone()
    }

    /// The same names with other settings.
    pub(crate) fn branch(&self, tls: Option<&ClientTls>) -> Self {
        let state = self.state();
        let (names, host) = (state.names.clone(), state.host.clone());
        Self(Arc::new(Mutex::new(State { tls: tls.cloned(), names, host })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Only an allocation can panic while it is held; the state is consistent either way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether these are the settings.
    pub(crate) fn is(&self, tls: Option<&ClientTls>) -> bool {
        self.state().tls.as_ref() == tls
    }

    /// Uses these settings for new connections.
    pub(crate) fn set(&self, tls: Option<&ClientTls>) {
        self.state().tls = tls.cloned();
    }

    /// Records that `host` leads to `addr`.
    pub fn set_name(&self, addr: SocketAddr, host: &str) {
        let mut state = self.state();
        if state.tls.is_none() || host.parse::<IpAddr>().is_ok() {
            return;
        }
        let is_known = state.names.get(&addr).is_some_and(|known| &**known == host);
        if !is_known && (state.names.len() < MAX_NAMES || state.names.contains_key(&addr)) {
            state.names.insert(addr, host.into());
        }
    }

    /// The settings, and the name to verify at `addr`, if connections are over TLS.
    fn tls(&self, addr: SocketAddr) -> Option<(ClientTls, String)> {
        let state = self.state();
        let tls = state.tls.clone()?;
        let name = state.names.get(&addr).map(ToString::to_string);
        Some((tls, name.unwrap_or_else(|| addr.ip().to_string())))
    }

    /// Makes a stream of a connected socket.
    pub(crate) async fn open(&self, addr: SocketAddr, socket: TcpStream) -> io::Result<Stream> {
        match self.tls(addr) {
            Some((tls, name)) => Stream::over_tls(socket, &tls, &name, true).await,
            None => Ok(Stream::plain(Box::new(socket))),
        }
    }

    /// Reads the certificate of a server without verifying it. Nothing is sent to the server apart
    /// from the handshake. `None` without TLS, or if there is none within `timeout`.
    pub async fn read_certificate(
        &self,
        addr: SocketAddr,
        timeout: Duration,
    ) -> Option<CertificateFacts> {
        let (tls, name) = self.tls(addr)?;
        let reading = async {
            let socket = TcpStream::connect(addr).await.ok()?;
            Stream::over_tls(socket, &tls, &name, false).await.ok()?.tls?.certificate
        };
        tokio::time::timeout(timeout, reading).await.ok().flatten()
    }

    /// The client certificate that servers are shown.
    #[must_use]
    pub fn own_certificate(&self) -> Option<CertificateFacts> {
        self.state().tls.as_ref()?.certificate()
    }

    /// Whether connections are over TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.state().tls.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verifies_names_under_which_addresses_were_found() {
        let addr = |last: u8| SocketAddr::from(([10, 0, 0, last], 6379));
        let transport = Transport::new(Some(ClientTls::refusing()));
        transport.set_name(addr(1), "redis.example");
        transport.set_name(addr(2), "10.0.0.2");
        let name = |transport: &Transport, last| transport.tls(addr(last)).map(|(_, name)| name);
        assert_eq!(name(&transport, 1).as_deref(), Some("redis.example"));
        assert_eq!(name(&transport, 2).as_deref(), Some("10.0.0.2"));
        let branch = transport.branch(Some(&ClientTls::refusing()));
        assert_eq!(name(&branch, 1).as_deref(), Some("redis.example"));
        assert_eq!(name(&transport.branch(None), 1), None);
        for number in 0..5000_u16 {
            transport.set_name(SocketAddr::from(([10, 9, 0, 1], number)), "many.example");
        }
        assert!(transport.state().names.len() <= MAX_NAMES);
    }

    #[test]
    fn tells_settings_of_different_handles_apart() {
        let (one, other) = (ClientTls::refusing(), ClientTls::refusing());
        let transport = Transport::new(Some(one.clone()));
        assert!(transport.is(Some(&one)) && !transport.is(Some(&other)) && !transport.is(None));
        transport.set(Some(&other));
        assert!(transport.is(Some(&other)) && transport.is_tls());
    }
}
