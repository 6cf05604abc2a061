//! Which sessions are listed, in which order, and how many. Pure.
//!
//! Nothing is percent-decoded: no value needs it.

use std::cmp::Reverse;

use proxy::{ListedState, Network, NotCarried, Pin, SessionRow};

/// Rows without a limit in the query.
const DEFAULT_LIMIT: usize = 1000;
/// The largest limit: some 6 MB of JSON.
pub(super) const MAX_LIMIT: usize = 10_000;

/// The order of the rows; the largest value first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Sort {
    #[default]
    Age,
    Idle,
    Bytes,
    Commands,
    InFlight,
}

impl Sort {
    const ALL: [(&str, Self); 5] = [
        ("age", Self::Age),
        ("idle", Self::Idle),
        ("bytes", Self::Bytes),
        ("commands", Self::Commands),
        ("in-flight", Self::InFlight),
    ];

    fn value(self, row: &SessionRow) -> u128 {
        match self {
            Self::Age => row.age.as_micros(),
            Self::Idle => row.idle.unwrap_or_default().as_micros(),
            Self::Bytes => u128::from(row.bytes.0) + u128::from(row.bytes.1),
            Self::Commands => row.commands.into(),
            Self::InFlight => row.in_flight.unwrap_or(0).into(),
        }
    }
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Query {
    /// The service that is asked for, if one is.
    pub(super) service: Option<String>,
    source: Option<Network>,
    /// States, and reasons for which a session would be closed. Any of them; all if empty.
    states: Vec<String>,
    sort: Sort,
    pub(super) limit: usize,
}

impl Query {
    /// Reads the query string of a request.
    ///
    /// # Errors
    ///
    /// What is wrong with it, and what can be written instead.
    pub(super) fn parse(query: Option<&str>) -> Result<Self, String> {
        let mut parsed = Self {
            service: None,
            source: None,
            states: Vec::new(),
            sort: Sort::default(),
            limit: DEFAULT_LIMIT,
        };
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        for pair in pairs {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match key {
                "service" => parsed.service = Some(value.to_owned()),
                "source" => {
                    let wrong = "source must be an address or a network, as in 10.0.3.0/24";
                    parsed.source = Some(Network::parse(value).ok_or(wrong)?);
                }
                "state" => {
                    for word in value.split(',') {
                        if !words().any(|known| known == word) {
                            let known = words().collect::<Vec<_>>().join(", ");
                            return Err(format!("no such state; states: {known}"));
                        }
                        parsed.states.push(word.to_owned());
                    }
                }
                "sort" => {
                    let found = Sort::ALL.into_iter().find(|(word, _)| *word == value);
                    let wrong = || {
                        let known = Sort::ALL.map(|(word, _)| word).join(", ");
                        format!("sort must be one of: {known}")
                    };
                    parsed.sort = found.ok_or_else(wrong)?.1;
                }
                "limit" => {
                    let limit = value.parse().ok().filter(|it| (1..=MAX_LIMIT).contains(it));
                    parsed.limit =
                        limit.ok_or_else(|| format!("limit must be 1 to {MAX_LIMIT}"))?;
                }
                _ => return Err("parameters: service, source, state, sort, limit".to_owned()),
            }
        }
        Ok(parsed)
    }

    /// Whether this session is asked for.
    pub(super) fn matches(&self, row: &SessionRow) -> bool {
        let of_service = self.service.as_ref().is_none_or(|name| *name == service_of(row).0);
        let of_source = self
            .source
            .is_none_or(|network| row.client_ip().is_some_and(|ip| network.contains(ip)));
        let is = |word: &String| {
            let pin = match row.not_carried {
                Some(NotCarried::Pinned(pin)) => Some(pin),
                _ => None,
            };
            *word == row.state.label()
                || pin.is_some_and(|pin| *word == pin.label())
                || (word == ListedState::Pinned.label() && pin.is_some())
        };
        of_service && of_source && (self.states.is_empty() || self.states.iter().any(is))
    }

    /// Puts the rows in order and drops those beyond the limit.
    pub(super) fn arrange(&self, rows: &mut Vec<SessionRow>) {
        rows.sort_by_cached_key(|row| (Reverse(self.sort.value(row)), row.id));
        rows.truncate(self.limit);
    }
}

/// The words that a state can be.
fn words() -> impl Iterator<Item = &'static str> {
    let states = ListedState::ALL.iter().map(|state| state.label());
    let pins = Pin::ALL.iter().map(|pin| pin.label());
    states.chain(pins.filter(|pin| *pin != ListedState::Subscribed.label()))
}

/// The name of the service, and where the listener leads to.
pub(super) fn service_of(row: &SessionRow) -> (&str, &'static str) {
    // The name of a listener set: that of a service, which contains no slash, and a suffix.
    match row.service.split_once('/') {
        Some((name, "replicas")) => (name, "replicas"),
        Some((name, _)) => (name, "sentinels"),
        None => (&row.service, "master"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::sessions::testing::row;

    fn query(text: &str) -> Query {
        Query::parse(Some(text)).unwrap()
    }

    #[test]
    fn parses_and_compares_networks() {
        for (text, shown) in [
            ("10.1.2.3/24", "10.1.2.0/24"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("10.1.2.3/0", "0.0.0.0/0"),
            ("2001:db8::1/64", "2001:db8::/64"),
            ("::/0", "::/0"),
        ] {
            assert_eq!(Network::parse(text).unwrap().to_string(), shown);
        }
        for text in ["", "10.1.2", "10.0.0.0/33", "::/129", "10.0.0.0/+8", "10.0.0.0/", "a/8"] {
            assert_eq!(Network::parse(text), None, "{text}");
        }
        let contains = |network: &str, ip: &str| {
            Network::parse(network).unwrap().contains(ip.parse().unwrap())
        };
        assert!(contains("10.1.2.0/24", "10.1.2.255") && !contains("10.1.2.0/24", "10.1.3.0"));
        assert!(contains("10.1.2.0/24", "::ffff:10.1.2.3"));
        assert!(contains("2001:db8::/32", "2001:db8:ffff::1"));
        assert!(!contains("::/0", "10.0.0.1") && !contains("0.0.0.0/0", "::1"));
    }

    #[test]
    fn refuses_unknown_parameters_and_values() {
        for (text, problem) in [
            ("x=1", "parameters"),
            ("state=busy", "in_flight"),
            ("state=", "no such state"),
            ("sort=name", "age, idle, bytes, commands, in-flight"),
            ("limit=0", "1 to 10000"),
            ("limit=10001", "1 to 10000"),
            ("limit=-1", "1 to 10000"),
            ("source=10", "network"),
        ] {
            assert!(Query::parse(Some(text)).unwrap_err().contains(problem), "{text}");
        }
        assert_eq!(Query::parse(None).unwrap().limit, DEFAULT_LIMIT);
    }

    #[test]
    fn filters_by_service_source_and_state() {
        let reader = SessionRow { service: "shop/replicas".into(), ..row(1) };
        assert_eq!(service_of(&reader), ("shop", "replicas"));
        assert!(query("service=shop").matches(&reader) && !query("service=sho").matches(&reader));
        let ip = reader.client_ip().unwrap();
        assert!(query(&format!("source={ip}/24")).matches(&reader));
        assert!(!query("source=192.0.2.0/24").matches(&reader));
        let watching = SessionRow {
            state: ListedState::InFlight,
            not_carried: Some(NotCarried::Pinned(Pin::Watch)),
            ..row(2)
        };
        for (state, is) in [
            ("in_flight", true),
            ("watch", true),
            ("pinned", true),
            ("idle,watch", true),
            ("idle", false),
        ] {
            assert_eq!(query(&format!("state={state}")).matches(&watching), is, "{state}");
        }
        assert!(!query("state=pinned").matches(&row(3)));
    }

    #[test]
    fn sorts_by_the_largest_and_keeps_the_limit() {
        let mut rows: Vec<SessionRow> = (0..50).map(row).collect();
        rows.reverse();
        query("sort=commands&limit=3").arrange(&mut rows);
        let commands: Vec<u64> = rows.iter().map(|row| row.commands).collect();
        assert_eq!(commands, [49, 48, 47]);
        // Equal values: in the order of the IDs, whatever the order of arrival.
        let mut equal: Vec<SessionRow> =
            [3, 1, 2].map(|number| SessionRow { commands: 7, ..row(number) }).into();
        query("sort=commands").arrange(&mut equal);
        assert!(equal.is_sorted_by_key(|row| row.id));
    }
}
