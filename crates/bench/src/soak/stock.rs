//! Taking stock while all clients rest: the proxy's account against that of the clients and of the
//! servers.
//!
//! All clients are connected, between two requests. Then every client connection is a session of
//! the proxy, every session has one connection to the master and none to another server, and what
//! was counted since the previous stock is what the clients did, to the byte.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use harness::pause;

use super::books::{Books, SPARE_FILES, differ, metric};
use super::faults::Stage;
use super::shared::Shared;

/// How long clients may take to rest, and the accounts to agree.
const PATIENCE: Duration = Duration::from_secs(40);

/// All accounts at one time.
#[derive(Debug, Clone)]
pub(super) struct Stock {
    /// The process of the proxy.
    pub(super) pid: u32,
    pub(super) books: Books,
    /// What the clients counted since the start of the soak.
    clients: Clients,
    /// The connections of each server for clients; empty where they cannot be told from others.
    servers: Vec<(SocketAddr, usize)>,
    master: SocketAddr,
}

#[derive(Debug, Clone, Copy, Default)]
struct Clients {
    open: f64,
    connections: f64,
    sent: f64,
    received: f64,
    /// Connections that ended by a fault, and refused requests.
    closed: f64,
}

impl Stock {
    fn take(stage: &Stage, shared: &Shared, partitions: bool) -> Result<Self, String> {
        // Counts are far below the 2^53 up to which this is exact.
        #[allow(clippy::cast_precision_loss, reason = "counts far below 2^53")]
        let read = |it: &std::sync::atomic::AtomicU64| it.load(Ordering::Acquire) as f64;
        let (pid, admin) = {
            let proxy = stage.proxy();
            (proxy.process.pid(), proxy.admin)
        };
        Ok(Self {
            pid,
            servers: if partitions { stage.connections()? } else { Vec::new() },
            master: stage.cluster.current_master_addr()?,
            clients: Clients {
                open: read(&shared.open),
                connections: read(&shared.connections),
                sent: read(&shared.sent),
                received: read(&shared.received),
                closed: read(&shared.closed),
            },
            books: Books::read(admin)?,
        })
    }

    /// Descriptors beyond the two of each session.
    fn spare_files(&self) -> f64 {
        self.books.files() - 2.0 * self.books.sum(metric::OPEN, "")
    }

    /// Tasks of the workers beyond the one of each session.
    fn other_tasks(&self) -> f64 {
        self.books.sum(metric::TASKS, "") - self.books.sum(metric::ON_WORKERS, "")
    }

    /// What does not balance by itself.
    fn imbalances(&self) -> Vec<String> {
        let count = |name| self.books.sum(name, "");
        let open = count(metric::OPEN);
        let mut found = Vec::new();
        let mut equal = |what: &str, counted: f64, right: f64| {
            if differ(counted, right) {
                found.push(format!("{counted} {what} instead of {right}"));
            }
        };
        equal("open sessions", open, self.clients.open);
        equal("sessions on workers", count(metric::ON_WORKERS), open);
        equal("waiting sessions", count(metric::WAITING), 0.0);
        equal("sessions opened", count(metric::SESSIONS), count(metric::CLOSED) + open);
        equal("dropped log lines", count(metric::DROPPED), 0.0);
        equal("internal errors", self.books.sum(metric::CLOSED, metric::INTERNAL), 0.0);
        for (server, connections) in &self.servers {
            let expected = if *server == self.master { open } else { 0.0 };
            let counted = u32::try_from(*connections).map_or(f64::MAX, f64::from);
            equal(&format!("connections of clients at {server}"), counted, expected);
        }
        found
    }

    /// What does not agree with an earlier stock of the same process. `calm` if no fault between
    /// them may have closed a session.
    fn differences(&self, before: &Self, calm: bool) -> Vec<String> {
        let mut found = Vec::new();
        if self.pid != before.pid {
            return found;
        }
        let grown = |name, label| self.books.sum(name, label) - before.books.sum(name, label);
        let (clients, earlier) = (self.clients, before.clients);
        let (sent, received) = (clients.sent - earlier.sent, clients.received - earlier.received);
        let (bytes_in, bytes_out) =
            (grown(metric::BYTES, "\"in\""), grown(metric::BYTES, "\"out\""));
        let (sessions, dials) = (grown(metric::SESSIONS, ""), grown(metric::DIALS, ""));
        let mut need = |good: bool, what: String| {
            if !good {
                found.push(what);
            }
        };
        let more = self.spare_files() - before.spare_files();
        need(more <= SPARE_FILES, format!("{more} descriptors more beside those of sessions"));
        let tasks = self.other_tasks() - before.other_tasks();
        need(!differ(tasks, 0.0), format!("{tasks} tasks more beside those of sessions"));
        need(bytes_in <= sent + 0.5, format!("{bytes_in} bytes from clients, who sent {sent}"));
        if calm && !differ(clients.closed, earlier.closed) {
            let connections = clients.connections - earlier.connections;
            need(!differ(bytes_in, sent), format!("{bytes_in} bytes in, {sent} sent"));
            need(
                !differ(bytes_out, received),
                format!("{bytes_out} bytes out, {received} received"),
            );
            need(
                !differ(sessions, connections),
                format!("{sessions} sessions counted, {connections} connections made"),
            );
            // A client that left while it was held, or while its connection was being opened, may
            // or may not have been dialled for.
            let wanted = sessions + grown(metric::CARRIED, "");
            let fewest = wanted - grown(metric::CLOSED, metric::ABANDONED);
            need(
                dials > fewest - 0.5 && dials < wanted + 0.5,
                format!("{dials} dials for {sessions} sessions without a fault"),
            );
        }
        found
    }
}

/// The stocks of a run.
#[derive(Debug, Default)]
pub(super) struct Stocks {
    pub(super) first: Option<Stock>,
    pub(super) last: Option<Stock>,
    /// The first one of the current process.
    started: Option<Stock>,
    pub(super) taken: u64,
    /// Those of which every byte was compared.
    pub(super) exact: u64,
}

impl Stocks {
    /// Lets all clients rest, and compares the accounts until they agree.
    pub(super) fn take(
        &mut self,
        stage: &Stage,
        shared: &Shared,
        partitions: bool,
        calm: bool,
    ) -> Result<(), String> {
        let (number, deadline) = (shared.ask_for_rest(), Instant::now() + PATIENCE);
        while !shared.active(number).is_empty() {
            if Instant::now() > deadline {
                let active = shared.active(number);
                shared.release();
                return Err(format!("clients {active:?} did not finish a request"));
            }
            pause(Duration::from_millis(1));
        }
        let result = loop {
            let found = Stock::take(stage, shared, partitions).map(|stock| {
                let found = self.compare(&stock, calm);
                (stock, found)
            });
            match found {
                Ok((stock, found)) if found.is_empty() => {
                    self.keep(stock, calm);
                    break Ok(());
                }
                _ if Instant::now() < deadline => pause(Duration::from_millis(20)),
                Ok((stock, found)) => {
                    self.keep(stock, false);
                    break Err(format!("the books do not balance: {}", found.join("; ")));
                }
                Err(why) => break Err(why),
            }
        };
        shared.release();
        result
    }

    fn compare(&self, stock: &Stock, calm: bool) -> Vec<String> {
        let mut found = stock.imbalances();
        if let Some(last) = &self.last {
            found.extend(stock.differences(last, calm));
        }
        if let Some(started) = &self.started {
            found.extend(stock.differences(started, false));
        }
        found
    }

    fn keep(&mut self, stock: Stock, calm: bool) {
        self.taken += 1;
        if calm && self.last.as_ref().is_some_and(|it| it.pid == stock.pid) {
            self.exact += 1;
        }
        if self.started.as_ref().is_none_or(|it| it.pid != stock.pid) {
            self.started = Some(stock.clone());
        }
        if self.first.is_none() {
            self.first = Some(stock.clone());
        }
        self.last = Some(stock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(number: u8) -> SocketAddr {
        SocketAddr::from(([127, 0, 100, number], 6379))
    }

    /// Two open sessions of three, 100 bytes in, 200 bytes out.
    fn stock() -> Stock {
        let text = "pointsman_sessions_open 2\npointsman_worker_sessions 2\n\
                    pointsman_worker_tasks 6\n\
                    pointsman_sessions_total 3\npointsman_sessions_closed_total{reason=\"x\"} 1\n\
                    pointsman_client_bytes_total{direction=\"in\"} 100\n\
                    pointsman_client_bytes_total{direction=\"out\"} 200\n\
                    pointsman_dials_total 3\nprocess_open_fds 24\n";
        Stock {
            pid: 1,
            books: Books::new(text),
            clients: Clients {
                open: 2.0,
                connections: 3.0,
                sent: 100.0,
                received: 200.0,
                closed: 0.0,
            },
            servers: vec![(server(1), 2), (server(2), 0)],
            master: server(1),
        }
    }

    fn with(name: &str, value: u32) -> Stock {
        let mut stock = stock();
        stock.books.set(name, value);
        stock
    }

    #[test]
    fn balances_equal_accounts() {
        assert!(stock().imbalances().is_empty());
        assert!(stock().differences(&stock(), true).is_empty());
    }

    #[test]
    fn finds_each_planted_imbalance() {
        // A session that is never closed, a close that is not counted, a leaked task.
        for (name, value, expected) in [
            ("pointsman_sessions_open", 3, "3 open sessions instead of 2"),
            ("pointsman_sessions_total", 4, "4 sessions opened instead of 3"),
            ("pointsman_worker_sessions", 3, "3 sessions on workers instead of 2"),
            ("pointsman_sessions_waiting", 1, "1 waiting sessions instead of 0"),
        ] {
            let found = with(name, value).imbalances();
            assert!(found.iter().any(|it| it == expected), "{name}: {found:?}");
        }
        let mut left = stock();
        left.servers[1].1 = 1;
        let found = left.imbalances();
        assert_eq!(found, ["1 connections of clients at 127.0.100.2:6379 instead of 0"]);
    }

    #[test]
    fn finds_each_planted_difference() {
        for (name, value, expected) in [
            ("pointsman_client_bytes_total{direction=\"in\"}", 99, "-1 bytes in, 0 sent"),
            ("pointsman_client_bytes_total{direction=\"out\"}", 201, "1 bytes out, 0 received"),
            ("pointsman_dials_total", 4, "1 dials for 0 sessions without a fault"),
            ("pointsman_worker_tasks", 7, "1 tasks more beside those of sessions"),
            ("process_open_fds", 29, "5 descriptors more beside those of sessions"),
        ] {
            let found = with(name, value).differences(&stock(), true);
            assert!(found.iter().any(|it| it == expected), "{name}: {found:?}");
        }
        let more = with("pointsman_client_bytes_total{direction=\"in\"}", 101);
        assert_eq!(more.differences(&stock(), false).len(), 1, "in a fault as well");
    }

    #[test]
    fn needs_no_dial_for_a_client_that_left_while_held() {
        let closed = "pointsman_sessions_closed_total{reason=\"hold_abandoned\"}";
        let mut after = with("pointsman_sessions_total", 4);
        after.books.set(closed, 1);
        after.clients.connections = 4.0;
        assert_eq!(after.differences(&stock(), true), Vec::<String>::new());
        after.books.set(closed, 0);
        let found = after.differences(&stock(), true);
        assert_eq!(found, ["0 dials for 1 sessions without a fault"]);
    }

    #[test]
    fn compares_nothing_with_another_process() {
        let mut other = with("process_open_fds", 90);
        other.pid = 2;
        assert!(other.differences(&stock(), true).is_empty());
    }
}
