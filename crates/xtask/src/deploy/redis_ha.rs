//! Beside the redis-ha chart: what Pointsman's pods have in common with haproxy's, so that
//! Services, monitors and NetworkPolicies notice no difference, and what differs on purpose
//! ([`DIFFERENT`]). Both stand on the page `deploy/redis-ha.md`.
//!
//! What the other chart has is known from the facts in `redis_ha_facts.json`; see `redis_ha_chart`.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::chart::{example, objects};
use super::redis_ha_chart::{facts, version};
use super::redis_ha_values as values;
use super::tools::{Tools, root};

/// A kind, a JSON pointer into its object, what stands there, and what follows from it.
fn rows() -> Vec<(&'static str, &'static str, Value, &'static str)> {
    vec![
        (
            "Deployment",
            "/spec/template/metadata/labels/app",
            json!("redis-ha-haproxy"),
            "the Service and Redis's NetworkPolicy select it",
        ),
        ("Deployment", "/spec/template/metadata/labels/release", json!("shop"), "the same"),
        (
            "Deployment",
            "/spec/template/metadata/labels/component",
            json!("pointsman"),
            "haproxy's Deployment, budget and policy do not select it",
        ),
        ("Deployment", "/spec/replicas", json!(3), "as many as haproxy had"),
        ("PodDisruptionBudget", "/spec/maxUnavailable", json!(1), "as haproxy's"),
    ]
}

/// Ports of the container by their names, which are targets of the Service.
const PORTS: [(&str, u64); 4] =
    [("redis", 6379), ("readonlyport", 6380), ("probe", 8888), ("metrics-port", 9101)];

/// Secrets and the keys in them that are read.
const SECRETS: [(&str, &str); 2] =
    [("shop-redis-ha", "auth"), ("shop-redis-ha-sentinel", "sentinel-password")];

/// The name of the master.
const MASTER: &str = "mymaster";

/// Sentinels that are asked.
const SENTINELS: [&str; 3] = [
    "shop-redis-ha-announce-0:26379",
    "shop-redis-ha-announce-1:26379",
    "shop-redis-ha-announce-2:26379",
];

/// What is not as it was, on purpose: what it is about, there, here, and why.
const DIFFERENT: &[(&str, &str, &str, &str)] = &[
    (
        "probes",
        "one `/healthz`, always 200",
        "`/startup`, `/alive`, `/ready`",
        "one decides on a restart, the other on new clients",
    ),
    (
        "grace period",
        "30 s, the default of Kubernetes",
        "`accept_max` + `drain_timeout` + 2 s",
        "sessions end at command boundaries",
    ),
    (
        "rollout",
        "25 % unavailable",
        "0 unavailable, `minReadySeconds` 5",
        "no pod is removed before its successor is ready",
    ),
    (
        "spread",
        "hard anti-affinity",
        "soft, over nodes and zones; a hard one with `topologySpreadConstraints`",
        "a hard rule blocks rollouts if there are as many nodes as pods",
    ),
    (
        "passwords",
        "environment",
        "files, mounted read-only",
        "not in `/proc`, not inherited by children",
    ),
    ("root file system", "writable", "read-only", "nothing is written"),
    (
        "init container",
        "resolves the announce Services once",
        "none",
        "names are resolved again whenever they are dialled",
    ),
    ("token of the service account", "mounted", "not mounted", "the Kubernetes API is not used"),
    ("Role, RoleBinding", "read endpoints", "none", "the same"),
];

/// What is wrong with objects that were rendered, and how many rows hold.
fn compare(objects: &[Value]) -> Result<usize, String> {
    let find =
        |kind: &str| objects.iter().find(|it| it["kind"] == kind).cloned().unwrap_or_default();
    let mut differences = Vec::new();
    let mut same = 0;
    let mut must =
        |holds: bool, what: String| if holds { same += 1 } else { differences.push(what) };
    for (kind, pointer, wanted, _) in rows() {
        let object = find(kind);
        let found = object.pointer(pointer);
        must(found == Some(&wanted), format!("{kind} {pointer}: {found:?}, not {wanted}"));
    }
    let deployment = find("Deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    let ports = pod["containers"][0]["ports"].as_array().cloned().unwrap_or_default();
    for (name, port) in PORTS {
        let is_there = ports.iter().any(|it| it["name"] == name && it["containerPort"] == port);
        must(is_there, format!("no container port {name} {port}"));
    }
    // As files here, in the environment there.
    let text = pod.to_string();
    for (secret, key) in SECRETS {
        let is_read = text.contains(&format!("\"name\":\"{secret}\""))
            && text.contains(&format!("\"key\":\"{key}\""));
        must(is_read, format!("the Secret {secret}, key {key}, is not read"));
    }
    let text = find("ConfigMap")["data"].to_string();
    for sentinel in SENTINELS.into_iter().chain([MASTER]) {
        must(text.contains(sentinel), format!("the configuration has no {sentinel}"));
    }
    if differences.is_empty() { Ok(same) } else { Err(differences.join("\n")) }
}

pub(super) fn check(tools: &Tools) -> Result<String, String> {
    let same = compare(&objects(tools, &example("redis-ha"))?)?;
    let Some(folder) = &tools.redis_ha else {
        return Ok(format!("{same} labels, ports and Secrets"));
    };
    let chart =
        std::fs::read_to_string(folder.join("values.yaml")).map_err(|error| error.to_string())?;
    let known = values::compare(tools.documents(&chart)?.first().unwrap_or(&Value::Null))?;
    Ok(format!("{same} labels, ports and Secrets; {known}"))
}

/// All of it as a page: written by `cargo xtask manifests`, and found out of step by
/// `deploy-check`.
pub(super) fn page() -> Result<(PathBuf, String), String> {
    let version = version()?;
    let mut text = format!(
        "\
# Beside the redis-ha chart

Generated by `cargo xtask manifests` from the facts and tables that `cargo xtask deploy-check` compares
our chart with: redis-ha {version} and `compat.redisHa`, for a release `shop` with passwords, a read-only
port, metrics, a disruption budget and NetworkPolicies (`helm/pointsman/examples/redis-ha.yaml`).
`cargo xtask deploy-check --redis-ha FOLDER` uses that chart itself instead of the facts.

## What that release owns

Pointsman's release owns no object that exists there. Only if haproxy is off it creates the Service.

| Object | Exists if |
|---|---|
"
    );
    for fact in facts()?["objects"].as_array().into_iter().flatten() {
        let (kind, name) =
            (fact["kind"].as_str().unwrap_or_default(), fact["name"].as_str().unwrap_or_default());
        let when = fact["when"]
            .as_str()
            .map_or("always".to_owned(), |when| format!("`{}`", when.replace(".Values.", "")));
        text.push_str(&format!("| {kind} `{name}` | {when} |\n"));
    }
    text.push_str("\n## What Pointsman's pods have\n\n| Where | What | Why |\n|---|---|---|\n");
    for (kind, pointer, value, why) in rows() {
        text.push_str(&format!(
            "| {kind} `{}` | `{value}` | {why} |\n",
            pointer.trim_start_matches('/').replace('/', ".")
        ));
    }
    for (name, port) in PORTS {
        let why = "target of the Service, of monitors or of probes";
        text.push_str(&format!("| port of the container | `{name}` {port} | {why} |\n"));
    }
    for (secret, key) in SECRETS {
        text.push_str(&format!("| Secret | `{secret}`, key `{key}` | that of the release |\n"));
    }
    for sentinel in SENTINELS {
        text.push_str(&format!("| configuration | `{sentinel}` | a sentinel |\n"));
    }
    text.push_str(&format!("| configuration | `{MASTER}` | name of the master |\n"));
    text.push_str(
        "\n## Different on purpose\n\n| | redis-ha | Pointsman | Why |\n|---|---|---|---|\n",
    );
    for (what, there, here, why) in DIFFERENT {
        text.push_str(&format!("| {what} | {there} | {here} | {why} |\n"));
    }
    text.push_str("\n## Every value of that haproxy\n\n");
    text.push_str(&values::table());
    Ok((root().join("deploy/redis-ha.md"), text))
}
