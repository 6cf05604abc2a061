//! The pods of the chart: they fulfil the restricted Pod Security Standard, are replaced without a
//! gap, have enough time to stop, and are selected by their Services, budgets and policies, which
//! select no other pod.
//!
//! The rules of the restricted standard are Kubernetes' own (Pod Security Standards, "Restricted",
//! which includes "Baseline"); each is checked for every pod that is rendered, including that of
//! `helm test`.

use serde_json::{Value, json};

use super::chart::{example, examples, objects, template};
use super::network::has_all;
use super::tools::Tools;

/// What every Deployment has to say, by JSON pointer.
fn rules() -> Vec<(&'static str, Value)> {
    vec![
        ("/spec/strategy/rollingUpdate/maxUnavailable", json!(0)),
        ("/spec/minReadySeconds", json!(5)),
        ("/spec/template/spec/automountServiceAccountToken", json!(false)),
        ("/spec/template/spec/containers/0/securityContext/readOnlyRootFilesystem", json!(true)),
        ("/spec/template/spec/containers/0/livenessProbe/httpGet/path", json!("/alive")),
        ("/spec/template/spec/containers/0/readinessProbe/httpGet/path", json!("/ready")),
        ("/spec/template/spec/containers/0/startupProbe/httpGet/path", json!("/startup")),
    ]
}

/// Kinds of volumes that the restricted standard allows, as keys of a volume.
const VOLUMES: &[&str] = &[
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// What of the restricted standard a pod breaks, in words.
fn restricted(pod: &Value) -> Vec<String> {
    let mut broken = Vec::new();
    let mut must = |holds: bool, rule: &str| {
        if !holds {
            broken.push(rule.to_owned());
        }
    };
    for key in ["hostNetwork", "hostPID", "hostIPC"] {
        must(pod[key] != true, key);
    }
    let of_pod = &pod["securityContext"];
    must(of_pod["sysctls"].is_null(), "sysctls");
    for volume in list(&pod["volumes"]) {
        let keys = volume.as_object().into_iter().flat_map(|volume| volume.keys());
        must(
            keys.filter(|key| *key != "name").all(|key| VOLUMES.contains(&key.as_str())),
            "kinds of volumes",
        );
    }
    for container in ["containers", "initContainers", "ephemeralContainers"]
        .into_iter()
        .flat_map(|key| list(&pod[key]))
    {
        let own = &container["securityContext"];
        let inherited =
            |key: &str| if own[key].is_null() { of_pod[key].clone() } else { own[key].clone() };
        must(inherited("runAsNonRoot") == true, "runAsNonRoot");
        must(inherited("runAsUser") != 0, "runAsUser");
        must(inherited("seccompProfile")["type"] == "RuntimeDefault", "seccompProfile");
        must(own["allowPrivilegeEscalation"] == false, "allowPrivilegeEscalation");
        must(own["privileged"] != true, "privileged");
        must(own["procMount"].is_null(), "procMount");
        must(own["capabilities"]["drop"] == json!(["ALL"]), "capabilities.drop");
        must(
            list(&own["capabilities"]["add"]).iter().all(|it| it == "NET_BIND_SERVICE"),
            "capabilities.add",
        );
        must(list(&container["ports"]).iter().all(|port| port["hostPort"].is_null()), "hostPort");
    }
    broken
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// The pods of an example, each with what it is part of.
fn specs(objects: &[Value]) -> Vec<(&Value, &Value)> {
    let of = |object: &'_ Value| match object["kind"].as_str() {
        Some("Deployment") => Some("/spec/template/spec"),
        Some("Pod") => Some("/spec"),
        _ => None,
    };
    objects.iter().filter_map(|object| Some((object, object.pointer(of(object)?)?))).collect()
}

pub(super) fn standard(tools: &Tools) -> Result<String, String> {
    let mut count = 0;
    for (name, path) in examples()? {
        let objects = objects(tools, &path)?;
        for (object, pod) in specs(&objects) {
            count += 1;
            let broken = restricted(pod);
            if !broken.is_empty() {
                return Err(format!("{name}, {}: {}", object["kind"], broken.join(", ")));
            }
        }
        if !specs(&objects)
            .iter()
            .any(|(object, _)| object["metadata"]["annotations"]["helm.sh/hook"] == "test")
        {
            return Err(format!("{name}: nothing for helm test"));
        }
    }
    Ok(format!("{count} pods"))
}

/// On OpenShift user and groups are those that it assigns, unless that is turned off.
pub(super) fn openshift(tools: &Tools) -> Result<String, String> {
    let values = example("default").to_string_lossy().into_owned();
    let api = ["--api-versions", "security.openshift.io/v1"];
    let key = "global.compatibility.openshift.adaptSecurityContext=disabled";
    for (more, is_set) in [(api.to_vec(), false), ([&api[..], &["--set", key]].concat(), true)] {
        let objects = tools.documents(&template(tools, &values, &more)?)?;
        for (object, pod) in specs(&objects) {
            for key in ["runAsUser", "runAsGroup", "fsGroup"] {
                if pod["securityContext"][key].is_null() == is_set {
                    let kind = &object["kind"];
                    return Err(format!("{kind} with {more:?}: {key} is set: {}", !is_set));
                }
            }
        }
    }
    Ok("user and groups are left out".to_owned())
}

pub(super) fn replaced(tools: &Tools) -> Result<String, String> {
    let all = examples()?;
    for (name, path) in &all {
        let objects = objects(tools, path)?;
        let deployment = objects
            .iter()
            .find(|it| it["kind"] == "Deployment")
            .ok_or_else(|| format!("{name}: no Deployment"))?;
        for (pointer, wanted) in rules() {
            let found = deployment.pointer(pointer);
            if found != Some(&wanted) {
                return Err(format!("{name}: {pointer} is {found:?}, not {wanted}"));
            }
        }
        let pod = &deployment["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        if container.get("lifecycle").is_some() {
            return Err(format!("{name}: no hook is needed"));
        }
        let grace = &pod["terminationGracePeriodSeconds"];
        let wanted = if name == "full" { 200 } else { 37 };
        if *grace != wanted {
            return Err(format!("{name}: terminationGracePeriodSeconds is {grace}, not {wanted}"));
        }
        let resources = &container["resources"];
        if resources["limits"]["memory"].is_null()
            || resources["requests"]["memory"] != resources["limits"]["memory"]
        {
            return Err(format!(
                "{name}: memory is to be requested and limited alike: {resources}"
            ));
        }
        selects(name, &objects, &deployment["spec"]["template"]["metadata"]["labels"])?;
        spares(name, &objects)?;
    }
    Ok(format!("{} examples", all.len()))
}

/// Whether no Service, budget or policy selects the pod of `helm test`: a Service would send
/// clients to it.
fn spares(name: &str, objects: &[Value]) -> Result<(), String> {
    let pod = objects
        .iter()
        .find(|it| it["kind"] == "Pod")
        .ok_or_else(|| format!("{name}: no pod of helm test"))?;
    let labels = &pod["metadata"]["labels"];
    for object in objects {
        let spec = &object["spec"];
        let selectors = [
            &spec["selector"],
            &spec["selector"]["matchLabels"],
            &spec["podSelector"]["matchLabels"],
        ];
        if selectors.into_iter().any(|selector| has_all(selector, labels)) {
            return Err(format!("{name}: the {} selects the pod of helm test", object["kind"]));
        }
    }
    Ok(())
}

/// Whether Services, budgets, policies, monitors and the spread select the very pods that the
/// Deployment makes. Objects that the values add have none of the chart's labels, and select what
/// they like.
fn selects(name: &str, objects: &[Value], labels: &Value) -> Result<(), String> {
    let mut kinds = Vec::new();
    for object in objects {
        let kind = object["kind"].as_str().unwrap_or_default();
        if object["metadata"]["labels"]["helm.sh/chart"].is_null() {
            continue;
        }
        let selectors: Vec<&Value> = match kind {
            "Service" => vec![&object["spec"]["selector"]],
            "PodDisruptionBudget" | "PodMonitor" => {
                vec![&object["spec"]["selector"]["matchLabels"]]
            }
            "NetworkPolicy" => vec![&object["spec"]["podSelector"]["matchLabels"]],
            "Deployment" => {
                let spread = object.pointer("/spec/template/spec/topologySpreadConstraints");
                let spread = spread.and_then(Value::as_array).into_iter().flatten();
                let spread = spread.map(|it| &it["labelSelector"]["matchLabels"]);
                spread.chain([&object["spec"]["selector"]["matchLabels"]]).collect()
            }
            _ => continue,
        };
        kinds.push(kind);
        for selector in selectors {
            if !has_all(selector, labels) {
                return Err(format!("{name}: the {kind} does not select the pods"));
            }
        }
    }
    let closed = ["full", "redis-ha"].contains(&name);
    let wanted = ["Service", "Deployment"]
        .iter()
        .chain(closed.then_some(&["PodDisruptionBudget", "NetworkPolicy"]).into_iter().flatten());
    match wanted.copied().find(|kind| !kinds.contains(kind)) {
        Some(kind) => Err(format!("{name}: no {kind}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(change: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut pod = json!({
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "config", "configMap": {"name": "c"}}],
            "containers": [{
                "ports": [{"containerPort": 6379}],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        });
        change(&mut pod);
        restricted(&pod)
    }

    #[test]
    fn each_rule_of_the_restricted_standard_is_asked() {
        assert_eq!(pod(|_| ()), Vec::<String>::new());
        let own = "/containers/0/securityContext";
        let breaches: &[(&str, &str, Value)] = &[
            ("", "hostNetwork", json!(true)),
            ("", "hostPID", json!(true)),
            ("", "hostIPC", json!(true)),
            ("/securityContext", "sysctls", json!([{}])),
            ("/securityContext", "runAsNonRoot", json!(false)),
            ("/securityContext", "runAsUser", json!(0)),
            ("/securityContext", "seccompProfile", json!({"type": "Unconfined"})),
            (own, "runAsNonRoot", json!(false)),
            (own, "runAsUser", json!(0)),
            (own, "allowPrivilegeEscalation", json!(true)),
            (own, "privileged", json!(true)),
            (own, "procMount", json!("Unmasked")),
        ];
        for (pointer, key, value) in breaches {
            let broken = pod(|pod| pod.pointer_mut(pointer).unwrap()[*key] = value.clone());
            assert_eq!(broken, [*key], "{pointer}");
        }
        assert_eq!(pod(|pod| pod["volumes"][0]["hostPath"] = json!({})), ["kinds of volumes"]);
        assert_eq!(
            pod(|pod| pod["containers"][0]["ports"][0]["hostPort"] = json!(1)),
            ["hostPort"]
        );
        let added = json!({"drop": ["ALL"], "add": ["SYS_ADMIN"]});
        assert_eq!(
            pod(|pod| pod.pointer_mut(own).unwrap()["capabilities"] = added),
            ["capabilities.add"]
        );
        assert_eq!(
            pod(|pod| pod.pointer_mut(own).unwrap()["capabilities"] = json!({})),
            ["capabilities.drop"]
        );
    }
}
