//! Listening sockets that this process did not bind: from socket activation, or handed over by an
//! older process.
//!
//! Such a socket outlives the process that accepts from it, together with its queue: clients that
//! connect while no process accepts wait instead of being refused. A service manager gives each
//! socket a name (`FileDescriptorName=`), by which `activation` finds its listener set. A set that
//! is given sockets listens on these only, because its addresses are then configured in the service
//! manager. Of the sockets of an older process, those that the configuration names are taken; the
//! rest stay with that process until it ends.
//!
//! An older process also gives its IPv4 socket for every address where the configuration now has
//! `[::]` for both families.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use listenfd::ListenFd;
use proxy::{InheritedSockets, ListenAddr};
use socket2::SockRef;
use tracing::warn;

use crate::config::Config;
use crate::process::activation::{SocketOwner, is_of_admin, owner_of};
use crate::process::listener_set::{self, ListenerSet};

/// The variable with the names of the sockets, separated by colons (sd_listen_fds(3)).
const NAMES: &str = "LISTEN_FDNAMES";
/// The name of the admin server's sockets.
pub(crate) const ADMIN: &str = "admin";
/// Name, in a takeover, of a Unix socket whose file belongs to a service manager. It cannot be the
/// name of a service: a master's name contains no slash.
pub(crate) const OF_MANAGER: &str = "/service-manager";

/// A listening socket with its name.
#[derive(Debug)]
pub(crate) struct NamedSocket {
    /// The name of a service, or `admin`, or any other text.
    pub name: String,
    /// Its address.
    pub addr: ListenAddr,
    /// The socket.
    pub listener: OwnedFd,
}

/// Why an inherited socket cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InheritError {
    /// The socket has another type.
    #[error(
        "socket {number} ({name}) of the service manager is not a listening stream socket; \
         use ListenStream=ADDRESS:PORT or a path"
    )]
    WrongType {
        /// Its index, from 0.
        number: usize,
        /// Its name.
        name: String,
        /// The error of the system.
        source: io::Error,
    },
    /// No part of the process may use the socket.
    #[error("{0}")]
    Owner(String),
}

/// Returns the sockets given by the service manager; none without one.
///
/// # Errors
///
/// The first socket that is not a listening stream socket with an address.
pub(crate) fn from_service_manager() -> Result<Vec<NamedSocket>, InheritError> {
    let names = std::env::var(NAMES).unwrap_or_default();
    let mut names = names.split(':');
    let mut fds = ListenFd::from_env();
    let mut sockets = Vec::with_capacity(fds.len());
    for number in 0..fds.len() {
        let name = names.next().unwrap_or_default().to_owned();
        // Each call returns the socket if it has another type.
        let tcp = fds.take_tcp_listener(number).map(|socket| socket.map(OwnedFd::from));
        let taken =
            tcp.or_else(|_| fds.take_unix_listener(number).map(|socket| socket.map(OwnedFd::from)));
        match taken
            .and_then(|socket| socket.map(|socket| Ok((listens_at(&socket)?, socket))).transpose())
        {
            Ok(Some((addr, listener))) => sockets.push(NamedSocket { name, addr, listener }),
            Ok(None) => {}
            Err(source) => return Err(InheritError::WrongType { number, name, source }),
        }
    }
    Ok(sockets)
}

/// Returns the address on which a socket listens.
///
/// # Errors
///
/// If it does not listen, or has no printable address.
pub(crate) fn listens_at(socket: &OwnedFd) -> io::Result<ListenAddr> {
    let socket = SockRef::from(socket);
    let invalid = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
    if !socket.is_listener()? {
        return Err(invalid("the socket does not listen"));
    }
    let addr = socket.local_addr()?;
    let unix = || addr.as_pathname().map(|path| ListenAddr::Unix(path.to_owned()));
    addr.as_socket()
        .map(ListenAddr::from)
        .or_else(unix)
        .ok_or_else(|| invalid("the socket has neither an address nor a path"))
}

/// A listener set that is to be opened.
#[derive(Debug)]
pub(crate) struct AssignedSet {
    /// The set, with the addresses that are left to bind.
    pub set: ListenerSet,
    /// The inherited sockets, grouped by address.
    pub inherited: Vec<InheritedSockets>,
}

/// The addresses to bind and the inherited sockets.
#[derive(Debug, Default)]
pub(crate) struct SocketAssignment {
    /// Sockets for the admin server. If there are any, it binds none.
    pub admin: Vec<TcpListener>,
    /// All listener sets.
    pub sets: Vec<AssignedSet>,
    /// Files of Unix sockets of an older process that are no longer configured.
    pub unconfigured: Vec<PathBuf>,
    /// Files of Unix sockets that belong to a service manager.
    pub managed: Vec<PathBuf>,
    /// The inherited sockets are those of a service manager.
    pub is_activated: bool,
}

impl SocketAssignment {
    /// Creates an assignment without inherited sockets.
    pub(crate) fn none(config: &Config) -> Self {
        let sets = listener_set::all(config).into_iter();
        let sets = sets.map(|set| AssignedSet { set, inherited: Vec::new() }).collect();
        Self { sets, ..Self::default() }
    }

    /// Assigns the sockets of a service manager.
    ///
    /// # Errors
    ///
    /// The first socket that no part of the process may use.
    pub(crate) fn activated(
        config: &Config,
        sockets: Vec<NamedSocket>,
    ) -> Result<Self, InheritError> {
        let mut assignment = Self::none(config);
        assignment.is_activated = true;
        for NamedSocket { name, addr, listener } in sockets {
            let owner = owner_of(&name, &addr, config).map_err(InheritError::Owner)?;
            assignment.add(owner, addr, listener);
        }
        for it in assignment.sets.iter_mut().filter(|it| !it.inherited.is_empty()) {
            it.set.listen.clear();
        }
        Ok(assignment)
    }

    /// Assigns the sockets of an older process that the configuration names.
    pub(crate) fn taken_over(config: &Config, sockets: Vec<NamedSocket>) -> Self {
        let mut assignment = Self::none(config);
        for NamedSocket { name, addr, listener } in sockets {
            // By address: the service may have been renamed.
            let is_managed = name == OF_MANAGER;
            assignment.managed.extend(addr.unix().filter(|_| is_managed).map(Path::to_owned));
            let sets = &assignment.sets;
            let at = |addr: &ListenAddr| sets.iter().position(|it| it.set.listen.contains(addr));
            if let Some(set) = at(&addr).or_else(|| at(&both_families(&addr)?)) {
                assignment.add(SocketOwner::ListenerSet(set), addr, listener);
            } else if addr.tcp().is_some_and(|addr| is_of_admin(addr, config)) {
                assignment.add(SocketOwner::Admin, addr, listener);
            } else {
                warn!(%addr, name, "socket not taken over: it is not configured");
                assignment
                    .unconfigured
                    .extend(addr.unix().filter(|_| !is_managed).map(Path::to_owned));
            }
        }
        for AssignedSet { set, inherited } in &mut assignment.sets {
            set.listen.retain(|addr| !inherited.iter().any(|inherited| inherited.addr == *addr));
        }
        assignment
    }

    fn add(&mut self, owner: SocketOwner, addr: ListenAddr, listener: OwnedFd) {
        match owner {
            SocketOwner::Admin => self.admin.push(listener.into()),
            SocketOwner::ListenerSet(number) => {
                let Some(AssignedSet { inherited, .. }) = self.sets.get_mut(number) else { return };
                match inherited.iter_mut().find(|inherited| inherited.addr == addr) {
                    Some(inherited) => inherited.sockets.push(listener),
                    None => inherited.push(InheritedSockets { addr, sockets: vec![listener] }),
                }
            }
        }
    }
}

/// For the IPv4 wildcard address, returns the IPv6 address that covers both families.
pub(crate) fn both_families(addr: &ListenAddr) -> Option<ListenAddr> {
    let addr = addr.tcp().filter(|addr| addr.ip() == Ipv4Addr::UNSPECIFIED)?;
    Some(SocketAddr::from((Ipv6Addr::UNSPECIFIED, addr.port())).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(name: &str) -> NamedSocket {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        NamedSocket {
            name: name.to_owned(),
            addr: listener.local_addr().unwrap().into(),
            listener: listener.into(),
        }
    }

    fn config(services: &[(&str, ListenAddr)], admin: &ListenAddr) -> Config {
        let one = |(name, addr): &(&str, ListenAddr)| {
            format!("[[service]]\nname=\"{name}\"\nsentinels=[\"s\"]\nlisten=[\"{addr}\"]\n")
        };
        let text: String = services.iter().map(one).collect();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pointsman.toml");
        std::fs::write(&file, format!("{text}[admin]\nlisten=[\"{admin}\"]\n")).unwrap();
        let flags = crate::config::Flags { config: Some(file), ..crate::config::Flags::default() };
        crate::config::load(&flags, []).config().unwrap()
    }

    fn addr(text: &str) -> ListenAddr {
        ListenAddr::parse(text).unwrap()
    }

    #[test]
    fn binds_no_address_with_activated_sockets() {
        let config =
            config(&[("a", addr("127.0.0.1:1")), ("b", addr("127.0.0.1:2"))], &addr("127.0.0.1:9"));
        let assignment =
            SocketAssignment::activated(&config, vec![socket("a"), socket("a"), socket("admin")])
                .unwrap();
        assert_eq!((assignment.admin.len(), assignment.sets[0].inherited.len()), (1, 2));
        assert!(assignment.sets[0].set.listen.is_empty());
        assert_eq!(assignment.sets[1].set.listen, [addr("127.0.0.1:2")]);
        let error = SocketAssignment::activated(&config, vec![socket("c")]).unwrap_err();
        assert!(error.to_string().contains("FileDescriptorName="), "{error}");
    }

    #[test]
    fn takes_over_configured_sockets_only() {
        let (a, admin) = (socket("a"), socket("admin"));
        let config = config(&[("a", a.addr.clone()), ("b", addr("127.0.0.1:2"))], &admin.addr);
        let second = NamedSocket {
            name: "a".to_owned(),
            addr: a.addr.clone(),
            listener: a.listener.try_clone().unwrap(),
        };
        let assignment = SocketAssignment::taken_over(
            &config,
            vec![a, second, socket("b"), socket("gone"), admin],
        );
        assert_eq!(assignment.admin.len(), 1);
        let AssignedSet { set: ListenerSet { listen, .. }, inherited } = &assignment.sets[0];
        assert!(listen.is_empty() && inherited.len() == 1 && inherited[0].sockets.len() == 2);
        let AssignedSet { set: ListenerSet { listen, .. }, inherited } = &assignment.sets[1];
        assert!(listen == &[addr("127.0.0.1:2")] && inherited.is_empty());
    }

    #[test]
    fn takes_unix_sockets_and_ipv4_beside_a_dual_stack_address() {
        let config =
            config(&[("a", addr("[::]:1")), ("b", addr("unix:/run/b.sock"))], &addr("127.0.0.1:9"));
        let inherited = |text: &str| NamedSocket { addr: addr(text), ..socket("a") };
        let sockets =
            ["0.0.0.0:1", "unix:/run/b.sock", "unix:/run/c.sock", "10.0.0.1:1"].map(inherited);
        let assignment = SocketAssignment::taken_over(&config, sockets.into());
        let found: Vec<String> = assignment
            .sets
            .iter()
            .flat_map(|it| &it.inherited)
            .map(|inherited| inherited.addr.to_string())
            .collect();
        assert_eq!(found, ["0.0.0.0:1", "unix:/run/b.sock"]);
        assert_eq!(assignment.sets[0].set.listen, [addr("[::]:1")], "still to be bound");
        assert!(assignment.sets[1].set.listen.is_empty());
        assert_eq!(assignment.unconfigured, [PathBuf::from("/run/c.sock")]);
    }
}
