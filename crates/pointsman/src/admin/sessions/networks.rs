//! How many sessions come from which network, for the status page. Pure.
//!
//! Every reader of the status page can read this, so it contains no address of a single client, no
//! name and no user.

use std::collections::BTreeMap;

use proxy::{Network, SessionRow};
use serde_json::{Value, json};

/// Networks that are reported.
const SHOWN: usize = 20;
/// Networks that are counted one by one; clients of further ones are counted together.
const MAX_COUNTED: usize = 16 * 1024;
/// The prefixes of networks.
const V4: u8 = 24;
const V6: u8 = 64;

#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    sessions: u64,
    bytes_in: u64,
    bytes_out: u64,
    commands: u64,
}

impl Totals {
    fn add(&mut self, row: &SessionRow) {
        let (bytes_in, bytes_out) = row.bytes;
        self.merge(Self { sessions: 1, bytes_in, bytes_out, commands: row.commands });
    }

    fn merge(&mut self, other: Self) {
        self.sessions += other.sessions;
        self.bytes_in = self.bytes_in.saturating_add(other.bytes_in);
        self.bytes_out = self.bytes_out.saturating_add(other.bytes_out);
        self.commands = self.commands.saturating_add(other.commands);
    }

    fn document(self, network: &str) -> Value {
        let Self { sessions, bytes_in, bytes_out, commands } = self;
        json!({
            "network": network, "sessions": sessions, "commands": commands,
            "bytes_in": bytes_in, "bytes_out": bytes_out,
        })
    }
}

/// Sessions by network.
#[derive(Debug, Default)]
pub(super) struct Networks {
    counted: BTreeMap<Network, Totals>,
    unix: Totals,
    uncounted: Totals,
    all: u64,
}

impl Networks {
    pub(super) fn add(&mut self, row: &SessionRow) {
        self.all += 1;
        let Some(ip) = row.client_ip() else { return self.unix.add(row) };
        let network = Network::of(ip, if ip.is_ipv4() { V4 } else { V6 });
        if self.counted.len() < MAX_COUNTED || self.counted.contains_key(&network) {
            self.counted.entry(network).or_default().add(row);
        } else {
            self.uncounted.add(row);
        }
    }

    /// The networks with the most sessions, and all other ones together.
    pub(super) fn document(self, silent: &[usize]) -> Value {
        let networks = self.counted.len();
        let mut all: Vec<(String, Totals)> =
            self.counted.into_iter().map(|(network, it)| (network.to_string(), it)).collect();
        if self.unix.sessions > 0 {
            all.push(("unix".to_owned(), self.unix));
        }
        all.sort_by(|a, b| b.1.sessions.cmp(&a.1.sessions).then_with(|| a.0.cmp(&b.0)));
        let mut rest = self.uncounted;
        all.iter().skip(SHOWN).for_each(|(_, it)| rest.merge(*it));
        let shown: Vec<Value> =
            all.iter().take(SHOWN).map(|(network, it)| it.document(network)).collect();
        json!({
            "schema": 1,
            "sessions": self.all,
            "networks": networks,
            "silent_workers": silent,
            "largest": shown,
            "rest": rest.document("other"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::sessions::testing::row_from;

    #[test]
    fn adds_clients_up_by_network() {
        let mut networks = Networks::default();
        for (ip, times) in [("10.0.0.1", 3), ("10.0.0.200", 2), ("10.0.1.1", 1), ("2001:db8::1", 4)]
        {
            for _ in 0..times {
                networks.add(&row_from(Some(ip.parse().unwrap())));
            }
        }
        networks.add(&row_from(None));
        let document = networks.document(&[1]);
        let shown: Vec<(&str, u64)> = document["largest"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| (it["network"].as_str().unwrap(), it["sessions"].as_u64().unwrap()))
            .collect();
        let expected = [("10.0.0.0/24", 5), ("2001:db8::/64", 4), ("10.0.1.0/24", 1), ("unix", 1)];
        assert_eq!(shown, expected);
        assert_eq!((&document["sessions"], &document["networks"]), (&json!(11), &json!(3)));
        assert_eq!(document["silent_workers"], json!([1]));
        assert_eq!(document["rest"]["sessions"], 0);
    }

    #[test]
    fn counts_networks_beyond_the_bound_together() {
        let mut networks = Networks::default();
        for number in 0..u32::try_from(MAX_COUNTED).unwrap() + 100 {
            networks.add(&row_from(Some((number << 8).to_be_bytes().into())));
        }
        networks.add(&row_from(Some([0, 0, 0, 7].into())));
        assert_eq!(networks.counted.len(), MAX_COUNTED);
        let document = networks.document(&[]);
        assert_eq!(document["largest"].as_array().unwrap().len(), SHOWN);
        assert_eq!(document["largest"][0]["sessions"], 2);
        let rest = document["rest"]["sessions"].as_u64().unwrap();
        assert_eq!(rest + 2 + SHOWN as u64 - 1, document["sessions"].as_u64().unwrap());
    }
}
