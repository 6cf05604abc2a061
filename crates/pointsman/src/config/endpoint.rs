//! Parses the addresses of sentinels and Redis nodes: a host and a port.
//!
//! The host stays text. Names are resolved again for each connection, because their addresses
//! change. The rule for IPv6: an address in brackets may be followed by a port; without brackets,
//! two or more colons make the whole text an address, with the default port.

use std::net::{Ipv4Addr, Ipv6Addr};

use sentinel::NodeAddr;

use super::value::Problem;

/// The default port of Redis Sentinel.
pub(crate) const SENTINEL_PORT: u16 = 26379;
/// The default port of Redis.
pub(super) const REDIS_PORT: u16 = 6379;
const NOT_A_PORT: &str = "the port is not a number from 1 to 65535";

/// Parses `host:port` or `[v6]:port`. The port is required: clients connect to this endpoint,
/// and a wrong guess of the port would send all of them to nowhere.
///
/// # Errors
///
/// What is wrong, and how to write it.
pub(crate) fn parse_with_port(text: &str) -> Result<NodeAddr, Problem> {
    let endpoint = parse(text, REDIS_PORT)?;
    // Without a port, another default gives another endpoint.
    if parse(text, SENTINEL_PORT)? == endpoint {
        return Ok(endpoint);
    }
    let example = "write for example \"redis.example:6379\" or \"[fd00::1]:6379\"";
    Err(Problem::new("it has no port", example))
}

/// Parses `host`, `host:port`, `[v6]`, `[v6]:port` or a bare IPv6 address; the port is
/// `default_port` if none is given.
///
/// # Errors
///
/// What is wrong, and how to write it.
pub(crate) fn parse(text: &str, default_port: u16) -> Result<NodeAddr, Problem> {
    let example =
        format!("write for example \"redis-1:{default_port}\" or \"[fd00::1]:{default_port}\"");
    let wrong = |what: &str| Problem::new(what, example.clone());
    if text.contains("://") {
        return Err(wrong("it is a URL, not host:port"));
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (host, tail) =
            rest.split_once(']').ok_or_else(|| wrong("it lacks the closing bracket"))?;
        let host: Ipv6Addr =
            host.parse().map_err(|_| wrong("what is in the brackets is not an IPv6 address"))?;
        let port = match tail.strip_prefix(':') {
            Some(port) => parse_port(port).ok_or_else(|| wrong(NOT_A_PORT))?,
            None if tail.is_empty() => default_port,
            None => return Err(wrong("only a port can follow the bracket")),
        };
        return Ok(NodeAddr { host: host.to_string().into(), port });
    }
    if let Ok(host) = text.parse::<Ipv6Addr>() {
        return Ok(NodeAddr { host: host.to_string().into(), port: default_port });
    }
    let (host, port) = match text.split_once(':') {
        None => (text, default_port),
        Some((host, port)) => (host, parse_port(port).ok_or_else(|| wrong(NOT_A_PORT))?),
    };
    check_host(host).map_err(wrong)?;
    Ok(NodeAddr { host: host.into(), port })
}

fn parse_port(text: &str) -> Option<u16> {
    // `u16::from_str` accepts a leading plus sign.
    text.bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
        .filter(|port| *port != 0)
}

/// Accepts RFC 1123 names, also with the underscores that Docker and Windows use, and with the
/// trailing dot of an absolute name.
fn check_host(host: &str) -> Result<(), &'static str> {
    if host.is_empty() {
        return Err("the host is empty");
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    let numeric = name.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if numeric && host.parse::<Ipv4Addr>().is_err() {
        return Err("the host is not an IPv4 address");
    }
    let label_is_good = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    if name.len() > 253 || !name.split('.').all(label_is_good) {
        return Err("the host is not a host name");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn endpoint(host: &str, port: u16) -> NodeAddr {
        NodeAddr { host: host.into(), port }
    }

    #[test]
    fn parses_every_notation() {
        for (text, host, port) in [
            ("redis-sentinel", "redis-sentinel", 26379),
            ("redis-sentinel:26380", "redis-sentinel", 26380),
            ("a.b.svc.cluster.local.:1", "a.b.svc.cluster.local.", 1),
            ("my_host", "my_host", 26379),
            ("10.0.0.1", "10.0.0.1", 26379),
            ("10.0.0.1:5000", "10.0.0.1", 5000),
            ("::1", "::1", 26379),
            ("fd00::1:26379", "fd00::1:2:6379", 0),
            ("[fd00::1]", "fd00::1", 26379),
            ("[FD00:0::1]:7", "fd00::1", 7),
        ] {
            let got = parse(text, SENTINEL_PORT);
            // Five digits do not fit into one group of an address, so this is refused. It must not
            // be split into an address and a port.
            if port == 0 {
                assert!(got.is_err(), "{text} gave {got:?}");
            } else {
                assert_eq!(got.unwrap(), endpoint(host, port), "{text}");
            }
        }
    }

    #[test]
    fn refuses_invalid_endpoints() {
        let bad = [
            "",
            ":1",
            "a:",
            "a:0",
            "a:70000",
            "a:+5",
            "a b",
            "10.0.0.256",
            "1.2.3",
            "[::1",
            "[::1]x",
            "[a]:1",
            "-a",
            "a..b",
        ];
        for text in bad.into_iter().chain(["redis://a:1", "a:1:2", "ä", "[::1]:0"]) {
            assert!(parse(text, 1).is_err(), "{text}");
        }
    }

    #[test]
    fn requires_a_port_where_clients_connect() {
        assert_eq!(parse_with_port("redis:1").unwrap(), endpoint("redis", 1));
        assert_eq!(parse_with_port("[fd00::1]:6379").unwrap().port, 6379);
        for text in ["nowhere", "10.0.0.1", "fd00::1"] {
            assert_eq!(parse_with_port(text).unwrap_err().what, "it has no port");
        }
    }

    proptest! {
        #[test]
        fn parses_what_it_displays(host in "[a-z][a-z0-9]{0,9}(\\.[a-z]{1,5}){0,3}", port in 1_u16.., v6: u128) {
            for host in [host, Ipv6Addr::from(v6).to_string()] {
                let shown = endpoint(&host, port);
                prop_assert_eq!(parse(&shown.to_string(), 1).unwrap(), shown);
            }
        }

        #[test]
        fn never_panics_on_any_text(text in "[\\[\\]:a-f0-9.]{0,24}|.{0,20}") {
            let _ = parse(&text, 1);
        }
    }
}
