//! The proxy's own account of its sessions, dials, descriptors and bytes, and its memory.

use std::net::SocketAddr;
use std::time::Duration;

use harness::{Client, encode, http_get, pause};

/// The names of the metrics, in one place because they may change.
pub(super) mod metric {
    pub(in super::super) const SESSIONS: &str = "pointsman_sessions_total";
    pub(in super::super) const CLOSED: &str = "pointsman_sessions_closed_total";
    pub(in super::super) const OPEN: &str = "pointsman_sessions_open";
    pub(in super::super) const WAITING: &str = "pointsman_sessions_waiting";
    pub(in super::super) const ON_WORKERS: &str = "pointsman_worker_sessions";
    pub(in super::super) const TASKS: &str = "pointsman_worker_tasks";
    pub(in super::super) const DIALS: &str = "pointsman_dials_total";
    pub(in super::super) const CARRIED: &str = "pointsman_sessions_carried_total";
    pub(in super::super) const BYTES: &str = "pointsman_client_bytes_total";
    pub(in super::super) const COMMANDS: &str = "pointsman_commands_total";
    pub(in super::super) const FILES: &str = "process_open_fds";
    pub(in super::super) const TARGET: &str = "pointsman_target_info";
    pub(in super::super) const RELOADS: &str = "pointsman_config_reloads_total";
    pub(in super::super) const DROPPED: &str = "pointsman_log_lines_dropped_total";
    pub(in super::super) const INTERNAL: &str = "internal_error";
    pub(in super::super) const ABANDONED: &str = "hold_abandoned";
}

/// How many descriptors more than at the start are allowed at the end: a probe connection per node
/// and sentinel that was being replaced.
pub(super) const SPARE_FILES: f64 = 4.0;
/// Requests of the exact account.
const REQUESTS: usize = 500;
/// How long closed sessions may take to leave the books.
const LEAVE: Duration = Duration::from_secs(20);

/// One scrape of `/metrics`.
#[derive(Debug, Clone)]
pub(super) struct Books(String);

impl Books {
    pub(super) fn read(admin: SocketAddr) -> Result<Self, String> {
        match http_get(admin, "/metrics") {
            Ok((200, text)) => Ok(Self(text)),
            Ok((code, _)) => Err(format!("/metrics returned {code}")),
            Err(error) => Err(format!("/metrics: {error}")),
        }
    }

    #[cfg(test)]
    pub(super) fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Replaces or adds one value.
    #[cfg(test)]
    pub(super) fn set(&mut self, name: &str, value: u32) {
        let kept = self.0.lines().filter(|it| !it.starts_with(&format!("{name} ")));
        self.0 = kept.map(|it| format!("{it}\n")).collect();
        self.0.push_str(&format!("{name} {value}\n"));
    }

    /// The sum over all labels that contain `label`.
    pub(super) fn sum(&self, name: &str, label: &str) -> f64 {
        self.lines(name, label)
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .fold(0.0, |sum, value| sum + value)
    }

    fn lines<'a>(&'a self, name: &'a str, label: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.lines().filter(move |line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
                && line.contains(label)
        })
    }

    pub(super) fn reloads(&self) -> u64 {
        self.lines(metric::RELOADS, "")
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    }

    /// Reloads that changed something.
    pub(super) fn applied_reloads(&self) -> f64 {
        self.sum(metric::RELOADS, "\"applied\"")
    }

    /// The address of the master in force.
    pub(super) fn target(&self) -> Option<String> {
        let line = self.lines(metric::TARGET, "").find(|line| line.ends_with(" 1"))?;
        Some(line.split("target=\"").nth(1)?.split('"').next()?.to_owned())
    }

    pub(super) fn files(&self) -> f64 {
        self.sum(metric::FILES, "")
    }

    /// Whether no client is left.
    fn is_empty(&self) -> bool {
        self.sum(metric::OPEN, "") + self.sum(metric::ON_WORKERS, "") < 0.5
    }

    pub(super) fn line(&self) -> String {
        format!(
            "{} sessions opened, {} closed, {} open, {} waiting, {} carried, {} dials, {} descriptors",
            self.sum(metric::SESSIONS, ""),
            self.sum(metric::CLOSED, ""),
            self.sum(metric::OPEN, ""),
            self.sum(metric::WAITING, ""),
            self.sum(metric::CARRIED, ""),
            self.sum(metric::DIALS, ""),
            self.files()
        )
    }

    /// What does not balance after all clients have left.
    fn imbalances(&self, files: f64) -> Vec<String> {
        let mut found = Vec::new();
        let (opened, closed) = (self.sum(metric::SESSIONS, ""), self.sum(metric::CLOSED, ""));
        let open = self.sum(metric::OPEN, "");
        if differ(opened, closed + open) {
            found.push(format!("{opened} sessions opened, {closed} closed, {open} open"));
        }
        for (what, name) in [
            ("open sessions", metric::OPEN),
            ("waiting sessions", metric::WAITING),
            ("sessions on workers", metric::ON_WORKERS),
            ("dropped log lines", metric::DROPPED),
        ] {
            let count = self.sum(name, "");
            if differ(count, 0.0) {
                found.push(format!("{count} {what} after all clients left"));
            }
        }
        let internal = self.sum(metric::CLOSED, metric::INTERNAL);
        if differ(internal, 0.0) {
            found.push(format!("{internal} sessions closed by an internal error"));
        }
        if self.files() > files + SPARE_FILES {
            found.push(format!("{} descriptors, {files} at the start", self.files()));
        }
        found
    }
}

/// Closes the books after all clients have left; the scrape, and what does not balance.
pub(super) fn close(admin: SocketAddr, files: f64) -> Result<(Books, Vec<String>), String> {
    let attempts = LEAVE.as_millis() / 100;
    let mut books = Books::read(admin)?;
    for _ in 0..attempts {
        if books.is_empty() && books.imbalances(files).is_empty() {
            break;
        }
        pause(Duration::from_millis(100));
        books = Books::read(admin)?;
    }
    let found = books.imbalances(files);
    Ok((books, found))
}

/// One client with known requests: the proxy's counts of bytes, commands, sessions and dials have
/// to match to the byte.
pub(super) fn exact(addr: SocketAddr, admin: SocketAddr) -> Result<Vec<String>, String> {
    let words = |error: std::io::Error| format!("the exact account: {error}");
    let before = Books::read(admin)?;
    let request = encode(&["ECHO", "the exact account"]);
    let reply = b"$17\r\nthe exact account\r\n".len();
    let mut client = Client::connect(addr).map_err(words)?;
    for _ in 0..REQUESTS {
        client.send(&request).map_err(words)?;
        client.read_exact(reply).map_err(words)?;
    }
    drop(client);
    let expected = [
        ("bytes from clients", metric::BYTES, "\"in\"", REQUESTS * request.len()),
        ("bytes to clients", metric::BYTES, "\"out\"", REQUESTS * reply),
        ("commands", metric::COMMANDS, "", REQUESTS),
        ("sessions", metric::SESSIONS, "", 1),
        ("closed sessions", metric::CLOSED, "", 1),
        ("dials", metric::DIALS, "", 1),
    ];
    let compare = |after: &Books| -> Vec<String> {
        let wrong = expected.iter().filter_map(|(what, name, label, count)| {
            let counted = after.sum(name, label) - before.sum(name, label);
            let right = u32::try_from(*count).is_ok_and(|count| !differ(counted, count.into()));
            (!right).then(|| format!("{counted} {what} counted, {count} happened"))
        });
        wrong.collect()
    };
    let mut found = compare(&Books::read(admin)?);
    for _ in 0..LEAVE.as_millis() / 100 {
        if found.is_empty() {
            break;
        }
        pause(Duration::from_millis(100));
        found = compare(&Books::read(admin)?);
    }
    Ok(found)
}

/// Private dirty memory of a process in KiB.
pub(super) fn private_dirty(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Private_Dirty:"))?;
    line.split_whitespace().next()?.parse().ok()
}

pub(super) fn differ(one: f64, other: f64) -> bool {
    (one - other).abs() > 0.5
}

#[cfg(test)]
mod tests {
    use super::*;

    fn books(text: &str) -> Books {
        Books::new(text)
    }

    #[test]
    fn sums_labels_and_ignores_longer_names() {
        let books = books(
            "# HELP pointsman_sessions_total x\npointsman_sessions_total{l=\"a\"} 2\n\
             pointsman_sessions_total{l=\"b\"} 3\npointsman_sessions_total_more 9\n",
        );
        assert!(!differ(books.sum(metric::SESSIONS, ""), 5.0));
        assert!(!differ(books.sum(metric::SESSIONS, "\"b\""), 3.0));
    }

    #[test]
    fn finds_each_imbalance() {
        let good = "pointsman_sessions_total 2\npointsman_sessions_closed_total{reason=\"x\"} 2\n";
        assert!(books(good).imbalances(10.0).is_empty());
        for (bad, expected) in [
            ("pointsman_sessions_total 1\n", "3 sessions opened"),
            ("pointsman_sessions_waiting 1\n", "1 waiting"),
            ("process_open_fds 20\n", "20 descriptors"),
            ("pointsman_worker_sessions 1\n", "1 sessions on workers"),
        ] {
            let found = books(&format!("{good}{bad}")).imbalances(10.0);
            assert!(found.len() == 1 && found[0].starts_with(expected), "{bad}: {found:?}");
        }
        let internal = "pointsman_sessions_total 1\n\
                        pointsman_sessions_closed_total{reason=\"internal_error\"} 1\n";
        assert_eq!(books(internal).imbalances(10.0), ["1 sessions closed by an internal error"]);
    }

    #[test]
    fn reads_address_of_the_master() {
        let text = "pointsman_target_info{service=\"m\",target=\"127.0.0.1:1\"} 1\n";
        assert_eq!(books(text).target().as_deref(), Some("127.0.0.1:1"));
    }
}
