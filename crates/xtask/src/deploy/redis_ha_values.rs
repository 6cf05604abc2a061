//! Every value of the redis-ha chart's haproxy, and what becomes of it here: mapped, left out with
//! a reason, or refused. The table is tried out on our chart: what is mapped has to show in what is
//! rendered, what is left out must change nothing, what is refused must fail with the words that
//! help. Beside the real chart it is held against the values that it has.

use serde_json::{Map, Value, json};

use super::chart::template;
use super::tools::Tools;

/// What becomes of a value.
enum Fate {
    /// It shows as this text.
    Mapped(&'static str),
    /// The same, where it excludes others of them: tried in a rendering of its own kind.
    Instead(&'static str),
    /// It has no effect, and why that is right.
    LeftOut(&'static str),
    /// It is refused with these words.
    Refused(&'static str),
}

use Fate::{Instead, LeftOut, Mapped, Refused};

/// Paths below `haproxy`, each with a value to try, in JSON. A path stands for what is below it,
/// too.
static VALUES: &[(&str, &str, Fate)] = &[
    ("servicePort", "6400", Mapped("port: 6400")),
    ("containerPort", "6401", Mapped("containerPort: 6401")),
    ("tls", r#"{"enabled": true}"#, Refused("is not taken over")),
    ("readOnly.enabled", "true", Mapped("tcp-haproxyreadonly")),
    ("readOnly.port", "6402", Mapped("containerPort: 6402")),
    ("additionalPorts", r#"[{"name": "x", "containerPort": 1}]"#, Refused("additionalPorts")),
    ("replicas", "7", Mapped("replicas: 7")),
    (
        "deploymentStrategy",
        r#"{"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "77%"}}"#,
        Mapped("maxSurge: 77%"),
    ),
    ("image", r#"{"repository": "haproxy", "tag": "x"}"#, LeftOut("another program")),
    ("labels", r#"{"label": "of-the-pod"}"#, Mapped("label: of-the-pod")),
    ("imagePullSecrets", r#"[{"name": "pull"}]"#, Mapped("- name: pull")),
    ("annotations", r#"{"note": "nowhere"}"#, LeftOut("that chart does not read it either")),
    (
        "deploymentAnnotations",
        r#"{"note": "of-the-deployment"}"#,
        Mapped("note: of-the-deployment"),
    ),
    ("podAnnotations", r#"{"note": "of-the-pod"}"#, Mapped("note: of-the-pod")),
    ("resources", r#"{"limits": {"memory": "777Mi"}}"#, Mapped("memory: 777Mi")),
    ("emptyDir", r#"{"sizeLimit": "1Mi"}"#, LeftOut("nothing is written anywhere")),
    ("podDisruptionBudget", r#"{"minAvailable": 2}"#, Mapped("minAvailable: 2")),
    ("stickyBalancing", "true", LeftOut("the sentinels decide where connections go")),
    ("priorityClassName", r#""high""#, Mapped("priorityClassName: high")),
    ("service.type", r#""LoadBalancer""#, Mapped("type: LoadBalancer")),
    ("service.clusterIP", r#""10.9.8.7""#, Mapped("clusterIP: 10.9.8.7")),
    ("service.nodePort", "30777", Instead("nodePort: 30777")),
    ("service.loadBalancerIP", r#""10.9.8.6""#, Mapped("loadBalancerIP: 10.9.8.6")),
    ("service.externalTrafficPolicy", r#""Local""#, Mapped("externalTrafficPolicy: Local")),
    ("service.externalIPs", r#"["10.9.8.5"]"#, Mapped("- 10.9.8.5")),
    ("service.labels", r#"{"label": "of-the-service"}"#, Mapped("label: of-the-service")),
    ("service.annotations", r#"{"note": "of-the-service"}"#, Mapped("note: of-the-service")),
    ("service.loadBalancerSourceRanges", r#"["10.9.0.0/16"]"#, Mapped("- 10.9.0.0/16")),
    ("service.ipFamilyPolicy", r#""PreferDualStack""#, Mapped("ipFamilyPolicy: PreferDualStack")),
    ("service.ipFamilies", r#"["IPv6"]"#, Mapped("- IPv6")),
    ("serviceAccountName", r#""account""#, Instead("serviceAccountName: account")),
    ("serviceAccount.create", "false", Instead("serviceAccountName: account")),
    ("serviceAccount.automountToken", "true", LeftOut("Pointsman never asks the Kubernetes API")),
    ("metrics.enabled", "true", Mapped("metrics-port")),
    ("metrics.port", "9109", Mapped("containerPort: 9109")),
    ("metrics.portName", r#""numbers""#, Mapped("name: numbers")),
    ("metrics.scrapePath", r#""/other""#, LeftOut("it is /metrics")),
    ("metrics.serviceMonitor.enabled", "true", Mapped("kind: ServiceMonitor")),
    ("metrics.serviceMonitor.namespace", r#""monitoring""#, Mapped("namespace: monitoring")),
    ("metrics.serviceMonitor.interval", r#""77s""#, Mapped("interval: 77s")),
    ("metrics.serviceMonitor.telemetryPath", r#""/other""#, LeftOut("it is /metrics")),
    (
        "metrics.serviceMonitor.labels",
        r#"{"label": "of-the-monitor"}"#,
        Mapped("label: of-the-monitor"),
    ),
    ("metrics.serviceMonitor.timeout", r#""76s""#, Mapped("scrapeTimeout: 76s")),
    (
        "metrics.serviceMonitor.endpointAdditionalProperties",
        r#"{"honorLabels": true}"#,
        Mapped("honorLabels: true"),
    ),
    (
        "metrics.serviceMonitor.disableAPICheck",
        "true",
        LeftOut("the monitor is made wherever it is asked for"),
    ),
    ("init", r#"{"resources": {"limits": {"cpu": "1"}}}"#, LeftOut("there is no init container")),
    ("timeout.connect", r#""7s""#, Mapped(r#"connect_timeout = "7s""#)),
    ("timeout.server", r#""1s""#, LeftOut("idle clients are kept")),
    ("timeout.client", r#""1s""#, LeftOut("idle clients are kept")),
    ("timeout.check", r#""1s""#, LeftOut("no health checks: the sentinels decide")),
    ("timeout.tunnel", r#""1s""#, LeftOut("idle clients are kept")),
    ("checkInterval", r#""9s""#, LeftOut("no health checks: the sentinels decide")),
    ("checkFall", "9", LeftOut("no health checks: the sentinels decide")),
    ("securityContext", r#"{"runAsUser": 77}"#, Mapped("runAsUser: 77")),
    (
        "containerSecurityContext",
        r#"{"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsGroup": 76}"#,
        Mapped("runAsGroup: 76"),
    ),
    (
        "hardAntiAffinity",
        "false",
        LeftOut("pods keep apart where they can; a hard rule blocks rollouts"),
    ),
    ("additionalAffinities", r#"{"podAffinity": {}}"#, Mapped("podAffinity: {}")),
    ("affinity", r#""podAntiAffinity: {}""#, Instead("podAntiAffinity: {}")),
    ("customConfig", r#""x""#, Refused("pointsman import haproxy")),
    ("extraConfig", r#""x""#, Refused("is for haproxy")),
    (
        "lifecycle",
        r#"{"preStop": {"exec": {"command": ["sleep", "1"]}}}"#,
        LeftOut("SIGTERM alone drains"),
    ),
    (
        "tests",
        r#"{"resources": {"limits": {"cpu": "1"}}}"#,
        LeftOut("the test's pod is small as it is"),
    ),
    ("IPv6.enabled", "false", Instead(r#"listen = ["0.0.0.0:6379"]"#)),
    ("networkPolicy.enabled", "true", Mapped("kind: NetworkPolicy")),
    ("networkPolicy.annotations", r#"{"note": "of-the-policy"}"#, Mapped("note: of-the-policy")),
    ("networkPolicy.labels", r#"{"label": "of-the-policy"}"#, Mapped("label: of-the-policy")),
    (
        "networkPolicy.ingressRules",
        r#"[{"selectors": [{"podSelector": {"matchLabels": {"who": "a-client"}}}], "ports": []}]"#,
        Mapped("who: a-client"),
    ),
    (
        "networkPolicy.egressRules",
        r#"[{"selectors": [{"podSelector": {"matchLabels": {"who": "a-server"}}}], "ports": [{"port": 1}]}]"#,
        Mapped("who: a-server"),
    ),
];

/// Tries every row on our chart.
pub(super) fn check(tools: &Tools) -> Result<String, String> {
    let plain = rendered(tools, |_| false)?;
    let (first, second) = (
        rendered(tools, |fate| matches!(fate, Mapped(_)))?,
        rendered(tools, |fate| matches!(fate, Instead(_)))?,
    );
    for (path, _, fate) in VALUES {
        let (text, shown) = match fate {
            Mapped(text) => (text, first.contains(text)),
            Instead(text) => (text, second.contains(text)),
            _ => continue,
        };
        if !shown || plain.contains(text) {
            return Err(format!(
                "haproxy.{path}: {text:?} does not show it (with it {shown}, without {})",
                plain.contains(text)
            ));
        }
    }
    if rendered(tools, |fate| matches!(fate, LeftOut(_)))? != plain {
        return Err("something that is said to be left out has an effect".to_owned());
    }
    for (path, _, fate) in VALUES {
        let Refused(words) = fate else { continue };
        match rendered(tools, |it| std::ptr::eq(it, fate)) {
            Ok(_) => return Err(format!("haproxy.{path} was accepted")),
            Err(why) if why.contains(words) => {}
            Err(why) => {
                return Err(format!(
                    "haproxy.{path} was refused without a word on {words:?}: {why}"
                ));
            }
        }
    }
    Ok(format!("{} values", VALUES.len()))
}

/// Our chart with the values that are meant.
fn rendered(tools: &Tools, is_meant: impl Fn(&Fate) -> bool) -> Result<String, String> {
    let mut haproxy = json!({"enabled": true});
    for (path, value, _) in VALUES.iter().filter(|(_, _, fate)| is_meant(fate)) {
        let value =
            serde_json::from_str(value).map_err(|error| format!("haproxy.{path}: {error}"))?;
        put(&mut haproxy, path, value);
    }
    // A port of the node goes with a type of its own.
    if haproxy["service"]["nodePort"].is_number() {
        put(&mut haproxy, "service.type", json!("NodePort"));
    }
    let values = json!({"compat": {"redisHa": {"enabled": true, "release": "shop", "values": {"haproxy": haproxy}}}});
    let file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    std::fs::write(file.path(), values.to_string()).map_err(|error| error.to_string())?;
    template(tools, &file.path().to_string_lossy(), &[])
}

/// Sets what is at a path, and makes the way there.
fn put(object: &mut Value, path: &str, value: Value) {
    match path.split_once('.') {
        Some((first, rest)) => {
            if !object[first].is_object() {
                object[first] = Value::Object(Map::new());
            }
            put(&mut object[first], rest, value);
        }
        None => object[path] = value,
    }
}

/// Holds the table against the values that the real chart has: neither may know one that the other
/// does not.
pub(super) fn compare(theirs: &Value) -> Result<String, String> {
    let mut leaves = Vec::new();
    leaves_of(&theirs["haproxy"], "", &mut leaves);
    let covers = |path: &str, leaf: &str| leaf == path || leaf.starts_with(&format!("{path}."));
    let unknown: Vec<&String> = leaves
        .iter()
        .filter(|leaf| *leaf != "enabled" && !VALUES.iter().any(|(path, _, _)| covers(path, leaf)))
        .collect();
    let gone: Vec<&str> = VALUES
        .iter()
        .map(|(path, _, _)| *path)
        .filter(|path| !leaves.iter().any(|leaf| covers(path, leaf)))
        .collect();
    if unknown.is_empty() && gone.is_empty() {
        Ok(format!("{} values of its haproxy", leaves.len()))
    } else {
        Err(format!(
            "values that the table lacks: {unknown:?}; values that it has and the chart does not: {gone:?}"
        ))
    }
}

fn leaves_of(value: &Value, path: &str, leaves: &mut Vec<String>) {
    match value.as_object().filter(|map| !map.is_empty()) {
        Some(map) => {
            for (key, value) in map {
                leaves_of(
                    value,
                    &if path.is_empty() { key.clone() } else { format!("{path}.{key}") },
                    leaves,
                );
            }
        }
        None => leaves.push(path.to_owned()),
    }
}

/// The table, for people.
pub(super) fn table() -> String {
    let mut text = "| Value of `haproxy` | What becomes of it |\n|---|---|\n".to_owned();
    for (path, _, fate) in VALUES {
        let fate = match fate {
            Mapped(_) | Instead(_) => "taken over".to_owned(),
            LeftOut(why) => format!("left out: {why}"),
            Refused(_) => "refused when it is rendered".to_owned(),
        };
        text.push_str(&format!("| `{path}` | {fate} |\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_put_where_their_path_leads() {
        let mut object = json!({"a": 1});
        put(&mut object, "b.c.d", json!([2]));
        put(&mut object, "b.c.e", json!(3));
        put(&mut object, "a", json!(4));
        assert_eq!(object, json!({"a": 4, "b": {"c": {"d": [2], "e": 3}}}));
    }

    #[test]
    fn a_value_that_one_of_the_two_lacks_is_told() {
        let mut theirs = json!({"haproxy": {"enabled": true}});
        for (path, _, _) in VALUES {
            put(&mut theirs["haproxy"], path, json!({}));
        }
        assert!(compare(&theirs).is_ok());
        put(&mut theirs["haproxy"], "service.brandNew", Value::Null);
        assert!(compare(&theirs).unwrap_err().contains("\"service.brandNew\"]; values"));
        theirs["haproxy"].as_object_mut().unwrap().remove("checkFall");
        assert!(compare(&theirs).unwrap_err().ends_with("[\"checkFall\"]"));
    }
}
