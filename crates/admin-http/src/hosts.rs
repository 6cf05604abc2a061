//! Which host a request may name, against DNS rebinding.
//!
//! The author of a web page can let a name of their own resolve to the address of this server. The
//! browser then lets the page read our answers, because for the browser both have the same origin.
//! The page cannot change the `Host` header, so a request that names a host that is not ours is
//! refused.
//!
//! Permitted without configuration is what nobody on the Internet can own: IP addresses, names
//! without a dot, `localhost`, and the names of Kubernetes Services (`*.svc`,
//! `*.svc.cluster.local`). So a port-forward, a browser on the machine, and the usual clients
//! inside a cluster need no configuration. A request without a host comes from no browser.
//!
//! Names are not resolved: an attacker decides what a name resolves to.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use arc_swap::ArcSwap;
use hyper::header;
use hyper::http::request::Parts;

/// Suffixes of names that do not exist in the public DNS.
const PRIVATE_SUFFIXES: [&str; 3] = [".localhost", ".svc", ".svc.cluster.local"];

/// The names by which clients may address the server, in addition to those that nobody else can
/// own. Cheap to clone; all clones share one list, which can be replaced while the server runs.
#[derive(Debug, Clone, Default)]
pub struct HostNames(Arc<ArcSwap<Vec<String>>>);

impl HostNames {
    /// These names. `*.example.com` permits every name below `example.com`, and `*` every name.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let hosts = Self::default();
        hosts.set(names);
        hosts
    }

    /// Replaces the names.
    pub fn set(&self, names: impl IntoIterator<Item = String>) {
        let names = names.into_iter().map(|name| plain(&name)).collect();
        self.0.store(Arc::new(names));
    }

    /// Whether a request names a host that is ours, wherever it names one.
    pub(crate) fn permit(&self, parts: &Parts) -> bool {
        let mut named = parts.headers.get_all(header::HOST).iter();
        let host = named.next();
        if named.next().is_some() {
            return false;
        }
        let host = host.map(|host| host.to_str().unwrap_or("invalid host"));
        let target = parts.uri.authority().map(hyper::http::uri::Authority::as_str);
        host.into_iter().chain(target).all(|authority| self.permit_authority(authority))
    }

    /// Whether `host` or `host:port` is ours.
    fn permit_authority(&self, authority: &str) -> bool {
        if authority.is_empty() {
            return true;
        }
        let Some(host) = host_of(authority) else { return false };
        if is_address(host) {
            return true;
        }
        let host = plain(host);
        is_name(&host) && (is_private(&host) || self.0.load().iter().any(|it| covers(it, &host)))
    }
}

/// The host of `host:port`, without the port.
fn host_of(authority: &str) -> Option<&str> {
    // Not part of a Host header, and what precedes it is no host.
    if authority.contains('@') {
        return None;
    }
    let after_host = match authority.find(']') {
        Some(end) => end + 1,
        None => authority.find(':').unwrap_or(authority.len()),
    };
    let (host, port) = authority.split_at_checked(after_host)?;
    let digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    (port.is_empty() || port.strip_prefix(':').is_some_and(digits)).then_some(host)
}

/// Whether the host is an IP address: a page that a browser loads from elsewhere has a name.
fn is_address(host: &str) -> bool {
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        // The zone of a link-local address follows a percent sign.
        Some(v6) => v6.split('%').next().is_some_and(|ip| ip.parse::<Ipv6Addr>().is_ok()),
        None => host.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4()),
    }
}

/// The name as it is compared: in lower case, without the dot of the root.
fn plain(name: &str) -> String {
    let name = name.strip_suffix('.').unwrap_or(name);
    name.to_ascii_lowercase()
}

fn is_name(host: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    host.split('.').all(is_label)
}

/// Whether nobody on the Internet can own the name. A browser reads some names without a dot as
/// IPv4 addresses, such as `2130706433`; these do no harm either.
fn is_private(host: &str) -> bool {
    !host.contains('.') || PRIVATE_SUFFIXES.iter().any(|suffix| host.ends_with(suffix))
}

fn covers(pattern: &str, host: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some(suffix) => host.len() > suffix.len() && host.ends_with(suffix),
        None => pattern == host,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn permits_names_that_nobody_else_can_own() {
        let hosts = HostNames::default();
        for authority in [
            "",
            "127.0.0.1",
            "10.1.2.3:8888",
            "[::1]:8888",
            "[fe80::1%25eth0]",
            "localhost",
            "LocalHost:8888",
            "proxy.localhost",
            "pointsman",
            "pointsman.:80",
            "pointsman.redis.svc:9101",
            "pointsman.redis.svc.cluster.local.",
            "pod-0.pointsman.redis.svc.cluster.local:",
        ] {
            assert!(hosts.permit_authority(authority), "{authority}");
        }
        for authority in [
            "rebind.example",
            "127.0.0.1.example",
            "127.0.0.1:8888.example",
            "localhost.example",
            "svc.example:8888",
            "a.svc.example",
            "cluster.local",
            "a@127.0.0.1",
            "127.0.0.1@rebind.example",
            "127.0.0.1/rebind.example",
            "::1",
            "[::1",
            "[::1]x",
            "[rebind.example]",
            "[127.0.0.1]",
            "127.1.example",
            ".svc",
            "a..svc",
            "rebind.example .svc",
            "*",
        ] {
            assert!(!hosts.permit_authority(authority), "{authority}");
        }
    }

    #[test]
    fn permits_configured_names_and_wildcards() {
        let hosts = HostNames::new(["Proxy.Example.com.".to_owned(), "*.corp.example".to_owned()]);
        for (host, permitted) in [
            ("proxy.example.com:8888", true),
            ("PROXY.example.com", true),
            ("x.proxy.example.com", false),
            ("a.corp.example", true),
            ("a.b.corp.example", true),
            ("corp.example", false),
            ("evilcorp.example", false),
        ] {
            assert_eq!(hosts.permit_authority(host), permitted, "{host}");
        }
        hosts.set(["*".to_owned()]);
        assert!(hosts.permit_authority("rebind.example"));
        hosts.set([]);
        assert!(!hosts.permit_authority("proxy.example.com"));
    }

    proptest! {
        #[test]
        fn permits_no_public_name_in_any_spelling(
            label in "[a-z0-9-]{1,12}",
            public in prop::sample::select(vec!["example", "com", "local", "internal", "test"]),
            rest in "(\\.)?(:[0-9]{0,5})?",
        ) {
            let hosts = HostNames::default();
            let authority = format!("{label}.{public}{rest}");
            prop_assert!(!hosts.permit_authority(&authority), "{authority}");
        }

        #[test]
        fn never_panics_on_any_authority(authority in "\\PC{0,40}|[\\[\\]:%@.a0*]{0,20}") {
            let _ = HostNames::new(["*.a".to_owned()]).permit_authority(&authority);
        }
    }
}
