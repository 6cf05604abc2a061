//! Generates `docs/metrics.md`, the reference of metrics, from their catalogue.

use std::fmt::Write as _;

use pointsman::admin::metrics::{CATALOGUE, HAPROXY, Metric, MetricKind, SPARSE_ABOVE};

/// Returns the page.
pub(crate) fn page() -> String {
    let mut out = "# Metrics\n\n\
        All metrics of `/metrics`, with their labels. Those that end in `_total` are counters, all\n\
        others gauges or, where it says so, histograms. This page is generated from the catalogue in\n\
        `crates/pointsman/src/admin/metrics/catalogue.rs`; a test compares them, and\n\
        `UPDATE=1 cargo test --test docs` writes it.\n\n"
        .to_owned();
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "With more than {SPARSE_ABOVE} services, counters of a service that are zero and alarms that \
         are off are omitted, and the\nhistograms of failovers and dials cover all services together.\n"
    );
    table(&mut out, CATALOGUE);
    out.push_str("\n## With `[metrics] haproxy_names = true`\n");
    table(&mut out, HAPROXY);
    out
}

fn table(out: &mut String, metrics: &[Metric]) {
    out.push_str("\n| Metric | Meaning |\n|---|---|\n");
    for Metric { name, kind, labels, help } in metrics {
        let labels =
            if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let kind = if *kind == MetricKind::Histogram { " Histogram." } else { "" };
        let _ = writeln!(out, "| `{name}{labels}` | {help}{kind} |");
    }
}
