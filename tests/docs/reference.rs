//! Generators of the reference pages in `docs/`. `UPDATE=1 cargo test --test docs` writes them.

mod commands;
mod configuration;
mod metrics;

use crate::compare;

#[test]
fn matches_configuration_page_with_definitions() {
    compare("docs/configuration.md", &configuration::page());
}

#[test]
fn matches_metrics_page_with_catalogue() {
    compare("docs/metrics.md", &metrics::page());
}

#[test]
fn matches_commands_page_with_table() {
    compare("docs/commands.md", &commands::page());
}
