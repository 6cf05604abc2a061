//! What is handed to others in deploy/, checked as they would use it: the chart with every example
//! against the schemas of every supported Kubernetes, its configuration by pointsman itself, the
//! manifests and the kustomize base against the chart, the alerts by their unit tests, and the
//! names that have to stay beside the redis-ha chart.
//!
//! No cluster is started: what only a running Kubernetes can show is not claimed here.
#![allow(
    clippy::indexing_slicing,
    reason = "JSON indexed by what it lacks gives null and no panic"
)]

mod cases;
mod chart;
mod cluster;
mod ipv6;
mod manifests;
mod network;
mod parent;
mod pods;
mod redis_ha;
mod redis_ha_chart;
mod redis_ha_values;
mod switch;
mod together;
mod tools;
pub(crate) mod units;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use setup::{root, seconds};
use tools::Tools;
pub(crate) use tools::have_promtool;

/// How to check.
#[derive(Debug, Args)]
pub(crate) struct DeployCheckOptions {
    /// Pass, with a word on it, where a tool cannot be had: that says nothing of what is in deploy/
    #[arg(long)]
    lenient: bool,
    /// The folder of the redis-ha chart, to use it instead of the facts about it
    #[arg(long, value_name = "FOLDER")]
    redis_ha: Option<PathBuf>,

    /// Run only the checks whose title contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

/// One check: what it is, and how it is done; what was checked, in words, or what is wrong.
type Check = (&'static str, fn(&Tools) -> Result<String, String>);

const CHECKS: &[Check] = &[
    ("helm lint, every example", chart::lint),
    ("Kubernetes schemas, every example and version", chart::schemas),
    ("the Prometheus operator's types", chart::operator),
    ("values and their schema", chart::schema),
    ("single values", cases::check),
    ("what the chart refuses", cases::refusals),
    ("the restricted Pod Security Standard", pods::standard),
    ("OpenShift", pods::openshift),
    ("rollout, probes, grace, memory, selectors", pods::replaced),
    ("pointsman check of every configuration", chart::configurations),
    ("without IPv4", ipv6::check),
    ("notes", chart::notes),
    ("both charts together", together::check),
    ("the switch from haproxy and the way back", switch::check),
    ("as a dependency beside redis-ha", parent::check),
    ("beside the redis-ha chart", redis_ha::check),
    ("every value of the redis-ha chart's haproxy", redis_ha_values::check),
    ("manifests and kustomize in step", manifests::check),
    ("units of systemd", units::check),
    ("alerts", alerts),
];

/// Runs every check, also after one has failed.
///
/// # Errors
/// The tools could not be had.
pub(crate) fn check(options: &DeployCheckOptions) -> Result<ExitCode, String> {
    let only = options.only.as_deref().unwrap_or_default();
    let checks: Vec<&Check> = CHECKS.iter().filter(|(title, _)| title.contains(only)).collect();
    if checks.is_empty() {
        let titles: String = CHECKS.iter().map(|(title, _)| format!("  {title}\n")).collect();
        return Err(format!("No title contains {only:?}. The checks are:\n{titles}"));
    }
    let tools = match Tools::find(options.redis_ha.clone()) {
        Ok(tools) => tools,
        Err(why) if options.lenient => {
            println!(
                "NOT CHECKED: what is in deploy/, because a tool for it cannot be had:\n{why}"
            );
            return Ok(ExitCode::SUCCESS);
        }
        Err(why) => return Err(why),
    };
    let mut failed = Vec::new();
    for (title, check) in &checks {
        let start = Instant::now();
        match check(&tools) {
            Ok(what) => println!("  passed  {title}: {what} ({})", seconds(start.elapsed())),
            Err(why) => {
                println!("  FAILED  {title}:\n{why}");
                failed.push(*title);
            }
        }
    }
    if failed.is_empty() {
        println!("Passed: {} of {} checks of deploy/.", checks.len(), CHECKS.len());
        return Ok(ExitCode::SUCCESS);
    }
    println!("FAILED: {}.", failed.join("; "));
    Ok(ExitCode::FAILURE)
}

/// Writes what is made from the chart.
///
/// # Errors
/// The tools could not be had, or a file not be written.
pub(crate) fn write_manifests() -> Result<ExitCode, String> {
    manifests::write(&Tools::find(None)?)?;
    Ok(ExitCode::SUCCESS)
}

fn alerts(tools: &Tools) -> Result<String, String> {
    let rules = root().join("deploy/helm/pointsman/files/alerts.yaml");
    let checked = tools.promtool(&["check", "rules", &rules.to_string_lossy()])?;
    let tests = root().join("deploy/prometheus/alerts_test.yaml");
    tools.promtool(&["test", "rules", &tests.to_string_lossy()])?;
    let count = checked
        .lines()
        .find_map(|line| line.trim().strip_prefix("SUCCESS: "))
        .unwrap_or("rules found");
    Ok(format!("{count}, unit tests passed"))
}
