//! The certificates in use on the status screen: those that expire first, with the days left.

use std::fmt::Write as _;

use serde_json::Value as Json;

use super::screen::{number, text};
use crate::admin::status::span;

/// Number of certificates that are shown.
const CERTIFICATES: usize = 8;
/// The time before the end of a certificate at which its line says so in capitals.
const SOON_S: f64 = 14.0 * 86_400.0;

/// Prints the list of the status document, which begins with the certificate that expires first.
pub(super) fn certificates(out: &mut String, all: &[Json]) {
    if all.is_empty() {
        return;
    }
    let _ = writeln!(out, "\ncertificates");
    for it in all.iter().take(CERTIFICATES) {
        let left = number(it, "expires_in_s");
        let state = match left {
            left if left <= 0.0 => format!("EXPIRED {} ago ", span(-left)),
            left if left < SOON_S => format!("EXPIRES in {} ", span(left)),
            left => format!("{:.0} days", (left / 86_400.0).floor()),
        };
        let (service, file) = (text(it, "service"), text(it, "file"));
        let shown_to = match &*text(it, "side") {
            "clients" => format!("clients of {service}"),
            "admin" => "the admin server".to_owned(),
            side => format!("{side} of {service}"),
        };
        let _ = writeln!(out, "  {state:<11}for {shown_to}: {file}");
    }
    if all.len() > CERTIFICATES {
        let _ = writeln!(out, "  and {} more, which expire later", all.len() - CERTIFICATES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_certificates_with_days_left() {
        let one = |side: &str, service: &str, left: i64| {
            let file = format!("/tls/{side}.crt\u{1b}");
            serde_json::json!({"side": side, "service": service, "file": file, "expires_in_s": left})
        };
        let mut all = vec![
            one("redis", "mymaster", -90_000),
            one("sentinel", "mymaster", 180_000),
            one("admin", "", 20 * 86_400 + 5),
            one("clients", "mymaster", 90 * 86_400),
        ];
        let mut shown = String::new();
        certificates(&mut shown, &all);
        let expected = "
certificates
  EXPIRED 1d01h ago for redis of mymaster: /tls/redis.crt\\u{1b}
  EXPIRES in 2d02h for sentinel of mymaster: /tls/sentinel.crt\\u{1b}
  20 days    for the admin server: /tls/admin.crt\\u{1b}
  90 days    for clients of mymaster: /tls/clients.crt\\u{1b}
";
        assert_eq!(shown, expected);
        all.extend((0..10).map(|_| one("clients", "m", 100 * 86_400)));
        let mut shown = String::new();
        certificates(&mut shown, &all);
        assert!(shown.ends_with("  and 6 more, which expire later\n"), "{shown}");
        let mut none = String::new();
        certificates(&mut none, &[]);
        assert_eq!(none, "");
    }
}
