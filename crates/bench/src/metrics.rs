//! What a pointsman counted, from its `/metrics`.

use std::net::SocketAddr;

use harness::http_get;

/// The text of a path of the admin server.
///
/// # Errors
/// A message for people, if it is not answered with 200.
pub fn get(admin: SocketAddr, path: &str) -> Result<String, String> {
    match http_get(admin, path) {
        Ok((200, text)) => Ok(text),
        Ok((code, _)) => Err(format!("{path} returned {code}")),
        Err(error) => Err(format!("{path}: {error}")),
    }
}

/// The sum of all series of a metric.
#[must_use]
pub fn sum(text: &str, metric: &str) -> u64 {
    let value = |line: &str| {
        let rest = line.strip_prefix(metric)?;
        rest.starts_with(['{', ' ']).then(|| rest.rsplit(' ').next()?.parse::<u64>().ok())?
    };
    text.lines().filter_map(value).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_all_series_of_a_metric() {
        let text = "# TYPE a_total counter\na_total{service=\"x\",reason=\"one\"} 2\n\
                    a_total{service=\"x\",reason=\"two\"} 3\na_total_more{service=\"x\"} 7\nb 4\n";
        assert_eq!(["a_total", "b", "c"].map(|metric| sum(text, metric)), [5, 4, 0]);
    }
}
