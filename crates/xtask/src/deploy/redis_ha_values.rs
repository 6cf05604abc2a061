//! Every value of the redis-ha chart's haproxy, and what it does here: translated, without effect
//! for a reason, or refused. The table is tested with our chart: a translated value shows in what
//! is rendered, one without effect changes nothing, a refused one fails with a message that helps.
//! With the real chart at hand the table is compared with its values.

use serde_json::{Map, Value, json};

use super::chart::template;
use super::tools::Tools;

/// What becomes of a value.
enum Fate {
    /// It shows as this text.
    Mapped(&'static str),
    /// Translated, but excludes other values: tested in a separate rendering.
    Instead(&'static str),
    /// It concerns the Service or the monitor, which stay in that release. With haproxy off the
    /// Service is ours, and shows this text.
    OfService(&'static str),
    /// It has no effect, and why.
    LeftOut(&'static str),
    /// It is refused with these words.
    Refused(&'static str),
}

use Fate::{Instead, LeftOut, Mapped, OfService, Refused};

/// Paths below `haproxy`, each with a value to try, in JSON. A path stands for what is below it,
/// too.
static VALUES: &[(&str, &str, Fate)] = &[
    ("servicePort", "6400", OfService("port: 6400")),
    ("containerPort", "6401", Mapped("containerPort: 6401")),
    (
        "tls",
        r#"{"enabled": true, "secretName": "redis-tls", "keyName": "redis.pem"}"#,
        Instead("tls_listen = [\"0.0.0.0:6379\""),
    ),
    ("readOnly.enabled", "true", Mapped("name: readonlyport")),
    ("readOnly.port", "6402", Mapped("containerPort: 6402")),
    ("additionalPorts", r#"[{"name": "x", "containerPort": 1}]"#, Refused("additionalPorts")),
    ("replicas", "7", Mapped("replicas: 7")),
    (
        "deploymentStrategy",
        r#"{"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "77%"}}"#,
        Mapped("maxSurge: 77%"),
    ),
    ("image", r#"{"repository": "haproxy", "tag": "x"}"#, LeftOut("the image of haproxy")),
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
    ("emptyDir", r#"{"sizeLimit": "1Mi"}"#, LeftOut("no files are written")),
    ("podDisruptionBudget", r#"{"minAvailable": 2}"#, Mapped("minAvailable: 2")),
    ("stickyBalancing", "true", LeftOut("the sentinels decide where connections go")),
    ("priorityClassName", r#""high""#, Mapped("priorityClassName: high")),
    ("service.type", r#""LoadBalancer""#, OfService("type: LoadBalancer")),
    ("service.clusterIP", r#""10.9.8.7""#, OfService("clusterIP: 10.9.8.7")),
    ("service.nodePort", "30777", OfService("nodePort: 30777")),
    ("service.loadBalancerIP", r#""10.9.8.6""#, OfService("loadBalancerIP: 10.9.8.6")),
    ("service.externalTrafficPolicy", r#""Local""#, OfService("externalTrafficPolicy: Local")),
    ("service.externalIPs", r#"["10.9.8.5"]"#, OfService("- 10.9.8.5")),
    ("service.labels", r#"{"label": "of-the-service"}"#, OfService("label: of-the-service")),
    ("service.annotations", r#"{"note": "of-the-service"}"#, OfService("note: of-the-service")),
    ("service.loadBalancerSourceRanges", r#"["10.9.0.0/16"]"#, OfService("- 10.9.0.0/16")),
    (
        "service.ipFamilyPolicy",
        r#""PreferDualStack""#,
        OfService("ipFamilyPolicy: PreferDualStack"),
    ),
    ("service.ipFamilies", r#"["IPv6"]"#, OfService("- IPv6")),
    ("serviceAccountName", r#""account""#, Instead("serviceAccountName: account")),
    ("serviceAccount.create", "false", Instead("serviceAccountName: account")),
    ("serviceAccount.automountToken", "true", LeftOut("the Kubernetes API is not used")),
    ("metrics.enabled", "true", Mapped("metrics-port")),
    ("metrics.port", "9109", Mapped("containerPort: 9109")),
    ("metrics.portName", r#""numbers""#, OfService("name: numbers")),
    ("metrics.scrapePath", r#""/other""#, LeftOut("the path is /metrics")),
    (
        "metrics.serviceMonitor",
        r#"{"enabled": true}"#,
        LeftOut("that release's monitor scrapes the Service and so these pods"),
    ),
    ("init", r#"{"resources": {"limits": {"cpu": "1"}}}"#, LeftOut("there is no init container")),
    ("timeout.connect", r#""7s""#, Mapped(r#"connect_timeout = "7s""#)),
    ("timeout.server", r#""1s""#, LeftOut("idle clients are kept; see client_idle_timeout")),
    ("timeout.client", r#""1s""#, LeftOut("idle clients are kept; see client_idle_timeout")),
    ("timeout.check", r#""1s""#, LeftOut("no health checks: the sentinels decide")),
    ("timeout.tunnel", r#""1s""#, LeftOut("idle clients are kept; see client_idle_timeout")),
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
        LeftOut("pods are spread where possible; for a hard rule set topologySpreadConstraints"),
    ),
    ("additionalAffinities", r#"{"podAffinity": {}}"#, Mapped("podAffinity: {}")),
    ("affinity", r#""podAntiAffinity: {}""#, Instead("podAntiAffinity: {}")),
    ("customConfig", r#""x""#, Refused("pointsman import haproxy")),
    ("extraConfig", r#""listen x""#, Refused("only `maxconn`")),
    (
        "lifecycle",
        r#"{"preStop": {"exec": {"command": ["sleep", "1"]}}}"#,
        LeftOut("SIGTERM starts the drain; no hook is needed"),
    ),
    (
        "tests",
        r#"{"resources": {"limits": {"cpu": "1"}}}"#,
        LeftOut("the pod of the test has fixed resources"),
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

/// Tests every row with our chart.
pub(super) fn check(tools: &Tools) -> Result<String, String> {
    let plain = rendered(tools, true, |_, _| false)?;
    let plain_off = rendered(tools, false, |_, _| false)?;
    // A port of the node needs a type of its own, so it is tested apart from the other values of
    // the Service.
    let is_node = |path: &str| path == "service.nodePort";
    let mapped = rendered(tools, true, |_, fate| matches!(fate, Mapped(_)))?;
    let instead = rendered(tools, true, |_, fate| matches!(fate, Instead(_)))?;
    let is_metrics = |path: &str| path == "metrics.enabled";
    let service = rendered(tools, false, |path, fate| {
        is_metrics(path) || matches!(fate, OfService(_)) && !is_node(path)
    })?;
    let node = rendered(tools, false, |path, _| is_node(path))?;
    for (path, _, fate) in VALUES {
        let (text, with, without) = match fate {
            Mapped(text) => (text, &mapped, &plain),
            Instead(text) => (text, &instead, &plain),
            OfService(text) if is_node(path) => (text, &node, &plain_off),
            OfService(text) => (text, &service, &plain_off),
            _ => continue,
        };
        if !with.contains(text) || without.contains(text) {
            let (with, without) = (with.contains(text), without.contains(text));
            return Err(format!(
                "haproxy.{path}: {text:?} does not show it (with it {with}, without {without})"
            ));
        }
    }
    if rendered(tools, true, |_, fate| matches!(fate, LeftOut(_) | OfService(_)))? != plain {
        return Err("a value that should have no effect has one".to_owned());
    }
    for (path, _, fate) in VALUES {
        let Refused(words) = fate else { continue };
        match rendered(tools, true, |_, it| std::ptr::eq(it, fate)) {
            Ok(_) => return Err(format!("haproxy.{path} was accepted")),
            Err(why) if why.contains(words) => {}
            Err(why) => return Err(format!("haproxy.{path} was refused without {words:?}: {why}")),
        }
    }
    Ok(format!("{} values", VALUES.len()))
}

/// Our chart with some of the values, and haproxy on or off in that release.
fn rendered(
    tools: &Tools,
    is_on: bool,
    is_meant: impl Fn(&str, &Fate) -> bool,
) -> Result<String, String> {
    let mut haproxy = json!({"enabled": is_on});
    for (path, value, _) in VALUES.iter().filter(|(path, _, fate)| is_meant(path, fate)) {
        let value =
            serde_json::from_str(value).map_err(|error| format!("haproxy.{path}: {error}"))?;
        put(&mut haproxy, path, value);
    }
    if !is_on && haproxy["service"]["nodePort"].is_number() {
        put(&mut haproxy, "service.type", json!("NodePort"));
    }
    let compat =
        json!({"redisHa": {"enabled": true, "release": "shop", "values": {"haproxy": haproxy}}});
    let values =
        json!({"image": {"repository": "registry.example.com/pointsman"}, "compat": compat});
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
            "values that the table lacks: {unknown:?}; values that the chart lacks: {gone:?}"
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
    let mut text = "| Value of `haproxy` | Effect |\n|---|---|\n".to_owned();
    for (path, _, fate) in VALUES {
        let fate = match fate {
            Mapped(_) | Instead(_) => "translated".to_owned(),
            OfService(_) => {
                "stays with the Service in that release; translated if haproxy is off there"
                    .to_owned()
            }
            LeftOut(why) => format!("none: {why}"),
            Refused(_) => "refused".to_owned(),
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
