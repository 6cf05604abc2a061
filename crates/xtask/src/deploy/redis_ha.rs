//! Beside the redis-ha chart: what Pointsman's pods have in common with haproxy's, so that
//! Services, monitors and NetworkPolicies notice no difference, and what differs on purpose. Both
//! are in `redis_ha_facts.json`, with what is known of the other chart, and on the page
//! `deploy/redis-ha.md`.

use std::path::PathBuf;

use serde_json::Value;
use setup::{files, root};

use super::chart::{example, objects};
use super::redis_ha_chart::{facts, version};
use super::redis_ha_values as values;
use super::tools::Tools;

/// The rows of a list of facts.
fn rows<'a>(facts: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    facts[list].as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// What is wrong with objects that were rendered, and how many rows hold.
fn compare(facts: &Value, objects: &[Value]) -> Result<usize, String> {
    let find =
        |kind: &str| objects.iter().find(|it| it["kind"] == kind).cloned().unwrap_or_default();
    let mut differences = Vec::new();
    let mut same = 0;
    let mut must =
        |holds: bool, what: String| if holds { same += 1 } else { differences.push(what) };
    for row in rows(facts, "pods") {
        let object = find(text(&row["kind"]));
        let found = object.pointer(text(&row["at"]));
        must(found == Some(&row["is"]), format!("{row}: it is {found:?}"));
    }
    let deployment = find("Deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    for row in rows(facts, "ports") {
        let mut ports = pod["containers"][0]["ports"].as_array().into_iter().flatten();
        let is_there = ports.any(|it| it["name"] == row[0] && it["containerPort"] == row[1]);
        must(is_there, format!("no container port {row}"));
    }
    // As files here, in the environment there.
    let mounted = pod.to_string();
    for row in rows(facts, "secrets") {
        let (secret, key) = (&row[0], &row[1]);
        let is_read = mounted.contains(&format!("\"name\":{secret}"))
            && mounted.contains(&format!("\"key\":{key}"));
        must(is_read, format!("the Secret {secret}, key {key}, is not read"));
    }
    let config = find("ConfigMap")["data"].to_string();
    for row in rows(facts, "configuration") {
        must(config.contains(text(&row[0])), format!("the configuration has no {}", row[0]));
    }
    if differences.is_empty() { Ok(same) } else { Err(differences.join("\n")) }
}

pub(super) fn check(tools: &Tools) -> Result<String, String> {
    let same = compare(&facts()?, &objects(tools, &example("redis-ha"))?)?;
    let Some(folder) = &tools.redis_ha else {
        return Ok(format!("{same} labels, ports and Secrets"));
    };
    let chart = files::read(folder.join("values.yaml"))?;
    let known = values::compare(tools.documents(&chart)?.first().unwrap_or(&Value::Null))?;
    Ok(format!("{same} labels, ports and Secrets; {known}"))
}

/// All of it as a page: written by `cargo xtask manifests`, and found out of step by
/// `deploy-check`.
pub(super) fn page() -> Result<(PathBuf, String), String> {
    let version = version()?;
    let facts = facts()?;
    let mut page = format!(include_str!("redis_ha_page.md"), version = version);
    for fact in rows(&facts, "objects") {
        let when = fact["when"]
            .as_str()
            .map_or("always".to_owned(), |when| format!("`{}`", when.replace(".Values.", "")));
        page.push_str(&format!("| {} `{}` | {when} |\n", text(&fact["kind"]), text(&fact["name"])));
    }
    page.push_str("\n## What Pointsman's pods have\n\n| Where | What | Why |\n|---|---|---|\n");
    for row in rows(&facts, "pods") {
        let (kind, why) = (text(&row["kind"]), text(&row["why"]));
        let at = text(&row["at"]).trim_start_matches('/').replace('/', ".");
        page.push_str(&format!("| {kind} `{at}` | `{}` | {why} |\n", row["is"]));
    }
    for row in rows(&facts, "ports") {
        let why = "target of the Service, of monitors or of probes";
        page.push_str(&format!(
            "| port of the container | `{}` {} | {why} |\n",
            text(&row[0]),
            row[1]
        ));
    }
    for row in rows(&facts, "secrets") {
        let (secret, key) = (text(&row[0]), text(&row[1]));
        page.push_str(&format!("| Secret | `{secret}`, key `{key}` | that of the release |\n"));
    }
    for row in rows(&facts, "configuration") {
        page.push_str(&format!("| configuration | `{}` | {} |\n", text(&row[0]), text(&row[1])));
    }
    page.push_str(
        "\n## Different on purpose\n\n| | redis-ha | Pointsman | Why |\n|---|---|---|---|\n",
    );
    for row in rows(&facts, "different") {
        let cells = row.as_array().into_iter().flatten().map(text).collect::<Vec<_>>();
        page.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    page.push_str("\n## Every value of that haproxy\n\n");
    page.push_str(&values::table()?);
    Ok((root().join("deploy/redis-ha.md"), page))
}
