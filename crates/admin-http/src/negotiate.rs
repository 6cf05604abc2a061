//! Selects the text format of the metrics by the `Accept` header (RFC 9110, 12.5.1).
//!
//! OpenMetrics is sent only to a client that names it and ranks it no lower than plain text. All
//! other clients, browsers and curl included, get the format that everything can read. Deliberately
//! absent: status 406, which would help no client.

use crate::report::Format;

/// The format for a request with this `Accept` header.
pub(crate) fn metrics_format(accept: Option<&str>) -> Format {
    let Some(accept) = accept else { return Format::Prometheus };
    let mut open = 0.0_f32;
    // The more specific range decides, so plain text gets the quality of the most specific one that
    // matches it.
    let mut plain: Option<(u8, f32)> = None;
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let quality = quality(parts);
        let closeness = match kind.as_str() {
            "application/openmetrics-text" => {
                open = open.max(quality);
                continue;
            }
            "text/plain" => 2,
            "text/*" => 1,
            "*/*" => 0,
            _ => continue,
        };
        plain = match plain {
            Some((known, best)) if known > closeness => Some((known, best)),
            Some((known, best)) if known == closeness => Some((known, best.max(quality))),
            _ => Some((closeness, quality)),
        };
    }
    let plain = plain.map_or(0.0, |(_, quality)| quality);
    if open > 0.0 && open >= plain { Format::OpenMetrics } else { Format::Prometheus }
}

/// The `q` parameter: 1 if it is missing, 0 if it is invalid.
fn quality<'a>(parameters: impl Iterator<Item = &'a str>) -> f32 {
    for parameter in parameters {
        if let Some((name, value)) = parameter.split_once('=')
            && name.trim().eq_ignore_ascii_case("q")
        {
            return value.trim().parse().ok().filter(|q| (0.0..=1.0).contains(q)).unwrap_or(0.0);
        }
    }
    1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_format_by_accept_header() {
        use Format::{OpenMetrics, Prometheus};
        let prometheus_2 = "application/openmetrics-text;version=1.0.0,\
                            application/openmetrics-text;version=0.0.1;q=0.75,\
                            text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let cases = [
            (None, Prometheus),
            (Some(""), Prometheus),
            (Some("*/*"), Prometheus),
            (Some("text/html,application/xhtml+xml,*/*;q=0.8"), Prometheus),
            (Some("text/plain;version=0.0.4"), Prometheus),
            (Some(prometheus_2), OpenMetrics),
            (Some("Application/OpenMetrics-Text; Q=0.5"), OpenMetrics),
            (Some("application/openmetrics-text;q=0.4,text/plain;q=0.6"), Prometheus),
            (Some("application/openmetrics-text;q=0.5,text/plain;q=0.5"), OpenMetrics),
            (Some("application/openmetrics-text;q=0"), Prometheus),
            (Some("application/openmetrics-text;q=nan"), Prometheus),
            (Some("application/openmetrics-text;q=7"), Prometheus),
            (Some("text/plain;q=0.1,*/*;q=1,application/openmetrics-text;q=0.5"), OpenMetrics),
            (Some(";;;,,q=,=;"), Prometheus),
        ];
        for (accept, format) in cases {
            assert_eq!(metrics_format(accept), format, "{accept:?}");
        }
    }
}
