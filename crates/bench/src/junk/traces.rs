//! What junk may leave behind: the state of the process as `/metrics`, `/proc` and its log show it.

use std::collections::BTreeMap;
use std::time::Duration;

use harness::{Pointsman, wait_until};

use crate::load::private_memory;
use crate::metrics;

/// How long closed sessions may take to leave the books.
const LEAVE: Duration = Duration::from_secs(60);
/// The growth of private memory that counts as flat.
const GROWTH: u64 = 8 << 20;
/// Probe connections that are being replaced.
const SPARE_FILES: f64 = 4.0;
/// Gauges that have to be as before, with the allowed difference.
const STATE: &[(&str, f64)] = &[
    ("pointsman_sessions_open", 0.0),
    ("pointsman_sessions_waiting", 0.0),
    ("pointsman_worker_sessions", 0.0),
    ("pointsman_worker_tasks", 0.0),
    ("pointsman_target_info", 0.0),
    ("pointsman_target_generation", 0.0),
    ("process_open_fds", SPARE_FILES),
];

/// The state at one time.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Traces {
    /// The value of each series.
    series: BTreeMap<String, f64>,
    /// Private memory in bytes.
    memory: u64,
    /// Lines of the log that no stranger may cause.
    bad_lines: Vec<String>,
}

impl Traces {
    /// The state when no session is left.
    ///
    /// # Panics
    /// The process does not answer, or sessions stay.
    pub(super) fn when_quiet(pointsman: &Pointsman) -> Self {
        wait_until("all sessions to leave", LEAVE, || {
            let traces = Self::read(pointsman)?;
            let open = traces.sum("pointsman_worker_sessions");
            if open < 0.5 { Ok(traces) } else { Err(format!("{open} are left")) }
        })
    }

    fn read(pointsman: &Pointsman) -> Result<Self, String> {
        let text = |path| metrics::get(pointsman.admin(), path);
        text("/alive")?;
        text("/ready")?;
        let log = pointsman.process().log();
        Ok(Self {
            series: series(&text("/metrics")?),
            memory: private_memory(&[pointsman.process().pid()]),
            bad_lines: bad_lines(&log),
        })
    }

    fn sum(&self, name: &str) -> f64 {
        let of = |series: &str| {
            series.strip_prefix(name).is_some_and(|it| it.is_empty() || it.starts_with('{'))
        };
        self.series.iter().filter(|(series, _)| of(series)).fold(0.0, |sum, (_, value)| sum + value)
    }

    /// What is different in `after`, beside counters.
    pub(super) fn differences(&self, after: &Self) -> Vec<String> {
        let mut found = after.bad_lines.clone();
        for series in after.series.keys().filter(|it| !self.series.contains_key(*it)) {
            found.push(format!("a new series: {series}"));
        }
        for (name, allowed) in STATE {
            let (old, new) = (self.sum(name), after.sum(name));
            if (new - old).abs() > allowed + 0.5 {
                found.push(format!("{name} was {old} and is {new}"));
            }
        }
        if after.memory > self.memory + GROWTH {
            found.push(format!("{} bytes of memory, {} before", after.memory, self.memory));
        }
        found
    }

    /// The figures for people.
    pub(super) fn line(&self) -> String {
        let (files, memory) = (self.sum("process_open_fds"), self.memory >> 10);
        let sessions = self.sum("pointsman_sessions_total");
        format!("{sessions} sessions served, {files} descriptors, {memory} KiB of private memory")
    }
}

/// The series with their values.
fn series(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        })
        .collect()
}

fn bad_lines(log: &str) -> Vec<String> {
    let bad = |line: &&str| {
        ["panic", "internal_error", "\"ERROR\"", "dropped"].iter().any(|it| line.contains(it))
    };
    log.lines().filter(bad).take(10).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traces(text: &str) -> Traces {
        Traces { series: series(text), memory: 1 << 20, bad_lines: Vec::new() }
    }

    #[test]
    fn ignores_counters_and_finds_everything_else() {
        let text = "# HELP x\npointsman_sessions_total 7\npointsman_sessions_open{service=\"a\"} 0\n\
                    process_open_fds 30\n";
        let before = traces(text);
        assert_eq!(before.differences(&before), Vec::<String>::new());
        let counted = traces(&text.replace("_total 7", "_total 9000"));
        assert_eq!(before.differences(&counted), Vec::<String>::new());
        let open = traces(&text.replace("\"a\"} 0", "\"a\"} 2"));
        assert_eq!(before.differences(&open), ["pointsman_sessions_open was 0 and is 2"]);
        let files = traces(&text.replace("fds 30", "fds 35"));
        assert_eq!(before.differences(&files), ["process_open_fds was 30 and is 35"]);
        let more = traces(&format!("{text}pointsman_x{{source=\"1.2.3.4\"}} 1\n"));
        assert_eq!(before.differences(&more), ["a new series: pointsman_x{source=\"1.2.3.4\"}"]);
        let grown = Traces { memory: 10 << 20, ..before.clone() };
        assert_eq!(before.differences(&grown), ["10485760 bytes of memory, 1048576 before"]);
        let lines = bad_lines("fine\n{\"level\":\"ERROR\"}\nthread panicked\n");
        assert_eq!(lines.len(), 2);
    }
}
