//! Generates `docs/metrics.md`, the reference of metrics, from their catalogue; a test compares.

use std::fmt::Write as _;

use crate::admin::metrics::{CATALOGUE, HAPROXY, Metric, SPARSE_ABOVE};

/// Returns the page.
#[must_use]
pub fn page() -> String {
    let mut out = "# Metrics\n\nAll metrics of `/metrics`. This page is made from the catalogue in `crates/pointsman/src/admin/metrics/catalogue.rs`; a \
                   test compares them, and\n`UPDATE=1 cargo test --test deploy` writes it.\n\n"
        .to_owned();
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "With more than {SPARSE_ABOVE} services, counters of a service that are zero are left out, and the histograms of \
         failovers and dials cover all\nservices together.\n"
    );
    table(&mut out, CATALOGUE);
    out.push_str("\n## With `[metrics] haproxy_names = true`\n");
    table(&mut out, HAPROXY);
    out
}

fn table(out: &mut String, metrics: &[Metric]) {
    out.push_str("\n| Metric | Kind | Labels | Meaning |\n|---|---|---|---|\n");
    for Metric { name, kind, labels, help } in metrics {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let _ = writeln!(out, "| `{name}` | {} | {} | {help} |", kind.label(), labels.join(", "));
    }
}
