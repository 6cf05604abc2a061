//! Parses networks and names of hosts.

use proxy::Network;
use sentinel::AllowedHost;

use super::value::Problem;

/// Parses a network: an address, with a prefix unless only that address is meant.
///
/// # Errors
///
/// What is wrong, and how to write it.
pub(super) fn parse_network(text: &str) -> Result<Network, Problem> {
    let Some(network) = Network::parse(text) else {
        let what = "it is neither a network nor an IP address";
        return Err(Problem::new(what, "write for example \"10.0.0.0/8\" or \"2001:db8::1\""));
    };
    // A network that is written with further bits, or as IPv4 inside IPv6, is a mistake in one of
    // its two parts.
    let exact = network.to_string();
    let (written, prefix) = text.split_once('/').unwrap_or((text, ""));
    let base = written.parse::<std::net::IpAddr>().map(|ip| ip.to_string()).unwrap_or_default();
    let length = exact.split_once('/').map(|(_, length)| length).unwrap_or_default();
    if exact != format!("{base}/{length}") || !(prefix.is_empty() || prefix == length) {
        let what = "it is not the first address of its network";
        return Err(Problem::new(what, format!("write \"{exact}\" if that is meant")));
    }
    Ok(network)
}

/// Parses the name of a host, `*.` and a name, or `*`.
///
/// # Errors
///
/// What is wrong, and how to write it.
pub(super) fn parse_name(text: &str) -> Result<String, Problem> {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    let name = text.strip_prefix("*.").unwrap_or(text);
    if text == "*" || text.len() <= 255 && name.split('.').all(is_label) {
        return Ok(text.to_ascii_lowercase());
    }
    let remedy = if text.contains("://") || text.contains('/') {
        "give the name alone, without scheme and path"
    } else if text.contains(':') {
        "give the name alone, without the port; every port is permitted"
    } else {
        "write for example \"pointsman.example.com\" or \"*.example.com\""
    };
    Err(Problem::new("it is not the name of a host", remedy))
}

/// Parses a network or a name in which nodes may be.
///
/// # Errors
///
/// What is wrong, and how to write it.
pub(super) fn parse_node(text: &str) -> Result<String, Problem> {
    match AllowedHost::parse(text) {
        // For the remarks on networks that are written with further bits.
        Some(AllowedHost::Network(_)) => parse_network(text).map(|network| network.to_string()),
        Some(name) => Ok(name.to_string()),
        None => Err(Problem::new(
            "it is neither a network nor the name of a host",
            "write for example \"10.0.0.0/8\", \"redis-0.example.com\" or \"*.example.com\", without a \
             port",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_networks_and_shows_how_to_write_them() {
        for (text, shown) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("192.0.2.7", "192.0.2.7/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("2001:DB8::/32", "2001:db8::/32"),
            ("::1", "::1/128"),
        ] {
            assert_eq!(parse_network(text).unwrap().to_string(), shown, "{text}");
        }
        for (text, remedy) in [
            ("10.0.0.1/8", "10.0.0.0/8"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/32"),
            ("10.0.0.0/33", "10.0.0.0/8"),
            ("10.0.0.0/+8", "10.0.0.0/8"),
            ("10.0.0.0/08", "10.0.0.0/8"),
            ("redis.example", "10.0.0.0/8"),
            ("10.0.0.0/8/8", "10.0.0.0/8"),
            ("", "10.0.0.0/8"),
        ] {
            let problem = parse_network(text).unwrap_err();
            assert!(problem.remedy.contains(remedy), "{text}: {problem:?}");
        }
    }

    #[test]
    fn parses_networks_and_names_of_nodes() {
        for (text, shown) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("::1", "::1/128"),
            ("Redis-0.example", "redis-0.example"),
            ("*.redis.svc", "*.redis.svc"),
        ] {
            assert_eq!(parse_node(text).unwrap(), shown, "{text}");
        }
        for (text, remedy) in [
            ("10.0.0.1/8", "10.0.0.0/8"),
            ("10.0.0.1:6379", "without a port"),
            ("redis.example:6379", "without a port"),
            ("*", "*.example.com"),
            ("", "10.0.0.0/8"),
        ] {
            let problem = parse_node(text).unwrap_err();
            assert!(problem.remedy.contains(remedy), "{text}: {problem:?}");
        }
    }

    #[test]
    fn parses_names_of_hosts() {
        for text in ["pointsman.example.com", "*.example.com", "*", "a", "A-b_c.example"] {
            assert_eq!(parse_name(text).unwrap(), text.to_ascii_lowercase());
        }
        for text in ["", "*.", "a..b", "*a.example", "http://a.example", "a.example:80", "a b"] {
            assert!(parse_name(text).is_err(), "{text}");
        }
    }
}
