//! Listening sockets that somebody else has bound: by socket activation, or handed over by an older
//! process.
//!
//! Such a socket outlives the process that accepts from it, and with it the queue of clients: who
//! connects while nobody accepts waits and is not refused. From a service manager each socket comes
//! with a name (`FileDescriptorName=`), which is the name of a service or `admin`; one with another
//! name is recognised by its address. A service that is given sockets listens on those alone,
//! because its addresses are then the manager's business. From an older process only those sockets
//! are taken that the configuration asks for; the others stay with it until it ends.
//!
//! An older process gives its IPv4 socket for every address along where the configuration now has
//! `[::]` for both families.
//!
//! Deliberately absent: UDP, which nobody here listens on, and the files of Unix sockets (`unix`).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use listenfd::ListenFd;
use proxy::{InheritedSockets, ListenAddr};
use socket2::SockRef;
use tracing::warn;

use crate::config::Config;
use crate::process::listener_set;

/// The variable with the names of the sockets, divided by colons (sd_listen_fds(3)).
const NAMES: &str = "LISTEN_FDNAMES";
/// The name of the admin server's sockets.
pub const ADMIN: &str = "admin";
/// What a Unix socket is called in a takeover whose file belongs to a service manager. No service
/// is called so: a master's name has no slash in it.
pub const OF_MANAGER: &str = "/service-manager";

/// A listening socket, and what it is called.
#[derive(Debug)]
pub struct Inherited {
    /// Name of a service, or `admin`, or anything else.
    pub name: String,
    /// Where it listens.
    pub addr: ListenAddr,
    /// The socket.
    pub listener: OwnedFd,
}

/// Why a given socket cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InheritError {
    /// It is of another kind.
    #[error(
        "socket {number} ({name}) of the service manager is no listening stream socket; use ListenStream=ADDRESS:PORT or a path"
    )]
    Kind {
        /// Which one, from 0.
        number: usize,
        /// Its name.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// Nobody wants it.
    #[error(
        "socket {addr} ({name}) of the service manager belongs to no service; set FileDescriptorName= to the name of a \
         service, or to admin"
    )]
    Nobodys {
        /// Its address.
        addr: ListenAddr,
        /// Its name.
        name: String,
    },
}

/// The sockets that the service manager gave us; none without one.
///
/// # Errors
///
/// The first that is not a listening stream socket with an address.
pub fn from_service_manager() -> Result<Vec<Inherited>, InheritError> {
    let names = std::env::var(NAMES).unwrap_or_default();
    let mut names = names.split(':');
    let mut fds = ListenFd::from_env();
    let mut sockets = Vec::with_capacity(fds.len());
    for number in 0..fds.len() {
        let name = names.next().unwrap_or_default().to_owned();
        // Each gives the socket back if it is of another kind.
        let tcp = fds.take_tcp_listener(number).map(|socket| socket.map(OwnedFd::from));
        let taken =
            tcp.or_else(|_| fds.take_unix_listener(number).map(|socket| socket.map(OwnedFd::from)));
        match taken
            .and_then(|socket| socket.map(|socket| Ok((listens_at(&socket)?, socket))).transpose())
        {
            Ok(Some((addr, listener))) => sockets.push(Inherited { name, addr, listener }),
            Ok(None) => {}
            Err(source) => return Err(InheritError::Kind { number, name, source }),
        }
    }
    Ok(sockets)
}

/// Where a socket listens.
///
/// # Errors
///
/// If it does not listen, or has no address that can be written down.
pub(crate) fn listens_at(socket: &OwnedFd) -> io::Result<ListenAddr> {
    let socket = SockRef::from(socket);
    let invalid = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
    if !socket.is_listener()? {
        return Err(invalid("it does not listen"));
    }
    let addr = socket.local_addr()?;
    let unix = || addr.as_pathname().map(|path| ListenAddr::Unix(path.to_owned()));
    addr.as_socket()
        .map(ListenAddr::from)
        .or_else(unix)
        .ok_or_else(|| invalid("it has neither an address nor a path"))
}

/// Who listens where, and on what that was given.
#[derive(Debug, Default)]
pub struct Allotment {
    /// For the admin server. If there are any, it binds nothing.
    pub admin: Vec<TcpListener>,
    /// For each plane: addresses to bind, and given sockets, those of one address in one list.
    pub planes: Vec<(Vec<ListenAddr>, Vec<InheritedSockets>)>,
    /// Files of Unix sockets of an older process that nobody wants any more.
    pub unwanted: Vec<PathBuf>,
    /// Files of Unix sockets that are a service manager's, whoever accepts there.
    pub managed: Vec<PathBuf>,
}

/// The place of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Admin,
    Plane(usize),
}

/// Whose a socket is: by name, else by address, else the only service's.
fn place(name: &str, addr: &ListenAddr, config: &Config) -> Option<Place> {
    let planes = listener_set::of(config);
    let of_admin = addr.tcp().is_some();
    let plane = |found: Option<usize>| found.map(Place::Plane);
    let only = (planes.len() == 1).then_some(Place::Plane(0));
    plane(planes.iter().position(|it| it.name == name))
        .or_else(|| (name == ADMIN && of_admin).then_some(Place::Admin))
        .or_else(|| plane(planes.iter().position(|it| it.listen.contains(addr))))
        .or_else(|| {
            addr.tcp().filter(|addr| config.admin.listen.contains(addr)).map(|_| Place::Admin)
        })
        .or(only)
}

impl Allotment {
    /// Without any given socket.
    #[must_use]
    pub fn none(config: &Config) -> Self {
        let planes = listener_set::of(config).into_iter().map(|plane| (plane.listen, Vec::new()));
        Self {
            admin: Vec::new(),
            planes: planes.collect(),
            unwanted: Vec::new(),
            managed: Vec::new(),
        }
    }

    /// With the sockets of a service manager.
    ///
    /// # Errors
    ///
    /// The first socket that belongs to nobody.
    pub fn activated(config: &Config, sockets: Vec<Inherited>) -> Result<Self, InheritError> {
        let mut allotment = Self::none(config);
        for Inherited { name, addr, listener } in sockets {
            let Some(place) = place(&name, &addr, config) else {
                return Err(InheritError::Nobodys { addr, name });
            };
            allotment.add(place, addr, listener);
        }
        for (listen, given) in &mut allotment.planes {
            if !given.is_empty() {
                listen.clear();
            }
        }
        Ok(allotment)
    }

    /// With the sockets of an older process: those that the configuration asks for.
    #[must_use]
    pub fn taken_over(config: &Config, sockets: Vec<Inherited>) -> Self {
        let mut allotment = Self::none(config);
        for Inherited { name, addr, listener } in sockets {
            // By address: a service may have got another name.
            let is_managed = name == OF_MANAGER;
            allotment.managed.extend(addr.unix().filter(|_| is_managed).map(Path::to_owned));
            let planes = listener_set::of(config);
            let at = |addr: &ListenAddr| planes.iter().position(|it| it.listen.contains(addr));
            if let Some(plane) = at(&addr).or_else(|| at(&both_families(&addr)?)) {
                allotment.add(Place::Plane(plane), addr, listener);
            } else if addr.tcp().is_some_and(|addr| config.admin.listen.contains(&addr)) {
                allotment.add(Place::Admin, addr, listener);
            } else {
                warn!(%addr, name, "not taken over: the configuration does not ask for it");
                allotment.unwanted.extend(addr.unix().filter(|_| !is_managed).map(Path::to_owned));
            }
        }
        for (listen, given) in &mut allotment.planes {
            listen.retain(|addr| !given.iter().any(|given| given.addr == *addr));
        }
        allotment
    }

    fn add(&mut self, place: Place, addr: ListenAddr, listener: OwnedFd) {
        match place {
            Place::Admin => self.admin.push(listener.into()),
            Place::Plane(number) => {
                let Some((_, given)) = self.planes.get_mut(number) else { return };
                match given.iter_mut().find(|given| given.addr == addr) {
                    Some(given) => given.sockets.push(listener),
                    None => given.push(InheritedSockets { addr, sockets: vec![listener] }),
                }
            }
        }
    }
}

/// For every address of IPv4: that of IPv6 which stands for both families.
fn both_families(addr: &ListenAddr) -> Option<ListenAddr> {
    let addr = addr.tcp().filter(|addr| addr.ip() == Ipv4Addr::UNSPECIFIED)?;
    Some(SocketAddr::from((Ipv6Addr::UNSPECIFIED, addr.port())).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(name: &str) -> Inherited {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Inherited {
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
    fn a_name_counts_more_than_an_address_and_a_sole_service_takes_what_is_left() {
        let two =
            config(&[("a", addr("127.0.0.1:1")), ("b", addr("127.0.0.1:2"))], &addr("127.0.0.1:9"));
        assert_eq!(place("b", &addr("127.0.0.1:1"), &two), Some(Place::Plane(1)));
        assert_eq!(place("x.socket", &addr("127.0.0.1:2"), &two), Some(Place::Plane(1)));
        assert_eq!(place("admin", &addr("127.0.0.1:7"), &two), Some(Place::Admin));
        assert_eq!(place("x.socket", &addr("127.0.0.1:9"), &two), Some(Place::Admin));
        assert_eq!(place("x.socket", &addr("127.0.0.1:7"), &two), None);
        let one = config(&[("a", addr("127.0.0.1:1"))], &addr("127.0.0.1:9"));
        assert_eq!(place("x.socket", &addr("127.0.0.1:7"), &one), Some(Place::Plane(0)));
    }

    #[test]
    fn who_is_given_a_socket_by_the_manager_binds_nothing() {
        let config =
            config(&[("a", addr("127.0.0.1:1")), ("b", addr("127.0.0.1:2"))], &addr("127.0.0.1:9"));
        let allotment =
            Allotment::activated(&config, vec![socket("a"), socket("a"), socket("admin")]).unwrap();
        assert_eq!((allotment.admin.len(), allotment.planes[0].1.len()), (1, 2));
        assert!(allotment.planes[0].0.is_empty());
        assert_eq!(allotment.planes[1].0, [addr("127.0.0.1:2")]);
        let error = Allotment::activated(&config, vec![socket("c")]).unwrap_err();
        assert!(error.to_string().contains("FileDescriptorName="), "{error}");
    }

    #[test]
    fn of_an_older_process_only_what_is_configured_is_taken() {
        let (a, admin) = (socket("a"), socket("admin"));
        let config = config(&[("a", a.addr.clone()), ("b", addr("127.0.0.1:2"))], &admin.addr);
        let second = Inherited {
            name: "a".to_owned(),
            addr: a.addr.clone(),
            listener: a.listener.try_clone().unwrap(),
        };
        let allotment =
            Allotment::taken_over(&config, vec![a, second, socket("b"), socket("gone"), admin]);
        assert_eq!(allotment.admin.len(), 1);
        let (listen, given) = &allotment.planes[0];
        assert!(listen.is_empty() && given.len() == 1 && given[0].sockets.len() == 2);
        let (listen, given) = &allotment.planes[1];
        assert!(listen == &[addr("127.0.0.1:2")] && given.is_empty());
    }

    #[test]
    fn takes_unix_sockets_and_ipv4_beside_a_dual_stack_address() {
        let config =
            config(&[("a", addr("[::]:1")), ("b", addr("unix:/run/b.sock"))], &addr("127.0.0.1:9"));
        let given = |text: &str| Inherited { addr: addr(text), ..socket("a") };
        let sockets =
            ["0.0.0.0:1", "unix:/run/b.sock", "unix:/run/c.sock", "10.0.0.1:1"].map(given);
        let allotment = Allotment::taken_over(&config, sockets.into());
        let found: Vec<String> = allotment
            .planes
            .iter()
            .flat_map(|(_, given)| given)
            .map(|given| given.addr.to_string())
            .collect();
        assert_eq!(found, ["0.0.0.0:1", "unix:/run/b.sock"]);
        assert_eq!(allotment.planes[0].0, [addr("[::]:1")], "still to be bound");
        assert!(allotment.planes[1].0.is_empty());
        assert_eq!(allotment.unwanted, [PathBuf::from("/run/c.sock")]);
    }
}
