//! Beside the redis-ha chart: what has to stay for clients, monitors and network policies to notice
//! nothing.
//!
//! That chart is in none of the registries that a build may reach, so the values stand here as they
//! were read off version 4.39.0 for a release called `shop` in the namespace `ns`, with passwords,
//! metrics, a disruption budget and a network policy; each row is a path into an object and what
//! has to be there. Who has the chart gives its folder to `deploy-check --redis-ha`: then it is
//! rendered beside ours, and the rows are asked of both. Deliberately different: what stands in
//! [`DIFFERENT`].

use std::path::Path;

use serde_json::{Value, json};

use super::chart::{example, objects};
use super::redis_ha_values as values;
use super::tools::{Tools, root};

/// Kind and name of an object, a JSON pointer into it, and what stands there in the redis-ha chart.
fn rows() -> Vec<(&'static str, &'static str, &'static str, Value)> {
    let selector = json!({"app": "redis-ha-haproxy", "release": "shop", "component": "haproxy"});
    let all = "shop-redis-ha-haproxy";
    vec![
        ("Service", all, "/metadata/labels/app", json!("redis-ha")),
        ("Service", all, "/metadata/labels/release", json!("shop")),
        ("Service", all, "/metadata/labels/component", json!("haproxy")),
        ("Service", all, "/spec/type", json!("ClusterIP")),
        ("Service", all, "/spec/selector", json!({"release": "shop", "app": "redis-ha-haproxy"})),
        (
            "Service",
            all,
            "/spec/ports",
            json!([
                {"name": "tcp-haproxy", "port": 6379, "protocol": "TCP", "targetPort": "redis"},
                {"name": "tcp-haproxyreadonly", "port": 6380, "protocol": "TCP", "targetPort": 6380},
                {"name": "http-exporter-port", "port": 9101, "protocol": "TCP", "targetPort": "metrics-port"},
            ]),
        ),
        ("Deployment", all, "/spec/replicas", json!(3)),
        ("Deployment", all, "/spec/selector/matchLabels", selector.clone()),
        ("Deployment", all, "/spec/template/metadata/labels", selector.clone()),
        ("Deployment", all, "/spec/template/spec/serviceAccountName", json!(all)),
        ("Deployment", all, "/spec/template/spec/securityContext/runAsUser", json!(99)),
        ("Deployment", all, "/spec/template/spec/securityContext/fsGroup", json!(99)),
        ("Deployment", all, "/spec/template/spec/securityContext/runAsNonRoot", json!(true)),
        (
            "PodDisruptionBudget",
            "shop-redis-ha-haproxy-pdb",
            "/spec/selector/matchLabels",
            selector.clone(),
        ),
        ("PodDisruptionBudget", "shop-redis-ha-haproxy-pdb", "/spec/maxUnavailable", json!(1)),
        (
            "NetworkPolicy",
            "shop-redis-ha-haproxy-network-policy",
            "/spec/podSelector/matchLabels",
            selector,
        ),
        ("ServiceAccount", all, "/kind", json!("ServiceAccount")),
        (
            "ServiceMonitor",
            all,
            "/spec/selector/matchLabels",
            json!({"app": "redis-ha", "release": "shop", "component": "haproxy"}),
        ),
        ("ServiceMonitor", all, "/spec/namespaceSelector/matchNames", json!(["ns"])),
    ]
}

/// Ports of the container by their names.
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
        "one says whether to restart, the other whether to send clients",
    ),
    (
        "grace period",
        "30 s, Kubernetes' default",
        "`accept_max` + `drain_timeout` + 2 s",
        "sessions end at command boundaries",
    ),
    (
        "rollout",
        "25 % unavailable",
        "0 unavailable, `minReadySeconds` 5",
        "no pod goes before its successor serves",
    ),
    (
        "spread",
        "hard anti-affinity",
        "soft, over nodes and zones",
        "a hard rule blocks rollouts on as many nodes as pods",
    ),
    (
        "passwords",
        "environment",
        "files, mounted read-only",
        "not in `/proc`, and not in what a child inherits",
    ),
    ("root file system", "writable", "read-only", "nothing is written"),
    (
        "init container",
        "resolves the announce Services once",
        "none",
        "names are looked up again whenever they are dialled",
    ),
    ("service account's token", "mounted", "not mounted", "the Kubernetes API is never asked"),
    ("Role, RoleBinding", "read endpoints", "none", "the same"),
];

/// What is amiss with objects that were rendered, theirs or ours, and how many rows agree.
fn compare(objects: &[Value]) -> Result<usize, String> {
    let find = |kind: &str, name: &str| {
        objects.iter().find(|it| it["kind"] == kind && it["metadata"]["name"] == name)
    };
    let mut differences = Vec::new();
    let mut same = 0;
    for (kind, name, pointer, wanted) in rows() {
        match find(kind, name).and_then(|object| object.pointer(pointer)) {
            Some(found) if *found == wanted => same += 1,
            found => differences.push(format!("{kind} {name} {pointer}: {found:?}, not {wanted}")),
        }
    }
    let deployment = find("Deployment", "shop-redis-ha-haproxy").cloned().unwrap_or_default();
    let pod = &deployment["spec"]["template"]["spec"];
    let ports = pod["containers"][0]["ports"].as_array().cloned().unwrap_or_default();
    let mut must =
        |holds: bool, what: String| if holds { same += 1 } else { differences.push(what) };
    for (name, port) in PORTS {
        let is_there = ports.iter().any(|it| it["name"] == name && it["containerPort"] == port);
        must(is_there, format!("no container port {name} {port}"));
    }
    // As files here, in the environment there.
    let text = pod.to_string();
    for (secret, key) in SECRETS {
        let is_read = text.contains(&format!("\"name\":\"{secret}\""))
            && text.contains(&format!("\"key\":\"{key}\""));
        must(is_read, format!("the secret {secret}, key {key}, is not read"));
    }
    let maps = objects.iter().filter(|it| it["kind"] == "ConfigMap");
    let text: String = maps
        .flat_map(|it| it["data"].as_object().cloned().unwrap_or_default())
        .map(|it| it.1.to_string())
        .collect();
    for sentinel in SENTINELS {
        must(text.contains(sentinel), format!("the configuration has no {sentinel}"));
    }
    must(text.contains(MASTER), format!("the configuration has no {MASTER}"));
    if differences.is_empty() { Ok(same) } else { Err(differences.join("\n")) }
}

/// Ours, and theirs if it is there.
pub(super) fn check(tools: &Tools) -> Result<String, String> {
    let same = compare(&objects(tools, &example("redis-ha"))?)?;
    let Some(folder) = &tools.redis_ha else {
        return Ok(format!("{same} names, ports, labels and secrets as they were"));
    };
    compare(&theirs(tools, folder)?).map_err(|why| format!("the redis-ha chart itself: {why}"))?;
    let chart =
        std::fs::read_to_string(folder.join("values.yaml")).map_err(|error| error.to_string())?;
    let known = values::compare(tools.documents(&chart)?.first().unwrap_or(&Value::Null))?;
    Ok(format!(
        "{same} names, ports, labels and secrets are the same in that chart, rendered beside ours; {known}"
    ))
}

/// The chart itself, rendered with the values that our example holds for it.
fn theirs(tools: &Tools, folder: &Path) -> Result<Vec<Value>, String> {
    let example =
        std::fs::read_to_string(example("redis-ha")).map_err(|error| error.to_string())?;
    let example = tools.documents(&example)?;
    let mut given =
        example.first().map(|it| it["compat"]["redisHa"]["values"].clone()).unwrap_or_default();
    given["redisPassword"] = json!("any");
    given["sentinel"]["password"] = json!("any");
    let file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    std::fs::write(file.path(), given.to_string()).map_err(|error| error.to_string())?;
    let (folder, file) = (folder.to_string_lossy(), file.path().to_string_lossy());
    let api = "monitoring.coreos.com/v1";
    let args = [
        "template",
        "shop",
        &folder,
        "--namespace",
        "ns",
        "--values",
        &file,
        "--api-versions",
        api,
    ];
    tools.documents(&tools.helm(args)?)
}

/// All of it as a page: written by `cargo xtask manifests`, and found out of step by
/// `deploy-check`.
pub(super) fn page() -> (std::path::PathBuf, String) {
    let mut text = "\
# Beside the redis-ha chart

Made by `cargo xtask manifests` from the table that `cargo xtask deploy-check` holds our chart against: the redis-ha chart 4.39.0 and ours
with `compat.redisHa`, rendered for a release `shop` with passwords, a read-only port, metrics, a disruption budget and a network policy
(`helm/pointsman/examples/redis-ha.yaml`). `cargo xtask deploy-check --redis-ha FOLDER` renders that chart, too, and asks both.

## The same in both

| Object | Where | What |
|---|---|---|
"
    .to_owned();
    for (kind, name, pointer, value) in rows() {
        text.push_str(&format!(
            "| {kind} `{name}` | `{}` | `{value}` |\n",
            pointer.trim_start_matches('/').replace('/', ".")
        ));
    }
    let container = "| Deployment `shop-redis-ha-haproxy` |";
    for (name, port) in PORTS {
        text.push_str(&format!("{container} port of the container | `{name}` {port} |\n"));
    }
    for (secret, key) in SECRETS {
        text.push_str(&format!("{container} Secret that is read | `{secret}`, key `{key}` |\n"));
    }
    for sentinel in SENTINELS {
        text.push_str(&format!("| ConfigMap | sentinel that is asked | `{sentinel}` |\n"));
    }
    text.push_str(&format!("| ConfigMap | name of the master | `{MASTER}` |\n"));
    text.push_str(
        "\n## Different on purpose\n\n| | redis-ha | Pointsman | Why |\n|---|---|---|---|\n",
    );
    for (what, there, here, why) in DIFFERENT {
        text.push_str(&format!("| {what} | {there} | {here} | {why} |\n"));
    }
    text.push_str("\n## Every value of that haproxy\n\n");
    text.push_str(&values::table());
    (root().join("deploy/redis-ha.md"), text)
}
