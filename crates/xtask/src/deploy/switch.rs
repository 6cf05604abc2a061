//! The switch from haproxy and the way back, played with the very commands of the documentation:
//! the real helm and kubectl, the facts about the redis-ha chart, and a stand-in for the cluster
//! that checks after each write that clients are served.

use std::path::Path;

use serde_json::{Value, json};
use setup::{files, root};

use super::cluster::Cluster;
use super::redis_ha_chart::Chart;
use super::together::values;
use super::tools::Tools;

/// Where the commands are, and the headings above them.
const PAGE: &str = "deploy/helm/from-redis-ha.md";
const STEPS: [&str; 4] =
    ["## Install beside haproxy", "## Check", "## Remove haproxy's pods", "## The way back"];

/// The option of helm 4 that decides who merges: the server or helm.
const SERVER_SIDE: &str = "--server-side";

/// The commands below each heading: the first block of shell commands.
fn commands(page: &str) -> Result<Vec<String>, String> {
    let below = |heading: &&str| {
        let (_, rest) = page.split_once(*heading)?;
        let (_, block) = rest.split_once("```sh ignore\n")?;
        block.split_once("```").map(|(block, _)| block.to_owned())
    };
    STEPS
        .iter()
        .map(|it| below(it).ok_or_else(|| format!("{PAGE} has no commands below {it:?}")))
        .collect()
}

/// A cluster with the redis-ha release, and clients that use it.
fn before(tools: &Tools, chart: &Chart, option: &str) -> Result<Cluster, String> {
    before_with(tools, &chart.folder, &values(tools)?, option)
}

/// A cluster with a release `shop` of a chart that has haproxy, and clients that use it.
pub(super) fn before_with(
    tools: &Tools,
    chart: &Path,
    values: &Value,
    option: &str,
) -> Result<Cluster, String> {
    let cluster = Cluster::start(tools)?;
    let (folder, file) = (chart.display(), cluster.values(values)?);
    cluster.run(&format!("helm install{option} shop {folder} --values {file}"))?;
    cluster.run("kubectl rollout status deployment/shop-redis-ha-haproxy --timeout=30s")?;
    cluster.arm();
    cluster.run("kubectl get service shop-redis-ha-haproxy")?;
    Ok(cluster)
}

pub(super) fn check(tools: &Tools) -> Result<String, String> {
    let page = files::read(root().join(PAGE))?;
    let chart = Chart::get(tools)?;
    let local = chart.folder.to_string_lossy().into_owned();
    let steps: Vec<String> =
        commands(&page)?.iter().map(|it| it.replace("dandydev/redis-ha", &local)).collect();
    let writes = play(tools, &chart, &steps, "")?;
    // Patches by the client instead of server-side apply, as by helm 3, which has no such option.
    if tools.helm(["install", "--help"])?.contains(SERVER_SIDE) {
        play(tools, &chart, &steps, &format!(" {SERVER_SIDE}=false"))
            .map_err(|why| format!("without server-side apply: {why}"))?;
    }
    refusals(tools, &chart, &steps)?;
    owned(tools, &chart)?;
    Ok(format!("{} commands, {writes} writes, clients served after each", STEPS.len()))
}

/// Plays the steps, and the first three once more, since nothing of the first time may be in the
/// way. How many writes there were.
fn play(tools: &Tools, chart: &Chart, steps: &[String], option: &str) -> Result<usize, String> {
    let cluster = before(tools, chart, option)?;
    let again = STEPS.iter().zip(steps).take(3);
    for (step, commands) in STEPS.iter().zip(steps).chain(again) {
        let commands = ["install", "upgrade"].iter().fold(commands.clone(), |text, verb| {
            text.replace(&format!("helm {verb}"), &format!("helm {verb}{option}"))
        });
        cluster.run(&commands).map_err(|why| format!("{step}: {why}"))?;
    }
    if !option.is_empty() && cluster.has_applied() {
        return Err(format!("helm wrote by server-side apply in spite of {option}"));
    }
    Ok(cluster.writes())
}

/// Steps that are left out, out of order or other than documented, and the fault that each has to
/// show.
fn refusals(tools: &Tools, chart: &Chart, steps: &[String]) -> Result<(), String> {
    let [install, check, remove, back] = steps else { return Err("not four steps".to_owned()) };
    let before = || before(tools, chart, "");
    fails(&before()?, remove, "no ready pod is behind")?;
    let unready = before()?;
    unready.run(install)?;
    fails(&unready, "helm test shop-pointsman", "failed")?;
    fails(&unready, remove, "no ready pod is behind")?;
    let unchecked = before()?;
    for commands in [install, check, remove] {
        unchecked.run(commands)?;
    }
    fails(&unchecked, "helm uninstall shop-pointsman", "no ready pod is behind")?;
    let off = back.replace("haproxy.replicas=3", "haproxy.enabled=false");
    fails(&before()?, &off, "cuts ready pods off from Redis")?;
    let off = off.replace("enabled=false", "enabled=false,networkPolicy.enabled=false");
    fails(&before()?, &off, "there is no Service")
}

/// Commands that must not pass, with a part of what is said about them.
pub(super) fn fails(cluster: &Cluster, commands: &str, part: &str) -> Result<(), String> {
    match cluster.run(commands) {
        Err(why) if why.contains(part) => Ok(()),
        Err(why) => Err(format!("failed without {part:?}: {commands}\n{why}")),
        Ok(_) => Err(format!("passed without a fault: {commands}")),
    }
}

/// Helm refuses a release that would own an object of the other one, so a collision of names cannot
/// go unnoticed here.
fn owned(tools: &Tools, chart: &Chart) -> Result<(), String> {
    let cluster = before(tools, chart, "")?;
    let file = cluster.values(&json!({
        "image": {"repository": "registry.example.com/pointsman"},
        "fullnameOverride": "shop-redis-ha-haproxy",
    }))?;
    let install = format!("helm install shop-pointsman deploy/helm/pointsman --values {file}");
    fails(&cluster, &install, "invalid ownership metadata")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_below_their_headings() {
        let page: String = STEPS
            .iter()
            .map(|it| format!("{it}\n\ntext\n\n```sh ignore\nrun {it}\n```\n"))
            .collect();
        let found = commands(&page).unwrap();
        assert_eq!(found[1], "run ## Check\n");
        assert!(commands("nothing").unwrap_err().contains("Install beside"));
    }
}
