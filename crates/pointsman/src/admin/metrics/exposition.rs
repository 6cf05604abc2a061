//! Renders `/metrics` in the Prometheus text format or as OpenMetrics.
//!
//! Each scrape uses a fresh recorder of `metrics-exporter-prometheus`. All values are counted
//! elsewhere, so nothing has to be kept between two scrapes: a series that is not added is absent,
//! and the series of a removed node disappear. A long-lived recorder would keep every label set
//! that it was ever given, and grow with every pod that comes and goes.
//!
//! Three things the recorder cannot do are done here: accept a histogram that already has buckets,
//! accept a counter of fractions of a second (it is added as a gauge, and `arrange` restores its
//! type), and write OpenMetrics, where the family of a counter is named without `_total` and the
//! text has an end marker.
//!
//! Metrics that the catalogue lacks are omitted, and a debug build panics.

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

use super::catalogue::{CATALOGUE, HAPROXY, Metric, MetricKind};

/// The name and value of a label.
pub(crate) type LabelPair<'a> = (&'static str, &'a str);

/// The position of each metric of the catalogue in the output.
static POSITIONS: LazyLock<BTreeMap<&'static str, (usize, &'static Metric)>> =
    LazyLock::new(|| {
        CATALOGUE
            .iter()
            .chain(HAPROXY)
            .enumerate()
            .map(|(at, metric)| (metric.name, (at, metric)))
            .collect()
    });

const METADATA: Metadata<'static> = Metadata::new("pointsman", Level::INFO, None);

/// A value of a gauge. Prometheus has one numeric type, in which counts are exact up to 2^53.
pub(crate) trait GaugeValue {
    /// Converts to that type.
    fn value(self) -> f64;
}

macro_rules! values {
    ($($kind:ty)*) => {
        $(impl GaugeValue for $kind {
            fn value(self) -> f64 {
                self as f64
            }
        })*
    };
}
values!(f64 i32 u64 usize);

/// The metrics of one scrape.
#[derive(Debug)]
pub(crate) struct Exposition {
    recorder: PrometheusRecorder,
    /// The text of the histograms, by name.
    histograms: BTreeMap<&'static str, String>,
    /// Whether counters of services that are zero are omitted.
    pub(crate) sparse: bool,
}

impl Exposition {
    /// Creates an empty exposition.
    pub(crate) fn new(sparse: bool) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        for Metric { name, kind, help, .. } in CATALOGUE.iter().chain(HAPROXY) {
            match kind {
                MetricKind::Counter => {
                    recorder.describe_counter((*name).into(), None, (*help).into());
                }
                MetricKind::Gauge => recorder.describe_gauge((*name).into(), None, (*help).into()),
                MetricKind::Histogram => {}
            }
        }
        Self { recorder, histograms: BTreeMap::new(), sparse }
    }

    /// Adds the value of a counter.
    pub(crate) fn count(&mut self, name: &str, labels: &[LabelPair<'_>], value: u64) {
        let is_omitted =
            self.sparse && value == 0 && labels.iter().any(|(label, _)| *label == "service");
        if let Some(metric) = lookup(name, MetricKind::Counter, labels).filter(|_| !is_omitted) {
            self.recorder.register_counter(&key(metric, labels), &METADATA).absolute(value);
        }
    }

    /// Adds the values of a counter with one more label, each with the value of that label.
    pub(crate) fn counts<'v>(
        &mut self,
        name: &str,
        labels: &[LabelPair<'_>],
        label: &'static str,
        values: impl IntoIterator<Item = (&'v str, u64)>,
    ) {
        for (value, count) in values {
            self.count(name, &[labels, &[(label, value)]].concat(), count);
        }
    }

    /// Adds the value of a counter of seconds.
    pub(crate) fn seconds(&mut self, name: &str, labels: &[LabelPair<'_>], value: Duration) {
        self.set(name, MetricKind::Counter, labels, value.as_secs_f64());
    }

    /// Adds the value of a gauge.
    pub(crate) fn gauge(&mut self, name: &str, labels: &[LabelPair<'_>], value: impl GaugeValue) {
        self.set(name, MetricKind::Gauge, labels, value.value());
    }

    /// Adds the value of a gauge that is 1 or 0.
    pub(crate) fn flag(&mut self, name: &str, labels: &[LabelPair<'_>], value: bool) {
        self.set(name, MetricKind::Gauge, labels, f64::from(u8::from(value)));
    }

    fn set(&mut self, name: &str, kind: MetricKind, labels: &[LabelPair<'_>], value: f64) {
        if let Some(metric) = lookup(name, kind, labels) {
            self.recorder.register_gauge(&key(metric, labels), &METADATA).set(value);
        }
    }

    /// Adds a histogram: upper bounds in seconds with cumulative counts, then the count and the sum
    /// of all values.
    pub(crate) fn histogram(
        &mut self,
        name: &str,
        labels: &[LabelPair<'_>],
        buckets: impl Iterator<Item = (f64, u64)>,
        count: u64,
        sum: Duration,
    ) {
        let Some(metric) = lookup(name, MetricKind::Histogram, labels) else { return };
        let text = self.histograms.entry(metric.name).or_insert_with(|| {
            let mut text = String::new();
            write_help_line(&mut text, name, None, None, metric.help);
            write_type_line(&mut text, name, None, None, metric.kind.label());
            text
        });
        let of = |(label, value): &LabelPair<'_>| {
            format!("{label}=\"{}\",", sanitize_label_value(value))
        };
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

    /// Renders the text.
    pub(crate) fn render(self, format: Format) -> String {
        let mut text = self.recorder.handle().render();
        for histogram in self.histograms.values() {
            text.push_str(histogram);
            text.push('\n');
        }
        arrange(&text, format)
    }
}

/// Looks up a metric of the catalogue, and checks its kind and labels in debug builds.
fn lookup(name: &str, kind: MetricKind, labels: &[LabelPair<'_>]) -> Option<&'static Metric> {
    let (_, metric) = *POSITIONS.get(name).or_else(|| {
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

fn key(metric: &Metric, labels: &[LabelPair<'_>]) -> Key {
    let labels: Vec<Label> =
        labels.iter().map(|(label, value)| Label::new(*label, (*value).to_owned())).collect();
    Key::from_parts(metric.name, labels)
}

/// Sorts the families, which the recorder writes in arbitrary order with an empty line after each,
/// as in the catalogue, corrects their types, and writes them in the requested format. The series
/// of counters and gauges are sorted, so that two scrapes can be compared.
fn arrange(text: &str, format: Format) -> String {
    let open = format == Format::OpenMetrics;
    let mut families: Vec<(usize, &Metric, &str)> = text.split("\n\n").filter_map(family).collect();
    families.sort_unstable_by_key(|(position, ..)| *position);
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
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {}", metric.kind.label());
        if metric.kind != MetricKind::Histogram {
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

/// Returns the metric of a family and its position.
fn family(text: &str) -> Option<(usize, &'static Metric, &str)> {
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, _)| name)?;
    POSITIONS.get(name).map(|(position, metric)| (*position, *metric, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_families_in_both_formats() {
        let page = || {
            let mut page = Exposition::new(false);
            page.gauge("pointsman_gate_closed", &[("service", "a\"b\\c")], 1);
            page.count("pointsman_master_switches_total", &[("service", "a")], 7);
            page.count("pointsman_master_switches_total", &[("service", "b")], 0);
            page
        };
        let gate = "# HELP pointsman_gate_closed \
                    State of the gate: 1 while traffic is held, else 0.\n\
                    # TYPE pointsman_gate_closed gauge\n\
                    pointsman_gate_closed{service=\"a\\\"b\\\\c\"} 1\n";
        let switches = "Committed master changes.\n";
        let counts = "pointsman_master_switches_total{service=\"a\"} 7\n\
                      pointsman_master_switches_total{service=\"b\"} 0\n";
        let plain = page().render(Format::Prometheus);
        assert_eq!(
            plain,
            format!(
                "{gate}# HELP pointsman_master_switches_total {switches}\
                 # TYPE pointsman_master_switches_total counter\n{counts}"
            )
        );
        let open = page().render(Format::OpenMetrics);
        assert_eq!(
            open,
            format!(
                "{gate}# HELP pointsman_master_switches {switches}\
                 # TYPE pointsman_master_switches counter\n{counts}# EOF\n"
            )
        );
    }

    #[test]
    fn sorts_series_and_types_counters_of_seconds() {
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
    fn arranges_families_and_drops_unknown_ones() {
        let text = "# HELP pointsman_master_switches_total Switches.\n\
                    # TYPE pointsman_master_switches_total gauge\n\
                    pointsman_master_switches_total{service=\"b\"} 1\n\
                    pointsman_master_switches_total{service=\"a\"} 2\n\n\
                    # TYPE x_total counter\nx_total 1\n\n\
                    # HELP pointsman_gate_closed Held.\n# TYPE pointsman_gate_closed gauge\n\
                    pointsman_gate_closed 0\n\n";
        let gate = "# HELP pointsman_gate_closed Held.\n# TYPE pointsman_gate_closed gauge\n\
                    pointsman_gate_closed 0\n";
        let counts = "pointsman_master_switches_total{service=\"a\"} 2\n\
                      pointsman_master_switches_total{service=\"b\"} 1\n";
        for (format, family, end) in [
            (Format::Prometheus, "pointsman_master_switches_total", ""),
            (Format::OpenMetrics, "pointsman_master_switches", "# EOF\n"),
        ] {
            let expected =
                format!("{gate}# HELP {family} Switches.\n# TYPE {family} counter\n{counts}{end}");
            assert_eq!(arrange(text, format), expected);
        }
    }

    #[test]
    fn renders_cumulative_buckets_sum_and_count() {
        let mut page = Exposition::new(false);
        let buckets = [(0.25, 1), (1.0, 2)].into_iter();
        page.histogram(
            "pointsman_failover_hold_seconds",
            &[("service", "m")],
            buckets,
            3,
            Duration::from_millis(2500),
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
    fn omits_zero_counters_of_services_if_sparse() {
        let mut page = Exposition::new(true);
        page.count("pointsman_holds_total", &[("service", "m")], 0);
        page.count("pointsman_master_switches_total", &[("service", "m")], 1);
        page.count("pointsman_log_lines_dropped_total", &[], 0);
        page.flag("pointsman_gate_closed", &[("service", "m")], false);
        let text = page.render(Format::Prometheus);
        let series: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            series,
            [
                "pointsman_log_lines_dropped_total 0",
                "pointsman_gate_closed{service=\"m\"} 0",
                "pointsman_master_switches_total{service=\"m\"} 1"
            ]
        );
    }
}
