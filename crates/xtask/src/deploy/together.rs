//! Both releases beside each other, with haproxy on and off and with no pods: what each owns,
//! whether the Service that clients use leads to Pointsman's pods, and whether NetworkPolicies let
//! those reach Redis and the sentinels.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use setup::files;

use super::chart::{example, objects, template_with};
use super::network::{connects, has_all};
use super::redis_ha_chart::{Chart, NAMESPACE, compare, name, version};
use super::tools::Tools;

/// The Service that clients of the release use, and the port of Redis and of the sentinels.
pub(super) const SERVICE: &str = "shop-redis-ha-haproxy";
pub(super) const REDIS_PORTS: [u64; 2] = [6379, 26379];

/// What is known about Argo CD's manifests.
const ARGO_CD: &str = include_str!("argo_cd_facts.json");

/// Labels of a Redis pod of the release.
pub(super) fn redis_labels() -> Value {
    json!({"app": "redis-ha", "release": "shop"})
}

/// What the values of the redis-ha release change in each case.
fn cases() -> Vec<(&'static str, Value)> {
    let rule = json!([{"selectors": [
        {"podSelector": {"matchLabels": {"app": "redis-ha-haproxy", "release": "{{ .Release.Name }}"}}}
    ]}]);
    vec![
        ("haproxy on", json!({"haproxy": {"enabled": true}})),
        ("haproxy on without pods", json!({"haproxy": {"enabled": true, "replicas": 0}})),
        (
            "haproxy off",
            json!({"haproxy": {"enabled": false}, "networkPolicy": {"ingressRules": rule}}),
        ),
    ]
}

/// The values of the release as in our example.
pub(super) fn values(tools: &Tools) -> Result<Value, String> {
    let text = files::read(example("redis-ha"))?;
    let documents = tools.documents(&text)?;
    let mut values =
        documents.first().map(|it| it["compat"]["redisHa"]["values"].clone()).unwrap_or_default();
    // A client that the NetworkPolicy of haproxy admits, and ours has to admit as well.
    let client = json!([{"selectors": [{"podSelector": {"matchLabels": {"app": "client"}}}]}]);
    values["haproxy"]["networkPolicy"]["ingressRules"] = client;
    values["redisPassword"] = json!("any");
    values["sentinel"]["password"] = json!("any");
    Ok(values)
}

/// Merges what a case changes into the values.
pub(super) fn merged(into: &mut Value, change: &Value) {
    match (into.as_object_mut(), change.as_object()) {
        (Some(into), Some(change)) => {
            for (key, value) in change {
                merged(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        _ => *into = change.clone(),
    }
}

/// The values of our chart for a redis-ha release with these values.
pub(super) fn beside(values: &Value) -> Value {
    let compat = json!({"redisHa": {"enabled": true, "release": "shop", "values": values}});
    json!({"image": {"repository": "registry.example.com/pointsman"}, "compat": compat})
}

/// The objects of our chart for a redis-ha release with these values.
pub(super) fn ours(tools: &Tools, values: &Value, more: &[&str]) -> Result<Vec<Value>, String> {
    tools.documents(&template_with(tools, &beside(values), more)?)
}

pub(super) fn check(tools: &Tools) -> Result<String, String> {
    let chart = Chart::get(tools)?;
    let plain = values(tools)?;
    let mut facts = 0;
    for (case, change) in cases() {
        let mut values = plain.clone();
        merged(&mut values, &change);
        if tools.redis_ha.is_some() {
            facts += compare(tools, &values).map_err(|why| format!("{case}: facts: {why}"))?;
        }
        let theirs = chart.render(tools, &values)?;
        let ours = ours(tools, &values, &["--set", "networkPolicy.enabled=true"])?;
        faults_beside(&theirs, &ours).map_err(|why| format!("{case}: {why}"))?;
    }
    let argo_cd = argo_cd(tools)?;
    cut_off(tools, &plain)?;
    let known =
        if facts > 0 { format!(", {facts} facts hold in the chart itself") } else { String::new() };
    Ok(format!(
        "{} cases with redis-ha {}{known}, and Argo CD {argo_cd}",
        cases().len(),
        version()?
    ))
}

/// Our example for Argo CD beside its manifests; their version.
fn argo_cd(tools: &Tools) -> Result<String, String> {
    let facts: Value =
        serde_json::from_str(ARGO_CD).map_err(|error| format!("argo_cd_facts.json: {error}"))?;
    let theirs = facts["objects"].as_array().cloned().unwrap_or_default();
    let service = facts["service"].as_str().unwrap_or_default();
    let ours = objects(tools, &example("argo-cd"))?;
    faults(&theirs, &ours, service, &facts["redis"]).map_err(|why| format!("Argo CD: {why}"))?;
    Ok(facts["version"].as_str().unwrap_or_default().to_owned())
}

/// What is wrong with the two charts beside each other.
pub(super) fn faults_beside(theirs: &[Value], ours: &[Value]) -> Result<(), String> {
    faults(theirs, ours, SERVICE, &redis_labels())
}

/// What is wrong with our release beside another one that has this Service.
fn faults(theirs: &[Value], ours: &[Value], service: &str, redis: &Value) -> Result<(), String> {
    let owned = |list: &[Value]| list.iter().map(name).collect::<BTreeSet<_>>();
    if let Some(both) = owned(theirs).intersection(&owned(ours)).next() {
        return Err(format!("both releases own {both}"));
    }
    let all: Vec<&Value> = theirs.iter().chain(ours).collect();
    let deployment = ours.iter().find(|it| it["kind"] == "Deployment").ok_or("no Deployment")?;
    let pod = &deployment["spec"]["template"];
    let labels = &pod["metadata"]["labels"];
    let found = all.iter().find(|it| it["kind"] == "Service" && it["metadata"]["name"] == service);
    leads(found.ok_or_else(|| format!("there is no Service {service}"))?, pod)?;
    let policies: Vec<&Value> =
        all.iter().copied().filter(|it| it["kind"] == "NetworkPolicy").collect();
    for port in REDIS_PORTS {
        if !connects(&policies, NAMESPACE, labels, redis, port) {
            return Err(format!("a NetworkPolicy cuts the proxy off from port {port} of Redis"));
        }
    }
    let budgets = all.iter().filter(|it| it["kind"] == "PodDisruptionBudget");
    let budgets =
        budgets.filter(|it| has_all(&it["spec"]["selector"]["matchLabels"], labels)).count();
    // Kubernetes evicts no pod that two budgets select.
    if budgets > 1 {
        Err(format!("{budgets} PodDisruptionBudgets select the pods"))
    } else {
        Ok(())
    }
}

/// Whether a Service selects a pod, and every port of it leads to a port that the pod has.
pub(super) fn leads(service: &Value, template: &Value) -> Result<(), String> {
    if !has_all(&service["spec"]["selector"], &template["metadata"]["labels"]) {
        return Err(format!("{} does not select the pods", name(service)));
    }
    let containers = template["spec"]["containers"].as_array().into_iter().flatten();
    let ports: Vec<&Value> =
        containers.flat_map(|it| it["ports"].as_array().into_iter().flatten()).collect();
    for port in service["spec"]["ports"].as_array().into_iter().flatten() {
        let target = &port["targetPort"];
        if !ports.iter().any(|it| it["name"] == *target || it["containerPort"] == *target) {
            return Err(format!(
                "port {} of {} leads to no port of the pods",
                port["name"],
                name(service)
            ));
        }
    }
    Ok(())
}

/// Without a rule for the proxy, haproxy off is refused with the rule to add.
fn cut_off(tools: &Tools, plain: &Value) -> Result<(), String> {
    let mut values = plain.clone();
    merged(&mut values, &json!({"haproxy": {"enabled": false}}));
    match ours(tools, &values, &[]) {
        Ok(_) => {
            Err("Redis would be cut off by its NetworkPolicy, and that was accepted".to_owned())
        }
        Err(why)
            if why.contains("matchLabels: {\"app\":\"redis-ha-haproxy\",\"release\":\"shop\"}") =>
        {
            Ok(())
        }
        Err(why) => Err(format!("refused without the rule to add: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(kind: &str, name: &str, spec: &Value) -> Value {
        json!({"kind": kind, "metadata": {"name": name}, "spec": spec})
    }

    fn ours() -> Vec<Value> {
        let labels = json!({"app": "proxy"});
        let template = json!({
            "metadata": {"labels": labels},
            "spec": {"containers": [{"ports": [{"name": "redis", "containerPort": 6379}]}]},
        });
        let budget = json!({"selector": {"matchLabels": labels}});
        let deployment = object("Deployment", "proxy", &json!({"template": template}));
        vec![deployment, object("PodDisruptionBudget", "first", &budget)]
    }

    fn theirs() -> Vec<Value> {
        let port = json!({"name": "redis", "targetPort": "redis"});
        let service = json!({"selector": {"app": "proxy"}, "ports": [port]});
        let policy = json!({
            "podSelector": {"matchLabels": redis_labels()},
            "policyTypes": ["Ingress"],
            "ingress": [{}],
        });
        vec![object("Service", SERVICE, &service), object("NetworkPolicy", "policy", &policy)]
    }

    /// What is said after a change of both.
    fn said(change: impl FnOnce(&mut Vec<Value>, &mut Vec<Value>)) -> String {
        let (mut theirs, mut ours) = (theirs(), ours());
        change(&mut theirs, &mut ours);
        faults_beside(&theirs, &ours).err().unwrap_or_default()
    }

    #[test]
    fn finds_faults_of_both_releases() {
        assert_eq!(said(|_, _| ()), "");
        assert!(said(|theirs, ours| ours.push(theirs[0].clone())).contains("both releases own"));
        assert!(said(|theirs, _| drop(theirs.remove(0))).contains("there is no Service"));
        let closed = said(|theirs, _| theirs[1]["spec"]["ingress"] = json!([]));
        assert!(closed.contains("cuts the proxy off"), "{closed}");
        let elsewhere = |theirs: &mut Vec<Value>, target| {
            theirs[0]["spec"]["ports"][0]["targetPort"] = json!(target);
        };
        assert!(said(|theirs, _| elsewhere(theirs, "other")).contains("leads to no port"));
        let twice = said(|_, ours| {
            let mut second = ours[1].clone();
            second["metadata"]["name"] = json!("second");
            ours.push(second);
        });
        assert!(twice.contains("PodDisruptionBudgets select"), "{twice}");
    }
}
