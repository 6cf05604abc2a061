//! Whether NetworkPolicies admit a connection between two pods of one namespace.
//!
//! The rules are Kubernetes' own: policies add up, a pod that no policy selects for a direction is
//! open in it, and a connection needs the egress of one side and the ingress of the other.
//! Only pods of one namespace are compared, without addresses and named ports.

use serde_json::{Map, Value, json};

/// Label of every namespace that Kubernetes sets itself.
const NAMESPACE: &str = "kubernetes.io/metadata.name";

/// Whether a label selector matches. A selector that is not there matches nothing.
pub(super) fn matches(selector: &Value, labels: &Value) -> bool {
    let Some(selector) = selector.as_object() else { return false };
    let wanted = selector.get("matchLabels").and_then(Value::as_object);
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    wanted.into_iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
        && expressions.into_iter().flatten().all(|it| holds(it, labels))
}

fn holds(expression: &Value, labels: &Value) -> bool {
    let found = expression["key"].as_str().and_then(|key| labels.get(key));
    let is_listed = || {
        let values = expression["values"].as_array().into_iter().flatten();
        values.into_iter().any(|value| Some(value) == found)
    };
    match expression["operator"].as_str() {
        Some("In") => is_listed(),
        Some("NotIn") => !is_listed(),
        Some("Exists") => found.is_some(),
        Some("DoesNotExist") => found.is_none(),
        _ => false,
    }
}

/// Whether the labels of a plain selector, as in a Service, are all there.
pub(super) fn has_all(selector: &Value, labels: &Value) -> bool {
    let selector = selector.as_object().cloned().unwrap_or_else(Map::new);
    !selector.is_empty() && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Whether a pod may connect to a port of another one.
pub(super) fn connects(
    policies: &[&Value],
    namespace: &str,
    from: &Value,
    to: &Value,
    port: u64,
) -> bool {
    admits(policies, namespace, "Egress", from, to, port)
        && admits(policies, namespace, "Ingress", to, from, port)
}

fn admits(
    policies: &[&Value],
    namespace: &str,
    direction: &str,
    subject: &Value,
    peer: &Value,
    port: u64,
) -> bool {
    let (rules, peers) = if direction == "Egress" { ("egress", "to") } else { ("ingress", "from") };
    let mut selecting = policies.iter().map(|it| &it["spec"]).filter(|spec| {
        let types = spec["policyTypes"].as_array();
        types.is_some_and(|types| types.iter().any(|it| it == direction))
            && matches(&spec["podSelector"], subject)
    });
    let mut is_open = true;
    let namespace = json!({ NAMESPACE: namespace });
    let admitted =
        selecting.any(|spec| {
            is_open = false;
            spec[rules].as_array().into_iter().flatten().any(|rule| {
                has_port(&rule["ports"], port) && has_peer(&rule[peers], peer, &namespace)
            })
        });
    is_open || admitted
}

fn has_port(ports: &Value, port: u64) -> bool {
    match ports.as_array() {
        Some(ports) if !ports.is_empty() => ports.iter().any(|it| {
            let is_tcp = it["protocol"].as_str().is_none_or(|protocol| protocol == "TCP");
            let first = it["port"].as_u64();
            let last = it["endPort"].as_u64().or(first);
            is_tcp
                && (first.is_none() && it["port"].is_null()
                    || first <= Some(port) && Some(port) <= last)
        }),
        _ => true,
    }
}

fn has_peer(peers: &Value, labels: &Value, namespace: &Value) -> bool {
    match peers.as_array() {
        Some(peers) if !peers.is_empty() => peers.iter().any(|peer| {
            let (pod, space) = (&peer["podSelector"], &peer["namespaceSelector"]);
            let is_pod = pod.is_null() || matches(pod, labels);
            let is_space = space.is_null() || matches(space, namespace);
            (pod.is_object() || space.is_object()) && is_pod && is_space
        }),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(selected: &str, direction: &str, rules: &Value) -> Value {
        let (list, types) = (direction.to_lowercase(), [direction]);
        let selector = json!({"matchLabels": {"app": selected}});
        json!({"spec": {"podSelector": selector, "policyTypes": types, list: rules}})
    }

    fn is_connected(policies: &[&Value]) -> bool {
        connects(policies, "ns", &json!({"app": "proxy"}), &json!({"app": "redis"}), 6379)
    }

    #[test]
    fn connects_pods_unless_a_policy_excludes_them() {
        let peer = |name: &str| json!([{"podSelector": {"matchLabels": {"app": name}}}]);
        let closed = policy("redis", "Ingress", &json!([]));
        let open = policy(
            "redis",
            "Ingress",
            &json!([{"from": peer("proxy"), "ports": [{"port": 6379}]}]),
        );
        let other = policy(
            "redis",
            "Ingress",
            &json!([{"from": peer("proxy"), "ports": [{"port": 26379}]}]),
        );
        let stranger = policy("redis", "Ingress", &json!([{"from": peer("stranger")}]));
        let unselected = policy("stranger", "Ingress", &json!([]));
        let egress = policy("proxy", "Egress", &json!([{"ports": [{"port": 53}]}]));
        for (policies, wanted) in [
            (vec![], true),
            (vec![&unselected], true),
            (vec![&closed], false),
            (vec![&open], true),
            (vec![&closed, &open], true),
            (vec![&other], false),
            (vec![&stranger], false),
            (vec![&open, &egress], false),
        ] {
            assert_eq!(is_connected(&policies), wanted, "{policies:?}");
        }
    }

    #[test]
    fn peers_match_by_namespace_and_expression() {
        let with =
            |peer: Value| is_connected(&[&policy("redis", "Ingress", &json!([{"from": [peer]}]))]);
        assert!(with(json!({"namespaceSelector": {}})));
        assert!(!with(
            json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "x"}}})
        ));
        assert!(!with(json!({"ipBlock": {"cidr": "0.0.0.0/0"}})));
        let expression = json!({"key": "app", "operator": "In", "values": ["a", "proxy"]});
        assert!(with(json!({"podSelector": {"matchExpressions": [expression]}})));
        let expression = json!({"key": "app", "operator": "DoesNotExist"});
        assert!(!with(json!({"podSelector": {"matchExpressions": [expression]}})));
    }
}
