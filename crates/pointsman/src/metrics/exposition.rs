//! The text of `/metrics`, put together anew at every scrape, in either of its two forms.
//!
//! Everything is counted elsewhere, so there is nothing to keep between two scrapes: what is not put in is not there, and a node
//! that has gone takes its series along. A recorder that remembers every label it was ever given would grow with every pod
//! that comes and goes.
//!
//! The two forms differ in little: OpenMetrics names the family of a counter without its `_total` and marks the end.
//!
//! Deliberately absent: a metric that the catalogue does not have. It is left out, and a debug build says so.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::sync::LazyLock;
use std::time::Duration;

use probe::Format;

use super::catalogue::{CATALOGUE, HAPROXY, Kind, Metric};

/// A label's name and value.
pub type Pair<'a> = (&'static str, &'a str);

/// Every metric there may be, in the order of the text.
fn known() -> impl Iterator<Item = &'static Metric> {
    CATALOGUE.iter().chain(HAPROXY)
}

/// Where each metric stands in that order.
static PLACES: LazyLock<BTreeMap<&'static str, (usize, &'static Metric)>> =
    LazyLock::new(|| known().enumerate().map(|(at, metric)| (metric.name, (at, metric))).collect());

/// Series, family by family.
#[derive(Debug)]
pub struct Exposition {
    families: Vec<String>,
    sparse: bool,
}

impl Exposition {
    /// An empty one. A `sparse` one leaves out what a service has counted to zero.
    #[must_use]
    pub fn new(sparse: bool) -> Self {
        Self { families: vec![String::new(); known().count()], sparse }
    }

    /// Whether what a service has counted to zero is left out.
    #[must_use]
    pub fn is_sparse(&self) -> bool {
        self.sparse
    }

    fn family(&mut self, name: &str) -> Option<(&'static Metric, &mut String)> {
        let (at, metric) = *PLACES.get(name)?;
        Some((metric, self.families.get_mut(at)?))
    }

    /// A counter's value.
    pub fn count(&mut self, name: &str, labels: &[Pair<'_>], value: u64) {
        let left_out = self.sparse && value == 0 && labels.iter().any(|(label, _)| *label == "service");
        if !left_out {
            self.put(name, Kind::Counter, labels, value);
        }
    }

    /// A counter of seconds.
    pub fn seconds(&mut self, name: &str, labels: &[Pair<'_>], value: Duration) {
        self.put(name, Kind::Counter, labels, value.as_secs_f64());
    }

    /// A gauge's value.
    pub fn gauge(&mut self, name: &str, labels: &[Pair<'_>], value: impl Display) {
        self.put(name, Kind::Gauge, labels, value);
    }

    /// A gauge that is 1 or 0.
    pub fn flag(&mut self, name: &str, labels: &[Pair<'_>], value: bool) {
        self.put(name, Kind::Gauge, labels, u8::from(value));
    }

    fn put(&mut self, name: &str, kind: Kind, labels: &[Pair<'_>], value: impl Display) {
        let Some((metric, text)) = self.family(name) else {
            debug_assert!(false, "{name} is not in the catalogue");
            return;
        };
        debug_assert_eq!(metric.kind, kind, "{name}");
        debug_assert!(labels.iter().all(|(label, _)| metric.labels.contains(label)), "{name}: {labels:?}");
        line(text, name, "", labels, None, value);
    }

    /// A histogram: upper bounds in seconds with how many values were at most that, then the number of all values and their sum.
    pub fn histogram(
        &mut self,
        name: &str,
        labels: &[Pair<'_>],
        buckets: impl Iterator<Item = (f64, u64)>,
        (count, sum): (u64, Duration),
    ) {
        let Some((_, text)) = self.family(name) else {
            debug_assert!(false, "{name} is not in the catalogue");
            return;
        };
        for (bound, below) in buckets {
            line(text, name, "_bucket", labels, Some(&bound), below);
        }
        line(text, name, "_bucket", labels, Some(&"+Inf"), count);
        line(text, name, "_sum", labels, None, sum.as_secs_f64());
        line(text, name, "_count", labels, None, count);
    }

    /// The whole text.
    #[must_use]
    pub fn render(self, format: Format) -> String {
        let mut out = String::with_capacity(self.families.iter().map(|lines| lines.len() + 200).sum());
        let open = format == Format::OpenMetrics;
        for (metric, lines) in known().zip(&self.families).filter(|(_, lines)| !lines.is_empty()) {
            let family = if open { metric.name.strip_suffix("_total").unwrap_or(metric.name) } else { metric.name };
            // Writing to a string cannot fail.
            let _ = write!(out, "# HELP {family} {}\n# TYPE {family} {}\n{lines}", metric.help, metric.kind.word());
        }
        if open {
            out.push_str("# EOF\n");
        }
        out
    }
}

fn line(
    out: &mut String,
    name: &str,
    suffix: &str,
    labels: &[Pair<'_>],
    bound: Option<&dyn Display>,
    value: impl Display,
) {
    out.push_str(name);
    out.push_str(suffix);
    let mut opened = '{';
    for (label, value) in labels {
        out.push(opened);
        out.push_str(label);
        out.push_str("=\"");
        escape(out, value);
        out.push('"');
        opened = ',';
    }
    if let Some(bound) = bound {
        let _ = write!(out, "{opened}le=\"{bound}\"");
        opened = ',';
    }
    if opened == ',' {
        out.push('}');
    }
    let _ = writeln!(out, " {value}");
}

/// As both forms want it.
fn escape(out: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_have_families_and_only_one_an_end() {
        let page = || {
            let mut page = Exposition::new(false);
            page.gauge("pointsman_gate_shut", &[("service", "a\"\\\n")], 1);
            page.count("pointsman_commits_total", &[("service", "a")], 7);
            page.count("pointsman_commits_total", &[("service", "b")], 0);
            page
        };
        let shut = "# HELP pointsman_gate_shut 1 while traffic is held.\n# TYPE pointsman_gate_shut gauge\n\
                    pointsman_gate_shut{service=\"a\\\"\\\\\\n\"} 1\n";
        let moved = "Times the points moved.\n";
        let counts = "pointsman_commits_total{service=\"a\"} 7\npointsman_commits_total{service=\"b\"} 0\n";
        let plain = page().render(Format::Prometheus);
        assert_eq!(
            plain,
            format!("{shut}# HELP pointsman_commits_total {moved}# TYPE pointsman_commits_total counter\n{counts}")
        );
        let open = page().render(Format::OpenMetrics);
        assert_eq!(
            open,
            format!("{shut}# HELP pointsman_commits {moved}# TYPE pointsman_commits counter\n{counts}# EOF\n")
        );
    }

    #[test]
    fn a_histogram_has_cumulative_buckets_a_sum_and_a_count() {
        let mut page = Exposition::new(false);
        let buckets = [(0.25, 1), (1.0, 2)].into_iter();
        page.histogram(
            "pointsman_failover_hold_seconds",
            &[("service", "m")],
            buckets,
            (3, Duration::from_millis(2500)),
        );
        let text = page.render(Format::Prometheus);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "pointsman_failover_hold_seconds_bucket{service=\"m\",le=\"0.25\"} 1",
                "pointsman_failover_hold_seconds_bucket{service=\"m\",le=\"1\"} 2",
                "pointsman_failover_hold_seconds_bucket{service=\"m\",le=\"+Inf\"} 3",
                "pointsman_failover_hold_seconds_sum{service=\"m\"} 2.5",
                "pointsman_failover_hold_seconds_count{service=\"m\"} 3",
            ]
        );
    }

    #[test]
    fn a_sparse_page_leaves_out_what_services_have_not_counted_and_nothing_else() {
        let mut page = Exposition::new(true);
        page.count("pointsman_holds_total", &[("service", "m")], 0);
        page.count("pointsman_commits_total", &[("service", "m")], 1);
        page.count("pointsman_log_lines_dropped_total", &[], 0);
        page.flag("pointsman_gate_shut", &[("service", "m")], false);
        let text = page.render(Format::Prometheus);
        let series: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            series,
            [
                "pointsman_log_lines_dropped_total 0",
                "pointsman_gate_shut{service=\"m\"} 0",
                "pointsman_commits_total{service=\"m\"} 1"
            ]
        );
    }
}
