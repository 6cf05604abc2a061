//! Decides which part of the process a socket of a service manager belongs to.
//!
//! The name of the socket (`FileDescriptorName=`) decides, else its address, else the only service.
//! The addresses for TLS of a service are a set of their own with the suffix `/tls`. A socket whose
//! name and address disagree about TLS is refused, as is a name with a suffix that the
//! configuration does not have: a second `ListenStream=` in the unit of the plain sockets would
//! otherwise accept commands and passwords in plain text at an address that is configured for TLS
//! (`docs/decisions/tls.md#refuse-passed-sockets-whose-name-and-address-disagree`).

use std::fmt::Display;
use std::net::SocketAddr;

use proxy::ListenAddr;

use crate::config::Config;
use crate::process::inherit::ADMIN;
use crate::process::listener_set::{self, ListenerSet, TLS};

/// The part of the process that a socket belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SocketOwner {
    Admin,
    ListenerSet(usize),
}

/// Why no part of the process may use a socket: its name has this problem.
fn fault(name: &str, addr: &ListenAddr, problem: impl Display) -> String {
    format!("socket {addr} of the service manager is named {name}, {problem}")
}

/// How the clients of a socket with this name speak.
fn speaks(name: &str) -> &'static str {
    if name == ADMIN {
        "for the admin server"
    } else if name.ends_with(TLS) {
        "for clients that speak TLS"
    } else {
        "for plain clients"
    }
}

/// Whether a client of the configured address may reach a socket with this one. The wildcard of
/// IPv6 may accept IPv4 as well.
pub(super) fn covers(socket: &ListenAddr, configured: &ListenAddr) -> bool {
    let (Some(one), Some(other)) = (socket.tcp(), configured.tcp()) else {
        return socket == configured;
    };
    let any = |it: SocketAddr, other: SocketAddr| {
        it.ip().is_unspecified() && (it.is_ipv6() || other.is_ipv4())
    };
    one.port() == other.port() && (one.ip() == other.ip() || any(one, other) || any(other, one))
}

/// Finds the owner of a socket.
pub(super) fn owner_of(
    name: &str,
    addr: &ListenAddr,
    config: &Config,
) -> Result<SocketOwner, String> {
    let sets = listener_set::all(config);
    let at = sets.iter().position(|it| it.listen.contains(addr));
    let named = sets.iter().position(|it| it.name == name);
    if let Some((number, set)) = named.and_then(|number| Some((number, sets.get(number)?))) {
        agrees(set, name, addr, &sets)?;
        return Ok(SocketOwner::ListenerSet(number));
    }
    if name == ADMIN && addr.tcp().is_some() {
        let tls = sets.iter().filter(|it| it.tls);
        return refuse_other(tls, name, addr).map(|()| SocketOwner::Admin);
    }
    // The name of a master contains no slash, so this is one of a set, and of no unit.
    if name.contains('/') {
        let key = listener_set::key_of(name);
        let problem = format!(
            "and no service has {key} with this name; add {key} to the service, or correct \
             FileDescriptorName= in the socket unit"
        );
        return Err(fault(name, addr, problem));
    }
    if let Some(number) = at {
        return Ok(SocketOwner::ListenerSet(number));
    }
    if addr.tcp().is_some_and(|addr| is_of_admin(addr, config)) {
        return Ok(SocketOwner::Admin);
    }
    if sets.len() == 1 {
        return Ok(SocketOwner::ListenerSet(0));
    }
    Err(format!(
        "socket {addr} ({name}) of the service manager matches no service; set \
         FileDescriptorName= to the name of a service, or to admin; with the suffix {TLS} for \
         clients that speak TLS"
    ))
}

/// Refuses a socket with the name of this set if its address is configured for the other protocol.
fn agrees(
    set: &ListenerSet,
    name: &str,
    addr: &ListenAddr,
    sets: &[ListenerSet],
) -> Result<(), String> {
    let is_exact = |it: &ListenerSet| it.tls == set.tls && it.listen.contains(addr);
    if sets.iter().any(is_exact) {
        return Ok(());
    }
    refuse_other(sets.iter().filter(|it| it.tls != set.tls), name, addr)?;
    let tls = sets.iter().find(|it| it.tls && it.set == set.set);
    match tls.filter(|_| !set.tls && set.listen.is_empty()) {
        None => Ok(()),
        Some(tls) => {
            let (key, owner, plain) = (tls.key(), &tls.name, set.key());
            let problem = format!(
                "which is for plain clients, and the service has only {key}; set \
                 FileDescriptorName={owner} in its socket unit, or add the address to {plain}"
            );
            Err(fault(name, addr, problem))
        }
    }
}

/// Refuses a socket whose address covers one of these sets.
fn refuse_other<'a>(
    mut sets: impl Iterator<Item = &'a ListenerSet>,
    name: &str,
    addr: &ListenAddr,
) -> Result<(), String> {
    let found = sets.find_map(|set| {
        let configured = set.listen.iter().find(|configured| covers(addr, configured))?;
        let (speaks, key, owner) = (speaks(name), set.key(), &set.name);
        let problem = format!(
            "which is {speaks}, and {key} has {configured}; move its ListenStream= into a socket \
             unit of its own with FileDescriptorName={owner} and Service=pointsman.service, or \
             change {key}"
        );
        Some(fault(name, addr, problem))
    });
    found.map_or(Ok(()), Err)
}

pub(super) fn is_of_admin(addr: SocketAddr, config: &Config) -> bool {
    let admin = &config.admin;
    admin.listen.contains(&addr) || admin.read_only_listen.contains(&addr)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration with these lines of its services, and real certificates.
    fn config(services: &[&str]) -> Config {
        let folder = tempfile::tempdir().unwrap();
        let files = harness::Authority::new("ca").issue(&["a"]).write(folder.path());
        let one = |lines: &&str| {
            let section = if lines.contains("tls_listen") {
                let (chain, key) = (&files.chain, &files.key);
                format!("[service.tls]\ncertificate_files=[{chain:?}]\nkey_files=[{key:?}]\n")
            } else {
                String::new()
            };
            format!("[[service]]\nsentinels=[\"s\"]\n{lines}\n{section}")
        };
        let text: String = services.iter().map(one).collect();
        let file = folder.path().join("pointsman.toml");
        std::fs::write(&file, format!("{text}[admin]\nlisten=[\"127.0.0.1:9\"]\n")).unwrap();
        let flags = crate::config::Flags { config: Some(file), ..crate::config::Flags::default() };
        crate::config::load(&flags, []).config().unwrap()
    }

    /// The name of the set that owns a socket, or the refusal.
    fn owner(name: &str, addr: &str, config: &Config) -> Result<String, String> {
        let addr = ListenAddr::parse(addr).unwrap();
        match owner_of(name, &addr, config)? {
            SocketOwner::Admin => Ok(ADMIN.to_owned()),
            SocketOwner::ListenerSet(number) => Ok(listener_set::all(config)[number].name.clone()),
        }
    }

    #[test]
    fn prefers_names_to_addresses() {
        let [a, b] = ["a", "b"].map(|name| format!("name=\"{name}\"\nlisten=[\"127.0.0.1:"));
        let (a, b) = (a + "1\"]", b + "2\"]");
        let two = config(&[&a, &b]);
        for (name, addr, expected) in [
            ("b", "127.0.0.1:1", "b"),
            ("x.socket", "127.0.0.1:2", "b"),
            ("admin", "127.0.0.1:7", "admin"),
            ("x.socket", "127.0.0.1:9", "admin"),
        ] {
            assert_eq!(owner(name, addr, &two).as_deref(), Ok(expected), "{name} {addr}");
        }
        let unassigned = owner("x.socket", "127.0.0.1:7", &two).unwrap_err();
        assert!(unassigned.contains("FileDescriptorName="), "{unassigned}");
        assert_eq!(owner("x.socket", "127.0.0.1:7", &config(&[&a])).as_deref(), Ok("a"));
    }

    const BOTH: &str = "name=\"a\"\nlisten=[\"0.0.0.0:1\"]\ntls_listen=[\"0.0.0.0:2\"]\n\
                        replica_tls_listen=[\"0.0.0.0:3\"]\nsentinel_tls_listen=[\"0.0.0.0:4\"]";

    #[test]
    fn assigns_tls_sockets_by_name_and_address() {
        let config = config(&[BOTH]);
        for (name, addr, expected) in [
            ("a", "[::]:1", "a"),
            ("a/tls", "[::]:2", "a/tls"),
            ("a/replicas/tls", "0.0.0.0:3", "a/replicas/tls"),
            ("a/sentinels/tls", "[::]:4", "a/sentinels/tls"),
            ("pointsman.socket", "0.0.0.0:1", "a"),
            ("pointsman.socket", "0.0.0.0:2", "a/tls"),
            // The unit decides about addresses that the configuration does not have.
            ("a/tls", "10.0.0.1:8", "a/tls"),
            ("a", "10.0.0.1:8", "a"),
        ] {
            assert_eq!(owner(name, addr, &config).as_deref(), Ok(expected), "{name} {addr}");
        }
        owner("pointsman.socket", "0.0.0.0:8", &config).expect_err("plain or TLS is not known");
    }

    #[test]
    fn refuses_sockets_whose_name_and_address_disagree() {
        let both = config(&[BOTH]);
        for (name, addr, parts) in [
            // A second ListenStream= in the unit of the plain socket.
            ("a", "0.0.0.0:2", ["service.tls_listen", "FileDescriptorName=a/tls"]),
            ("a", "[::]:2", ["service.tls_listen has 0.0.0.0:2", "Service=pointsman.service"]),
            ("a", "10.0.0.1:3", ["service.replica_tls_listen", "=a/replicas/tls"]),
            ("admin", "0.0.0.0:2", ["for the admin server", "service.tls_listen"]),
            ("a/tls", "[::]:1", ["for clients that speak TLS", "FileDescriptorName=a "]),
            ("a/replicas", "0.0.0.0:3", ["service.replica_tls_listen", "=a/replicas/tls"]),
        ] {
            let refused = owner(name, addr, &both).expect_err(name);
            assert!(refused.contains(&format!("socket {addr} ")), "{refused}");
            assert!(parts.iter().all(|part| refused.contains(part)), "{name} {addr}: {refused}");
        }
        let plain = config(&["name=\"a\"\nlisten=[\"0.0.0.0:1\"]"]);
        for (name, key) in [
            ("a/tls", "service.tls_listen"),
            ("a/replicas/tls", "service.replica_tls_listen"),
            ("a/sentinels", "service.sentinel_listen"),
            ("b/tls", "service.tls_listen"),
        ] {
            let refused = owner(name, "0.0.0.0:7", &plain).expect_err(name);
            assert!(refused.contains(&format!("no service has {key}")), "{refused}");
        }
        let only = config(&["name=\"a\"\nlisten=[]\ntls_listen=[\"0.0.0.0:2\"]"]);
        let refused = owner("a", "0.0.0.0:7", &only).expect_err("plain");
        assert!(refused.contains("set FileDescriptorName=a/tls"), "{refused}");
        owner("pointsman.socket", "0.0.0.0:7", &only).expect_err("not known");
    }
}
