//! Listening sockets that somebody else has bound: by socket activation, or handed over by an older process.
//!
//! Such a socket outlives the process that accepts from it, and with it the queue of clients: who connects while nobody accepts
//! waits and is not refused. From a service manager each socket comes with a name (`FileDescriptorName=`), which is the name of
//! a service or `admin`; one with another name is recognised by its address. A service that is given sockets listens on
//! those alone, because its addresses are then the manager's business. From an older process only those sockets are taken
//! that the configuration asks for; the others stay with it until it ends.
//!
//! Deliberately absent: UDP and Unix sockets, which nobody here listens on.

use std::net::{SocketAddr, TcpListener};

use listenfd::ListenFd;
use socket2::SockRef;
use tracing::warn;

use crate::config::Config;
use crate::planes;

/// The variable with the names of the sockets, divided by colons (sd_listen_fds(3)).
const NAMES: &str = "LISTEN_FDNAMES";
/// The name of the admin server's sockets.
pub const ADMIN: &str = "admin";

/// A listening socket, and what it is called.
#[derive(Debug)]
pub struct Inherited {
    /// Name of a service, or `admin`, or anything else.
    pub name: String,
    /// Where it listens.
    pub addr: SocketAddr,
    /// The socket.
    pub listener: TcpListener,
}

/// Why a given socket cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InheritError {
    /// It is of another kind.
    #[error(
        "socket {number} ({name}) of the service manager is not a listening TCP socket; use ListenStream=ADDRESS:PORT"
    )]
    Kind {
        /// Which one, from 0.
        number: usize,
        /// Its name.
        name: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Nobody wants it.
    #[error(
        "socket {addr} ({name}) of the service manager belongs to no service; set FileDescriptorName= to the name of a \
         service, or to admin"
    )]
    Nobodys {
        /// Its address.
        addr: SocketAddr,
        /// Its name.
        name: String,
    },
}

/// The sockets that the service manager gave us; none without one.
///
/// # Errors
///
/// The first that is not a listening TCP socket.
pub fn from_service_manager() -> Result<Vec<Inherited>, InheritError> {
    let names = std::env::var(NAMES).unwrap_or_default();
    let mut names = names.split(':');
    let mut fds = ListenFd::from_env();
    let mut sockets = Vec::with_capacity(fds.len());
    for number in 0..fds.len() {
        let name = names.next().unwrap_or_default().to_owned();
        let taken = fds.take_tcp_listener(number).and_then(|listener| {
            let Some(listener) = listener else { return Ok(None) };
            if !SockRef::from(&listener).is_listener()? {
                return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it does not listen"));
            }
            Ok(Some((listener.local_addr()?, listener)))
        });
        match taken {
            Ok(Some((addr, listener))) => sockets.push(Inherited { name, addr, listener }),
            Ok(None) => {}
            Err(source) => return Err(InheritError::Kind { number, name, source }),
        }
    }
    Ok(sockets)
}

/// Who listens where, and on what that was given.
#[derive(Debug, Default)]
pub struct Allotment {
    /// For the admin server. If there are any, it binds nothing.
    pub admin: Vec<TcpListener>,
    /// For each plane: addresses to bind, and given sockets, those of one address in one list.
    pub planes: Vec<(Vec<SocketAddr>, Vec<Vec<TcpListener>>)>,
}

/// The place of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Admin,
    Plane(usize),
}

/// Whose a socket is: by name, else by address, else the only service's.
fn place(name: &str, addr: SocketAddr, config: &Config) -> Option<Place> {
    let planes = planes::of(config);
    let plane = |found: Option<usize>| found.map(Place::Plane);
    let only = (planes.len() == 1).then_some(Place::Plane(0));
    plane(planes.iter().position(|it| it.name == name))
        .or_else(|| (name == ADMIN).then_some(Place::Admin))
        .or_else(|| plane(planes.iter().position(|it| it.listen.contains(&addr))))
        .or_else(|| config.admin.listen.contains(&addr).then_some(Place::Admin))
        .or(only)
}

impl Allotment {
    /// Without any given socket.
    #[must_use]
    pub fn none(config: &Config) -> Self {
        let planes = planes::of(config).into_iter().map(|plane| (plane.listen, Vec::new()));
        Self { admin: Vec::new(), planes: planes.collect() }
    }

    /// With the sockets of a service manager.
    ///
    /// # Errors
    ///
    /// The first socket that belongs to nobody.
    pub fn activated(config: &Config, sockets: Vec<Inherited>) -> Result<Self, InheritError> {
        let mut allotment = Self::none(config);
        for Inherited { name, addr, listener } in sockets {
            let Some(place) = place(&name, addr, config) else { return Err(InheritError::Nobodys { addr, name }) };
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
            let plane = planes::of(config).iter().position(|it| it.listen.contains(&addr));
            if let Some(plane) = plane {
                allotment.add(Place::Plane(plane), addr, listener);
            } else if config.admin.listen.contains(&addr) {
                allotment.add(Place::Admin, addr, listener);
            } else {
                warn!(%addr, name, "not taken over: the configuration does not ask for it");
            }
        }
        for (listen, given) in &mut allotment.planes {
            listen.retain(|addr| !given.iter().any(|sockets| is_at(sockets, *addr)));
        }
        allotment
    }

    fn add(&mut self, place: Place, addr: SocketAddr, listener: TcpListener) {
        match place {
            Place::Admin => self.admin.push(listener),
            Place::Plane(number) => {
                let Some((_, given)) = self.planes.get_mut(number) else { return };
                match given.iter_mut().find(|sockets| is_at(sockets, addr)) {
                    Some(sockets) => sockets.push(listener),
                    None => given.push(vec![listener]),
                }
            }
        }
    }
}

fn is_at(sockets: &[TcpListener], addr: SocketAddr) -> bool {
    sockets.iter().any(|socket| socket.local_addr().is_ok_and(|at| at == addr))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(name: &str) -> Inherited {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Inherited { name: name.to_owned(), addr: listener.local_addr().unwrap(), listener }
    }

    fn config(services: &[(&str, SocketAddr)], admin: SocketAddr) -> Config {
        let one = |(name, addr): &(&str, SocketAddr)| {
            format!("[[service]]\nname=\"{name}\"\nsentinels=[\"s\"]\nlisten=[\"{addr}\"]\n")
        };
        let text: String = services.iter().map(one).collect();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pointsman.toml");
        std::fs::write(&file, format!("{text}[admin]\nlisten=[\"{admin}\"]\n")).unwrap();
        let flags = crate::config::Flags { config: Some(file), ..crate::config::Flags::default() };
        crate::config::load(&flags, []).config().unwrap()
    }

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_name_counts_more_than_an_address_and_a_sole_service_takes_what_is_left() {
        let two = config(&[("a", addr("127.0.0.1:1")), ("b", addr("127.0.0.1:2"))], addr("127.0.0.1:9"));
        assert_eq!(place("b", addr("127.0.0.1:1"), &two), Some(Place::Plane(1)));
        assert_eq!(place("x.socket", addr("127.0.0.1:2"), &two), Some(Place::Plane(1)));
        assert_eq!(place("admin", addr("127.0.0.1:7"), &two), Some(Place::Admin));
        assert_eq!(place("x.socket", addr("127.0.0.1:9"), &two), Some(Place::Admin));
        assert_eq!(place("x.socket", addr("127.0.0.1:7"), &two), None);
        let one = config(&[("a", addr("127.0.0.1:1"))], addr("127.0.0.1:9"));
        assert_eq!(place("x.socket", addr("127.0.0.1:7"), &one), Some(Place::Plane(0)));
    }

    #[test]
    fn who_is_given_a_socket_by_the_manager_binds_nothing() {
        let config = config(&[("a", addr("127.0.0.1:1")), ("b", addr("127.0.0.1:2"))], addr("127.0.0.1:9"));
        let allotment = Allotment::activated(&config, vec![socket("a"), socket("a"), socket("admin")]).unwrap();
        assert_eq!((allotment.admin.len(), allotment.planes[0].1.len()), (1, 2));
        assert!(allotment.planes[0].0.is_empty());
        assert_eq!(allotment.planes[1].0, [addr("127.0.0.1:2")]);
        let error = Allotment::activated(&config, vec![socket("c")]).unwrap_err();
        assert!(error.to_string().contains("FileDescriptorName="), "{error}");
    }

    #[test]
    fn of_an_older_process_only_what_is_configured_is_taken() {
        let (a, admin) = (socket("a"), socket("admin"));
        let config = config(&[("a", a.addr), ("b", addr("127.0.0.1:2"))], admin.addr);
        let second = Inherited { name: "a".to_owned(), addr: a.addr, listener: a.listener.try_clone().unwrap() };
        let allotment = Allotment::taken_over(&config, vec![a, second, socket("b"), socket("gone"), admin]);
        assert_eq!(allotment.admin.len(), 1);
        let (listen, given) = &allotment.planes[0];
        assert!(listen.is_empty() && given.len() == 1 && given[0].len() == 2);
        let (listen, given) = &allotment.planes[1];
        assert!(listen == &[addr("127.0.0.1:2")] && given.is_empty());
    }
}
