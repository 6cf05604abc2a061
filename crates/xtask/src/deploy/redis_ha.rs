//! Beside the redis-ha chart: what has to stay for clients, monitors and network policies to notice nothing.
//!
//! That chart is in none of the registries that a build may reach, so the values stand here as they were read off version 4.39.0 for
//! a release called `shop` in the namespace `ns`, with passwords, metrics, a disruption budget and a network policy; each row is a
//! path into an object and what has to be there. Deliberately different: probes, grace period, security, spread, and no init container.

use serde_json::{Value, json};

/// Kind and name of an object, a JSON pointer into it, and what stands there in the redis-ha chart.
pub(super) fn rows() -> Vec<(&'static str, &'static str, &'static str, Value)> {
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
        ("PodDisruptionBudget", "shop-redis-ha-haproxy-pdb", "/spec/selector/matchLabels", selector.clone()),
        ("PodDisruptionBudget", "shop-redis-ha-haproxy-pdb", "/spec/maxUnavailable", json!(1)),
        ("NetworkPolicy", "shop-redis-ha-haproxy-network-policy", "/spec/podSelector/matchLabels", selector),
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
pub(super) const PORTS: [(&str, u64); 4] =
    [("redis", 6379), ("readonlyport", 6380), ("probe", 8888), ("metrics-port", 9101)];

/// Secrets and the keys in them that are read.
pub(super) const SECRETS: [(&str, &str); 2] =
    [("shop-redis-ha", "auth"), ("shop-redis-ha-sentinel", "sentinel-password")];

/// Sentinels that are asked.
pub(super) const SENTINELS: [&str; 3] =
    ["shop-redis-ha-announce-0:26379", "shop-redis-ha-announce-1:26379", "shop-redis-ha-announce-2:26379"];

/// Compares; the rows that agree, as a table.
pub(super) fn compare(objects: &[Value]) -> Result<String, String> {
    let find = |kind: &str, name: &str| objects.iter().find(|it| it["kind"] == kind && it["metadata"]["name"] == name);
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
    for (name, port) in PORTS {
        if ports.iter().any(|it| it["name"] == name && it["containerPort"] == port) {
            same += 1;
        } else {
            differences.push(format!("no container port {name} {port}"));
        }
    }
    let volumes = pod["volumes"].to_string();
    for (secret, key) in SECRETS {
        if volumes.contains(&format!("\"name\":\"{secret}\"")) && volumes.contains(&format!("\"key\":\"{key}\"")) {
            same += 1;
        } else {
            differences.push(format!("the secret {secret}, key {key}, is not mounted"));
        }
    }
    let map = find("ConfigMap", "shop-redis-ha-haproxy").cloned().unwrap_or_default();
    let text = map["data"]["pointsman.toml"].as_str().unwrap_or_default().to_owned();
    for sentinel in SENTINELS.iter().chain(&["name = \"mymaster\""]) {
        if text.contains(sentinel) {
            same += 1;
        } else {
            differences.push(format!("the configuration has no {sentinel}"));
        }
    }
    if differences.is_empty() {
        Ok(format!("{same} names, ports, labels and secrets as they were"))
    } else {
        Err(differences.join("\n"))
    }
}
