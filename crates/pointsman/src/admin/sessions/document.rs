//! The list of sessions as a JSON document, made in pieces. Pure.
//!
//! While sessions arrive, at most twice as many rows are kept as are wanted.

use proxy::{ConnectionUse, NotCarried, SessionRow, TlsFacts};
use serde_json::{Value, json};

use super::query::{Query, service_of};

/// Rows in one piece of the document.
const PIECE: usize = 64;

/// The version of the document.
const SCHEMA: u64 = 1;

/// The rows of a list while they arrive.
#[derive(Debug)]
pub(super) struct Listing {
    query: Query,
    rows: Vec<SessionRow>,
    sessions: u64,
    matching: u64,
}

impl Listing {
    pub(super) fn new(query: Query) -> Self {
        Self { query, rows: Vec::new(), sessions: 0, matching: 0 }
    }

    pub(super) fn add(&mut self, row: SessionRow) {
        self.sessions += 1;
        if !self.query.matches(&row) {
            return;
        }
        self.matching += 1;
        self.rows.push(row);
        if self.rows.len() >= self.query.limit * 2 {
            self.query.arrange(&mut self.rows);
        }
    }

    /// The document, in pieces. `silent` are the workers whose sessions may be missing.
    pub(super) fn document(mut self, silent: &[usize]) -> impl Iterator<Item = String> {
        self.query.arrange(&mut self.rows);
        let rows = std::mem::take(&mut self.rows);
        let head = format!(
            "{{\"schema\":{SCHEMA},\"sessions\":{},\"matching\":{},\"listed\":{},\
             \"silent_workers\":{},\"list\":[",
            self.sessions,
            self.matching,
            rows.len(),
            json!(silent),
        );
        let pieces = rows.len().div_ceil(PIECE);
        let piece = move |number: usize| {
            let mut text = String::new();
            for (at, row) in rows.iter().enumerate().skip(number * PIECE).take(PIECE) {
                text.push_str(if at == 0 { "\n" } else { ",\n" });
                text.push_str(&document_of(row).to_string());
            }
            text
        };
        std::iter::once(head).chain((0..pieces).map(piece)).chain(std::iter::once("\n]}\n".into()))
    }
}

fn document_of(row: &SessionRow) -> Value {
    let (service, to) = service_of(row);
    let said = &row.said;
    json!({
        "id": row.id.to_string(),
        "service": service,
        "to": to,
        "client": row.client_name(),
        "listener": row.listener.as_ref().map(ToString::to_string),
        "tls": versions(row),
        "client_tls": version(row.client_tls),
        "client_cipher": row.client_tls.map(|tls| tls.cipher),
        "upstream_tls": version(row.target_tls),
        "upstream_cipher": row.target_tls.map(|tls| tls.cipher),
        "user": said.user.as_deref(),
        "name": said.name.as_deref(),
        "library": said.library.as_deref(),
        "library_version": said.library_version.as_deref(),
        "database": said.database,
        "protocol": said.protocol,
        "state": row.state.label(),
        "waits_for": row.waits_for.label(),
        "not_carried": row.not_carried.map(NotCarried::label),
        "because": row.not_carried.map(meaning),
        "unknown_command": row.unknown_command,
        "upstream": row.upstream.map(|(addr, _)| addr.to_string()),
        "generation": row.upstream.map(|(_, generation)| generation),
        "connection": row.connection.map(ConnectionUse::label),
        "promotion": row.promotion,
        "age_s": row.age.as_secs_f64(),
        "idle_s": row.idle.map(|idle| idle.as_secs_f64()),
        "bytes_in": row.bytes.0,
        "bytes_out": row.bytes.1,
        "commands": row.commands,
        "in_flight": row.in_flight,
    })
}

fn version(tls: Option<TlsFacts>) -> Option<&'static str> {
    tls.map(|tls| tls.version.label())
}

/// The TLS versions of the client's connection and of the server's; `None` if neither uses TLS.
fn versions(row: &SessionRow) -> Option<String> {
    let shown = |tls| version(tls).unwrap_or("plain");
    let uses = row.client_tls.or(row.target_tls).is_some();
    uses.then(|| format!("{}/{}", shown(row.client_tls), shown(row.target_tls)))
}

fn meaning(why: NotCarried) -> &'static str {
    match why {
        NotCarried::Pinned(pin) => pin.meaning(),
        NotCarried::InFlight => "a request or a reply is in flight",
        NotCarried::Disabled => "`sessions = \"close\"`",
        NotCarried::Refused => "the new server does not accept its state",
        NotCarried::NoServer => "there is no server",
        NotCarried::ClosedByServer => "its server closed the connection",
        NotCarried::OtherData => "the service leads to other data now",
    }
}

#[cfg(test)]
mod tests {
    use proxy::TlsVersion;

    use super::*;
    use crate::admin::sessions::testing::row;

    fn listed(query: &str, rows: u32) -> (String, Value, usize) {
        let mut listing = Listing::new(Query::parse(Some(query)).unwrap());
        let mut most = 0;
        for number in 0..rows {
            listing.add(row(number));
            most = most.max(listing.rows.len());
        }
        let text: String = listing.document(&[2]).collect();
        let document = serde_json::from_str(&text).unwrap();
        (text, document, most)
    }

    #[test]
    fn keeps_the_wanted_rows_and_counts_all() {
        for wanted in [1, 63, 64, 65, 200] {
            let (_, document, most) = listed(&format!("sort=commands&limit={wanted}"), 1000);
            assert!(most <= wanted * 2, "{most}");
            let list = document["list"].as_array().unwrap();
            assert_eq!((list.len(), &document["listed"]), (wanted, &json!(wanted)));
            assert_eq!(
                (&document["sessions"], &document["matching"]),
                (&json!(1000), &json!(1000))
            );
            let commands: Vec<u64> =
                list.iter().map(|it| it["commands"].as_u64().unwrap()).collect();
            assert!(commands.is_sorted_by(|a, b| a > b) && commands[0] == 999, "{commands:?}");
        }
        let (_, document, _) = listed("", 0);
        assert_eq!((&document["list"], &document["silent_workers"]), (&json!([]), &json!([2])));
    }

    #[test]
    fn shows_the_tls_of_both_connections() {
        let tls = |version, cipher| Some(TlsFacts { version, cipher });
        let of = |client_tls, target_tls| {
            let document = document_of(&SessionRow { client_tls, target_tls, ..row(1) });
            ["tls", "client_tls", "upstream_tls", "upstream_cipher"].map(|it| document[it].clone())
        };
        let (new, old) = (tls(TlsVersion::Tls13, "a"), tls(TlsVersion::Tls12, "b"));
        assert_eq!(of(None, None), [Value::Null, Value::Null, Value::Null, Value::Null]);
        assert_eq!(of(None, old), [json!("plain/1.2"), Value::Null, json!("1.2"), json!("b")]);
        assert_eq!(of(new, old), [json!("1.3/1.2"), json!("1.3"), json!("1.2"), json!("b")]);
    }

    #[test]
    fn explains_why_a_session_would_be_closed() {
        let pinned =
            SessionRow { not_carried: Some(NotCarried::Pinned(proxy::Pin::Watch)), ..row(1) };
        let document = document_of(&pinned);
        assert_eq!(document["not_carried"], "watch");
        assert_eq!(document["because"], proxy::Pin::Watch.meaning());
        assert_eq!(document_of(&row(1))["because"], Value::Null);
    }
}
