//! The text of `/metrics`, put together anew at every scrape, in either of its two forms.
//!
//! What writes it is the recorder of `metrics-exporter-prometheus`, a fresh one each time.
//! Everything is counted elsewhere, so there is nothing to keep between two scrapes: what is not
//! put in is not there, and a node that has gone takes its series along. A recorder that lives on
//! remembers every label it was ever given, and would grow with every pod that comes and goes.
//!
//! Three things it cannot do, and they are done here: take in a histogram that comes in buckets
//! already, take a counter of fractions of a second (it goes in as a gauge, and `arrange` gives it
//! its type back), and write OpenMetrics, which names the family of a counter without its `_total`
//! and marks the end.
//!
//! Deliberately absent: a metric that the catalogue does not have. It is left out, and a debug
//! build says so.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::LazyLock;
use std::time::Duration;

use admin_http::Format;
use metrics::{Key, Label, Level, Metadata, Recorder as _};
use metrics_exporter_prometheus::formatting::{
    sanitize_label_value, write_help_line, write_type_line,
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};

use super::catalogue::{CATALOGUE, HAPROXY, Kind, Metric};

/// A label's name and value.
pub type Pair<'a> = (&'static str, &'a str);

/// Where each metric that may be stands in the order of the text.
static PLACES: LazyLock<BTreeMap<&'static str, (usize, &'static Metric)>> = LazyLock::new(|| {
    CATALOGUE
        .iter()
        .chain(HAPROXY)
        .enumerate()
        .map(|(at, metric)| (metric.name, (at, metric)))
        .collect()
});

const METADATA: Metadata<'static> = Metadata::new("pointsman", Level::INFO, None);

/// What a gauge may be set to. Prometheus knows one kind of number; counts are exact in it up to
/// 2^53.
pub trait Value {
    /// The same as Prometheus has it.
    fn value(self) -> f64;
}

macro_rules! values {
    ($($kind:ty)*) => {
        $(impl Value for $kind {
            fn value(self) -> f64 {
                self as f64
            }
        })*
    };
}
values!(f64 i32 u64 usize);

/// Series, family by family.
#[derive(Debug)]
pub struct Exposition {
    recorder: PrometheusRecorder,
    /// The histograms' series, by name.
    histograms: BTreeMap<&'static str, String>,
    sparse: bool,
}

impl Exposition {
    /// An empty one. A `sparse` one leaves out what a service has counted to zero.
    #[must_use]
    pub fn new(sparse: bool) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        for Metric { name, kind, help, .. } in CATALOGUE.iter().chain(HAPROXY) {
            match kind {
                Kind::Counter => recorder.describe_counter((*name).into(), None, (*help).into()),
                Kind::Gauge => recorder.describe_gauge((*name).into(), None, (*help).into()),
                Kind::Histogram => {}
            }
        }
        Self { recorder, histograms: BTreeMap::new(), sparse }
    }

    /// Whether what a service has counted to zero is left out.
    #[must_use]
    pub fn is_sparse(&self) -> bool {
        self.sparse
    }

    /// A counter's value.
    pub fn count(&mut self, name: &str, labels: &[Pair<'_>], value: u64) {
        let left_out =
            self.sparse && value == 0 && labels.iter().any(|(label, _)| *label == "service");
        if let Some(metric) = known(name, Kind::Counter, labels).filter(|_| !left_out) {
            self.recorder.register_counter(&key(metric, labels), &METADATA).absolute(value);
        }
    }

    /// A counter of seconds.
    pub fn seconds(&mut self, name: &str, labels: &[Pair<'_>], value: Duration) {
        self.set(name, Kind::Counter, labels, value.as_secs_f64());
    }

    /// A gauge's value.
    pub fn gauge(&mut self, name: &str, labels: &[Pair<'_>], value: impl Value) {
        self.set(name, Kind::Gauge, labels, value.value());
    }

    /// A gauge that is 1 or 0.
    pub fn flag(&mut self, name: &str, labels: &[Pair<'_>], value: bool) {
        self.set(name, Kind::Gauge, labels, f64::from(u8::from(value)));
    }

    fn set(&mut self, name: &str, kind: Kind, labels: &[Pair<'_>], value: f64) {
        if let Some(metric) = known(name, kind, labels) {
            self.recorder.register_gauge(&key(metric, labels), &METADATA).set(value);
        }
    }

    /// A histogram: upper bounds in seconds with how many values were at most that, then the number
    /// of all values and their sum.
    pub fn histogram(
        &mut self,
        name: &str,
        labels: &[Pair<'_>],
        buckets: impl Iterator<Item = (f64, u64)>,
        (count, sum): (u64, Duration),
    ) {
        let Some(metric) = known(name, Kind::Histogram, labels) else { return };
        let text = self.histograms.entry(metric.name).or_insert_with(|| {
            let mut text = String::new();
            write_help_line(&mut text, name, None, None, metric.help);
            write_type_line(&mut text, name, None, None, metric.kind.word());
            text
        });
        let of =
            |(label, value): &Pair<'_>| format!("{label}=\"{}\",", sanitize_label_value(value));
        let of: String = labels.iter().map(of).collect();
        let alone = of.strip_suffix(',').map_or_else(String::new, |of| format!("{{{of}}}"));
        // Writing to a string cannot fail.
        for (bound, below) in buckets {
            let _ = writeln!(text, "{name}_bucket{{{of}le=\"{bound}\"}} {below}");
        }
        let _ = writeln!(text, "{name}_bucket{{{of}le=\"+Inf\"}} {count}");
        let _ =
            writeln!(text, "{name}_sum{alone} {}\n{name}_count{alone} {count}", sum.as_secs_f64());
    }

    /// The whole text.
    #[must_use]
    pub fn render(self, format: Format) -> String {
        let mut text = self.recorder.handle().render();
        for histogram in self.histograms.values() {
            text.push_str(histogram);
            text.push('\n');
        }
        arrange(&text, format)
    }
}

/// The metric of the catalogue, which is what it is taken for.
fn known(name: &str, kind: Kind, labels: &[Pair<'_>]) -> Option<&'static Metric> {
    let (_, metric) = *PLACES.get(name).or_else(|| {
        debug_assert!(false, "{name} is not in the catalogue");
        None
    })?;
    debug_assert_eq!(metric.kind, kind, "{name}");
    debug_assert!(
        labels.iter().all(|(label, _)| metric.labels.contains(label)),
        "{name}: {labels:?}"
    );
    Some(metric)
}

fn key(metric: &Metric, labels: &[Pair<'_>]) -> Key {
    let labels: Vec<Label> =
        labels.iter().map(|(label, value)| Label::new(*label, (*value).to_owned())).collect();
    Key::from_parts(metric.name, labels)
}

/// Families with an empty line after each, as the recorder writes them in no order, in the order of
/// the catalogue, with the types it gives them, in the form that is wanted. The series of counters
/// and gauges come sorted, so that two scrapes can be compared.
fn arrange(text: &str, format: Format) -> String {
    let open = format == Format::OpenMetrics;
    let mut families: Vec<(usize, &Metric, &str)> = text.split("\n\n").filter_map(family).collect();
    families.sort_unstable_by_key(|(place, ..)| *place);
    let mut out = String::with_capacity(text.len());
    for (_, metric, family) in families {
        let name = if open {
            metric.name.strip_suffix("_total").unwrap_or(metric.name)
        } else {
            metric.name
        };
        let (head, mut series): (Vec<&str>, Vec<&str>) =
            family.lines().partition(|line| line.starts_with("# "));
        let help = head
            .iter()
            .find_map(|line| line.strip_prefix("# HELP ")?.split_once(' '))
            .map_or("", |(_, it)| it);
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {}", metric.kind.word());
        if metric.kind != Kind::Histogram {
            series.sort_unstable();
        }
        for line in series {
            out.push_str(line);
            out.push('\n');
        }
    }
    if open {
        out.push_str("# EOF\n");
    }
    out
}

/// Which metric a family is of, and where that stands.
fn family(text: &str) -> Option<(usize, &'static Metric, &str)> {
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, _)| name)?;
    PLACES.get(name).map(|(place, metric)| (*place, *metric, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_have_families_and_only_one_an_end() {
        let page = || {
            let mut page = Exposition::new(false);
            page.gauge("pointsman_gate_shut", &[("service", "a\"b\\c")], 1);
            page.count("pointsman_commits_total", &[("service", "a")], 7);
            page.count("pointsman_commits_total", &[("service", "b")], 0);
            page
        };
        let shut = "# HELP pointsman_gate_shut 1 while traffic is held.\n# TYPE pointsman_gate_shut gauge\n\
                    pointsman_gate_shut{service=\"a\\\"b\\\\c\"} 1\n";
        let moved = "Times the points moved.\n";
        let counts =
            "pointsman_commits_total{service=\"a\"} 7\npointsman_commits_total{service=\"b\"} 0\n";
        let plain = page().render(Format::Prometheus);
        assert_eq!(
            plain,
            format!(
                "{shut}# HELP pointsman_commits_total {moved}# TYPE pointsman_commits_total counter\n{counts}"
            )
        );
        let open = page().render(Format::OpenMetrics);
        assert_eq!(
            open,
            format!(
                "{shut}# HELP pointsman_commits {moved}# TYPE pointsman_commits counter\n{counts}# EOF\n"
            )
        );
    }

    #[test]
    fn counters_of_seconds_are_counters_and_what_the_recorder_does_not_order_is_ordered() {
        let mut page = Exposition::new(false);
        let (time, part) = ("pointsman_worker_cpu_seconds_total", Duration::from_millis(1250));
        for worker in ["2", "0", "1"] {
            page.seconds(time, &[("worker", worker)], part);
        }
        page.gauge("pointsman_worker_sessions", &[("worker", "0")], 3_usize);
        page.gauge("pointsman_uptime_seconds", &[], 0.5);
        let text = page.render(Format::OpenMetrics);
        assert!(text.contains("# TYPE pointsman_worker_cpu_seconds counter\n"), "{text}");
        let series: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            series,
            [
                "pointsman_uptime_seconds 0.5",
                "pointsman_worker_cpu_seconds_total{worker=\"0\"} 1.25",
                "pointsman_worker_cpu_seconds_total{worker=\"1\"} 1.25",
                "pointsman_worker_cpu_seconds_total{worker=\"2\"} 1.25",
                "pointsman_worker_sessions{worker=\"0\"} 3",
            ]
        );
    }

    #[test]
    fn the_recorders_text_is_put_in_order_and_loses_what_the_catalogue_does_not_have() {
        let text = "# HELP pointsman_commits_total Moves.\n# TYPE pointsman_commits_total gauge\n\
                    pointsman_commits_total{service=\"b\"} 1\npointsman_commits_total{service=\"a\"} 2\n\n\
                    # TYPE x_total counter\nx_total 1\n\n\
                    # HELP pointsman_gate_shut Held.\n# TYPE pointsman_gate_shut gauge\npointsman_gate_shut 0\n\n";
        let shut = "# HELP pointsman_gate_shut Held.\n# TYPE pointsman_gate_shut gauge\npointsman_gate_shut 0\n";
        let counts =
            "pointsman_commits_total{service=\"a\"} 2\npointsman_commits_total{service=\"b\"} 1\n";
        for (format, family, end) in [
            (Format::Prometheus, "pointsman_commits_total", ""),
            (Format::OpenMetrics, "pointsman_commits", "# EOF\n"),
        ] {
            let expected =
                format!("{shut}# HELP {family} Moves.\n# TYPE {family} counter\n{counts}{end}");
            assert_eq!(arrange(text, format), expected);
        }
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
