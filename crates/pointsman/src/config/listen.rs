//! Parses listen addresses: an IP address with a port, or the path of a Unix socket.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use proxy::ListenAddr;

use super::value::Problem;

/// The prefix of a Unix socket.
const UNIX: &str = "unix:";
/// Maximum length of the path of a Unix socket in bytes: `sun_path` has 108, the last of which is
/// zero (unix(7)).
const MAX_PATH_BYTES: usize = 107;

/// Parses a listen address: an IP address and a port, IPv6 in brackets, or `unix:/path`. Host names
/// are refused, because a name may have several addresses, or another one later. With port 0 the
/// kernel chooses the port.
///
/// # Errors
///
/// What is wrong, and how to write it.
pub(super) fn parse(text: &str) -> Result<ListenAddr, Problem> {
    let wrong = |what: &str, remedy: String| Err(Problem::new(what, remedy));
    if let Some(path) = text.strip_prefix(UNIX) {
        return parse_path(path).map(ListenAddr::Unix);
    }
    if let Ok(addr) = text.parse::<SocketAddr>() {
        return match (addr, addr.ip().to_canonical()) {
            (SocketAddr::V6(_), IpAddr::V4(ip)) => wrong(
                "it is an IPv4-mapped IPv6 address",
                format!("write \"{ip}:{}\"", addr.port()),
            ),
            _ => Ok(ListenAddr::Tcp(addr)),
        };
    }
    let digits = |port: &str| !port.is_empty() && port.parse::<u16>().is_ok();
    let path = text.strip_prefix("unix@").unwrap_or(text);
    let remedy = if path.starts_with('/') {
        format!("write \"{UNIX}/PATH\" for a Unix socket")
    } else if text.strip_prefix(':').is_some_and(digits) || digits(text) {
        let port = text.trim_start_matches(':');
        format!(
            "write \"0.0.0.0:{port}\" for every IPv4 address or \"[::]:{port}\" for IPv6 and IPv4"
        )
    } else if text.parse::<IpAddr>().is_ok() || text.starts_with('[') && text.ends_with(']') {
        "add the port, IPv6 in brackets: \"0.0.0.0:6379\" or \"[::]:6379\"".to_owned()
    } else if let Some(port) = text.strip_prefix("localhost:").filter(|port| digits(port)) {
        format!("write \"127.0.0.1:{port}\" or \"[::1]:{port}\"")
    } else {
        "give an IP address and a port, not a name: \"0.0.0.0:6379\" or \"[::]:6379\"".to_owned()
    };
    wrong("it is not an address to listen on", remedy)
}

/// Parses the listen address of a server that listens on TCP only.
///
/// # Errors
///
/// As [`parse`].
pub(super) fn parse_tcp(text: &str) -> Result<ListenAddr, Problem> {
    match parse(text)? {
        ListenAddr::Unix(_) => Err(Problem::new(
            "the admin server does not listen on Unix sockets",
            "give an IP address and a port; for commands there is admin.control_socket",
        )),
        addr => Ok(addr),
    }
}

fn parse_path(text: &str) -> Result<PathBuf, Problem> {
    let example = format!("write for example \"{UNIX}/run/pointsman/redis.sock\"");
    let wrong = |what: &str| Err(Problem::new(what, example.clone()));
    let path = Path::new(text);
    if !text.starts_with('/') || text.starts_with("//") {
        return wrong("the path is not absolute");
    }
    if text.ends_with('/') || path.file_name().is_none() {
        return wrong("it is not the path of a file");
    }
    if text.chars().any(char::is_control) {
        return wrong("the path has control characters");
    }
    if text.len() > MAX_PATH_BYTES {
        let what = format!(
            "the path has {} bytes; that of a Unix socket may have at most {MAX_PATH_BYTES}",
            text.len()
        );
        return Err(Problem::new(what, "choose a shorter path"));
    }
    Ok(path.to_owned())
}

/// Parses the mode of a file: three octal digits, optionally after a zero.
///
/// # Errors
///
/// What is wrong, and how to write it.
pub(super) fn parse_mode(text: &str) -> Result<u32, Problem> {
    let digits = text.strip_prefix('0').filter(|rest| rest.len() == 3).unwrap_or(text);
    match u32::from_str_radix(digits, 8) {
        Ok(mode) if digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Ok(mode)
        }
        _ => {
            Err(Problem::new("it is not the mode of a file", "write it in octal, such as \"0660\""))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_addresses_and_paths() {
        for text in [
            "0.0.0.0:6379",
            "[::]:6379",
            "127.0.0.1:0",
            "unix:/run/pointsman/redis.sock",
            "unix:/a b",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        let longest = format!("unix:/{}", "x".repeat(MAX_PATH_BYTES - 1));
        assert!(parse(&longest).is_ok() && parse(&format!("{longest}x")).is_err());
    }

    #[test]
    fn shows_how_to_write_refused_addresses() {
        for (text, remedy) in [
            ("[::ffff:127.0.0.1]:6379", "write \"127.0.0.1:6379\""),
            ("/run/redis.sock", "write \"unix:/PATH\""),
            ("unix@/run/redis.sock", "write \"unix:/PATH\""),
            ("unix:run/redis.sock", "unix:/run/pointsman/redis.sock"),
            ("unix:///run/redis.sock", "unix:/run/pointsman/redis.sock"),
            ("unix:/run/", "unix:/run/pointsman/redis.sock"),
            (":6379", "0.0.0.0:6379"),
            ("localhost:6379", "127.0.0.1:6379"),
            ("redis.example:6379", "not a name"),
            ("::1", "add the port"),
            ("", "not a name"),
            (
                "6379",
                "write \"0.0.0.0:6379\" for every IPv4 address or \"[::]:6379\" for IPv6 and IPv4",
            ),
        ] {
            let problem = parse(text).unwrap_err();
            assert!(problem.remedy.contains(remedy), "{text}: {problem:?}");
        }
        assert!(
            parse_tcp("unix:/run/redis.sock").unwrap_err().remedy.contains("admin.control_socket")
        );
    }

    proptest::proptest! {
        #[test]
        fn never_panics_on_any_text(text in "(unix:)?[\\[\\]:a-f0-9./]{0,24}|.{0,20}") {
            let _ = parse(&text);
            let _ = parse_mode(&text);
        }
    }

    #[test]
    fn parses_octal_modes() {
        assert_eq!((parse_mode("0660"), parse_mode("777")), (Ok(0o660), Ok(0o777)));
        for text in ["", "0", "66", "0888", "01777", "+66", "rw-"] {
            assert!(parse_mode(text).is_err(), "{text}");
        }
    }
}
