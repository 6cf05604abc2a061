//! Generates `docs/metrics.md`, the reference of metrics, from their catalogue.

use std::fmt::Write as _;

use pointsman::reference::{CATALOGUE, HAPROXY, Metric, MetricKind, SPARSE_ABOVE};

/// The groups of the page: heading, the labels that all metrics of the group have.
const GROUPS: [(&str, &[&str]); 3] = [
    ("Process and sentinels", &[]),
    ("Per service: `service`", &["service"]),
    ("Per listener: `service`, `listener`", &["service", "listener"]),
];

/// Returns the page.
pub(crate) fn page() -> String {
    let mut out = "# Metrics\n\n\
        All metrics of `/metrics`, with their labels; `…` stands for those in the heading. Metrics that\n\
        end in `_total` are counters, all others gauges or, where it says so, histograms. Generated from\n\
        the catalogue in `crates/pointsman/src/admin/metrics/catalogue.rs`; a test compares them, and\n\
        `UPDATE=1 cargo test --test docs` writes the page.\n\n"
        .to_owned();
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "With more than {SPARSE_ABOVE} services, counters of a service that are zero and alarms that \
         are off are omitted,\nand the histograms of failovers and dials cover all services together.\n"
    );
    for (heading, labels) in GROUPS {
        let _ = write!(out, "\n## {heading}\n");
        table(&mut out, CATALOGUE.iter().filter(|it| common_labels(it) == labels), labels);
    }
    out.push_str("\n## With `[metrics] haproxy_names = true`\n");
    table(&mut out, HAPROXY.iter(), &[]);
    out
}

/// The labels of the metric's group.
fn common_labels(metric: &Metric) -> &'static [&'static str] {
    let mut groups = GROUPS.iter().rev().map(|(_, labels)| *labels);
    groups.find(|labels| metric.labels.starts_with(labels)).unwrap_or_default()
}

fn table<'a>(out: &mut String, metrics: impl Iterator<Item = &'a Metric>, common: &[&str]) {
    out.push_str("\n| Metric | Meaning |\n|---|---|\n");
    for Metric { name, kind, labels, help } in metrics {
        let own = labels.get(common.len()..).unwrap_or_default().join(",");
        let labels = match (common.is_empty(), own.is_empty()) {
            (_, true) => String::new(),
            (true, false) => format!("{{{own}}}"),
            (false, false) => format!("{{…,{own}}}"),
        };
        let kind = if *kind == MetricKind::Histogram { " Histogram." } else { "" };
        let _ = writeln!(out, "| `{name}{labels}` | {help}{kind} |");
    }
}
