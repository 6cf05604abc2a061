//! haproxy's spellings of durations and addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// The largest port range that is expanded into a list.
const WIDEST_RANGE: u16 = 64;

/// A number and a unit, milliseconds by default (haproxy: configuration.txt, 2.5 "Time format").
pub(super) fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let number: u64 = number.parse().ok()?;
    let micros = match unit {
        "us" => 1,
        "" | "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return None,
    };
    number.checked_mul(micros).map(Duration::from_micros)
}

/// The duration as Pointsman's configuration writes it.
pub(super) fn format_duration(time: Duration) -> String {
    match u64::try_from(time.as_micros()).unwrap_or(u64::MAX) {
        micros if micros % 1_000_000 == 0 => format!("{}s", micros / 1_000_000),
        micros if micros % 1_000 == 0 => format!("{}ms", micros / 1_000),
        micros => format!("{micros}us"),
    }
}

/// Where clients connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BindAddress {
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(String),
}

impl fmt::Display for BindAddress {
    /// As Pointsman's configuration writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(f),
            Self::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

/// Why the address of a `bind` cannot be converted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BindError {
    /// An abstract Unix socket, an inherited descriptor or another family.
    Family,
    /// A name, or no address at all.
    Unreadable,
}

/// The addresses of a `bind`, which may be a list. `:port` and `*:port` mean every IPv4 address;
/// `[::]`, or the same after `ipv6@`, means IPv6 and, without `v6only`, IPv4 as well.
pub(super) fn bind_addresses(list: &str, only_v6: bool) -> Result<Vec<BindAddress>, BindError> {
    let mut all = Vec::new();
    for text in list.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        let is_v6 = ["ipv6@", "tcp6@"].iter().any(|it| text.starts_with(it));
        let text = without_family(text);
        let path = text.strip_prefix("unix@").unwrap_or(text);
        if path.starts_with('/') {
            all.push(BindAddress::Unix(path.to_owned()));
            continue;
        }
        if text.contains('@') {
            return Err(BindError::Family);
        }
        let (host, ports) = text.rsplit_once(':').ok_or(BindError::Unreadable)?;
        let ip: IpAddr = match host.trim_start_matches('[').trim_end_matches(']') {
            "" | "*" if is_v6 => Ipv6Addr::UNSPECIFIED.into(),
            "localhost" if is_v6 => Ipv6Addr::LOCALHOST.into(),
            "" if host.is_empty() => Ipv4Addr::UNSPECIFIED.into(),
            "*" => Ipv4Addr::UNSPECIFIED.into(),
            "localhost" => Ipv4Addr::LOCALHOST.into(),
            host => host.parse().map_err(|_| BindError::Unreadable)?,
        };
        for port in range(ports).ok_or(BindError::Unreadable)? {
            if ip == Ipv6Addr::UNSPECIFIED && !only_v6 {
                all.push(BindAddress::Tcp((Ipv4Addr::UNSPECIFIED, port).into()));
            }
            all.push(BindAddress::Tcp((ip, port).into()));
        }
    }
    if all.is_empty() { Err(BindError::Unreadable) } else { Ok(all) }
}

fn without_family(text: &str) -> &str {
    let mut families = ["tcp@", "tcp4@", "tcp6@", "ipv4@", "ipv6@"].iter();
    families.find_map(|prefix| text.strip_prefix(prefix)).unwrap_or(text)
}

fn range(ports: &str) -> Option<std::ops::RangeInclusive<u16>> {
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
    (first > 0 && first <= last && last - first < WIDEST_RANGE).then_some(first..=last)
}

/// The host and, if given, the port of a `server`. The last colon precedes the port, even in a bare
/// IPv6 address.
pub(super) fn server(text: &str) -> Option<(String, Option<u16>)> {
    let text = without_family(text);
    if text.starts_with('/') || text.contains('@') || text.starts_with("_") {
        return None;
    }
    let (host, port) = match text.rsplit_once(':') {
        None => (text, None),
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.parse::<u16>().ok().filter(|port| *port > 0)?)),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

/// `host:port`, with brackets around an IPv6 address.
pub(super) fn join(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_durations_with_units() {
        for (text, millis, ours) in [
            ("4s", 4_000, "4s"),
            ("330s", 330_000, "330s"),
            ("1h", 3_600_000, "3600s"),
            ("500", 500, "500ms"),
        ] {
            assert_eq!(duration(text), Some(Duration::from_millis(millis)), "{text}");
            assert_eq!(format_duration(Duration::from_millis(millis)), ours);
        }
        for text in ["", "s", "4 s", "4x", "-1", "99999999999999999999", "9999999999999999d"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn reads_bind_in_every_spelling() {
        let listens = |text, only| {
            bind_addresses(text, only)
                .map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        for (text, addrs) in [
            (":6379", &["0.0.0.0:6379"][..]),
            ("*:6379", &["0.0.0.0:6379"]),
            ("[::]:6379", &["0.0.0.0:6379", "[::]:6379"]),
            (":::6379", &["0.0.0.0:6379", "[::]:6379"]),
            ("10.0.0.1:6379,ipv6@[fd00::1]:7", &["10.0.0.1:6379", "[fd00::1]:7"]),
            ("ipv6@:6379", &["0.0.0.0:6379", "[::]:6379"]),
            ("tcp6@*:6379", &["0.0.0.0:6379", "[::]:6379"]),
            ("tcp4@*:6379,ipv6@localhost:7", &["0.0.0.0:6379", "[::1]:7"]),
            ("127.0.0.1:6379-6381", &["127.0.0.1:6379", "127.0.0.1:6380", "127.0.0.1:6381"]),
        ] {
            assert_eq!(listens(text, false).unwrap(), addrs, "{text}");
        }
        for text in ["[::]:6379", "ipv6@:6379", "tcp6@*:6379"] {
            assert_eq!(listens(text, true).unwrap(), ["[::]:6379"], "{text}");
        }
        for text in ["/run/redis.sock", "unix@/run/redis.sock"] {
            assert_eq!(listens(text, false).unwrap(), ["unix:/run/redis.sock"], "{text}");
        }
        assert_eq!(listens("abns@x", false), Err(BindError::Family));
        for text in ["", "6379", "redis:6379", ":0", ":1-60000", ":70000"] {
            assert_eq!(listens(text, false), Err(BindError::Unreadable), "{text}");
        }
    }

    #[test]
    fn reads_server_with_and_without_port() {
        for (text, host, port) in [
            ("10.0.0.1:26379", "10.0.0.1", Some(26379)),
            ("redis-0.redis:6379", "redis-0.redis", Some(6379)),
            ("fd00::1:6379", "fd00::1", Some(6379)),
            ("[fd00::1]:6379", "fd00::1", Some(6379)),
            ("ipv4@redis", "redis", None),
        ] {
            assert_eq!(server(text), Some((host.to_owned(), port)), "{text}");
        }
        for text in ["", ":6379", "/run/s", "unix@/x", "h:x", "h:0", "_redis._tcp.example"] {
            assert_eq!(server(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "[0-9a-f:.\\[\\]@,/\\-]{0,24}|.{0,16}") {
            let _ = (duration(&text), bind_addresses(&text, false), server(&text));
        }
    }
}
